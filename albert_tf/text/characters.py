"""What tokenisation does to characters: tables for str.translate, filled as needed."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable

CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def to_unicode(text: str | bytes) -> str:
    """Decodes UTF-8, dropping invalid bytes; a str is returned unchanged."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, got {type(text).__name__}: {text!r}")


class _Without(dict):
    """Deletes the characters that have a given property."""

    def __init__(self, has_property: Callable[[str], bool]):
        super().__init__()
        self._has_property = has_property

    def __missing__(self, codepoint: int) -> int | None:
        self[codepoint] = None if self._has_property(chr(codepoint)) else codepoint
        return self[codepoint]


WITHOUT_COMBINING = _Without(lambda char: unicodedata.combining(char) > 0)
WITHOUT_MARKS = _Without(lambda char: unicodedata.category(char) == "Mn")


class CleanedCharacters(dict):
    """Deletes control characters, and puts spaces around CJK characters."""

    def __missing__(self, codepoint: int) -> str | None:
        char = chr(codepoint)
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            self[codepoint] = " "
        elif char == "\ufffd" or category in ("Cc", "Cf"):
            self[codepoint] = None
        else:
            self[codepoint] = f" {char} " if CJK.match(char) else char
        return self[codepoint]


class SplitPunctuation(dict):
    """Puts spaces around every punctuation mark."""

    def __missing__(self, codepoint: int) -> str:
        char = chr(codepoint)
        is_punctuation = char in string.punctuation or unicodedata.category(char).startswith("P")
        self[codepoint] = f" {char} " if is_punctuation else char
        return self[codepoint]
