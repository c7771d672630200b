import json

import numpy as np
import pytest

from albert_tf.answers import rows
from albert_tf.tasks import glue, race
from albert_tf.text.tokenization import Tokenizer

LENGTH = 32


class LetterTokenizer:
    """One id for each letter, so that a sequence can be read: a is 10, b is 11."""

    cls_id, sep_id, one_segment = 2, 3, False

    def encode(self, text: str, most: int | None = None) -> list[int]:
        return [ord(letter) - ord("a") + 10 for letter in text.strip()][:most]


def ids(text_a: str, text_b: str | None, length: int) -> list[int]:
    features = rows.pair_features(LetterTokenizer(), text_a, text_b, length)
    ids, segments = features["input_ids"].tolist(), features["segment_ids"].tolist()
    assert features["input_mask"].tolist() == [1] * len(ids)
    end = ids.index(3) + 1
    assert segments == [0] * end + [1] * (len(ids) - end)
    return ids


@pytest.mark.parametrize(
    ("text_a", "text_b", "length", "expected"),
    [
        ("abc", None, 7, [2, 10, 11, 12, 3]),
        ("abcdef", None, 5, [2, 10, 11, 12, 3]),
        ("", None, 5, [2, 3]),
        ("abc", "", 7, [2, 10, 11, 12, 3]),
        ("abc", " ", 7, [2, 10, 11, 12, 3]),
        # If both are equally long, the second one is cut.
        ("abc", "def", 8, [2, 10, 11, 12, 3, 13, 14, 3]),
        ("", "ab", 6, [2, 3, 10, 11, 3]),
    ],
)
def test_pairs_are_cut_and_joined(text_a, text_b, length, expected):
    assert ids(text_a, text_b, length) == expected


def test_pairs_lose_one_piece_after_the_other():
    """Compared with the rule itself, applied piece by piece."""
    for length_a in range(1, 9):
        for length_b in range(1, 9):
            for room in range(2, 17):
                a, b = list("abcdefghi"[:length_a]), list("abcdefghi"[:length_b])
                while len(a) + len(b) > room:
                    (a if len(a) > len(b) else b).pop()
                actual = ids("abcdefghi"[:length_a], "abcdefghi"[:length_b], room + 3)
                assert actual.index(3) - 1 == len(a)
                assert len(actual) == len(a) + len(b) + 3


def test_an_ending_keeps_its_tail_and_the_context_its_head():
    features = rows.choice_features(LetterTokenizer(), "abcdef", ("xyz", "z"), 8, max_qa_length=2)
    expected = {
        "input_ids": [[2, 10, 11, 12, 3, 34, 35, 3], [2, 10, 11, 12, 13, 3, 35, 3]],
        "input_mask": [[1] * 8] * 2,
        "segment_ids": [[0] * 5 + [1] * 3, [0] * 6 + [1] * 2],
    }
    assert {name: value.tolist() for name, value in features.items()} == expected


def test_padding_is_marked():
    given = {"input_ids": [[2, 3]], "input_mask": [[1, 1]], "p_mask": [[0, 1]]}
    features = {name: np.array(value, np.int32) for name, value in given.items()}
    expected = {"input_ids": [[2, 3, 0, 0]], "input_mask": [[1, 1, 0, 0]], "p_mask": [[0, 1, 1, 1]]}
    check(features, expected, 4)


def check(features, expected, length):
    for name, value in rows.pad_features(features, length).items():
        assert value.dtype == np.int32
        assert value.tolist() == expected[name], name


def test_features_of_glue_are_the_releases(golden, spm_30k):
    tokenizer = Tokenizer(spm_30k)
    count = 0
    for task in json.loads((golden / "features/glue.json").read_text())["tasks"]:
        for split, expected in task["splits"].items():
            examples = glue.read_glue(task["task"], golden / "features/glue_data", split)
            for example, row in zip(examples, expected, strict=True):
                features = rows.pair_features(tokenizer, example.text_a, example.text_b, LENGTH)
                check(features, row["features"], LENGTH)
                count += 1
    assert count > 200


@pytest.mark.parametrize(
    ("length", "context", "kept"), [(4, [], 1), (7, [], 4), (8, [], 5), (9, [30], 5)]
)
def test_an_ending_is_cut_to_the_room_for_it(length, context, kept):
    features = rows.choice_features(LetterTokenizer(), "uvw", ["abcdef"], length, max_qa_length=5)
    ending = [10, 11, 12, 13, 14, 15][-kept:]
    assert features["input_ids"].tolist() == [[2, *context, 3, *ending, 3]]


def test_features_of_race_are_the_releases(golden, spm_30k):
    stored = json.loads((golden / "features/race.json").read_text())
    tokenizer, lengths = Tokenizer(spm_30k), (stored["max_seq_length"], stored["max_qa_length"])
    folder = golden / "features/race_data"
    examples = race.read_race(folder, "train", preprocess=tokenizer.preprocess)
    for example, row in zip(examples, stored["examples"], strict=True):
        features = rows.choice_features(tokenizer, example.context, example.endings, *lengths)
        check(features, row["features"], lengths[0])
