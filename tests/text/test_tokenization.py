"""Tokenization against the release's own output, and WordPiece against examples by hand.

Not tested here: text other than the 386 strings of the goldens, most of them English.
"""

import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.text import tokenization
from albert_tf.text.sentence_piece import preprocess_text
from albert_tf.text.tokenization import Tokenizer
from tests.kit import tiny
from tests.text.vocabularies import SPECIAL, trained, word_pieces

SENTENCES = ["we saw the sea and the ship we ate"] * 5
# fmt: off
CHINESE = [
    *SPECIAL, "中", "国", "\u8c48", ",", "。", "!", "'", "-",
    "(", ")", "$", "the", "un", "##aff", "##able", "##中", "hello", "Hello", "cafe", "caf\u00e9",
    "ab", "##c", "2", "##0", "##2", "a", "##a", "οδο", "##σ", "##ς",
]
# fmt: on


def read_jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def chinese(tmp_path):
    return Tokenizer(vocab_file=word_pieces(tmp_path, *CHINESE[5:]))


@pytest.mark.parametrize("name", ["en_small", "en30k", "en30k_nolower"])
def test_ids_and_starts_of_words_equal_the_release(golden, request, name):
    pieces, lower = name.removesuffix("_nolower"), not name.endswith("_nolower")
    rows = read_jsonl(golden / "tokenization" / f"{name}.jsonl")
    assert len(rows) == 386
    for row in rows:
        assert preprocess_text(row["text"], lower=lower) == row["preprocessed"]
    small = golden / "spm" / "en_small.model"
    model = small if pieces == "en_small" else request.getfixturevalue("spm_30k")
    tokenizer = Tokenizer(model, do_lower_case=lower)
    for row in rows:
        preprocessed = tokenizer.preprocess(row["text"])
        tokens = tokenizer.tokenize(preprocessed)
        ids = tokenizer.convert_tokens_to_ids(tokens)
        assert preprocessed == row["preprocessed"], row["text"]
        assert tokens == row["tokens"], row["text"]
        assert ids == row["ids"], row["text"]
        assert tokenizer.encode(row["text"]) == ids, row["text"]
    expected = json.loads((golden / f"tokenization/is_start_piece_{pieces}.json").read_text())
    starts = tokenizer.word_starts()
    assert starts.dtype == bool and starts.shape == (expected["vocab_size"],)
    assert np.flatnonzero(~starts).tolist() == expected["continuation_ids"]


def test_of_two_splits_with_one_score_it_takes_the_originals(golden, tokenizer):
    """The pieces are sentencepiece 0.1.99's, under Python 3.7; 0.2.2 and 0.2.3 differ in all."""
    rows = read_jsonl(golden / "tokenization" / "ties_en_small.jsonl")
    assert len(rows) == 90
    for row in rows:
        assert tokenizer.tokenize(row["text"]) == row["tokens"]
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode(row["text"])) == row["tokens"]


@pytest.mark.parametrize(
    ("vocabulary", "text", "pieces"),
    [
        # Superfluous spaces between words go to the piece after them.
        ("tokenizer", "  Big  cats  here. ", "Big| |cat|s|  here|."),
        # A character that becomes several letters belongs to each piece that holds some of them.
        ("tokenizer", "so ﬁne ¼ it", "so| ﬁne| ¼|¼|¼| it"),
        ("tokenizer", "Cafe\u0301 \u0301open", "Ca|f|e\u0301| \u0301open"),
        ("tokenizer", "In 1990, 2,0", "In| 1990|,| 2|,|0"),
        ("tokenizer", "한국어 ﾊﾞ", "|한국어| |ﾊﾞ"),
        ("tokenizer", "\u0301 ", None),
        ("chinese", "Cafe\u0301, unaffable\u200b 中国!", "Cafe\u0301|,|un|aff|able|中|国|!"),
        # An unknown word is located by its position.
        ("chinese", "The [un]kempt  xyz\n202", "The|[|un|]|kempt|xyz|2|0|2"),
        ("chinese", "ΟΔΟΣ. \ufeff豈", "ΟΔΟ|Σ|.|豈"),
    ],
)
def test_pieces_know_their_characters(request, vocabulary, text, pieces):
    """The release aligns the texts; these cases agree, except for marks and what it drops."""
    tokenizer = request.getfixturevalue(vocabulary)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    found = [text[start:end] for start, end in offsets]
    assert found == ([] if pieces is None else pieces.split("|"))


