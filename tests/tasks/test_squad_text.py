import collections
import json
import re

import numpy as np
import pytest

from albert_tf.answers.rows import pad_features
from albert_tf.answers.span import Span
from albert_tf.tasks import squad_text
from albert_tf.text.sentence_piece import SentencePiece, preprocess_text
from albert_tf.text.tokenization import Tokenizer
from tests.kit import goldens

PLACES = ("char_starts", "char_ends", "is_max_context")
KINDS = [(version, split) for version in ("v1", "v2") for split in ("train", "dev")]


def check(golden, examples, tokenizer, expected: list[dict], split: str) -> None:
    """Unlike in the release, a mark belongs to its letter, and no paragraph is dropped."""
    kind, is_training = Span(**goldens.squad_settings(golden)), split == "train"
    found = squad_text.squad_rows(kind, examples, tokenizer, is_training)
    found = [row for row in found if " " * 20 not in examples[row["example_index"]].paragraph]
    names = ("input_ids", "input_mask", "segment_ids", "p_mask")
    for mine, row in zip(found, expected, strict=True):
        features = pad_features({name: mine[name] for name in names}, len(row["input_ids"]))
        actual = {name: value.tolist() for name, value in features.items()}
        actual["paragraph_len"], offset = len(mine["input_ids"]), int(mine["doc_offset"])
        starts, ends, best = (mine[name][offset:-1].tolist() for name in PLACES)
        actual |= {"tok_start_to_orig_index": starts, "tok_end_to_orig_index": ends}
        actual["token_is_max_context"] = [[offset + i, bool(b)] for i, b in enumerate(best)]
        actual["is_impossible"] = bool(mine["is_impossible"])
        if is_training:
            actual["start_position"] = int(mine["start_positions"])
            actual["end_position"] = int(mine["end_positions"])
        assert row["example_index"] in (None, mine["example_index"])
        paragraph = examples[mine["example_index"]].paragraph
        places = row["tok_end_to_orig_index"]
        marks = [len(re.match("[\u0300-\u036f]*", paragraph[end + 1 :])[0]) for end in places]
        row["tok_end_to_orig_index"] = np.add(places, marks).tolist()
        assert actual == {name: row[name] for name in actual}


@pytest.mark.parametrize(("version", "split"), KINDS)
def test_windows_are_the_releases(golden, spm_30k, version, split):
    examples = squad_text.read_squad(golden / f"features/squad_{version}_{split}.json")
    rows = goldens.squad_rows(golden, version, split)
    check(golden, examples, Tokenizer(spm_30k), rows, split)


class StoredTokenizer:
    """Knows the pieces of the stored questions and paragraphs, as far as they have no <unk>."""

    cls_id, sep_id, encode_with_offsets = 2, 3, Tokenizer.encode_with_offsets
    _parts, _part_with_offsets = Tokenizer._parts, Tokenizer._part_with_offsets
    added_pattern, added_tokens, one_segment = "", (), False
    _vocabulary, origins = property(lambda self: self), SentencePiece.origins
    _form = True, False

    def __init__(self, examples, rows, stride: int) -> None:
        self._ids = {}
        self._tokens = {}
        for row in rows:
            tokens = row["tokens"]
            middle, end = tokens.index("[SEP]"), row["paragraph_len"] - 1
            self._ids.update(zip(tokens, row["input_ids"], strict=True))
            example = examples[row["example_index"]]
            self._tokens[example.question] = tokens[1:middle]
            seen = self._tokens.setdefault(example.paragraph, [])
            seen[row["doc_span_index"] * stride :] = tokens[middle + 1 : end]

    def encode(self, text: str, most: int) -> list[int]:
        return [self._ids[token] for token in self._tokens[text]][:most]

    def normalize(self, text: str) -> str:
        self._text = text
        return preprocess_text(text)

    def encode_spans(self, text: str):
        spans, end = [], 0
        for token in self._tokens[self._text]:
            piece = token.replace("▁", " ")
            # At the text's start, and before a number split from its comma, there is no space.
            piece = piece if text.startswith(piece, end) else piece[1:]
            spans.append((end, end + len(piece)))
            end += len(piece)
        assert end == len(text)
        return self.encode(self._text, len(spans)), spans


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_windows_of_stored_pieces_are_the_releases(golden, version):
    """The same without a vocabulary, for the third of paragraphs whose pieces are all stored."""
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    rows = goldens.squad_rows(golden, version, "dev")
    tokenizer = StoredTokenizer(examples, rows, goldens.squad_settings(golden)["doc_stride"])
    unknown = {examples[row["example_index"]].paragraph for row in rows if "<unk>" in row["tokens"]}
    mismatched = {example.paragraph for example in examples} - set(tokenizer._tokens)
    left_out = unknown | mismatched
    chosen = [i for i, example in enumerate(examples) if example.paragraph not in left_out]
    assert len(chosen) > 10
    rows = [row for row in rows if row["example_index"] in chosen]
    expected = [{**row, "example_index": chosen.index(row["example_index"])} for row in rows]
    assert len(expected) > 50
    examples = [examples[index] for index in chosen]
    check(golden, examples, tokenizer, expected, "dev")


