import collections
import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from albert_tf.tasks import sequence_features, squad_text
from albert_tf.text.sentence_piece import SentencePiece, preprocess_text
from albert_tf.text.tokenization import Tokenizer
from tests import goldens

KINDS = [(version, split) for version in ("v1", "v2") for split in ("train", "dev")]


def check(examples, windows, rows: list[dict], is_training: bool) -> None:
    """Differs: a mark belongs to its letter, and no paragraph is dropped."""
    windows = [w for w in windows if " " * 20 not in examples[w.example_index].paragraph]
    for window, row in zip(windows, rows, strict=True):
        features = sequence_features.pad_features(window.features, len(row["input_ids"]))
        actual = {name: value.tolist() for name, value in features.items()}
        actual["paragraph_len"] = len(window.features["input_ids"])
        actual["tok_start_to_orig_index"] = window.char_starts.tolist()
        actual["tok_end_to_orig_index"] = window.char_ends.tolist()
        actual["token_is_max_context"] = [
            [window.doc_offset + i, bool(best)] for i, best in enumerate(window.is_max_context)
        ]
        actual["is_impossible"] = window.is_impossible
        if is_training:
            actual["start_position"] = window.start_position
            actual["end_position"] = window.end_position
        assert row["example_index"] in (None, window.example_index)
        paragraph = examples[window.example_index].paragraph
        marks = [
            len(re.match("[\u0300-\u036f]*", paragraph[end + 1 :])[0])
            for end in row["tok_end_to_orig_index"]
        ]
        row["tok_end_to_orig_index"] = np.add(row["tok_end_to_orig_index"], marks).tolist()
        assert actual == {name: row[name] for name in actual}


@pytest.mark.parametrize(("version", "split"), KINDS)
def test_windows_are_the_releases(golden, spm_30k, version, split):
    examples = squad_text.read_squad(golden / f"features/squad_{version}_{split}.json")
    settings = goldens.squad_settings(golden)
    is_training = split == "train"
    tokenizer = Tokenizer(spm_30k)
    windows = squad_text.squad_windows(examples, tokenizer, **settings, is_training=is_training)
    check(examples, windows, goldens.squad_rows(golden, version, split), is_training)