def test_bytes_are_read_as_utf8_and_broken_bytes_dropped(tokenizer, chinese):
    assert tokenizer.preprocess(" Caf\u00e9\xa0Noir ".encode()) == "cafe noir"
    assert tokenizer.preprocess(b"a\xffb") == "ab"
    assert tokenizer.encode("Caf\u00e9 1990,".encode()) == tokenizer.encode("Caf\u00e9 1990,")
    assert chinese.tokenize("中国".encode()) == ["中", "国"]


def test_pieces_have_ids_also_in_a_copy_by_pickle(tokenizer, chinese):
    text = "In 1990, the 中国 Hello"
    for each, size in ((tokenizer, 6000), (chinese, len(CHINESE))):
        assert [each.pad_id, each.unk_id, each.cls_id, each.sep_id, each.mask_id] == [*range(5)]
        ids = list(range(each.vocab_size))
        assert each.convert_tokens_to_ids(each.convert_ids_to_tokens(ids)) == ids
        assert each.vocab_size == size and each.convert_tokens_to_ids(["never seen"]) == [1]
        assert each.convert_ids_to_tokens(np.array([2, 3])) == ["[CLS]", "[SEP]"]
        copy = pickle.loads(pickle.dumps(each))
        assert copy.encode(text) == each.encode(text) and copy.mask_id == 4
        assert copy.tokenize(text) == each.tokenize(text)


# Runs that could be cut at a wrong place: endless words, sigmas whose form depends on what follows,
# syllables that SentencePiece composes, characters that are removed, and many spaces.
RUNS = (
    *("aeiou", "the of and ", "a", "d", "ΣΑς.' ", "Σ'.", "각\u1100\u1161\u11a8", "中国 "),
    *("0123456789, ", "  \u3000\t", "\u0301é\ufdfa", "\u09c7\u09be", "\x0ba\x85b ", "\u00b4 a"),
)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_ids_are_those_of_all_of_the_text(tokenizer, chinese, seed):
    draws = random.Random(seed)
    for _ in range(100):
        runs = draws.choices(RUNS, k=3)
        text = "".join("".join(draws.choices(run, k=draws.choice((3, 30, 300)))) for run in runs)
        for each in (tokenizer, chinese):
            ids = each.encode(text)
            for most in (0, 1, draws.randrange(2, 30)):
                assert each.encode(text, most) == ids[:most], ascii(text)


def test_a_piece_with_a_space_keeps_a_text_from_being_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_PIECE", 1)
    monkeypatch.setattr(tokenization, "GROWTH", 2)
    model = trained(SENTENCES, split_by_whitespace=False, vocab_size=100)
    tokenizer = Tokenizer(tiny.write(tmp_path / "phrases.model", model))
    text = "we saw the sea and the ship we ate " * 20
    ids = tokenizer.encode(text)
    assert [tokenizer.encode(text, most) for most in range(60)] == [ids[:n] for n in range(60)]


