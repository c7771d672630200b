"""Refusals by readers of data, tasks and the preprocessor: each names the place in one line."""

import functools
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.tasks import classification, conll, glue, race, squad_text, table
from albert_tf.tasks.table import TableSettings
from tests.kit import tiny
from tests.kit.files import refused

TEXT = TableSettings(text_column="review", label_column="mood")
PAIR = TableSettings(text_column="first", text_pair_column="second", label_column="score")
CHOICE = TableSettings(text_column="p", label_column="answer", choice_columns=("1", "b"))
SEVERAL, BITS = TableSettings(), TableSettings(label_columns=("a", "b"))
TWO_NAMES = TableSettings(label_column="a,b")
READERS = {
    "texts": lambda path: table.read_texts(path, TEXT, ("a", "b")),
    "numbers": lambda path: table.read_texts(path, PAIR, ()),
    "classes": lambda path: table.find_labels(path, TEXT),
    "choices": lambda path: table.read_choices(path, CHOICE),
    "several": lambda path: table.read_texts(path, SEVERAL, ("art", "law", "war"), several=True),
    "sets": lambda path: table.find_labels(path, SEVERAL, several=True),
    "ignoring": lambda path: table.find_labels(path, TableSettings(ignored_label=("-1",))),
    "named": lambda path: table.read_texts(path, TableSettings(label_names=("1", "2")), ("1", "2")),
    "columns": lambda path: table.read_texts(path, BITS, ("a", "b"), several=True),
    "other columns": lambda path: table.read_texts(path, BITS, ("a", "c"), several=True),
    "one 1": lambda path: table.read_texts(path, BITS, ("a", "b")),
    "tags": lambda path: conll.read_sentences(path, ("O", "B-a"), labelled=False),
    "tag set": conll.find_tags,
    "names": lambda path: conll.find_tags(path, TableSettings(label_names=("O", "B-a"))),
    "tagged": lambda path: conll.read_sentences(path, ("O",)),
    "squad": squad_text.read_squad,
    "race": lambda path: race.read_race(path.partition("/RACE")[0], "dev", preprocess=str),
}
for _name in ("cola", "qqp", "rte", "sst-2", "sts-b", "wnli"):
    READERS[_name] = functools.partial(
        lambda name, path: glue.read_glue(name, pathlib.Path(path).parents[1], "train"), _name
    )


def rows(*values: object) -> str:
    return "\n".join(json.dumps({"text": "a b", "label": value}) for value in values)


def cells(*texts: str) -> str:
    return "text,label\n" + "".join(f'a,"{text}"\n' for text in texts)


def questions(*given: object) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": "Cats sleep.", "qas": given}]}]})


def answer(**changes: object) -> str:
    answers = [{"text": "Cats", "answer_start": 0, **changes}]
    return questions({"id": "q", "question": "who?", "answers": answers})


def passages(**changes: object) -> str:
    options = [["Tom", "Ann", "Bob", "Eve"], ["cat", "Tom", "dog", "pig"]]
    first = {"id": "7", "article": "Tom.", "questions": ["Who?", "_?"], "options": options}
    first["answers"] = ["A", "D"]
    return json.dumps(first) + "\n" + json.dumps({**first, "id": "8", **changes})


