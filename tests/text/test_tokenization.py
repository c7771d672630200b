"""Tokenization against the release's own output, and WordPiece against examples by hand.

Not seen here: text other than the 386 strings of the goldens, most of them English.
"""

import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece

from albert_tf.text import tokenization
from albert_tf.text.sentence_piece import preprocess_text
from albert_tf.text.tokenization import Tokenizer

# fmt: off
CHINESE_VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "\u8c48", ",", "。", "!", "'", "-",
    "(", ")", "$", "the", "un", "##aff", "##able", "##中", "hello", "Hello", "cafe", "caf\u00e9",
    "ab", "##c", "2", "##0", "##2", "a", "##a", "οδο", "##σ", "##ς",
]
# fmt: on


def read_jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def assert_same_as_release(tokenizer, rows):
    assert len(rows) == 386
    for row in rows:
        preprocessed = tokenizer.preprocess(row["text"])
        tokens = tokenizer.tokenize(preprocessed)
        ids = tokenizer.convert_tokens_to_ids(tokens)
        assert preprocessed == row["preprocessed"], row["text"]
        assert tokens == row["tokens"], row["text"]
        assert ids == row["ids"], row["text"]
        assert tokenizer.encode(row["text"]) == ids, row["text"]


def assert_same_word_starts(tokenizer, path):
    expected = json.loads(path.read_text())
    starts = tokenizer.word_starts()
    assert starts.dtype == bool
    assert starts.shape == (expected["vocab_size"],)
    assert np.flatnonzero(~starts).tolist() == expected["continuation_ids"]


@pytest.fixture
def small(golden):
    return Tokenizer(spm_model_file=golden / "spm" / "en_small.model")


@pytest.fixture
def chinese(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(CHINESE_VOCABULARY) + "\n", encoding="utf-8")
    return Tokenizer(vocab_file=path)


def test_small_vocabulary_equals_release(golden, small):
    assert_same_as_release(small, read_jsonl(golden / "tokenization" / "en_small.jsonl"))
    assert_same_word_starts(small, golden / "tokenization" / "is_start_piece_en_small.json")


def test_of_two_splits_with_one_score_it_takes_the_originals(golden, small):
    """The pieces are sentencepiece 0.1.99's, under Python 3.7; 0.2.2 and 0.2.3 differ in all."""
    rows = read_jsonl(golden / "tokenization" / "ties_en_small.jsonl")
    assert len(rows) == 90
    for row in rows:
        assert small.tokenize(row["text"]) == row["tokens"]
        assert small.convert_ids_to_tokens(small.encode(row["text"])) == row["tokens"]


@pytest.mark.parametrize(
    ("name", "do_lower_case"), [("en30k.jsonl", True), ("en30k_nolower.jsonl", False)]
)
def test_30k_vocabulary_equals_release(golden, spm_30k, name, do_lower_case):
    tokenizer = Tokenizer(spm_model_file=spm_30k, do_lower_case=do_lower_case)
    assert_same_as_release(tokenizer, read_jsonl(golden / "tokenization" / name))
    assert_same_word_starts(tokenizer, golden / "tokenization" / "is_start_piece_en30k.json")


@pytest.mark.parametrize(
    ("name", "lower"),
    [("en30k.jsonl", True), ("en30k_nolower.jsonl", False), ("en_small.jsonl", True)],
)
def test_preprocess_text_equals_release(golden, name, lower):
    for row in read_jsonl(golden / "tokenization" / name):
        assert preprocess_text(row["text"], lower=lower) == row["preprocessed"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # Of superfluous spaces, those between words go to the piece after them.
        ("  Big  cats  here. ", "Big| |cat|s|  here|."),
        # A character of several letters belongs to all pieces that hold some.
        ("so ﬁne ¼ it", "so| ﬁne| ¼|¼|¼| it"),
        ("Cafe\u0301 \u0301open", "Ca|f|e\u0301| \u0301open"),
        ("In 1990, 2,0", "In| 1990|,| 2|,|0"),
        ("한국어 ﾊﾞ", "|한국어| |ﾊﾞ"),
        ("\u0301 ", None),
    ],
)
def test_pieces_know_their_characters(small, text, pieces):
    """The release aligns the texts: these cases agree, but for marks and what it drops."""
    ids, offsets = small.encode_with_offsets(text)
    assert ids == small.encode(text)
    found = [text[start:end] for start, end in offsets]
    assert found == ([] if pieces is None else pieces.split("|"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Cafe\u0301, unaffable\u200b 中国!", "Cafe\u0301|,|un|aff|able|中|国|!"),
        # An unknown word is known by its place.
        ("The [un]kempt  xyz\n202", "The|[|un|]|kempt|xyz|2|0|2"),
        ("ΟΔΟΣ. \ufeff豈", "ΟΔΟ|Σ|.|豈"),
    ],
)
def test_pieces_of_wordpiece_know_their_characters(chinese, text, pieces):
    ids, offsets = chinese.encode_with_offsets(text)
    assert ids == chinese.encode(text)
    assert [text[start:end] for start, end in offsets] == pieces.split("|")


