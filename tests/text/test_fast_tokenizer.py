"""A vocabulary from tokenizer.json gives the ids of the file that it was made from."""

from __future__ import annotations

import base64
import json
import random
import struct

import pytest

import albert_tf
from albert_tf import wire
from albert_tf.text import vocabulary

_CONTROL, _USER_DEFINED = 3, 4


def fast_tokenizer(model: bytes) -> dict:
    """Returns the tokenizer.json that transformers makes of a SentencePiece model."""
    message = list(wire.fields(model))
    pieces = [dict(wire.fields(value)) for number, value in message if number == 1]
    (normalizer,) = (dict(wire.fields(value)) for number, value in message if number == 3)
    texts = [piece[1].decode() for piece in pieces]
    scores = [struct.unpack("<f", piece[2].to_bytes(4, "little"))[0] for piece in pieces]
    kinds = [piece.get(3, 1) for piece in pieces]
    added = [
        {"id": i, "content": text, "special": kind != _USER_DEFINED}
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind != 1
    ]
    table = base64.b64encode(normalizer[2]).decode()
    steps = [{"type": "NFKD"}, {"type": "Precompiled", "precompiled_charsmap": table}]
    vocab = [list(row) for row in zip(texts, scores, strict=True)]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": False},
    }


def written(directory, tokenizer: dict) -> str:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(directory)


@pytest.fixture
def fast(golden):
    return fast_tokenizer((golden / "spm" / "en_small.model").read_bytes())


def test_a_sentence_piece_model(fast, golden, tmp_path):
    ours = albert_tf.Tokenizer(golden / "spm" / "en_small.model")
    found = vocabulary.find(written(tmp_path, fast))
    assert not found.is_word_piece
    pieces = ours.convert_ids_to_tokens(range(ours.vocab_size))
    assert found.tokenizer.convert_ids_to_tokens(range(ours.vocab_size)) == pieces
    rng = random.Random(1)
    letters = [chr(rng.randrange(32, 0x3000)) for _ in range(300)] + list("etaoin ,.()$1990") * 60
    for _ in range(3000):
        text = "".join(rng.choices(letters, k=40))
        assert found.tokenizer.encode(text) == ours.encode(text)


def test_a_word_piece_vocabulary(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "a", "##b", "中"]
    model = {"type": "WordPiece", "continuing_subword_prefix": "##"}
    vocab = {piece: i for i, piece in reversed(list(enumerate(pieces)))}
    found = vocabulary.find(written(tmp_path, {"model": {**model, "vocab": vocab}}))
    assert found.is_word_piece
    assert found.tokenizer.convert_ids_to_tokens(range(9)) == pieces
    assert found.tokenizer.encode("ab 中 b") == [6, 7, 8, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": None}, "it has no precompiled_charsmap"),
        ({"normalizer": {"precompiled_charsmap": "?"}}, "its precompiled_charsmap is damaged"),
        ({"model": {"type": "BPE"}}, "neither WordPiece nor Unigram"),
        ({"model": {"type": "Unigram", "vocab": [["a", float("nan")]]}}, "no scores"),
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