QUESTION = {"id": "q", "question": "who?"}
BLANKS = "\t_\tX\t_\t_\t_\t_\t_\t_\n"
WORDS = f"1\tthe{BLANKS}2\tcat{BLANKS}\n"
IN_2012 = "d 0 0 Tom N (T* - - - Sp (X) a\n\n"
QQP = "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n1\tc\td\te\t0\n"
WNLI = "index\tsentence1\tsentence2\tlabel\n7\ta\tb\t1\n8\ta\tb\t1\n7\tc\td\t0\n"
SCORES = "first,second,score\nx,y,1\nx,y,"
LONE = r'{"review": "\\ud83d \ud83d\ude00 \uDe00"}'  # The last is a lone surrogate.
# A reader, the name of its file, the content, the wrong line (0: none), and nouns of the message.
FILES = [
    ("texts", "t.txt", "a", 0, "ends in .csv, .tsv, .jsonl, .json, .parquet"),
    ("texts", "t.csv", "review,mood\n", 0, "no examples"),
    ("texts", "t.csv", "text,mood\nx,a\n", 1, "'review'"),
    ("texts", "t.csv", "review,mood,mood\nx,a,b\n", 1, "'mood', each once"),
    ("texts", "t.csv", "review,mood\nx,a\nx,y,b\n", 3, "2 cells (review, mood), got 3"),
    ("texts", "t.csv", 'review,mood\n"x\ny",a\n,b\n', 4, "'review'"),
    ("texts", "t.csv", 'review,mood\nx,a\n"y,b\nz,a\n', 3, "not a row"),
    ("texts", "t.csv", "review,mood\rx,a\ry,b\r", 1, "carriage return"),
    ("texts", "t.csv", "review,mood\nx,a\nx,c\n", 3, "'c'"),
    ("texts", "t.tsv", b"review\tmood\nx\ta\n\xff\tb\n", 3, "UTF-8"),
    ("texts", "t.tsv", "review\tmood\nx\ta\ry\tb\r", 2, "carriage return"),
    ("texts", "t.jsonl", LONE, 1, "at character 33"),
    ("texts", "t.jsonl", '{"review": "x"}\r{"review": "y"}\r', 1, "carriage return"),
    ("texts", "t.json", '{\n"review": "x"\n}\n', 1, "JSON"),
    ("texts", "t.json", '[{"review": "x", "mood": "a"}]', 1, "object"),
    ("texts", "t.jsonl", '{"review": null, "mood": "a"}', 1, "'review'"),
    ("texts", "t.jsonl", '\n{"review": "x"}', 2, "'mood'"),
    ("texts", "t.jsonl", '{"review": "x", "mood": NaN}', 1, "'mood'"),
    ("numbers", "t.csv", SCORES + "five\n", 3, "'five'"),
    ("numbers", "t.csv", SCORES + "inf\n", 3, "'inf'"),
    ("numbers", "t.csv", SCORES + "nan\n", 3, "1 of 2 .* `ignored_label=null`"),
    ("texts", "t.csv", "review,mood\nx,a\ny,-\nz,-1\nx,-\n", 3, "2 of 4 .* `ignored_label=-`"),
    ("classes", "t.csv", "review,mood\nx,0\ny,-1.0\nz,2\n", 3, "1 of 3 .* `ignored_label=-1`"),
    ("classes", "t.csv", "review,mood\nx,no\ny,-1\nz,yes\n", 3, "`ignored_label=-1`"),
    ("classes", "t.csv", "review,mood\nx,1\ny,0\nz,-100\n", 4, "`ignored_label=-100`"),
    ("classes", "t.csv", "review,mood\nx,no\ny,-\nz,yes\n", 3, "`ignored_label=-`"),
    ("classes", "t.csv", "review,mood\nx,no\ny,\nz,<NA>\nx,yes\n", 3, "'mood' .* 2 of 4 .* =null`"),
    ("classes", "t.csv", "review,mood,sample_weight\nx,a,2\n", 2, "'sample_weight'"),
    ("ignoring", "t.csv", "text,label\nx,-1\ny,-1\n", 0, "`ignored_label`"),
    ("named", "t.csv", "text,label\nx,1\ny,1\n", 0, "'1' .* `label_names`"),
    ("columns", "t.csv", "text,a,b\nx,1,2\n", 2, "0 or 1 .* `label_columns` .* '1, 2'"),
    ("columns", "t.csv", "text,a,b\nx,1,0\ny,,1\n", 3, "`ignored_label=null`"),
    ("columns", "t.jsonl", '{"text": "x", "a": 1}', 1, "'b'"),
    ("other columns", "t.csv", "text,a,b\nx,1,0\n", 0, "0 or 1 .* a, c .* a, b"),
    ("one 1", "t.csv", "text,a,b\nx,1,0\ny,1,1\n", 3, "`label_columns` .* '1, 1'"),
    ("classes", "t.csv", "review,mood\nx,a\ny,a\n", 0, "'mood'"),
    *(
        ("classes", "t.csv", f'review,mood\nx,a\ny,"c{between}d"\n', 3, repr(f"c{between}d"))
        for between in "\t\r\n"
    ),
    ("choices", "t.csv", "p,1,b,answer\nx,y,z,3\n", 2, "'3'"),
    ("choices", "t.csv", "p,1,b,answer\nx,y,z,1\n", 0, "'1' could be .* `choice_columns`"),
    # 0 or 1 for each label, or ids.
    ("several", "t.jsonl", rows([0, 1, 0], [0, 1]), 2, "0 or 1 for each of 3 labels"),
    ("several", "t.jsonl", rows([2], [0, 1, 1]), 1, "t.jsonl:2 .* '2'"),
    ("several", "t.jsonl", rows([0, 1, 0], []), 2, "t.jsonl:1 .* ''"),
    ("several", "t.jsonl", rows([0, 1, 0, 1]), 1, "3 labels"),
    ("several", "t.jsonl", rows([2, -1, 2]), 1, "'-1' .* `ignored_label=-1`"),
    ("sets", "t.jsonl", rows([1, 0, 1], [-1, -1, -1]), 2, "1 of 2 .* `ignored_label=-1`"),
    *(
        ("sets", name, write("law", label, "war", "art"), line, f"{label!r} .* `label_separator`")
        for label in ("war, art", "art;war", "art/what", "art#war", "war art", "art & law")
        for name, write, line in (("t.jsonl", rows, 2), ("t.csv", cells, 3))
    ),
    ("sets", "t.jsonl", rows("1,2", 1, 2, 3), 1, "'1,2' .* `label_separator`"),
    ("sets", "t.jsonl", rows(["art,war"], ["art"]), 1, "'art,war' .* `label_separator`"),
    ("sets", "t.csv", cells("1 0 1", "0 1 0"), 2, "'1 0 1' .* `label_separator`"),
    ("sets", "t.csv", cells("c", "b; a", "a;b"), 3, "'b; a' .* `label_separator`"),
    ("sets", "t.csv", cells("c", "b, d, a", "a, e"), 3, "'b, d, a' .* `label_separator`"),
    ("several", "t.jsonl", '{"text": "a"}', 1, "'label'"),
    ("several", "t.csv", "text,label\na,art|what\n", 2, "'what'"),
    ("sets", "t.jsonl", rows([0, 1], [1, 0]), 1, "0 and 1"),
    ("sets", "t.jsonl", rows(["x"]) + '\n{"text": ["a"], "label": "x"}', 2, "column 'text'"),
    ("sets", "t.jsonl", rows(["x"]) + '\n{"text": {"a": 1}, "label": "x"}', 2, "column 'text'"),
    ("sets", "t.jsonl", rows(["x"], [["x"]]), 2, "column 'label'"),
    ("sets", "t.jsonl", rows(["x"], ["x|y"]), 2, "'x|y'"),
    ("sets", "t.csv", cells("['art' 'war']"), 2, "'label'"),
    ("sets", "t.csv", cells("['art', b'war']"), 2, "'label'"),
    ("sets", "t.csv", cells("[1, " + "[" * 100_000 + "]"), 2, "'label'"),
    ("sets", "t.csv", cells("[1, [2]]"), 2, "'label'"),
    ("sets", "t.csv", cells("{'art': 1}"), 2, "'label'"),
    ("sets", "t.csv", cells("|"), 0, "no label"),
    ("sets", "t.csv", cells("art|"), 0, "only one label"),
    ("tags", "a.conll", "a O\nb X O\n", 2, "2 column(s) as in line 1, got 3"),
    ("tags", "a.conll", "a O\n\nb\n", 3, "2 column(s) as in line 1, got 1"),
    ("tags", "a.conll", "a O\nb B-XY\n", 2, "'B-XY'"),
    ("tags", "a.conll", "# SYM\na O\n", 1, "'# SYM'"),
    ("tags", "a.conll", "a O\rb O\n", 1, "carriage return"),
    ("tags", "a.conll", "-DOCSTART- O\n\n", 0, "no sentences"),
    ("tags", "a.jsonl", '{"tokens": 1}', 1, "'tokens'"),
    ("tags", "a.jsonl", '{"tokens": []}', 1, "no tokens"),
    ("tags", "a.jsonl", '{"tokens": ["a", ""]}', 1, "'tokens', got '' at index 1"),
    ("tags", "a.jsonl", '{"tokens": ["a"], "labels": [3]}', 1, "'labels', got 3"),
    ("tags", "a.jsonl", '{"tokens": ["a"], "labels": []}', 1, "a label for each"),
    *(
        ("tags", "a.jsonl", json.dumps({"tokens": ["a"], "labels": [tag]}), 1, repr(tag))
        for tag in ("B-\tx", "B- x", "B-\nx", "B-\rx")
    ),
    ("tags", "a.jsonl", '{"tokens": ["a"], "labels": ["O"]}\n{"tokens": ["a"]}', 2, "line 1"),
    ("tagged", "a.txt", "EU\nrejects\n\nPeter\n", 1, "'EU' .* column 1 of 1 .* `label_column`"),
    ("tagged", "a.JSON", '{"tokens": ["EU"]}\n{"tokens": ["a b"]}', 1, "'EU' .* 'tokens'"),
    # Columns that can't be those of words and tags.
    *(
        ("tag set", "a.conll", content, line, nouns)
        for content, line, nouns in (
            (WORDS + "1\tx" + BLANKS + "3\ty" + BLANKS, 5, "expected 2, got '3'"),
            (WORDS + "1\tx" + BLANKS + "y\ty" + BLANKS, 5, "expected 2, got 'y'"),
            (WORDS[:-1] + WORDS, 3, "expected 3, got '1'"),
            (WORDS + "1\tx\tx\n", 4, "10 column(s) as in line 1, got 3"),
            ("5\tx" + BLANKS + "7\ty" + BLANKS, 1, "expected 1, got '5'"),
            (WORDS.replace("X", "_", 1), 1, "no label in column 4"),
            (WORDS.replace("_\n", "B-a\n"), 1, "column 10"),
            ("1 a B-x O\n2 b O B-y\n3 c O O\n", 1, "columns 3 and 4"),
            ("a 0 0 Tom (12)\na 0 1 ran -\n\nb 0 0 a (3)\n", 1, "'a'"),
            (IN_2012.replace("Tom", "[WORD]"), 1, "[WORD]"),
            (IN_2012 + IN_2012.replace(" - -", ""), 3, "11 columns .* got 10"),
            (IN_2012[:-1] + IN_2012.replace(" a", "").replace(" 0 T", " 1 T"), 2, "12 column(s)"),
            (IN_2012.replace("(X)", "(X*"), 1, "entity X"),
            ("a (X*\nb (Y)\nc *)\n", 2, "'(Y)'"),
            ("a (X)\nb *)\n", 2, "'*)'"),
            ("a (X)\nb *\nc x\n", 3, "'x'"),
            ("B-a\tTom\nO\tran\n", 1, "column 1 .* column 2 .* `text_column`"),
            ("Tom B-a NNP\nran O VBD\n", 1, "column 2 .* column 3 .* `label_column`"),
            ("word pos tag\na O\n", 2, "header"),
            ("a\tx y\nb\tO\n", 1, "'x y'"),
            ("a\tN\tO\nb\tN\t\n", 2, "3 column(s)"),
            ("1\t\tB-a\n2\tb\tO\n", 1, "empty"),
            ("New York\tB-a\nx y O\n", 2, "2 column(s) as in line 1, got 3"),
        )
    ),
    ("names", "a.conll", "a 0\nb 2\n", 2, "`label_names` (O, B-a) .* '2'"),
    ("names", "a.jsonl", '{"tokens": ["a"], "tags": [-100]}', 1, "-100"),
    ("tag set", "a.jsonl", '{"tokens": ["a"], "tags": [1]}', 1, "`label_names`"),
    ("tag set", "a.jsonl", '{"words": ["a"], "tags": ["x"], "labels": ["y"]}', 1, "`label_c"),
    ("tag set", "a.jsonl", '{"data": {"text": "a"}}', 1, "'tokens' or 'words' or 'text'"),
    ("tag set", "a.json", '[{"text": "a", "label": []}]', 1, "array"),
    *(
        ("tag set", "a.jsonl", json.dumps({"text": "Tomato ran!", "label": spans}), 1, nouns)
        for spans, nouns in (
            ([[0, 3, "x"]], "'Tom' .* within a word"),
            ([[7, 10, "x"], [0, 10, "y"]], "overlaps"),
            ([[7, 7, "x"]], "[7, 7, 'x']"),
            ([[7, 12, "x"]], "at most 11"),
            ([[7.0, 10, "x"]], "[7.0,"),
            ([{"start": 7, "end": 10, "labels": ["x", "y"]}], "one label"),
            ([{"start": 8, "end": 10, "text": "ran", "label": "x"}], "'ran' at 8, got 'an'"),
            ({"x": {"ran": [[8, 10]]}}, "'label' is a list"),
        )
    ),
    ("sst-2", "SST-2/train.tsv", "text\tlabel\na\t1\n", 1, "'sentence'"),
    ("sst-2", "SST-2/train.tsv", "sentence\tlabel\na\t1\nb\t2\n", 3, "'2'"),
    ("sst-2", "SST-2/train.tsv", "sentence\tlabel\n", 0, "no examples"),
    ("cola", "CoLA/train.tsv", "gj04\t1\t\tGood.\ngj04\t1\n", 2, "4 cells"),
    ("sts-b", "STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\tfive\n", 2, "'five'"),
    ("wnli", "WNLI/train.tsv", WNLI, 4, "'7' is already used in line 2"),
    ("qqp", "QQP/train.tsv", QQP, 3, "4 cells"),
    ("squad", "squad.json", "{}\n{}", 0, "(no .jsonl or .parquet) is not JSON"),
    ("squad", "squad.json", b'{"data": "\xff"}', 0, "UTF-8"),
    ("squad", "squad.json", "[]", 0, "SQuAD's format"),
    ("squad", "squad.json", questions(), 0, "no examples"),
    ("squad", "squad.json", '{"data": [7]}', 0, "'paragraphs'"),
    ("squad", "squad.json", '{"data": [{"paragraphs": [{"context": 7}]}]}', 0, "'context'"),
    ("squad", "squad.json", questions(QUESTION, QUESTION), 0, "question q"),
    ("squad", "squad.json", answer(text="sleep.", answer_start=6), 0, "question q: the answer"),
    ("squad", "squad.json", answer(text=""), 0, "question q: the answer ''"),
    ("squad", "squad.json", questions({"id": "q"}), 0, "question q: expected .* 'question'"),
    ("squad", "squad.json", questions("who?"), 0, "'id' .* 'who?'"),
    ("squad", "squad.json", questions({**QUESTION, "id": ["q"]}), 0, "'id' .* ['q']"),
    ("squad", "squad.json", answer(text=None), 0, "question q: expected .* 'text'"),
    ("squad", "squad.json", answer(answer_start=True), 0, "'answer_start' .* True"),
    ("squad", "squad.json", questions({**QUESTION, "answers": 7}), 0, "'answers'"),
    ("squad", "squad.json", answer(answer_start=0.5), 0, "'answer_start' .* 0.5"),
    ("squad", "squad.json", answer(answer_start=None), 0, "'answer_start'"),
    ("squad", "squad.json", questions({**QUESTION, "is_impossible": 2}), 0, "'is_impossible'"),
    ("race", "RACE/dev/middle/all.txt", passages(id="7"), 2, "passage 7 .* all.txt:1"),
    ("race", "RACE/dev/middle/all.txt", passages(answers=["A"]), 2, "2, 2, 1"),
    ("race", "RACE/dev/middle/all.txt", passages(answers=["A", "E"]), 2, "question 2: .* 'E'"),
    ("race", "RACE/dev/middle/all.txt", passages(answers=["", "A"]), 2, "question 1: .* ''"),
    ("race", "RACE/dev/middle/all.txt", passages(questions=[None, "b"]), 2, "question 1: .* None"),
    ("race", "RACE/dev/middle/all.txt", passages(options=[["a"], ["b"] * 4]), 2, "question 1"),
    ("race", "RACE/dev/middle/all.txt", passages(options=[["a"] * 4, [1] * 4]), 2, "question 2"),
    ("race", "RACE/dev/middle/all.txt", passages(answers="AD"), 2, "'answers'"),
    ("race", "RACE/dev/middle/all.txt", passages(article=None), 2, "'article'"),
    ("race", "RACE/dev/middle/all.txt", passages(id=["x"]), 2, "'id'"),
    ("race", "RACE/dev/middle/3.txt", '{"article": ""}', 0, "'id'"),
]