def test_a_long_paragraph_takes_memory_by_its_length(golden):
    """A table of its 40,000 pieces and 2,000 windows would have 640 MB."""
    text = "the cat sat on the mat. " * 5700
    example = squad_text.SquadExample("id", "where?", text.strip(), (), False)
    tokenizer = Tokenizer(golden / "spm" / "en_small.model")
    tracemalloc.start()
    count = sum(1 for _ in squad_text.squad_windows([example], tokenizer, 64, 20, 16, False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 1500
    assert peak < 60e6


class StoredTokenizer:
    """Knows the pieces of the stored questions and paragraphs, as far as they have no <unk>."""

    cls_id, sep_id, encode_with_offsets = 2, 3, Tokenizer.encode_with_offsets
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
            # Before the text, and before a number without its comma, there is none.
            piece = piece if text.startswith(piece, end) else piece[1:]
            spans.append((end, end + len(piece)))
            end += len(piece)
        assert end == len(text)
        return self.encode(self._text, len(spans)), spans


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_windows_of_stored_pieces_are_the_releases(golden, version):
    """The same without a vocabulary: paragraphs whose pieces are all stored, a third of them."""
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    rows = goldens.squad_rows(golden, version, "dev")
    settings = goldens.squad_settings(golden)
    tokenizer = StoredTokenizer(examples, rows, settings["doc_stride"])
    unknown = {examples[row["example_index"]].paragraph for row in rows if "<unk>" in row["tokens"]}
    mismatched = {example.paragraph for example in examples} - set(tokenizer._tokens)
    chosen = [
        index
        for index, example in enumerate(examples)
        if example.paragraph not in unknown | mismatched
    ]
    assert len(chosen) > 10
    expected = [
        {**row, "example_index": chosen.index(row["example_index"])}
        for row in rows
        if row["example_index"] in chosen
    ]
    assert len(expected) > 50
    examples = [examples[index] for index in chosen]
    windows = squad_text.squad_windows(examples, tokenizer, **settings, is_training=False)
    check(examples, windows, expected, is_training=False)


def example(paragraph: str, question: str = "what?", answer: str | None = None, qas_id="q"):
    answers = () if answer is None else (squad_text.Answer(answer, paragraph.index(answer)),)
    return squad_text.SquadExample(qas_id, question, paragraph, answers, answer is None)


def rows_of(golden, examples, length=24, stride=5, query=6, is_training=True):
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    arguments = (tokenizer, length, stride, query, is_training)
    return [window.row() for window in squad_text.squad_windows(examples, *arguments)]


def shown(row, text: str) -> list[str]:
    """Returns what the pieces of the paragraph in a window stand for."""
    span = squad_text.SquadSpan.of_row(row)
    return [text[a : b + 1] for a, b in zip(span.char_starts, span.char_ends, strict=True)]


def answer_of(row, text: str) -> str:
    first, last = row["start_positions"], row["end_positions"]
    return text[row["char_starts"][first] : row["char_ends"][last] + 1]


def test_windows_hold_their_answers_and_every_piece_is_seen_best_once(golden):
    """On the stored training set, with another vocabulary."""
    examples = squad_text.read_squad(golden / "features/squad_v2_train.json")
    answered, spans = 0, collections.defaultdict(list)
    for row in rows_of(golden, examples):
        span = squad_text.SquadSpan.of_row(row)
        spans[span.example_index].append(span)
        assert len(row["input_ids"]) == span.doc_offset + len(span.char_starts) + 1 <= 24
        assert np.all(span.char_starts <= span.char_ends + 1)
        assert row["is_impossible"] == (row["start_positions"] == 0)
        if not row["is_impossible"]:
            answered += 1
            of = examples[span.example_index]
            text = answer_of(row, of.paragraph).strip()
            assert of.answers[0].text in text and len(text) < len(of.answers[0].text) + 8
    assert answered > 15
    for mine in spans.values():
        seen = np.zeros(5 * (len(mine) - 1) + len(mine[-1].char_starts), int)
        for i, span in enumerate(mine):
            seen[5 * i : 5 * i + len(span.char_starts)] += span.is_max_context
        assert np.all(seen == 1)


def test_a_longer_window_counts_as_more_context():
    """By a hundredth of its length, as in squad_utils.py, _check_is_max_context."""
    spans = [(0, 320), (128, 330)]

    def score(span, piece):
        first, end = span
        return min(piece - first, end - 1 - piece) + 0.01 * (end - first)

    expected = [
        int(piece >= 320 or (piece >= 128 and score(spans[1], piece) > score(spans[0], piece)))
        for piece in range(330)
    ]
    assert squad_text.best_spans(spans, 330).tolist() == expected


def test_an_answer_that_a_window_cuts_is_none_of_its_own(golden):
    text = "one two three four five six seven eight nine ten eleven twelve thirteen"
    rows = rows_of(golden, [example(text, answer="nine ten")], length=12, stride=3)
    for row in rows:
        assert ("nine ten" in "".join(shown(row, text))) == (not row["is_impossible"])
    assert {int(row["is_impossible"]) for row in rows} == {1, 0}


def test_the_first_of_several_answers_is_trained_on(golden):
    text = "the cat sat on the mat."
    answers = [squad_text.Answer(word, text.index(word)) for word in ("mat", "cat")]
    (row,) = rows_of(golden, [squad_text.SquadExample("q", "who?", text, answers, False)])
    assert answer_of(row, text).strip() == "mat"


def test_a_question_keeps_its_first_pieces(golden):
    long = "when did the king and the queen and all of the people go to the house?"
    (cut,) = rows_of(golden, [example("It was in May.", long, "May")])
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    assert cut["input_ids"][1:7].tolist() == tokenizer.encode(long)[:6]
    assert cut["doc_offset"] == 8
    assert cut["p_mask"].tolist() == [0, *[1] * 7, *[0] * (len(cut["p_mask"]) - 9), 1]


def word_piece(tmp_path, do_lower_case=True):
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] . in ro ##me 19 ##50"
    (tmp_path / "vocab.txt").write_text(pieces.replace(" ", "\n"))
    return Tokenizer(vocab_file=tmp_path / "vocab.txt", do_lower_case=do_lower_case)


def test_what_gives_no_window_is_counted(tmp_path, caplog):
    nothing = squad_text.SquadExample("q", "who?", " \n", (), True)
    examples = [nothing, *(example("Cats sleep.", answer=answer) for answer in (" ", "sleep"))]
    with caplog.at_level("WARNING"):
        windows = [*squad_text.squad_windows(examples, word_piece(tmp_path), 24, 5, 6, True)]
    assert [window.example_index for window in windows] == [2]
    for what in ("paragraph", "answer"):
        assert f"1 questions are left out: their {what} has no text" in caplog.text


TABLE = (
    "Team            Played    Won\nAjax              34       24\nPSV               34     22\n"
)
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
def test_an_answer_is_found_again(golden, tmp_path, kind, text, answer):
    """Among white space, unknown words, and marks: the release drops most of these texts."""
    if kind == "spm":
        tokenizer = Tokenizer(golden / "spm/en_small.model")
    else:
        tokenizer = word_piece(tmp_path, kind == "uncased")
    (window,) = squad_text.squad_windows([example(text, answer=answer)], tokenizer, 512, 9, 9, True)
    assert answer_of(window.row(), text).strip() == answer


def test_an_answer_is_needed_to_train_only(golden):
    no_answer = squad_text.SquadExample("q7", "what?", "Cats sleep.", (), False)
    with pytest.raises(ValueError, match="question q7 has no answer to train on"):
        rows_of(golden, [no_answer])
    (row,) = rows_of(golden, [no_answer], is_training=False)
    assert not row["is_impossible"]


@pytest.mark.parametrize(("length", "stride", "query"), [(24, 0, 6), (9, 5, 6)])
def test_settings_without_room_are_refused(golden, length, stride, query):
    with pytest.raises(ValueError, match="expected `doc_stride` >= 1 and `max_seq_length` >= "):
        rows_of(golden, [example("Cats sleep.")], length, stride, query)


def write(folder, *questions, context="Cats sleep."):
    path = folder / "squad.json"
    data = [{"paragraphs": [{"context": context, "qas": list(questions)}]}]
    path.write_text(json.dumps({"data": data}))
    return path


QUESTION = {"id": "q", "question": "who?", "answers": [{"text": "Cats", "answer_start": 0}]}


Q = ": question q"


def with_answer(**changes: Any) -> dict[str, Any]:
    return {**QUESTION, "answers": [{**QUESTION["answers"][0], **changes}]}


def bad(key: str, expected: str, got: str, question: str = "") -> str:
    form = f"not in SQuAD's format{question}"
    return f"{form}: expected an object whose {key!r} is {expected}, got {got}"


def test_a_number_is_an_id(tmp_path):
    (read,) = squad_text.read_squad(write(tmp_path, {**QUESTION, "id": 17}))
    assert read.qas_id == "17"


def test_both_versions_are_read(tmp_path):
    impossible = {"id": "r", "question": "why?", "answers": [], "is_impossible": True}
    first, second = squad_text.read_squad(write(tmp_path, QUESTION, impossible))
    assert first == example("Cats sleep.", "who?", "Cats")
    assert second == example("Cats sleep.", "why?", qas_id="r")


def test_answers_that_stand_elsewhere_are_counted(tmp_path, caplog):
    moved = {**QUESTION, "answers": [{"text": "sleep", "answer_start": 4}]}
    with caplog.at_level("WARNING"):
        squad_text.read_squad(write(tmp_path, moved))
    assert "1 answers differ from the text at their answer_start" in caplog.text


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([QUESTION, QUESTION], "question q occurs twice"),
        (
            [{**QUESTION, "answers": [{"text": "sleep.", "answer_start": 6}]}],
            "question q: the answer 'sleep.' at character 6 is not within its paragraph of 11",
        ),
        ([{**QUESTION, "answers": [{"text": "", "answer_start": 3}]}], "question q: the answer ''"),
        ([{"id": "q"}], bad("question", "a string", "nothing", Q)),
        (["who?"], bad("id", "a string or an integer", "'who?'")),
        ([{**QUESTION, "id": ["q"]}], bad("id", "a string or an integer", "['q']")),
        ([with_answer(text=None)], bad("text", "a string", "nothing", Q)),
        ([with_answer(answer_start="0")], bad("answer_start", "an integer", "'0'", Q)),
        ([with_answer(answer_start=None)], bad("answer_start", "an integer", "nothing", Q)),
        ([with_answer(answer_start=True)], bad("answer_start", "an integer", "True", Q)),
        ([{**QUESTION, "answers": None}], bad("answers", "a list", "nothing", Q)),
        ([{**QUESTION, "is_impossible": "false"}], bad("is_impossible", "true or false", "'fa", Q)),
    ],
)
def test_a_bad_file_is_refused(tmp_path, questions, message):
    with pytest.raises(ValueError, match=f"squad.json: {re.escape(message)}"):
        squad_text.read_squad(write(tmp_path, *questions))


def test_what_is_no_squad_file_is_refused(tmp_path):
    path = tmp_path / "squad.json"
    with pytest.raises(FileNotFoundError, match="squad.json does not exist"):
        squad_text.read_squad(path)
    for content, message in (
        (b"{", " is not JSON"),
        (b'{"data": "\xff"}', ": not UTF-8 text"),
        (rb'{"data": "\ud800"}', ": not Unicode: .ud800 at character 10 is an unpaired surrogate"),
        (b"[]", ": not in SQuAD's format"),
        (b'{"data": []}', " has no examples"),
        (
            b'{"data": [{"paragraphs": [{"context": "Cats sleep.", "qas": []}]}]}',
            " has no examples",
        ),
        (b'{"data": [7]}', ": not in SQuAD's format: .* 'paragraphs' is a list, got 7"),
        (
            b'{"data": [{"paragraphs": [{"context": 7}]}]}',
            ": not in .* 'context' is a string, got 7",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"squad.json{message}"):
            squad_text.read_squad(path)