def test_bytes_are_read_as_utf8_and_broken_bytes_dropped(small, chinese):
    assert small.preprocess(" Caf\u00e9\xa0Noir ".encode()) == "cafe noir"
    assert small.preprocess(b"a\xffb") == "ab"
    assert small.encode("Caf\u00e9 1990,".encode()) == small.encode("Caf\u00e9 1990,")
    assert chinese.tokenize("中国".encode()) == ["中", "国"]


def test_special_pieces_and_size(small, chinese):
    for tokenizer in (small, chinese):
        special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id)
        assert special == (0, 1, 2, 3)
        assert tokenizer.mask_id == 4
    assert small.vocab_size == 6000
    assert chinese.vocab_size == len(CHINESE_VOCABULARY)


def test_ids_and_tokens_are_inverse(small, chinese):
    for tokenizer in (small, chinese):
        ids = list(range(tokenizer.vocab_size))
        assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
        assert tokenizer.convert_tokens_to_ids(["never seen"]) == [1]
        assert tokenizer.convert_ids_to_tokens(np.array([2, 3])) == ["[CLS]", "[SEP]"]


def test_id_outside_the_vocabulary(small):
    for bad_id in (-1, 6000):
        with pytest.raises(ValueError, match=f"id {bad_id} is outside the vocabulary of 6000"):
            small.convert_ids_to_tokens([5, bad_id])


def test_tokenizer_survives_pickling(small, chinese):
    text = "In 1990, the 中国 Hello"
    for tokenizer in (small, chinese):
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert copy.encode(text) == tokenizer.encode(text)
        assert copy.tokenize(text) == tokenizer.tokenize(text)
        assert copy.mask_id == 4


# Runs that a cut could go wrong in: words without end, sigmas whose form depends on what follows,
# syllables that SentencePiece puts together, characters that go, and many spaces.
RUNS = (
    *("aeiou", "the of and ", "a", "d", "ΣΑς.' ", "Σ'.", "각\u1100\u1161\u11a8", "中国 "),
    *("0123456789, ", "  \u3000\t", "\u0301é\ufdfa", "\u09c7\u09be", "\x0ba\x85b ", "\u00b4 a"),
)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_ids_are_those_of_all_of_the_text(small, chinese, seed):
    draws = random.Random(seed)
    for _ in range(100):
        runs = draws.choices(RUNS, k=3)
        text = "".join("".join(draws.choices(run, k=draws.choice((3, 30, 300)))) for run in runs)
        for tokenizer in (small, chinese):
            ids = tokenizer.encode(text)
            for most in (0, 1, draws.randrange(2, 30)):
                assert tokenizer.encode(text, most) == ids[:most], ascii(text)


def test_a_piece_with_a_space_keeps_a_text_from_being_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_PIECE", 1)
    monkeypatch.setattr(tokenization, "GROWTH", 2)
    path = tmp_path / "phrases.model"
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    train_sentencepiece(path, control_symbols=symbols, split_by_whitespace=False, vocab_size=100)
    tokenizer = Tokenizer(spm_model_file=path)
    text = "we saw the sea and the ship we ate " * 20
    ids = tokenizer.encode(text)
    assert [tokenizer.encode(text, most) for most in range(60)] == [ids[:n] for n in range(60)]


def test_ten_megabytes_of_one_word_take_little_memory_and_time(golden):
    """The peak is of a process of its own. 300 MB hold the text, normalised in two ways."""
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
    processor_file = tmp_path / "no_comma.model"
    train_sentencepiece(processor_file, control_symbols=["[CLS]", "[SEP]", "[MASK]"])
    tokenizer = Tokenizer(spm_model_file=processor_file)
    text = "we ate 7, and 8,"
    tokens = tokenizer.tokenize(tokenizer.preprocess(text))
    assert tokens.count(",") == 2
    assert "7," not in tokens
    assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokens)


def test_characters_spelt_in_bytes(tmp_path):
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    path = tmp_path / "bytes.model"
    train_sentencepiece(path, control_symbols=symbols, byte_fallback=True, vocab_size=290)
    tokenizer = Tokenizer(spm_model_file=path)
    ids = tokenizer.encode("日本")
    pieces = ["▁", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "<0x9C>", "<0xAC>"]
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer.decode(tokenizer.encode("we saw 日本 é")) == "we saw 日本 e"
    assert tokenizer.decode(ids[:2]) == "\ufffd", "half a character"
    for letters in ("latin", "unicode"):
        starts = tokenizer.word_starts(letters)[ids]
        assert starts.tolist() == [True, True, False, False, True, False, False]


def test_a_model_whose_words_end_with_a_space_tells_no_word_starts(tmp_path):
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    path = tmp_path / "suffix.model"
    train_sentencepiece(path, control_symbols=symbols, treat_whitespace_as_suffix=True)
    tokenizer = Tokenizer(spm_model_file=path)
    assert tokenizer.decode(tokenizer.encode("we saw the sea")) == "we saw the sea"
    with pytest.raises(ValueError, match="suffix.model ends words with a space .treat_white"):
        tokenizer.word_starts()


