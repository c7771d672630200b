"""Words of a text, and which pieces start one."""

import sys
import unicodedata

import numpy as np
import pytest

from albert_tf.text import word_splitting, word_starts
from albert_tf.text.tokenization import Tokenizer
from tests.text.vocabularies import word_pieces

# Pieces that continue a word under both rules, under "unicode" alone, and under neither.
LATIN = ["s", "Ing", "s.", "-ed", "..", "[CLS]", "[MASK]"]
# German, Cyrillic, Greek, Arabic, Hebrew, Devanagari with a vowel sign and such a sign alone, and
# Hangul as NFKD leaves it.
OTHER_SCRIPTS = [
    *("\u00df", "stra\u00dfe", "\u0441\u043a\u0438\u0439", "\u03c2", "\u0627\u062a"),
    *("\u05d9\u05dd", "\u0928\u0947", "\u093e", "\u1100\u1161", "\u0434-"),
]
# The last are Chinese, Hiragana, Katakana, Thai, Khmer and Burmese.
STARTS = [
    *("▁", "▁the", "▁\u0434\u0430", "<unk>", "<pad>", ".", "-", "(", "5", "1990", "5%", "'", "x'"),
    *("\u20ac", "\u2013", "\u3002", "\u0665", "\u0434\u04355", "a\u6f22", "\u6f22\u5b57"),
    *("\u306e\u3067", "\u30bf", "\u0e01\u0e31\u0e19", "\u1780\u17b6", "\u1019\u103b"),
]


def test_letters_are_latin_or_of_every_script_with_spaces():
    pieces = [*LATIN, *OTHER_SCRIPTS, *STARTS]
    expected = np.ones(len(pieces), bool)
    expected[: len(LATIN)] = False
    np.testing.assert_array_equal(word_starts.find_in_sentencepiece(pieces, "latin"), expected)
    expected[: len(LATIN + OTHER_SCRIPTS)] = False
    np.testing.assert_array_equal(word_starts.find_in_sentencepiece(pieces, "unicode"), expected)


def test_hash_marks_alone_tell_in_wordpiece(tmp_path):
    tokenizer = Tokenizer(vocab_file=word_pieces(tmp_path, "the", "##s", "漢", "##漢", "#"))
    for letters in ("latin", "unicode"):
        assert np.flatnonzero(~tokenizer.word_starts(letters)).tolist() == [6, 8]


def test_released_english_vocabulary_has_the_same_words_under_both(spm_30k):
    tokenizer = Tokenizer(spm_model_file=spm_30k)
    np.testing.assert_array_equal(tokenizer.word_starts(), tokenizer.word_starts("unicode"))


@pytest.mark.parametrize(
    ("text", "separator", "expected"),
    [
        ("", " ", []),
        ("花呗", " ", ["花呗"]),
        ("花呗 提 额", " ", ["花呗", "提", "额"]),
        ("New   York 花呗", " ", ["New", " ", "York", "花呗"]),
        ("a  b", " ", ["a", " ", "b"]),
        ("/a/b/", "/", ["a", "b"]),
        ("1 / 2", " / ", ["1", "2"]),
        ("a.+b", ".+", ["a", "b"]),
        ("1//2", "/", ["1", "/", "2"]),
        ("//", "/", ["/"]),
    ],
)
def test_separators_part_words_and_two_stand_for_one(text, separator, expected):
    assert word_splitting.split_segmented(text, separator) == expected


ENGLISH = ["In", "1990", ",", "12", ",", "5", "the", " ", "quick ", "\ufb01ne", "\u00d6l", " ", "."]


SPM, ZH = "spm/en_small.model", "albert_zh/vocab.txt"


@pytest.mark.parametrize(
    ("vocabulary", "words", "expected"),
    [
        (SPM, ENGLISH, "|▁in |1990 |, |▁12 |, |5 |the |▁ quick |▁fine |ol |▁ ."),
        (SPM, ["under", "stand", "ing"], "|▁understanding"),
        (SPM, ["understanding", "it"], "|▁understanding |it"),
        (SPM, ["1990,", "it"], "|▁1990 , |it"),
        (SPM, [], ""),
        (SPM, [" "], ""),
        (ZH, ["花呗", "提", "额度"], "|花 呗 |提 |额 度"),
        (ZH, ["abc", "2019", "年", "ABC"], "|[UNK] |[UNK] |a ##b ##c"),
        (ZH, ["abc", " ", "2019", "\0花呗\u0301", "。"], "|a ##b ##c |2 ##0 ##1 ##9 |花 呗 |。"),
        (ZH, [], ""),
    ],
)
def test_words_of_a_text(golden, vocabulary, words, expected):
    name = "spm_model_file" if vocabulary == SPM else "vocab_file"
    tokenizer = Tokenizer(**{name: golden / vocabulary})
    ids, starts = tokenizer.encode_words(words)
    assert ids == tokenizer.encode("".join(words))
    pieces = tokenizer.convert_ids_to_tokens(ids)
    marked = ["|" * bool(start) + piece for start, piece in zip(starts, pieces, strict=True)]
    assert " ".join(marked) == expected


def test_ids_of_words_are_those_of_the_text(golden, tokenizer):
    for line in (golden / "pretrain_data" / "text.txt").read_text().split("\n")[:500]:
        ids, starts = tokenizer.encode_words([*line])  # Each character is a word.
        assert ids == tokenizer.encode(line)
        pieces = tokenizer.convert_ids_to_tokens(ids)
        # If no piece holds a character with its space, that space is a piece of its own.
        assert starts.tolist() == [before != "▁" for before in ["", *pieces[:-1]][: len(pieces)]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna  lives\tin\u3000York\n", "Anna|lives|in|York"),
        ('("Anna\'s 1.5 m"),', '(|"|Anna|\'s|1.5|m|"|)|,'),
        ("don't AC/DC x@y.de Wal-Mart's", "don't|AC/DC|x@y.de|Wal-Mart|'s"),
        ("U.S. $5.20, 10% ... --", "U.S|.|$|5.20|,|10|%|.|.|.|-|-"),
        ("Senate\u2014\u201cthe House\u201d\u2026", "Senate|\u2014|\u201c|the|House|\u201d|\u2026"),
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
    found = [text[start:end] for start, end in word_splitting.split_words(text)]
    assert found == (expected.split("|") if expected else [])


def test_runs_of_classes_are_those_of_all_characters():
    """Beyond the last run, all characters that Unicode assigns are letters."""
    runs = word_splitting.runs_of_classes()
    starts = [start for start, _ in runs] + [sys.maxunicode + 1]
    for (start, expected), end in zip(runs, starts[1:], strict=True):
        sample = range(start, end) if end <= 0x40000 else range(start, end, 97)
        classes = {word_splitting.character_class(chr(code)) for code in sample}
        assert classes == {expected}, hex(start)
    assert all(unicodedata.category(chr(code))[0] not in "PSZ" for code in range(0xE0000, 0xE1000))
