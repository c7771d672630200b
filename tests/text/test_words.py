from __future__ import annotations

import sys
import unicodedata

import pytest

from albert_tf.text import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna  lives\tin\u3000York\n", "Anna|lives|in|York"),
        ('("Anna\'s 1.5 m"),', '(|"|Anna|\'s|1.5|m|"|)|,'),
        ("don't AC/DC x@y.de Wal-Mart's", "don't|AC/DC|x@y.de|Wal-Mart|'s"),
        ("U.S. $5.20, 10% ... --", "U.S|.|$|5.20|,|10|%|.|.|.|-|-"),
        (
            "the Senate\u2014and \u201cthe House\u201d\u2026",
            "the|Senate|\u2014|and|\u201c|the|House|\u201d|\u2026",
        ),
        ("1999\u20132001 Anna\u2019s ANNA'S", "1999\u20132001|Anna|\u2019s|ANNA|'S"),
        ("\u6211\u7231ab\u5317\u4eac\u3002ok", "\u6211|\u7231|ab|\u5317|\u4eac|\u3002|ok"),
        # Too short for a word and its 's.
        ("'s 's's a's s' '", "'|s|'|s|'s|a|'s|s|'|'"),
        ("e\u0301te\u0301! \u200b \x01", "e\u0301te\u0301|!|\u200b|\x01"),
        (" \u2028\x85", ""),
        ("", ""),
    ],
)
def test_words(text, expected):
    found = [text[start:end] for start, end in words.split_words(text)]
    assert found == (expected.split("|") if expected else [])


def test_runs_of_kinds_are_those_of_all_characters():
    """Beyond the last run there are letters only, as far as Unicode assigns any characters."""
    runs = words.runs_of_kinds()
    starts = [start for start, _ in runs] + [sys.maxunicode + 1]
    for (start, kind), end in zip(runs, starts[1:], strict=True):
        sample = range(start, end) if end <= 0x40000 else range(start, end, 97)
        assert all(words.kind_of(chr(code)) is kind for code in sample), hex(start)
    assert all(unicodedata.category(chr(code))[0] not in "PSZ" for code in range(0xE0000, 0xE1000))