def class_weights(text: str) -> np.ndarray:
    return classification.parse_class_weights(text, ("a", "b=c", "d"), [0, 1, 2])


def order(tags: str) -> tuple[str, ...]:
    return conll.order_tags(dict.fromkeys(tags.split(), 1), "f")


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((["a", "b"], [0, 1])).repeat().batch(3)


def labelled(*weights: list[float]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 0], *weights))


GOOD = ("bad", "good")
# A call, given a function that makes a preprocessor with labels, and nouns of the message.
CALLS = [
    (lambda make: make()([]), "texts"),
    (lambda make: make()(["a", None]), "texts .* index 1 is None"),
    (lambda make: make()(3), "texts .* 3"),
    (lambda make: make()(["a", "I \ud83d"]), "texts: the one at index 1 .* at character 2"),
    (lambda make: make().tokenizer.encode("\udcff"), "surrogate"),
    (lambda make: make()(["a"], ["b", "c"]), "pairs .* 2 and 1"),
    (lambda make: make()(["a", "b"], choices=[["c"], []]), "choices"),
    (lambda make: make()(["Who?", "What?"], contexts=["", " "]), "context"),
    (lambda make: make()({"sentence": ["a"]}), "'text', got 'sentence'"),
    (lambda make: make()(["a"], pad_to=-1), "`pad_to`"),
    (lambda make: make().dataset(endless()), "never ends"),
    (lambda make: make().dataset({"text": "a", **dict.fromkeys(table.WEIGHTS, 1)}), "weights"),
    (lambda make: make().dataset(["a"], [1], sample_weights=[np.nan]), "`sample_weights`"),
    (lambda make: make().dataset(["a"], sample_weights=[1.0]), "`sample_weights` .* `labels`"),
    (lambda make: make().dataset(["a"], [1], sample_weights=[[1.0]]), "`sample_weights`"),
    (lambda make: make().dataset(["a"], [1], sample_weights=["x"]), "`sample_weights`"),
    (lambda _: table.find_labels(__file__, TableSettings(label_columns=("a",))), "`label_columns`"),
    (lambda _: table.read_texts(__file__, BITS, ()), "`label_columns`"),
    (lambda _: table.find_labels(__file__, TWO_NAMES, True), "`label_columns`"),
    (lambda make: make().dataset(labelled(), labels=[1, 1]), "`labels`"),
    (lambda make: make().dataset(labelled([0.5, 2.0]), sample_weights=[1, 1]), "`sample_weights`"),
    (lambda make: make().dataset(["a"], ["b"]), "'b' .* `labels` .* none given"),
    (lambda make: make().dataset(["a"], [float("nan")]), "labels .* finite"),
    (lambda make: make().dataset(["a"], batch_size=2.5), "`batch_size` .* 2.5"),
    (lambda make: make(*GOOD).dataset(["a", "b"], [["bad"], ["ugly"]]), "'ugly' .* `labels`"),
    (lambda make: make(*GOOD).dataset(["a", "b"], [[0], [0, 1]]), "labels .* as many for each"),
    (lambda make: make(*GOOD).dataset(["a"], ["ugly"]), "'ugly' .* `labels`"),
    (lambda make: make(*GOOD).dataset(["a", "b"], [1, 2]), "label 2 .* `labels`"),
    (lambda make: make(*GOOD).dataset(["a", "b"], [-1, 0]), "label -1 .* `labels`"),
    (lambda make: make(*GOOD).dataset(["a"], [3.7]), "label 3.7 .* `labels=()`"),
    (lambda make: make(*GOOD).dataset(["a", "b"], [0.3, 0.9]), "label 0.3 .* `labels`"),
    (lambda make: make(1, 2).dataset(["a", "b"], [0, 1]), "'0' .* `labels`"),
    (lambda make: make(max_seq_length=3), "`max_seq_length` .* 4, not 3"),
    (lambda make: make(max_seq_length="9"), "`max_seq_length` .* '9'"),
    (lambda _: class_weights("e=1"), "`class_weights` .* a, b=c, d"),
    (lambda _: class_weights("a=1,a=2"), "`class_weights` .* 'a=2'"),
    (lambda _: class_weights("a=1,e,f=2,d=2"), "`class_weights` .* 'e,f=2,d=2'"),
    (lambda _: class_weights("2.5"), "`class_weights` .* '2.5'"),
    (lambda _: class_weights("a=1,"), "`class_weights` .* ''"),
    (lambda _: class_weights("a=none"), "`class_weights` .* a .* 'none'"),
    (lambda _: class_weights("a=0"), "`class_weights` .* '0'"),
    (lambda _: class_weights("d=inf"), "`class_weights` .* 'inf'"),
    (lambda _: order("lower"), "f: .* 'lower'"),
    (lambda _: order("O"), "f: .* 'O'"),
]


