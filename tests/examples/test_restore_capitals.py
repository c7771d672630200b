"""The example's own functions; what it runs, the scripts' tests run."""

from __future__ import annotations

import pathlib
import sys

import pytest

from albert_tf.text.words import split_words

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import restore_capitals

    yield restore_capitals
    for name in ("restore_capitals", "demo"):
        sys.modules.pop(name, None)


def test_what_is_taken_off_a_text_is_what_tags_say(example):
    found = example.tag_words("The Union's House, in 1990. It met. ...")
    pairs = list(zip(found["tokens"], found["labels"], strict=True))
    assert pairs == [
        ("the", "Cap"),
        ("union", "Cap"),
        ("'s", "low"),
        ("house", "Cap"),
        (",", "low"),
        ("in", "low"),
        ("1990", "low."),
        ("it", "Cap"),
        ("met", "low."),
    ]
    assert {tag for _, tag in pairs} <= set(example.TAGS)


def test_it_can_be_put_on_again(example):
    text = "The Union's House met in 1990. It was May."
    bare = text.lower().replace(".", "")
    tags = example.tag_words(text)["labels"]
    spans = [(*place, tag) for place, tag in zip(split_words(bare), tags, strict=True)]
    assert example.restore(bare, spans) == text
    assert example.restore(bare, []) == bare