# WordPiece.


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
    assert chinese.encode(text) == [CHINESE_VOCABULARY.index(token) for token in tokens]


def test_wordpiece_cased(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(CHINESE_VOCABULARY), encoding="utf-8")
    tokenizer = Tokenizer(vocab_file=path, do_lower_case=False)
    assert tokenizer.tokenize("Hello caf\u00e9 THE") == ["Hello", "caf\u00e9", "[UNK]"]
    assert tokenizer.tokenize("\uf900\u8c48") == ["[UNK]", "\u8c48"]


def test_wordpiece_leaves_the_normalising_to_tokenize(chinese):
    assert chinese.preprocess("  He\u0301llo  ") == "  He\u0301llo  "


def test_wordpiece_vocabulary_takes_the_first_column_once(tmp_path):
    path = tmp_path / "vocab.txt"
    text = "\ufeff[PAD]\n[UNK]\t-1\r\n[CLS] \n[SEP]\n[SEP]\n[MASK]\n\nthe\n"
    path.write_text(text, encoding="utf-8")  # With a byte order mark, as some editors write it.
    tokenizer = Tokenizer(vocab_file=path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", " ", "the"]
    assert tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)) == pieces


# Errors.


def train_sentencepiece(path, **options):
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["we saw the sea and the ship we ate"] * 5),
            model_writer=file,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
            **{"vocab_size": 18, **options},
        )


def test_exactly_one_file():
    with pytest.raises(ValueError, match="exactly one of `spm_model_file` and `vocab_file`"):
        Tokenizer()
    with pytest.raises(ValueError, match="exactly one of `spm_model_file` and `vocab_file`"):
        Tokenizer(spm_model_file="a.model", vocab_file="vocab.txt")


@pytest.mark.parametrize("argument", ["spm_model_file", "vocab_file"])
def test_missing_file(tmp_path, argument):
    with pytest.raises(FileNotFoundError, match="nowhere.model does not exist"):
        Tokenizer(**{argument: tmp_path / "nowhere.model"})
    with pytest.raises(IsADirectoryError, match="vocabulary file .* is a directory: name the"):
        Tokenizer(**{argument: tmp_path})


def test_file_of_the_other_kind(golden, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(CHINESE_VOCABULARY), encoding="utf-8")
    with pytest.raises(ValueError, match="is not a SentencePiece model: give a WordPiece"):
        Tokenizer(spm_model_file=vocabulary)
    with pytest.raises(ValueError, match="is not UTF-8 text: give a SentencePiece model as"):
        Tokenizer(vocab_file=golden / "spm" / "en_small.model")
    vocabulary.write_bytes(b"w\n" * 5_000_000)
    with pytest.raises(ValueError, match="vocab.txt has 5,000,000 pieces, more than 1,000,000"):
        Tokenizer(vocab_file=vocabulary)


def test_sentencepiece_model_with_a_damaged_piece(golden, tmp_path):
    content = (golden / "spm" / "en_small.model").read_bytes()
    piece = "▁the".encode()
    damaged = tmp_path / "damaged.model"
    damaged.write_bytes(content.replace(piece, piece[:-1] + b"\xe9", 1))
    with pytest.raises(ValueError, match="damaged.model is damaged .a piece is not UTF-8."):
        Tokenizer(spm_model_file=damaged)


def test_vocabulary_without_special_pieces(tmp_path):
    model = tmp_path / "plain.model"
    train_sentencepiece(model, control_symbols=["[SEP]"])
    with pytest.raises(ValueError, match=r"plain.model has no piece \[CLS\], \[MASK\]: "):
        Tokenizer(spm_model_file=model)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("<pad>\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(ValueError, match=r"vocab.txt has no piece \[PAD\]: "):
        Tokenizer(vocab_file=vocabulary)


def test_text_of_another_type(small):
    with pytest.raises(ValueError, match="text must be str or bytes, got int: 7"):
        small.encode(7)


def test_a_tokenizer_is_called_and_decodes(golden, tmp_path):
    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    texts = ["In the beginning, 1990.", "", "the earth"]
    ids = [tokenizer.encode(text) for text in texts]
    assert tokenizer(texts) == ids and tokenizer(texts[0]) == ids[0]
    assert tokenizer.decode(ids) == ["in the beginning, 1990.", "", "the earth"]
    row = [tokenizer.cls_id, *ids[2], tokenizer.mask_id, tokenizer.sep_id, tokenizer.pad_id]
    assert tokenizer.decode(np.array(row)) == "the earth[MASK]"
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##real\nit\n")
    words = Tokenizer(vocab_file=tmp_path / "vocab.txt")
    assert words.decode(words(["Unreal it", "real"])) == ["unreal it", "[UNK]"]