def example(paragraph: str, question: str = "what?", answer: str | None = None, qas_id="q"):
    answers = () if answer is None else (squad_text.Answer(answer, paragraph.index(answer)),)
    return squad_text.SquadExample(qas_id, question, paragraph, answers, answer is None)


def rows_of(examples, tokenizer, length=24, stride=5, query=6, is_training=True):
    kind = Span(max_seq_length=length, doc_stride=stride, max_query_length=query)
    return [*squad_text.squad_rows(kind, examples, tokenizer, is_training)]


def shown(row) -> list[np.ndarray]:
    """Returns, for each of PLACES, its values for a window's pieces of the paragraph."""
    return [row[name][int(row["doc_offset"]) : -1] for name in PLACES]


def answer_of(row, text: str) -> str:
    first, last = row["start_positions"], row["end_positions"]
    return text[row["char_starts"][first] : row["char_ends"][last] + 1]


def test_windows_hold_their_answers_and_every_piece_is_seen_best_once(golden, tokenizer):
    """On the stored training set, with another vocabulary."""
    examples = squad_text.read_squad(golden / "features/squad_v2_train.json")
    answered, windows = 0, collections.defaultdict(list)
    for row in rows_of(examples, tokenizer):
        starts, ends, is_best = shown(row)
        windows[int(row["example_index"])].append(is_best)
        assert len(row["input_ids"]) <= 24 and np.all(starts <= ends + 1)
        assert row["is_impossible"] == (row["start_positions"] == 0)
        if not row["is_impossible"]:
            answered += 1
            of = examples[int(row["example_index"])]
            text = answer_of(row, of.paragraph).strip()
            assert of.answers[0].text in text and len(text) < len(of.answers[0].text) + 8
    assert answered > 15
    for mine in windows.values():
        seen = np.zeros(5 * (len(mine) - 1) + len(mine[-1]), int)
        for i, is_best in enumerate(mine):
            seen[5 * i : 5 * i + len(is_best)] += is_best
        assert np.all(seen == 1)


def test_an_answer_that_a_window_cuts_is_none_of_its_own(tokenizer):
    text = "one two three four five six seven eight nine ten eleven twelve thirteen"
    rows = rows_of([example(text, answer="nine ten")], tokenizer, length=12, stride=3)
    for row in rows:
        pieces = (text[start : end + 1] for start, end, _ in zip(*shown(row), strict=True))
        assert ("nine ten" in "".join(pieces)) == (not row["is_impossible"])
    assert {int(row["is_impossible"]) for row in rows} == {1, 0}


def test_the_first_of_several_answers_is_trained_on(tokenizer):
    text = "the cat sat on the mat."
    answers = [squad_text.Answer(word, text.index(word)) for word in ("mat", "cat")]
    (row,) = rows_of([squad_text.SquadExample("q", "who?", text, answers, False)], tokenizer)
    assert answer_of(row, text).strip() == "mat"


@pytest.mark.parametrize(("start", "nearest"), [(0, "the"), (10, "sat")])
def test_an_answer_beyond_all_pieces_is_the_nearest_one(start, nearest, tokenizer):
    text = "  the sat  "
    asked = squad_text.SquadExample("q", "who?", text, (squad_text.Answer(" ", start),), False)
    (row,) = rows_of([asked], tokenizer)
    assert answer_of(row, text).strip() == nearest


def word_piece(tmp_path, do_lower_case=True):
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] . in ro ##me 19 ##50"
    (tmp_path / "vocab.txt").write_text(pieces.replace(" ", "\n"))
    return Tokenizer(vocab_file=tmp_path / "vocab.txt", do_lower_case=do_lower_case)


