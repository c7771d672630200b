"""The vocabulary in Hugging Face's tokenizer.json, as the file that Tokenizer reads.

transformers 5 writes tokenizer.json alone. It holds the pieces and scores of the SentencePiece
model, and its table of characters, or the pieces of a WordPiece vocabulary.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from albert_tf.text import sentence_piece_file as file_format
from albert_tf.text.sentence_piece import ends_in_digit_comma
from albert_tf.text.word_starts import CONTINUATION_MARK
from albert_tf.text_files import read_json_object
from albert_tf.wire import field

# Fits into the float32 of SentencePiece's file.
_MOST_SCORE = 3e38
# transformers takes this from the scores of pieces that the release splits again.
_DIGIT_COMMA_PENALTY = 100
# It replaces these, with spiece.model, too; the release doesn't. Spaces are collapsed anyway.
_REPLACED = [
    {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    {"type": "Replace", "pattern": {"String": "''"}, "content": '"'},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
]


def extract(path: str) -> tuple[str, bool, bool]:
    """Writes the vocabulary to a temporary file, which is removed when the process ends.

    Args:
      path: A tokenizer.json.

    Returns:
      The file, whether it is a WordPiece vocabulary, and whether text is lower-cased.

    Raises:
      ValueError: If the tokenizer.json normalises text in another way than Tokenizer does with
        the file, or its pieces can't be written to it.
    """
    tokenizer = read_json_object(path)
    model, normalizer = _object(tokenizer, "model"), _object(tokenizer, "normalizer")
    is_word_piece = model.get("type") == "WordPiece"
    try:
        if is_word_piece:
            name, content = "vocab.txt", _word_piece(model)
            lower = _bert_case(normalizer)
        else:
            table, lower = _character_table(normalizer)
            name, content = "spiece.model", _sentence_piece(tokenizer, model, table)
    except ValueError as error:
        raise ValueError(
            f"{path} can't be used ({error}): put the spiece.model or vocab.txt that the model "
            "was trained with beside it, or name it with `spm_model_file` or `vocab_file`"
        ) from error
    directory = tempfile.mkdtemp(prefix="albert_tf-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    file = os.path.join(directory, name)
    with open(file, "wb") as opened:
        opened.write(content)
    return file, is_word_piece, lower


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _word_piece(model: Mapping[str, Any]) -> bytes:
    """Returns a WordPiece vocabulary file."""
    vocab = _object(model, "vocab")
    if not vocab or sorted(vocab.values(), key=str) != sorted(range(len(vocab)), key=str):
        raise ValueError("the ids of its pieces are not consecutive from 0")
    if model.get("continuing_subword_prefix") != CONTINUATION_MARK:
        raise ValueError(f"its continuing_subword_prefix is not {CONTINUATION_MARK}")
    pieces = sorted(vocab, key=lambda piece: vocab[piece])
    if any(piece.split() != [piece] for piece in pieces):
        raise ValueError("a piece contains a space")
    return "".join(f"{piece}\n" for piece in pieces).encode()


def _bert_case(normalizer: Mapping[str, Any]) -> bool:
    """Returns whether a BertNormalizer lower-cases; it must do the rest as WordPiece does."""
    lower = normalizer.get("lowercase")
    if normalizer.get("type") != "BertNormalizer" or not isinstance(lower, bool):
        raise ValueError("its normalizer is not a BertNormalizer")
    if not (normalizer.get("clean_text") and normalizer.get("handle_chinese_chars")):
        raise ValueError("its normalizer lacks clean_text or handle_chinese_chars")
    if normalizer.get("strip_accents") not in (None, lower):
        raise ValueError("its normalizer's strip_accents differs from lowercase")
    return lower


def _sentence_piece(tokenizer: Mapping[str, Any], model: Mapping[str, Any], table: bytes) -> bytes:
    """Returns a serialized SentencePiece model."""
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise ValueError("its model is neither WordPiece nor Unigram without byte fallback")
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not all(map(_is_scored_piece, vocab)):
        raise ValueError("its pieces have no scores")
    added = tokenizer.get("added_tokens")
    added = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    special = [token.get("content") for token in added if token.get("special")]
    message = []
    for i, (piece, score) in enumerate(vocab):
        # No logarithm of a trained piece's probability is as low.
        if ends_in_digit_comma(piece) and score <= -_DIGIT_COMMA_PENALTY:
            score += _DIGIT_COMMA_PENALTY
        kind = file_format.NORMAL
        if i == unknown:
            kind = file_format.UNKNOWN
        elif piece in special:
            kind = file_format.CONTROL
        elif score == 0:  # No piece that training found has this score.
            kind = file_format.USER_DEFINED
        message.append(file_format.Piece(piece, score, kind).encode())
    # An initial space, none removed but runs of them, and spaces written as a mark.
    normalizer = field(2, table) + field(3, 1) + field(4, 1) + field(5, 1)
    return b"".join([*message, field(file_format.NORMALIZER, normalizer)])


def _is_scored_piece(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], float)
        and abs(row[1]) < _MOST_SCORE  # False for NaN.
    )


def _character_table(normalizer: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Returns the SentencePiece model's own table of characters, and whether text is lower-cased.

    What comes before the table must be what preprocess_text does.
    """
    steps = normalizer.get("normalizers")
    steps = [step for step in steps if step not in _REPLACED] if isinstance(steps, list) else []
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    lower = "Lowercase" in kinds
    if kinds != ["NFKD", "StripAccents", *["Lowercase"] * lower, "Precompiled"]:
        raise ValueError(
            "its normalizer is not NFKD, StripAccents, Lowercase (if uncased) and Precompiled"
        )
    table = steps[-1].get("precompiled_charsmap")
    if not isinstance(table, str):
        raise ValueError("it has no precompiled_charsmap")
    try:
        return base64.b64decode(table, validate=True), lower
    except binascii.Error as error:
        raise ValueError("its precompiled_charsmap is damaged") from error
