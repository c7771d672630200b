import json
import re

import pytest

from albert_tf.tasks import conll
from albert_tf.tasks.table import TableSettings
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
        # Only ASCII white space ends lines and separates columns: a word may hold any other.
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
        # These numbers are words.
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
    ("counts", "expected"),
    [
        # A type without an I- tag in this file may have one in another.
        ({"B-b": 1, "I-b": 2, "B-a": 1}, ("O", "B-a", "B-b", "I-a", "I-b")),
        ({"S-a": 1, "O": 7}, ("O", "S-a")),
        # In IOB1, B- tags are rare.
        ({"I-a": 1, "O": 7}, ("O", "I-a")),
        ({"X": 2, "NOUN": 9, "DET": 3}, ("NOUN", "DET", "X")),
        ({"B": 2, "I": 9, "O": 3}, ("O", "B", "I")),
        ({"B-a": 2, "x": 9}, ("x", "B-a")),
        # Other spellings and schemes: M- and L- are I- and E-, U- and W- are S-.
        ({"b-per": 1, "i-per": 2, "o": 7}, ("O", "B-per", "I-per")),
        ({"B_a": 1, "O": 7}, ("O", "B-a")),
        ({"x-y_b": 1, "x-y_i": 2, "o": 7}, ("O", "B-x-y", "I-x-y")),
        ({"B-a": 1, "L-a": 2, "u-b": 3}, ("O", "B-a", "B-b", "E-a", "E-b", "S-a", "S-b")),
        ({"B-a": 1, "M-a": 2, "W-a": 3, "O": 4}, ("O", "B-a", "I-a", "S-a")),
        # Without O or a beginning tag, the letters have another meaning.
        ({"noun-s": 1, "verb-s": 2}, ("verb-s", "noun-s")),
    ],
)
def test_the_order_of_tags(counts, expected):
    assert conll.order_tags(counts, "f") == expected


@pytest.mark.parametrize(
    ("tags", "odd"),
    [("O B-a x", "x"), ("O B I", "B"), ("O B:a", "B:a"), ("O M-a x", "x"), ("O (a*) b", "(a*)"),
     ("o b-a X", "X"), ("n-s v-s", "n-s"), ("B-a i-A", "A, a"), ("NOUN X", None), ("x y-z", None),
     ("noun verb", None), ("O B-a", None), ('"O" "B-a"', '"O"')],
)  # fmt: skip
def test_plain_tags_that_look_like_entities_are_told(tags, odd, caplog):
    conll.order_tags(dict.fromkeys(tags.split(), 1), "f")
    said = [record.getMessage() for record in caplog.records]
    assert [each.endswith(f" {odd}") for each in said] == [True] * bool(odd)


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
    expected = [(("I", "saw", "dogs"), ("PRON", "VERB", "NOUN")), (("dogs",), ("NOUN",))]
    # With comments or without.
    for content in (CONLLU, CONLLU.partition("\n")[2], CONLLU.replace("# ", "#")):
        path.write_text(content)
        tags = conll.find_tags(str(path))
        found = conll.read_sentences(str(path), tags)
        assert [(x.words, tuple(tags[i] for i in x.labels)) for x in found] == expected


# --- which column is which ------------------------------------------------------------------

TREE = "1\tiz\tiz\tADP\t{0}\t_\t2\tcase\t_\tGloss=of it\n2\t26 000\t26\tNUM\tCd\t_\t0\troot\t_\t_\n"
ONTONOTES = """\
bc/a/00 0 0 Tom NNP (TOP* - - - Sp (PERSON) * (12)
bc/a/00 0 1 ran VBD * run 01 1 - * (V*) -

bc/a/00 0 0 New NNP * - - - - (GPE* (3
bc/a/00 0 1 York NNP *) - - - - *) 3)
bc/a/00 0 2 won VBD * - - - - * -
"""
IN_2012 = "Tom/B-PERSON ran/O|New/B-GPE York/I-GPE won/O"
TOM = "Tom/B-PER ran/O"


def tagged(name, content, folder, **settings):
    """Returns a file's words and tags, joined; the tag set is found in the file itself."""
    path = tiny.write(folder / name, content.encode())
    settings = TableSettings(**settings)
    tags = conll.find_tags(path, settings)
    found = conll.read_sentences(path, tags, settings=settings)
    pairs = (zip(each.words, each.labels, strict=True) for each in found)
    return "|".join(" ".join(f"{word}/{tags[i]}" for word, i in each) for each in pairs)


