"""Tables for str.translate with the replacements of tokenisation; filled as needed."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable

import numpy as np

CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def to_unicode(text: str | bytes) -> str:
    """Decodes UTF-8, dropping invalid bytes; a str is returned unchanged."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{text[error.start]!r} at character {error.start} is an unpaired surrogate: write "
                "the whole character"
            ) from error
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, got {type(text).__name__}: {text!r}")


def is_mark(char: str) -> bool:
    """Whether a character modifies the one before it: an accent or a vowel sign, of any width."""
    return all(unicodedata.category(c)[0] == "M" for c in unicodedata.normalize("NFKD", char))


def origins(text: str, replace: Callable[[str], str]) -> np.ndarray:
    """Returns, for each character after `replace`, the index in `text` that it comes from."""
    lengths = {char: len(replace(char)) for char in set(text)}
    return np.repeat(np.arange(len(text)), [lengths[char] for char in text])


class _Table(dict):
    """Maps a character to its replacement, which is computed when it is first seen."""

    def __init__(self, becomes: Callable[[str], str | None]):
        super().__init__()
        self._becomes = becomes

    def __missing__(self, codepoint: int) -> str | None:
        self[codepoint] = self._becomes(chr(codepoint))
        return self[codepoint]


def _cleaned(char: str) -> str | None:
    category = unicodedata.category(char)
    if char in "\t\n\r" or category == "Zs":
        return " "
    if char == "\ufffd" or category in ("Cc", "Cf"):
        return None
    return f" {char} " if CJK.match(char) else char


def _apart(char: str) -> str:
    is_punctuation = char in string.punctuation or unicodedata.category(char).startswith("P")
    return f" {char} " if is_punctuation else char


WITHOUT_COMBINING = _Table(lambda char: None if unicodedata.combining(char) else char)
WITHOUT_MARKS = _Table(lambda char: None if unicodedata.category(char) == "Mn" else char)
# Drops control characters, and puts spaces around CJK characters.
CLEANED = _Table(_cleaned)
# Puts spaces around every punctuation mark.
SPLIT_PUNCTUATION = _Table(_apart)
