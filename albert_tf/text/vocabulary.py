"""A model's vocabulary: found beside its weights, also in a tokenizer.json, and written there."""

from __future__ import annotations

import atexit
import base64
import binascii
import dataclasses
import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from albert_tf.config import AlbertConfig
from albert_tf.storage import files, hub
from albert_tf.storage.protobuf import field
from albert_tf.storage.text_files import read_json_object
from albert_tf.text import sentence_piece
from albert_tf.text.sentence_piece import ends_in_digit_comma
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.words import CONTINUATION_MARK

_KERAS_HUB = "assets/tokenizer/vocabulary.spm"
_SENTENCE_PIECE = ("spiece.model", _KERAS_HUB, "assets/*.model", "*.model")
# The last is what the release's Chinese models have.
_WORD_PIECE = ("vocab.txt", "assets/vocab.txt", "vocab_chinese.txt")
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Written by Hugging Face's fast tokenizers, since transformers 5 without the model beside it.
_FAST_TOKENIZER = "tokenizer.json"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary file and its tokenizer.

    Attributes:
      path: The file.
      is_word_piece: Whether it is a list of WordPiece pieces, not a SentencePiece model.
      tokenizer: The tokenizer that uses it.
    """

    path: str
    is_word_piece: bool
    tokenizer: Tokenizer

    @classmethod
    def read(cls, path: str, is_word_piece: bool, do_lower_case: bool = True) -> Vocabulary:
        """Reads a file."""
        kind = "vocab_file" if is_word_piece else "spm_model_file"
        return cls(path, is_word_piece, Tokenizer(**{kind: path}, do_lower_case=do_lower_case))

    def check(self, config: AlbertConfig) -> None:
        """Checks that the model has exactly one embedding for each piece."""
        if self.tokenizer.vocab_size != config.vocab_size:
            raise ValueError(
                f"{self.path} has {self.tokenizer.vocab_size} pieces, but the model's vocab_size "
                f"is {config.vocab_size}: give the vocabulary that the model was trained with"
            )


# --- finding -----------------------------------------------------------------------------------


def need(path: str, *given: Any, **options: Any) -> Vocabulary:
    """Does what `find` does, but there must be a vocabulary."""
    found = find(path, *given, **options)
    if found is None:
        raise FileNotFoundError(
            f"no vocabulary is beside {path}: name it with `spm_model_file` or `vocab_file`"
        )
    return found


def find(
    path: str,
    spm_model_file: str | None = None,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
) -> Vocabulary | None:
    """Returns the vocabulary that is given or else lies beside stored weights, or None.

    Args:
      path: The directory of the weights, or a file or prefix in it.
      spm_model_file: A SentencePiece model instead of what lies there.
      vocab_file: A WordPiece vocabulary instead.
      do_lower_case: Whether the model is uncased. None takes it from the config of Hugging Face's
        tokenizer, or a tokenizer.json; without them, uncased.
    """
    path = hub.local(path)
    if spm_model_file and vocab_file:
        raise ValueError("`spm_model_file` and `vocab_file` exclude each other: set one of them")
    if given := spm_model_file or vocab_file:
        case = is_uncased(path, bool(vocab_file), do_lower_case)
        return Vocabulary.read(given, bool(vocab_file), case)
    directory = files.directory_of(path)
    # A file of its own comes first.
    for patterns, is_word_piece in ((_SENTENCE_PIECE, False), (_WORD_PIECE, True)):
        for pattern in patterns:
            found = files.find(directory, pattern)
            if len(found) > 1:
                raise ValueError(
                    f"{directory} contains several vocabularies ({', '.join(found)}): name one "
                    "with `spm_model_file`"
                )
            if found:
                case = is_uncased(path, is_word_piece, do_lower_case)
                return Vocabulary.read(found[0], is_word_piece, case)
    # Without one, the vocabulary is inside the file of a fast tokenizer, which may tell the case.
    fast = os.path.join(directory, _FAST_TOKENIZER)
    if not files.is_file(fast):
        return None
    file, is_word_piece, lower = _extract(fast)
    case = is_uncased(path, is_word_piece, do_lower_case, lower)
    if do_lower_case is None and case != lower:
        raise ValueError(
            f"{fast} and the {_TOKENIZER_CONFIG} beside it differ in lower-casing: set "
            "`do_lower_case` as the model was trained"
        )
    return Vocabulary.read(file, is_word_piece, case)


def is_uncased(
    path: str, is_word_piece: bool, do_lower_case: bool | None = None, default: bool = True
) -> bool:
    """Returns whether the model is uncased: as given, or else as its tokenizer's config says."""
    file = os.path.join(files.directory_of(path), _TOKENIZER_CONFIG)
    config = read_json_object(file) if files.is_file(file) else {}
    lower = config.get("do_lower_case", default) if do_lower_case is None else do_lower_case
    if not isinstance(lower, bool):
        raise ValueError(f"{file}: do_lower_case must be true or false, not {lower!r}")
    wrong = ""
    if not is_word_piece and config.get("keep_accents"):
        wrong = "keep_accents must be false: with SentencePiece accents are always removed"
    elif is_word_piece and config.get("strip_accents") not in (None, lower):
        wrong = "strip_accents must be null or as do_lower_case: accents go with lower-casing"
    elif is_word_piece and not config.get("tokenize_chinese_chars", True):
        wrong = "tokenize_chinese_chars must be true: Chinese characters are always split"
    if wrong:
        raise ValueError(f"{file}: {wrong}, as in the release; use a model that was trained so")
    return lower


