"""Tokens added to a Hugging Face tokenizer: each is one piece wherever raw text contains it."""

from __future__ import annotations

import os
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.text_files import read_json_object
from albert_tf.text.sentence_piece import RELEASE, Piece, read_model
from albert_tf.text.tokenization import Tokenizer

# Files in which tokenizers of any version keep added tokens; the keys of the last one are tokens.
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_DECODER = "added_tokens_decoder"
_KEYS = ("added_tokens", _DECODER, "additional_special_tokens", "extra_special_tokens")
# With the release's ids, special pieces in a text are read as plain text.
_PLAIN = {"<pad>", "[PAD]", "<unk>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"}
# Flags that are not supported. Two others, lstrip and rstrip, change offsets only.
_NOT_FOLLOWED = ("single_word", "normalized")


def find(path: str, is_word_piece: bool, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the tokens added to Hugging Face's tokenizer beside a vocabulary, or in its file.

    Tokens that SentencePiece finds in normalised text are left to it.
    """
    directory, found = files.directory_of(path), dict[str, None]()
    stored = {file: _tokens(file) for file in (os.path.join(directory, name) for name in _FILES)}
    has_pieces = any(stored.values()) and not is_word_piece
    pieces = read_model(tokenizer.content).pieces if has_pieces else []
    its_own = {piece.piece for piece in pieces if piece.type == Piece.USER_DEFINED}
    plain = _PLAIN if tokenizer.ids == RELEASE else set()
    for file, tokens in stored.items():
        # Collect all of a file's tokens that we would read differently from Hugging Face.
        odd = []
        for text, flags in tokens.items():
            if text in plain or (text in its_own and tokenizer.preprocess(text) == text):
                continue
            found[text] = None
            reasons = [f"{flag}=true" for flag in _NOT_FOLLOWED if flags.get(flag)]
            if tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids([text])) != [text]:
                reasons.append("not in the vocabulary")
            odd += [f"{text!r} ({reason})" for reason in reasons]
        if odd:
            shown = ", ".join(odd if len(odd) < 6 else [*odd[:5], "..."])
            raise ValueError(
                f"{file} adds tokens to the tokenizer that can't be followed: {shown}; expected "
                "pieces of the vocabulary that are found wherever a raw text has them: if no text "
                "has these, give the vocabulary from a directory without this file"
            )
    return tuple(found)


def to_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns a tokenizer's added tokens as a field of tokenizer_config.json, if it has any."""
    flags = dict.fromkeys(("lstrip", "rstrip", *_NOT_FOLLOWED), False) | {"special": True}
    ids = tokenizer.convert_tokens_to_ids(tokenizer.added_tokens)
    rows = zip(ids, tokenizer.added_tokens, strict=True)
    found = {str(i): {"content": text, **flags} for i, text in rows}
    return {_DECODER: found} if found else {}


def _tokens(file: str) -> dict[str, dict[str, Any]]:
    """Returns the flags of each token in a file."""
    stored = read_json_object(file) if files.is_file(file) else {}
    if file.endswith(_FILES[-1]):
        return {text: {} for text in stored if text}
    rows: list[Any] = []
    for holder in map(stored.get, _KEYS):
        holder = [*holder.values()] if isinstance(holder, dict) else holder
        rows += holder if isinstance(holder, list) else []
    found = [row if isinstance(row, dict) else {"content": row} for row in rows]
    found = [row for row in found if isinstance(row.get("content"), str)]
    return {row["content"]: row for row in found if row["content"]}
