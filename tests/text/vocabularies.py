"""Vocabularies of either kind for tests, and the tokenizer.json that transformers makes of them."""

import base64
import io
import json
import re

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tests.kit import tiny

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "b", "a", "##b", "中", "A"]
SENTENCES = [f"the ship {i} saw the harbour of {i * 7919}" for i in range(200)]
# The release's special pieces.
_RELEASE = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
_RELEASE |= {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "hard_vocab_limit": False}


def trained(sentences=SENTENCES, **options) -> bytes:
    model = io.BytesIO()
    given = {"sentence_iterator": iter(sentences), "model_writer": model, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**given, **_RELEASE | options)
    return model.getvalue()


def word_pieces(folder, *pieces: str) -> str:
    return tiny.write(folder / "vocab.txt", "\n".join([*SPECIAL, *pieces]))


def replace(kind: str, old: str, new: str) -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def steps_of(model: bytes, lower: bool) -> list[dict]:
    """Returns the steps of the normalizer that transformers writes."""
    table = ModelProto.FromString(model).normalizer_spec.precompiled_charsmap
    return [
        replace("String", "``", '"'),
        replace("String", "''", '"'),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        *([{"type": "Lowercase"}] if lower else []),
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
        replace("Regex", " {2,}", " "),
    ]


def their_tokenizer(model: bytes, lower: bool = True) -> dict:
    """Returns the tokenizer.json that transformers' AlbertConverter makes of a SentencePiece model.

    It subtracts 100 from the score of each piece that ends in a digit and a comma.
    """
    pieces = ModelProto.FromString(model).pieces
    added = [
        {"id": i, "content": each.piece, "special": each.type != each.USER_DEFINED}
        for i, each in enumerate(pieces)
        if each.type != each.NORMAL
    ]
    lost = [100 * bool(re.search(r"\d,$", each.piece)) for each in pieces]
    vocab = [[each.piece, each.score - less] for each, less in zip(pieces, lost, strict=True)]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps_of(model, lower)},
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": False},
    }


BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}


def word_piece(pieces=PIECES, **normalizer) -> dict:
    """Returns the tokenizer.json that transformers makes of a WordPiece vocabulary."""
    model = {"type": "WordPiece", "continuing_subword_prefix": "##"}
    vocab = {piece: i for i, piece in reversed(list(enumerate(pieces)))}
    return {"model": {**model, "vocab": vocab}, "normalizer": {**BERT, **normalizer}}


def written(folder, tokenizer: dict) -> str:
    tiny.write(folder / "tokenizer.json", json.dumps(tokenizer))
    return str(folder)