def test_what_gives_no_window_is_counted(tmp_path, caplog):
    nothing = squad_text.SquadExample("q", "who?", " \n", (), True)
    examples = [nothing, *(example("Cats sleep.", answer=answer) for answer in (" ", "sleep"))]
    with caplog.at_level("WARNING"):
        rows = rows_of(examples, word_piece(tmp_path))
    assert [row["example_index"] for row in rows] == [2]
    for what in ("paragraph", "answer"):
        assert f"1 questions are left out: their {what} has no text" in caplog.text


TABLE = "Team            Played    Won\nAjax              34       24\nPSV              34     22\n"
ANSWERS = [
    (TABLE, "22"),
    ('{\n    "name": "Anna",\n    "address": {\n        "city": "Rome"\n    }\n}', "Rome"),
    ("\n\n\n      Home\n      About\n\n          Anna was born in Rome.\n\n\n", "Rome"),
    ("xyz " * 30 + "in 1950, qqq " + "\u0e01\u0e38 " * 9, "1950"),
    ("His name is Rene\u0301", "Rene\u0301"),
    ("مُحَمَّد كَتَبَ الكِتَابَ", "كَتَبَ"),
    ("ﾊﾞｯｸ ﾄｶﾞｲﾄﾞ ﾄ", "ﾄｶﾞｲﾄﾞ"),
]


@pytest.mark.parametrize("kind", ["spm", "uncased", "cased"])
@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_an_answer_is_found_again(tokenizer, tmp_path, kind, text, answer):
    """Answers amid white space, unknown words and marks; the release drops most of these texts."""
    if kind != "spm":
        tokenizer = word_piece(tmp_path, kind == "uncased")
    (row,) = rows_of([example(text, answer=answer)], tokenizer, length=512)
    assert answer_of(row, text).strip() == answer


def test_an_answer_is_needed_to_train_only(tokenizer):
    no_answer = squad_text.SquadExample("q7", "what?", "Cats sleep.", (), False)
    with pytest.raises(ValueError, match="question q7 has no answer to train on"):
        rows_of([no_answer], tokenizer)
    (row,) = rows_of([no_answer], tokenizer, is_training=False)
    assert not row["is_impossible"]


def write(folder, *questions, context="Cats sleep."):
    path = folder / "squad.json"
    data = [{"paragraphs": [{"context": context, "qas": list(questions)}]}]
    path.write_text(json.dumps({"data": data}))
    return path


QUESTION = {"id": "q", "question": "who?", "answers": [{"text": "Cats", "answer_start": 0}]}


def test_both_versions_are_read(tmp_path):
    impossible = {"id": 17, "question": "why?", "answers": [], "is_impossible": True}
    first, second = squad_text.read_squad(write(tmp_path, QUESTION, impossible))
    assert first == example("Cats sleep.", "who?", "Cats")
    assert second == example("Cats sleep.", "why?", qas_id="17")


def test_answers_that_stand_elsewhere_are_counted(tmp_path, caplog):
    moved = {**QUESTION, "answers": [{"text": "sleep", "answer_start": 4}]}
    with caplog.at_level("WARNING"):
        squad_text.read_squad(write(tmp_path, moved))
    assert "1 answers differ from the text at their answer_start" in caplog.text


NOTHING = {"text": "", "answer_start": -1}
COLUMNS = {"text": ["wrote"], "answer_start": [5.0]}


@pytest.mark.parametrize(
    ("given", "starts", "is_impossible"),
    [
        ({"answers": [NOTHING], "is_impossible": True}, [], True),
        ({"answers": [{**NOTHING, "text": None}], "is_impossible": 1}, [], True),
        ({"answers": None, "is_impossible": True}, [], True),
        ({"answers": None, "is_impossible": None}, [], False),
        ({"answers": [{"text": "wrote", "answer_start": 5.0}]}, [5], False),
        ({"answers": COLUMNS, "is_impossible": 0}, [5], False),
        ({"answers": {"text": [], "answer_start": []}, "is_impossible": True}, [], True),
    ],
)
def test_questions_are_read_as_annotation_tools_write_them(given, starts, is_impossible, tmp_path):
    question = {"id": 7, "question": "Who?", **given}
    (found,) = squad_text.read_squad(write(tmp_path, question, context="Anna wrote it."))
    assert [answer.start for answer in found.answers] == starts
    assert all(type(answer.start) is int for answer in found.answers)
    assert found.is_impossible is is_impossible