def pattern(nouns: str) -> str:
    return ".*".join(map(re.escape, nouns.split(" .* ")))


@pytest.mark.parametrize("reader, name, content, line, nouns", FILES, ids=range(len(FILES)))
def test_a_bad_file(reader, name, content, line, nouns, tmp_path):
    path = tiny.write(tmp_path / name, content)
    place = re.escape(path) + (rf":{line}\b" if line else r"(?!:\d)")
    with refused(f"{place}.*{pattern(nouns)}", tmp_path, exception=ValueError):
        READERS[reader](path)


@pytest.mark.parametrize(("call", "nouns"), CALLS, ids=[nouns for _, nouns in CALLS])
def test_a_bad_call(call, nouns, vocabulary):
    def make(*labels, max_seq_length=24):
        return albert_tf.Preprocessor(vocabulary, max_seq_length, labels)

    with refused(pattern(nouns), exception=ValueError):
        call(make)


@pytest.mark.parametrize(
    ("reader", "name"),
    [("tags", "a.conll"), ("texts", "t.csv"), ("classes", "t.csv"), ("squad", "squad.json"),
     ("rte", "RTE/train.tsv"), ("race", "RACE/dev/middle")],
)  # fmt: skip
def test_a_missing_file_is_named(reader, name, tmp_path):
    with refused(name, exception=FileNotFoundError):
        READERS[reader](str(tmp_path / name))