@pytest.mark.parametrize(
    ("content", "expected", "settings"),
    [
        # A word may hold spaces where a tab follows it, and several tabs may align columns.
        ("New York\tB-LOC\nis O\n\nOslo \t B-LOC\n", "New York/B-LOC is/O|Oslo/B-LOC", {}),
        ("Elizabeth\tB-PER\nran\t\tO\n", "Elizabeth/B-PER ran/O", {}),
        ("Tom\tNNP\tB-PER\nran\t\tO\n", TOM, {}),
        ("\tTom\tB-PER\n\tran\tO\n", TOM, {}),
        (TREE.format("IN"), "iz/ADP 26 000/NUM", {}),
        (TREE.format("IN"), "iz/IN 26 000/Cd", {"label_column": "xpos"}),
        (TREE.format("IN"), "iz/case 26 000/root", {"label_column": "8"}),
        ("0 Tom B-PER\n1 ran O\n\n2 In O\n", f"{TOM}|In/O", {}),
        (ONTONOTES, IN_2012, {}),
        (f"#begin document (bc/a/00); part 000\n{ONTONOTES}#end document\n", IN_2012, {}),
        (ONTONOTES.replace(" ", "\t"), IN_2012, {}),
        (ONTONOTES.replace(" ", "  "), "Tom/NNP ran/VBD|New/NNP York/NNP won/VBD",
         {"label_column": "5"}),
        ("Tom (PER*)\nran *\n\nNew (LOC*\nYork *)\n", f"{TOM}|New/B-LOC York/I-LOC", {}),
        ("ha UH O\nha UH O\nha UH B-X\n", "ha/O ha/O ha/B-X", {}),
        ("B-PER\tTom\nO\tran\n", TOM, {"text_column": "2", "label_column": "1"}),
        ("d Tom B-PER\nd ran O\n", TOM, {"text_column": "2"}),
        # The Penn Treebank's tag of "#".
        ("# #\na DT\n\n# #\n", "#/# a/DT|#/#", {}),
        # A header, once or above each part, is no word; it names columns.
        ("Word\tTag\n\nTom\tB-PER\nword\ttag\nran\tO\n", "Tom/B-PER|ran/O", {}),
        ("id token ner pos\n9 Tom B-PER NNP\n7 ran O VBD\n", TOM, {}),
        ("id token ner pos\n9 Tom B-PER NNP\n7 ran O VBD\n", "Tom/NNP ran/VBD",
         {"label_column": "POS"}),
        ("sentence_id words labels\n1 Tom B-PER\n1 ran O\n2 In O\n3 In O\n",
         f"{TOM}|In/O|In/O", {}),
        ("\tword\ttag\n0\tTom\tB-PER\n1\tran\tO\n", TOM, {}),
        ("form pos\nof pos\nTom NN\n", "form/pos of/pos Tom/NN", {}),
        # All schemes become one, and ids become their names.
        ("Tom per-U\nNew loc-B\nYork loc-L\nran o\n", "Tom/S-per New/B-loc York/E-loc ran/O", {}),
        ("Tom 2\nran 0\n", TOM, {"label_names": ("O", "I-PER", "B-PER")}),
    ],
)  # fmt: skip
def test_columns_are_told_by_the_whole_file(content, expected, settings, tmp_path):
    assert tagged("a.conll", content, tmp_path, **settings) == expected


@pytest.mark.parametrize("cut", [",", "\t"])
def test_a_number_in_the_first_line_of_a_sentence_is_enough(cut, tmp_path):
    rows = ("Sentence #,Word,Tag", "Sentence: 1,Tom,B-PER", ",#,O", "Sentence: 2,#,O", ",ran,O")
    content = "\n".join(row.replace(",", cut) for row in rows)
    found = tagged("a.csv" if cut == "," else "a.tsv", content, tmp_path)
    assert found == "Tom/B-PER #/O|#/O ran/O"


@pytest.mark.parametrize(
    ("row", "expected", "settings"),
    [
        ({"words": ["Tom", "ran"], "tags": [2, "0"]}, TOM,
         {"label_names": ("O", "I-PER", "B-PER")}),
        ({"tokens": ["Tom", "ran"], "labels": [0, 1]}, "Tom/1 ran/0", {"label_names": ("1", "0")}),
        ({"words": ["Tom", "ran"], "labels": ["x", "y"], "mine": ["B-PER", "O"]}, TOM,
         {"label_column": "mine"}),
        # Spans of annotation tools count characters; white space at their ends is not part of them.
        ({"text": "\U0001f600 New  York, ran", "label": [[1, 11, "LOC"], [2, 11, "LOC"]]},
         "\U0001f600/O New/B-LOC York/I-LOC ,/O ran/O", {}),
        ({"text": ["Tom", "ran"], "label": ["B-PER", "O"]}, TOM, {}),
        ({"text": "Tom ran", "entities": [{"label": "PER", "start_offset": 0, "end_offset": 4}]},
         TOM, {}),
        ({"text": "Tom ran", "spans": [{"start": 0, "end": 3, "text": "Tom", "labels": ["PER"]}]},
         TOM, {}),
    ],
)  # fmt: skip
def test_objects_have_tags_ids_or_spans(row, expected, settings, tmp_path):
    rows = json.dumps(row) + "\n" + json.dumps({**row, "id": 7})
    assert tagged("a.jsonl", rows, tmp_path, **settings) == f"{expected}|{expected}"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "EU\nrejects\n\nPeter\n"), ("a.JSON", '{"tokens": ["EU"]}\n{"tokens": ["a b"]}'),
     ("a.jsonl", '{"text": "Tom ran."}'), ("a.conll", "Tom NNP -\nran VBD -\n"),
     ("a.conllu", TREE.replace("ADP", "_").replace("NUM", "_"))],
)  # fmt: skip
def test_a_file_to_predict_needs_no_labels(name, content, tmp_path):
    assert {*read(tiny.write(tmp_path / name, content), labelled=False)[1]} == {None}


def test_what_was_found_is_a_line_of_the_log(tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    assert tagged("a.conll", "Tom\tNNP\tB-PER\nran\tVBD\tO\na\tx\tO\n", tmp_path)
    (said,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"a.conll: .*column 1.*column 3 of 3.*tabs; .*entities: O 2, B-PER 1$", said)


def test_exchanged_columns_of_plain_tags_are_told(tmp_path, caplog):
    tagged("a.conll", "NOUN dog\nVERB ran\nNOUN cat\n", tmp_path)
    assert "text_column" in caplog.text
