"""A model's vocabulary: found beside its weights, also in a tokenizer.json, and written there."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
from typing import Any

from albert_tf.config import AlbertConfig
from albert_tf.storage import files, hub
from albert_tf.storage.text_files import read_json_object
from albert_tf.text import fast_tokenizer
from albert_tf.text.tokenization import Tokenizer

_KERAS_HUB = "assets/tokenizer/vocabulary.spm"
_SENTENCE_PIECE = ("spiece.model", _KERAS_HUB, "assets/*.model", "*.model")
# The last is what the release's Chinese models have.
_WORD_PIECE = ("vocab.txt", "assets/vocab.txt", "vocab_chinese.txt")
_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary file and its tokenizer.

    Attributes:
      path: The file.
      is_word_piece: Whether it is a list of WordPiece pieces, not a SentencePiece model.
      tokenizer: The tokenizer that uses it.
      fast: Hugging Face's tokenizer.json beside it, if there is one.
    """

    path: str
    is_word_piece: bool
    tokenizer: Tokenizer
    fast: str | None = None

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
    fast = os.path.join(directory, fast_tokenizer.FILE)
    # One for another case than was given is not the model's.
    theirs = fast if files.is_file(fast) and do_lower_case is None else None
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
                words = Vocabulary.read(found[0], is_word_piece, case)
                # KerasHub's own file is called tokenizer.json as well.
                return words if pattern == _KERAS_HUB else dataclasses.replace(words, fast=theirs)
    # Without one, the vocabulary is inside the file of a fast tokenizer, which may tell the case.
    if not files.is_file(fast):
        return None
    file, is_word_piece, lower = fast_tokenizer.read(fast)
    case = is_uncased(path, is_word_piece, do_lower_case, lower)
    if do_lower_case is None and case != lower:
        raise ValueError(
            f"{fast} and the {_TOKENIZER_CONFIG} beside it differ in lower-casing: set "
            "`do_lower_case` as the model was trained"
        )
    return dataclasses.replace(Vocabulary.read(file, is_word_piece, case), fast=theirs)


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
    """Writes the vocabulary, and Hugging Face's tokenizer: the one beside it, or one of our ids."""
    _copy_file(vocabulary, _kept(vocabulary, directory))
    if vocabulary.fast:
        for name in (fast_tokenizer.FILE, _TOKENIZER_CONFIG):
            file = os.path.join(os.path.dirname(vocabulary.fast), name)
            if files.is_file(file):
                files.replace(os.path.join(directory, name), files.read_bytes(file))
        return
    tokenizer, is_word_piece = vocabulary.tokenizer, vocabulary.is_word_piece
    names = ("pad", "unk", "cls", "sep", "mask")
    pieces = tokenizer.convert_ids_to_tokens(getattr(tokenizer, f"{name}_id") for name in names)
    config: dict[str, Any] = {
        f"{name}_token": piece for name, piece in zip(names, pieces, strict=True)
    }
    config |= {"do_lower_case": tokenizer.do_lower_case, "model_max_length": max_length}
    config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    # This class takes tokenizer.json as it is; the others would make one of their own.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if not is_word_piece:
        # The release's preprocess_text always strips accents.
        config |= {"keep_accents": False}
        config |= {"bos_token": config["cls_token"], "eos_token": config["sep_token"]}
    if not fast_tokenizer.write(vocabulary.path, tokenizer, is_word_piece, directory):
        config["tokenizer_class"] = "AlbertTokenizer"
    text = json.dumps(config, indent=2, sort_keys=True)
    files.replace(os.path.join(directory, _TOKENIZER_CONFIG), text)


def write_kerashub(vocabulary: Vocabulary, directory: str) -> None:
    """Writes a SentencePiece vocabulary and its case where KerasHub's tokenizer looks for them."""
    target = os.path.join(directory, _KERAS_HUB)
    os.makedirs(os.path.dirname(target))
    _copy_file(vocabulary, target)
    _write_case(vocabulary, directory)
