"""A vocabulary from tokenizer.json gives the ids of the file that it was made from."""

from __future__ import annotations

import base64
import json
import random
import re
import struct

import pytest

import albert_tf
from albert_tf.storage import protobuf
from albert_tf.text import vocabulary

_CONTROL, _USER_DEFINED = 3, 4


def replace(kind: str, old: str, new: str) -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def steps_of(model: bytes, lower: bool) -> list[dict]:
    """Returns the steps of the normalizer that transformers writes."""
    (normalizer,) = (
        dict(protobuf.fields(value)) for number, value in protobuf.fields(model) if number == 3
    )
    return [
        replace("String", "``", '"'),
        replace("String", "''", '"'),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        *([{"type": "Lowercase"}] if lower else []),
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(normalizer[2]).decode()},
        replace("Regex", " {2,}", " "),
    ]


def fast_tokenizer(model: bytes, lower: bool = True) -> dict:
    """Returns the tokenizer.json that transformers' AlbertConverter makes of a SentencePiece model.

    It takes 100 from the score of a piece that ends in a digit and a comma.
    """
    message = list(protobuf.fields(model))
    pieces = [dict(protobuf.fields(value)) for number, value in message if number == 1]
    texts = [piece[1].decode() for piece in pieces]
    scores = [struct.unpack("<f", piece[2].to_bytes(4, "little"))[0] for piece in pieces]
    kinds = [piece.get(3, 1) for piece in pieces]
    added = [
        {"id": i, "content": text, "special": kind != _USER_DEFINED}
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind != 1
    ]
    rows = zip(texts, scores, strict=True)
    vocab = [[text, score - 100 * bool(re.search(r"\d,$", text))] for text, score in rows]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps_of(model, lower)},
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": False},
    }


def written(directory, tokenizer: dict) -> str:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(directory)


@pytest.fixture
def model(golden):
    return (golden / "spm" / "en_small.model").read_bytes()


@pytest.fixture
def fast(model):
    return fast_tokenizer(model)


@pytest.mark.parametrize("lower", [True, False])
def test_a_sentence_piece_model(lower, model, golden, tmp_path):
    ours = albert_tf.Tokenizer(golden / "spm" / "en_small.model", do_lower_case=lower)
    found = vocabulary.find(written(tmp_path, fast_tokenizer(model, lower)))
    assert not found.is_word_piece
    assert found.tokenizer.do_lower_case is lower
    pieces = ours.convert_ids_to_tokens(range(ours.vocab_size))
    assert found.tokenizer.convert_ids_to_tokens(range(ours.vocab_size)) == pieces
    rng = random.Random(1)
    letters = [chr(rng.randrange(32, 0x3000)) for _ in range(300)]
    letters += list("etaoin ETAOIN ,.()$1990é") * 60
    for _ in range(3000):
        text = "".join(rng.choices(letters, k=40))
        assert found.tokenizer.encode(text) == ours.encode(text)


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "a", "##b", "中", "A"]
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def word_piece(**normalizer) -> dict:
    """Returns the tokenizer.json that transformers makes of a WordPiece vocabulary."""
    model = {"type": "WordPiece", "continuing_subword_prefix": "##"}
    vocab = {piece: i for i, piece in reversed(list(enumerate(PIECES)))}
    return {"model": {**model, "vocab": vocab}, "normalizer": {**BERT, **normalizer}}


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strips", [False, True])
def test_a_word_piece_vocabulary(lower, strips, tmp_path):
    tokenizer = word_piece(lowercase=lower, strip_accents=lower if strips else None)
    found = vocabulary.find(written(tmp_path, tokenizer))
    assert found.is_word_piece
    assert found.tokenizer.convert_ids_to_tokens(range(10)) == PIECES
    assert found.tokenizer.encode("ab 中 b A") == [6, 7, 8, 5, 6 if lower else 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lowercase": False, "strip_accents": True}, "strip_accents differs from lowercase"),
        ({"strip_accents": False}, "strip_accents differs from lowercase"),
        ({"handle_chinese_chars": False}, "lacks clean_text or handle_chinese_chars"),
        ({"clean_text": False}, "lacks clean_text or handle_chinese_chars"),
        ({"lowercase": None}, "not a BertNormalizer"),
        ({"type": "Lowercase"}, "not a BertNormalizer"),
    ],
)
def test_words_normalised_in_another_way_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=f"tokenizer.json can't be used .*{message}"):
        vocabulary.find(written(tmp_path, word_piece(**change)))


@pytest.mark.parametrize("missing", ["NFKD", "StripAccents", "Precompiled"])
def test_a_missing_step_is_refused(missing, model, fast, tmp_path):
    steps = [step for step in steps_of(model, True) if step["type"] != missing]
    fast["normalizer"]["normalizers"] = steps
    with pytest.raises(ValueError, match="its normalizer is not NFKD, StripAccents, Lowercase"):
        vocabulary.find(written(tmp_path, fast))


@pytest.mark.parametrize("further", [{"type": "NFC"}, replace("String", "a", "b"), 3])
def test_a_further_step_is_refused(further, model, fast, tmp_path):
    fast["normalizer"]["normalizers"] = [further, *steps_of(model, True)]
    with pytest.raises(ValueError, match="its normalizer is not NFKD, StripAccents, Lowercase"):
        vocabulary.find(written(tmp_path, fast))


@pytest.mark.parametrize(("table", "message"), [("?", "damaged"), (None, "no precompiled")])
def test_a_damaged_table_is_refused(table, message, model, fast, tmp_path):
    steps = steps_of(model, True)
    steps[-2]["precompiled_charsmap"] = table
    fast["normalizer"]["normalizers"] = steps
    with pytest.raises(ValueError, match=message):
        vocabulary.find(written(tmp_path, fast))


def test_a_config_that_contradicts_it_is_refused(model, tmp_path):
    path = written(tmp_path, fast_tokenizer(model, lower=False))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ValueError, match="differ in lower-casing: set `do_lower_case`"):
        vocabulary.find(path)
    assert vocabulary.find(path, do_lower_case=True).tokenizer.do_lower_case
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not vocabulary.find(path).tokenizer.do_lower_case
    (tmp_path / "tokenizer_config.json").write_text('{"keep_accents": true}')
    with pytest.raises(ValueError, match="keep_accents must be false"):
        vocabulary.find(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": None}, "its normalizer is not NFKD"),
        ({"normalizer": {"type": "Sequence", "normalizers": 3}}, "its normalizer is not NFKD"),
        ({"model": {"type": "BPE"}}, "neither WordPiece nor Unigram"),
        ({"model": {"type": "Unigram", "vocab": [["a", float("nan")]]}}, "no scores"),
        ({"model": {"type": "Unigram", "vocab": [["a", -1e300]]}}, "no scores"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 1}}}, "not consecutive from 0"),
        (
            {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
            "continuing_subword_prefix is not ##",
        ),
    ],
)
def test_what_would_not_be_exact_is_refused(change, message, fast, tmp_path):
    with pytest.raises(ValueError, match=f"tokenizer.json can't be used .*{message}"):
        vocabulary.find(written(tmp_path, {**fast, **change}))
