"""Limits on the sizes of requests and answers, checked before anything is built from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException

from albert_tf.text.word_splitting import split_words

# Maximum nesting of lists and objects.
_DEPTH = 32
# Maximum values of an answer, padding included: twice those of 256 vectors of ALBERT-xxlarge. Each
# value is 20 bytes of JSON. A tagged word has five values.
_ANSWER_VALUES = 2_000_000
_WORDS = _ANSWER_VALUES // 5
_OTHERS, _BRACKETS = bytes({*range(256)} - {*b"[]{}"}), bytes.maketrans(b"{}", b"[]")


def most_values(rows: int) -> int:
    """Returns how many values a request may have if `rows` limits its rows and a row's endings."""
    # An ending may be a base64 object, which is two values. 1000 is for members of the request.
    return 1000 + 2 * rows * rows


def check_json(body: bytes | bytearray, most: int) -> None:
    """Raises ValueError if JSON in UTF-8 has more than `most` values, or is nested too deeply.

    Two bytes of JSON may become a list of 90 bytes. Millions take seconds to build, and to free.
    """
    # With few brackets and commas, even counting those in texts, there is nothing to check.
    lists = body.count(b"[") + body.count(b"{")
    if lists <= _DEPTH and lists + body.count(b",") <= most:
        return
    # Leave out escaped characters, then all texts. Each value has at most a name and one text.
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = b"".join(bare.split(b'"')[::2]) if bare.count(b'"') <= 4 * most else b"," * (most + 1)
    if sum(map(marks.count, (b"[", b"{", b","))) > most:
        raise ValueError(f"the JSON must have at most {most} values: send fewer rows at a time")
    brackets = marks.translate(_BRACKETS, _OTHERS)
    for _ in range(_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise ValueError(f"lists of the JSON must be closed, and nested at most {_DEPTH} deep")


def check_words(texts: Sequence[str]) -> None:
    """Raises ValueError if texts have more words than an answer may have."""
    if sum(map(len, texts)) <= _WORDS:
        return
    words = (word for text in texts for word in split_words(text))
    if next(itertools.islice(words, _WORDS, None), None):
        raise ValueError(f"the texts must have at most {_WORDS} words: send fewer at a time")


def axes_of(shape: Any, is_many: bool, where: str, most: int) -> tuple[int, int]:
    """Returns the number of rows, and of texts per row, of a shape: [B] or [B, 1], or [B, E]."""
    axes = shape if isinstance(shape, list) and 1 + is_many <= len(shape) <= 2 else [0]
    is_wide = not is_many and axes[1:] not in ([], [1])
    if is_wide or not all(type(axis) is int and 1 <= axis <= most for axis in axes):
        wanted = "[rows, texts]" if is_many else "[rows] or [rows, 1]"
        raise ValueError(f"{where}.shape must be {wanted}, from 1 to {most}, got {shape!s:.80}")
    return axes[0], axes[-1] if len(axes) > 1 else 1


def check_answer(size: int) -> None:
    """Raises HTTPException if an answer would have too many values."""
    if size > _ANSWER_VALUES:
        message = f"the answer may have {_ANSWER_VALUES} values, but padded it has {size}"
        raise HTTPException(400, f"{message}: send long texts alone, and fewer texts at a time")
