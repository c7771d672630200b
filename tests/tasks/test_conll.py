import json

import pytest

from albert_tf.tasks import conll
from tests.kit import tiny

COLUMNS = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG\r
rejects\tVBZ \t B-VP\tO

\x20\t
caf\u00e9\xa0x JJ B-NP O
\u200b \u2028 \x85 O
-DOCSTART- -X- -X- O
Peter NNP B-NP B-PER"""
WORDS = [("EU", "rejects"), ("caf\u00e9\xa0x", "\u200b"), ("Peter",)]
TAGS = [("B-ORG", "O"), ("O", "O"), ("B-PER",)]
CLASSES = ("O", "B-ORG", "B-PER")


def read(path, **arguments):
    examples = conll.read_sentences(str(path), CLASSES, **arguments)
    labels = [each.labels and tuple(CLASSES[i] for i in each.labels) for each in examples]
    return [each.words for each in examples], labels, [each.guid for each in examples]


OBJECTS = [{"tokens": w, "labels": t} for w, t in zip(WORDS, TAGS, strict=True)]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        # Line ends and columns are ASCII's alone: a word may hold any other white space.
        ("train.conll", COLUMNS, ["3", "7", "10"]),
        ("train.jsonl", "\n\n".join(map(json.dumps, OBJECTS)), ["1", "3", "5"]),
    ],
)
def test_sentences_have_the_lines_they_begin_in(tmp_path, name, content, lines):
    path = tiny.write(tmp_path / name, content.encode())
    assert read(path) == (WORDS, TAGS, lines)
    assert conll.find_tags(path) == CLASSES


NUMBERED = """\
1\tI\tPRON\tO
2-3\tsaws\t_\t_
2\tsaw\tVERB\tO
2.1\tdid\tAUX\tO
3\tAnna\tPROPN\tB-PER

1\t#\tSYM\tO
"""
SAW = [("I", "saw", "Anna"), ("#",)], ["O O B-PER", "O"]


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        # MultiCoNER's comments have as many columns as words have.
        ("# id 7d\tdomain=x\nAnna _ _ B-PER\n# _ _ O\n\n# id 7e\tdomain=x\n# _ _ O\n",
         [("Anna", "#"), ("#",)], ["B-PER O", "O"]),
        ("# id 7d\tdomain=x\nAnna\t_\t_\tB-PER\n\n# \t_\t_\tX\n",
         [("Anna",), ("#",)], ["B-PER", "X"]),
        ("#\tO\n#\tSYM\n\n#1\tO\n\n# new\nb\tO\n",
         [("#", "#"), ("#1",), ("b",)], ["O SYM", "O", "O"]),
        ("# text = #\n# O\n1 O\n\n# text =\n1 O\n", [("#", "1"), ("1",)], ["O O", "O"]),
        ("# a = O\n\n#\n# b c\na NN I O\n# NN I O\n", [("a", "#")], ["O O"]),
        ("#begin document (a); part 000\na O\n#end document\n#begin O\n", [("a",), ("#begin",)],
         ["O", "O"]),
        ("a O\n# SYM\n", [("a", "#")], ["O SYM"]),
        # The only word begins with the sign, and still tells what is a comment.
        ("# id = 1\n#nlp O\n", [("#nlp",)], ["O"]),
        ("#\na\n#\n\n# text = a\n#a\n", [("#", "a", "#"), ("#a",)], None),
        # GermEval's.
        ("#\thttp://a\t[2009]\n" + NUMBERED, *SAW),
        (NUMBERED, *SAW),
        (NUMBERED.replace("\t", " "), *SAW),
        # These are words.
        ("1 CD O\n3 CD O\n", [("1", "3")], ["O O"]),
        ("1 CD O\n\n1 CD O\n", [("1",), ("1",)], ["O", "O"]),
        ("1 O\n2 O\n", [("1", "2")], ["O O"]),
    ],
)  # fmt: skip
def test_comments_and_numbers_of_words_are_no_words(tmp_path, content, words, tags):
    path = tmp_path / "a.conll"
    path.write_text(content)
    classes = ("O", "B-PER", "SYM", "X")
    found = conll.read_sentences(str(path), classes, labelled=False)
    assert [each.words for each in found] == words
    if tags:
        assert [" ".join(classes[i] for i in each.labels) for each in found] == tags


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "EU\nrejects\n\nPeter\n"), ("a.JSON", '{"tokens": ["EU"]}\n{"tokens": ["a b"]}')],
)
def test_a_file_to_predict_needs_no_labels(name, content, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    words, labels, _ = read(path, labelled=False)
    assert len(words) == 2 and labels == [None, None]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # A type without an I- there may have one elsewhere.
        ({"B-b": 1, "I-b": 2, "B-a": 1}, ("O", "B-a", "B-b", "I-a", "I-b")),
        ({"S-a": 1, "O": 7}, ("O", "S-a")),
        # In IOB1 a B- is rare.
        ({"I-a": 1, "O": 7}, ("O", "I-a")),
        ({"X": 2, "NOUN": 9, "DET": 3}, ("NOUN", "DET", "X")),
        ({"B": 2, "I": 9, "O": 3}, ("O", "B", "I")),
        ({"B-a": 2, "x": 9}, ("x", "B-a")),
    ],
)
def test_the_order_of_tags(counts, expected):
    assert conll.order_tags(counts, "f") == expected


@pytest.mark.parametrize(
    ("tags", "odd"),
    [("O B-a x", "x"), ("O B I", "B"), ("O B_a", "B_a"), ("O a-B a-I", "a-B"), ("O M-a x", "M-a"),
     ("NOUN X", None), ("x y-z", None), ("O B-a", None)],
)  # fmt: skip
def test_plain_tags_that_look_like_entities_are_told(tags, odd, caplog):
    conll.order_tags(dict.fromkeys(tags.split(), 1), "f")
    said = [record.getMessage() for record in caplog.records]
    assert [each.rpartition(" ")[2] for each in said] == [odd] * bool(odd)


CONLLU = """\
# text = I saw dogs.
1\tI\tI\tPRON\t_\t_\t2\tnsubj\t_\t_
2-3\tsaws\t_\t_\t_\t_\t_\t_\t_\t_
2\tsaw\tsee\tVERB\t_\t_\t0\troot\t_\t_
2.1\tdid\tdo\tAUX\t_\t_\t_\t_\t_\t_
3\tdogs\tdog\tNOUN\t_\t_\t2\tobj\t_\t_

1\tdogs\tdog\tNOUN\t_\t_\t0\troot\t_\t_
"""


def test_conllu_is_words_and_a_column(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    first, second = conll.conllu_sentences(str(path), "upos")
    assert first == (("I", "saw", "dogs"), ("PRON", "VERB", "NOUN"))
    assert second == (("dogs",), ("NOUN",))
    assert next(conll.conllu_sentences(str(path), "deprel"))[1] == ("nsubj", "root", "obj")
    # The words to be tagged are these, too, with comments or without.
    for content in (CONLLU, CONLLU.partition("\n")[2]):
        path.write_text(content)
        tags = conll.find_tags(str(path))
        found = conll.read_sentences(str(path), tags)
        assert [(x.words, tuple(tags[i] for i in x.labels)) for x in found] == [first, second]
