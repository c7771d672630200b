"""The vocabulary in Hugging Face's tokenizer.json, as the file that Tokenizer reads.

transformers 5 writes tokenizer.json alone. It holds the pieces and scores of the SentencePiece
model, and its table of characters, or the pieces of a WordPiece vocabulary.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from albert_tf.text import sentence_piece_file as file_format
from albert_tf.text_files import read_json_object
from albert_tf.wire import field


def extract(path: str) -> tuple[str, bool]:
    """Writes the vocabulary to a temporary file, which is removed when the process ends.

    Args:
      path: A tokenizer.json.

    Returns:
      The file, and whether it is a WordPiece vocabulary.

    Raises:
      ValueError: If the file would not give the ids that the tokenizer.json gives.
    """
    tokenizer = read_json_object(path)
    model = _object(tokenizer, "model")
    try:
        if model.get("type") == "WordPiece":
            name, content = "vocab.txt", _word_piece(model)
        else:
            name, content = "spiece.model", _sentence_piece(tokenizer, model)
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
    return file, model.get("type") == "WordPiece"


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _word_piece(model: Mapping[str, Any]) -> bytes:
    """Returns a WordPiece vocabulary file."""
    vocab = _object(model, "vocab")
    if not vocab or sorted(vocab.values(), key=str) != sorted(range(len(vocab)), key=str):
        raise ValueError("the ids of its pieces are not consecutive from 0")
    if model.get("continuing_subword_prefix") != "##":
        raise ValueError("its continuing_subword_prefix is not ##")
    pieces = sorted(vocab, key=lambda piece: vocab[piece])
    if any(piece.split() != [piece] for piece in pieces):
        raise ValueError("a piece contains a space")
    return "".join(f"{piece}\n" for piece in pieces).encode()


def _sentence_piece(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> bytes:
    """Returns a serialized SentencePiece model."""
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise ValueError("its model is neither WordPiece nor Unigram without byte fallback")
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not all(map(_is_scored_piece, vocab)):
        raise ValueError("its pieces have no scores")
    table = _character_table(_object(tokenizer, "normalizer"))
    added = tokenizer.get("added_tokens")
    added = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    special = {token.get("content") for token in added if token.get("special")}
    message = []
    for i, (piece, score) in enumerate(vocab):
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
        and math.isfinite(row[1])
    )


def _character_table(normalizer: Mapping[str, Any]) -> bytes:
    """Returns the SentencePiece model's own table of normalised characters."""
    steps = normalizer.get("normalizers", [normalizer])
    tables = [step.get("precompiled_charsmap") for step in steps if isinstance(step, dict)]
    tables = [table for table in tables if isinstance(table, str)]
    if len(tables) != 1:
        raise ValueError("it has no precompiled_charsmap")
    try:
        return base64.b64decode(tables[0], validate=True)
    except binascii.Error as error:
        raise ValueError("its precompiled_charsmap is damaged") from error
