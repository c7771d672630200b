"""Labelled spans of a text -> tags of its words."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from albert_tf.answers.tag import OUTSIDE
from albert_tf.text.word_splitting import split_words

# The names of a span's start, end and type in doccano's, Label Studio's and spaCy's files.
_NAMES = (("start", "start_offset"), ("end", "end_offset"), ("label", "labels"))


def tag_words(
    text: str, spans: Sequence[Any] | None, where: str
) -> tuple[list[str], list[str] | None]:
    """Returns the words of a text, and their tags in IOB2 if spans are given.

    White space at the ends of a span is ignored. A span that begins or ends within a word, or
    overlaps another one, is refused; the same span given twice counts once.

    Args:
      text: The text.
      spans: Start, end (behind the last character) and type of each, in a list or an object.
      where: The place of the text, for messages.
    """
    words = split_words(text)
    tags = [OUTSIDE] * len(words)
    starts, ends = ({place[i]: n for n, place in enumerate(words)} for i in (0, 1))
    for start, end, name in sorted({_span(each, text, where) for each in spans or ()}):
        first, last = starts.get(start), ends.get(end)
        covered = [] if first is None or last is None else tags[first : last + 1]
        if {*covered} != {OUTSIDE}:
            what = "overlaps another one" if covered else "begins or ends within a word"
            raise ValueError(f"{where}: the span {text[start:end]!r} at {start} {what}")
        tags[first : last + 1] = [f"B-{name}", *[f"I-{name}"] * (len(covered) - 1)]
    return [text[start:end] for start, end in words], None if spans is None else tags


def _span(span: Any, text: str, where: str) -> tuple[int, int, str]:
    values = span if isinstance(span, list) else []
    content = None
    if isinstance(span, dict):
        values = [next((span[x] for x in each if x in span), None) for each in _NAMES]
        content = span.get("text")
    if len(values) == 3 and isinstance(values[2], list) and len(values[2]) == 1:
        values = [*values[:2], *values[2]]
    if [*map(type, values)] != [int, int, str] or not 0 <= values[0] < values[1] <= len(text):
        raise ValueError(
            f"{where}: expected a start, an end (at most {len(text)}) and one label of each span, "
            f"got {reprlib.repr(span)}"
        )
    start, end, name = values
    found = text[start:end]
    # Tools may count in other units than characters, such as UTF-16 code units.
    if content not in (None, found):
        raise ValueError(f"{where}: expected the span {content!r} at {start}, got {found!r}")
    return start + len(found) - len(found.lstrip()), start + len(found.rstrip()), name