# --- writing -----------------------------------------------------------------------------------


def copy(vocabulary: Vocabulary, directory: str) -> None:
    """Copies a vocabulary and its case to a directory; keeps a file name that `find` recognises."""
    patterns, name = _patterns(vocabulary), os.path.basename(vocabulary.path)
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
        name = patterns[0]
    _write_case(vocabulary, directory)  # First: a cased one must not be found without it.
    _copy_file(vocabulary, os.path.join(directory, name))


def keep(vocabulary: Vocabulary, directory: str) -> None:
    """Writes a vocabulary and its case to a run's directory, where `find` takes it first."""
    path = _kept(vocabulary, directory)
    if not files.is_file(path):
        case = json.dumps({"do_lower_case": vocabulary.tokenizer.do_lower_case})
        files.replace(os.path.join(directory, _TOKENIZER_CONFIG), case)
        _copy_file(vocabulary, path)


def check_kept(vocabulary: Vocabulary, directory: str) -> None:
    """Checks that what `keep` wrote to a directory, if it did, is this vocabulary."""
    path = _kept(vocabulary, directory)
    if files.is_file(path):
        kept = Vocabulary.read(
            path, vocabulary.is_word_piece, is_uncased(directory, vocabulary.is_word_piece)
        )
        if kept.tokenizer.digest != vocabulary.tokenizer.digest:
            raise ValueError(
                f"{path} is another vocabulary than {vocabulary.path}, or differs in "
                "lower-casing: give another `output_dir`, or the vocabulary in this one"
            )


def _kept(vocabulary: Vocabulary, directory: str) -> str:
    return os.path.join(directory, _patterns(vocabulary)[0])


def _patterns(vocabulary: Vocabulary) -> tuple[str, ...]:
    return _WORD_PIECE if vocabulary.is_word_piece else _SENTENCE_PIECE


def _copy_file(vocabulary: Vocabulary, target: str) -> None:
    files.replace(target, files.read_bytes(vocabulary.path))


def _write_case(vocabulary: Vocabulary, directory: str) -> None:
    # Only if it isn't the default; in Hugging Face's format, which `find` reads anywhere.
    if not vocabulary.tokenizer.do_lower_case:
        text = json.dumps({"do_lower_case": False})
        files.replace(os.path.join(directory, _TOKENIZER_CONFIG), text)


def write_hugging_face(vocabulary: Vocabulary, directory: str, max_length: int) -> None:
    """Writes the vocabulary and the config of Hugging Face's tokenizer."""
    _copy_file(vocabulary, _kept(vocabulary, directory))
    tokenizer = vocabulary.tokenizer
    names = ("pad", "unk", "cls", "sep", "mask")
    pieces = tokenizer.convert_ids_to_tokens(getattr(tokenizer, f"{name}_id") for name in names)
    config: dict[str, Any] = {
        f"{name}_token": piece for name, piece in zip(names, pieces, strict=True)
    }
    config |= {"do_lower_case": tokenizer.do_lower_case, "model_max_length": max_length}
    if vocabulary.is_word_piece:
        config["tokenizer_class"] = "BertTokenizer"
    else:
        # The release's preprocess_text always strips accents.
        config |= {"tokenizer_class": "AlbertTokenizer", "keep_accents": False}
        config |= {"bos_token": config["cls_token"], "eos_token": config["sep_token"]}
    text = json.dumps(config, indent=2, sort_keys=True)
    files.replace(os.path.join(directory, _TOKENIZER_CONFIG), text)


def write_kerashub(vocabulary: Vocabulary, directory: str) -> None:
    """Writes a SentencePiece vocabulary and its case where KerasHub's tokenizer looks for them."""
    target = os.path.join(directory, _KERAS_HUB)
    os.makedirs(os.path.dirname(target))
    _copy_file(vocabulary, target)
    _write_case(vocabulary, directory)


# --- Hugging Face's tokenizer.json -------------------------------------------------------------


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


def _extract(path: str) -> tuple[str, bool, bool]:
    """Writes the vocabulary in a tokenizer.json to a temporary file, removed at the process' end.

    Returns:
      The file, whether it is a WordPiece vocabulary, and whether text is lower-cased.
    """
    tokenizer = read_json_object(path)
    model, normalizer = _object(tokenizer, "model"), _object(tokenizer, "normalizer")
    is_word_piece = model.get("type") == "WordPiece"
    try:
        if is_word_piece:
            name, content = "vocab.txt", _word_piece_file(model)
            lower = _bert_case(normalizer)
        else:
            table, lower = _character_table(normalizer)
            name, content = "spiece.model", _sentence_piece_model(tokenizer, model, table)
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


def _word_piece_file(model: Mapping[str, Any]) -> bytes:
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


def _sentence_piece_model(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], table: bytes
) -> bytes:
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
        kind = sentence_piece.NORMAL
        if i == unknown:
            kind = sentence_piece.UNKNOWN
        elif piece in special:
            kind = sentence_piece.CONTROL
        elif score == 0:  # No piece that training found has this score.
            kind = sentence_piece.USER_DEFINED
        message.append(sentence_piece.Piece(piece, score, kind).encode())
    # An initial space, none removed but runs of them, and spaces written as a mark.
    normalizer = field(2, table) + field(3, 1) + field(4, 1) + field(5, 1)
    return b"".join([*message, field(sentence_piece.NORMALIZER, normalizer)])


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
