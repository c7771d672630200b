"""Windows on words, and schemes of tags."""

import pytest

from albert_tf.answers import tag
from albert_tf.answers.tag import windows


def test_windows_hold_as_many_words_as_fit():
    assert list(windows([3, 0, 2, 5, 1, 0, 9, 0], 9)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(windows([4, 5, 1], 9)) == [[0, 1], [2]]
    assert list(windows([0, 0], 9)) == [] == list(windows([], 9))


@pytest.mark.parametrize(
    ("tags", "default", "are_entities"),
    [
        (("O", "B-a", "I-a"), 0, True),
        (("S-a", "O"), 1, True),
        (("NOUN", "DET", "X"), 0, False),
        (("O", "B", "I"), 0, False),
        (("x", "B-a"), 0, False),
        (("B-a", "E-a"), 0, True),
        (("O",), 0, False),
    ],
)
def test_tags_are_of_entities_or_plain(tags, default, are_entities):
    assert tag.default_tag(tags) == default
    assert tag.are_entities(tags) == are_entities