def test_ten_megabytes_of_one_word_take_little_memory_and_time(golden):
    """A separate process, to measure its peak. 300 MB hold the text, normalised in two ways."""
    code = f"""
import resource, time
from albert_tf.answers.rows import pair_features
from albert_tf.text import tokenization
from albert_tf.text.tokenization import Tokenizer
tokenizer = Tokenizer({str(golden / "spm" / "en_small.model")!r})
for letter in "ax\u03a3\u4e2d":
    text = letter * (10_000_000 // len(letter.encode()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    features = pair_features(tokenizer, text, text, 128)
    assert len(features["input_ids"]) == 128 or letter in "\u03a3\u4e2d"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    assert time.process_time() - start < 20
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_encode_where_even_the_comma_is_unknown(tmp_path):
    tokenizer = Tokenizer(tiny.write(tmp_path / "m", trained(SENTENCES, vocab_size=18)))
    text = "we ate 7, and 8,"
    tokens = tokenizer.tokenize(tokenizer.preprocess(text))
    assert tokens.count(",") == 2
    assert "7," not in tokens
    assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokens)


def test_characters_spelt_in_bytes(tmp_path):
    model = trained(SENTENCES, byte_fallback=True, vocab_size=290)
    tokenizer = Tokenizer(tiny.write(tmp_path / "bytes.model", model))
    ids = tokenizer.encode("日本")
    pieces = ["▁", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "<0x9C>", "<0xAC>"]
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer.decode(tokenizer.encode("we saw 日本 é")) == "we saw 日本 e"
    assert tokenizer.decode(ids[:2]) == "\ufffd", "half a character"
    for letters in ("latin", "unicode"):
        starts = tokenizer.word_starts(letters)[ids]
        assert starts.tolist() == [True, True, False, False, True, False, False]


def test_words_may_end_with_a_space(tmp_path):
    model = trained(SENTENCES, vocab_size=18, treat_whitespace_as_suffix=True)
    tokenizer = Tokenizer(tiny.write(tmp_path / "suffix.model", model))
    assert tokenizer.decode(tokenizer.encode("we saw the sea")) == "we saw the sea"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("中国", ["中", "国"]),
        ("the中国unaffable", ["the", "中", "国", "un", "##aff", "##able"]),
        ("中国。Hello!", ["中", "国", "。", "hello", "!"]),
        ("\uf900", ["\u8c48"]),  # a compatibility ideograph is decomposed with the accents
        ("  the\tthe\nthe\rthe\u00a0the\u3000the  ", ["the"] * 6),
        ("t\u0000h\u200be\ufffd\u0007", ["the"]),  # NUL, zero width, replacement, bell: dropped
        ("the\u2028the", ["the", "the"]),
        ("hello-the('hello')", ["hello", "-", "the", "(", "'", "hello", "'", ")"]),
        ("$2", ["$", "2"]),
        ("Caf\u00c9", ["cafe"]),
        ("cafe\u0301", ["cafe"]),
        ("ΟΔΟΣ", ["οδο", "##ς"]),
        ("2022", ["2", "##0", "##2", "##2"]),
        ("abx", ["[UNK]"]),  # "ab" fits, the rest doesn't: the whole word is unknown
        ("xab the", ["[UNK]", "the"]),
        ("a" * 200, ["a"] + ["##a"] * 199),
        ("a" * 201, ["[UNK]"]),
        ("a" * 201 + " ab", ["[UNK]", "ab"]),
        ("", []),
        (" \u200b ", []),
    ],
)
def test_wordpiece_tokens(chinese, text, tokens):
    assert chinese.tokenize(text) == tokens
    assert chinese.encode(text) == [CHINESE.index(token) for token in tokens]


def test_wordpiece_cased(tmp_path, chinese):
    # Normalisation is left to tokenize.
    assert chinese.preprocess("  He\u0301llo  ") == "  He\u0301llo  "
    path = word_pieces(tmp_path, *CHINESE[5:])
    tokenizer = Tokenizer(vocab_file=path, do_lower_case=False)
    assert tokenizer.tokenize("Hello caf\u00e9 THE") == ["Hello", "caf\u00e9", "[UNK]"]
    assert tokenizer.tokenize("\uf900\u8c48") == ["[UNK]", "\u8c48"]


def test_wordpiece_vocabulary_takes_the_first_column_once(tmp_path):
    # With a byte order mark, as some editors write it.
    text = "\ufeff[PAD]\n[UNK]\t-1\r\n[CLS] \n[SEP]\n[SEP]\n[MASK]\n\nthe\n"
    tokenizer = Tokenizer(vocab_file=tiny.write(tmp_path / "vocab.txt", text))
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    assert pieces == [*SPECIAL, " ", "the"]


def test_a_tokenizer_is_called_and_decodes(tokenizer, tmp_path):
    texts = ["In the beginning, 1990.", "", "the earth"]
    ids = [tokenizer.encode(text) for text in texts]
    assert tokenizer(texts) == ids and tokenizer(texts[0]) == ids[0]
    assert tokenizer.decode(ids) == ["in the beginning, 1990.", "", "the earth"]
    row = [tokenizer.cls_id, *ids[2], tokenizer.mask_id, tokenizer.sep_id, tokenizer.pad_id]
    assert tokenizer.decode(np.array(row)) == "the earth[MASK]"
    words = Tokenizer(vocab_file=word_pieces(tmp_path, "un", "##real", "it"))
    assert words.decode(words(["Unreal it", "real"])) == ["unreal it", "[UNK]"]
