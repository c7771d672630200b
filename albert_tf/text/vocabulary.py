"""A model's vocabulary: found beside its weights, also in a tokenizer.json, and written there."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from absl import logging

from albert_tf.config import AlbertConfig
from albert_tf.storage import files, hub
from albert_tf.storage.text_files import read_json_object
from albert_tf.text import added_tokens, fast_tokenizer, folder_ids
from albert_tf.text.sentence_piece import FOLDER, RELEASE
from albert_tf.text.tokenization import Tokenizer

_KERAS_HUB = "assets/tokenizer/vocabulary.spm"
_SENTENCE_PIECE = ("spiece.model", _KERAS_HUB, "assets/*.model", "*.model")
# The release's Chinese models have the last of these.
_WORD_PIECE = ("vocab.txt", "assets/vocab.txt", "vocab_chinese.txt")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Embeddings are padded to multiples of 8 to 1024; more rows mean another vocabulary.
_MOST_PADDING = 1023
# Classes that Hugging Face's config names for pretrained weights.
_PRETRAINED = {"AlbertModel", "AlbertForPreTraining", "AlbertForMaskedLM"}
IDS = (RELEASE, FOLDER)
# The form of text, as named in settings, arguments and Hugging Face's config.
FORM = ("do_lower_case", "keep_accents")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary file and its tokenizer.

    Attributes:
      path: The file, perhaps a tokenizer.json that contains a vocabulary.
      is_word_piece: Whether it is a list of WordPiece pieces, not a SentencePiece model.
      tokenizer: The tokenizer that uses it.
      fast: Hugging Face's tokenizer.json beside it, if there is one.
    """

    path: str
    is_word_piece: bool
    tokenizer: Tokenizer
    fast: str | None = None

    @classmethod
    def read(
        cls,
        path: str,
        is_word_piece: bool,
        do_lower_case: bool = True,
        keep_accents: bool = False,
        content: bytes | None = None,
    ) -> Vocabulary:
        """Reads a file, and the tokens added to a tokenizer of Hugging Face's beside it."""
        spm, vocab = (None, path) if is_word_piece else (path, None)
        given = spm, vocab, do_lower_case, keep_accents
        tokenizer = Tokenizer(*given, content=content)
        if added := added_tokens.find(path, is_word_piece, tokenizer):
            tokenizer = Tokenizer(*given, added_tokens=added, content=tokenizer.content)
        fast = os.path.join(files.directory_of(path), fast_tokenizer.FILE)
        has_rules = tokenizer.ids == FOLDER and files.is_file(fast)
        return cls(path, is_word_piece, tokenizer, fast if has_rules else None)

    @property
    def form(self) -> tuple[bool, bool]:
        """Whether text is lower-cased, and whether it keeps its accents."""
        return self.tokenizer.do_lower_case, self.tokenizer.keep_accents

    def check(self, config: AlbertConfig) -> None:
        """Checks that the model has an embedding for each piece, and beyond these only padding."""
        padding = config.vocab_size - self.tokenizer.vocab_size
        if 0 < padding <= _MOST_PADDING:
            logging.warning("%s: the model has %d more embeddings, not used", self.path, padding)
        elif padding:
            raise ValueError(
                f"{self.path} has {self.tokenizer.vocab_size} pieces, but the model's vocab_size "
                f"is {config.vocab_size}: give the vocabulary that the model was trained with, or "
                "to albert-pretrain the `vocab_size` of this one"
            )


def need(path: str, *given: Any, **options: Any) -> Vocabulary:
    """Does what `find` does, but raises FileNotFoundError if there is no vocabulary."""
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
    keep_accents: bool | None = None,
    ids: str | None = None,
) -> Vocabulary | None:
    """Returns the given vocabulary, or else the one beside stored weights, or None.

    Args:
      path: The directory of the weights, or a file or prefix in it.
      spm_model_file: A SentencePiece model instead of what lies there.
      vocab_file: A WordPiece vocabulary instead.
      do_lower_case: Whether the model is uncased. None takes it from the config of Hugging Face's
        tokenizer, or a tokenizer.json; without either, it is uncased.
      keep_accents: Whether accents stay. None likewise; without either, they are stripped.
      ids: "folder" for the ids that Hugging Face's libraries make with the tokenizer.json there,
        "release" for the release's. None takes what was stored with the vocabulary, else "folder"
        for weights that those libraries fine-tuned, "release" for others.
    """
    path = hub.download(path)
    given = spm_model_file, vocab_file, do_lower_case, keep_accents
    found, directory = _find(path, *given), files.directory_of(path)
    fast = os.path.join(directory, fast_tokenizer.FILE)
    is_beside = files.is_file(fast) and not (spm_model_file or vocab_file)
    is_own = is_beside and folder_ids.is_own(fast)
    # Hugging Face's ids imply the form of text in the tokenizer.json.
    form = fast_tokenizer.read(fast)[2:] if is_own and given[2:] != (None, None) else (None, None)
    forms = zip(FORM, given[2:], form, strict=True)
    others = [f"{name}={own}" for name, asked, own in forms if asked not in (None, own)]
    keeps_form = not others
    is_alone = is_beside and keeps_form
    if ids is None and is_own:
        stored = _stored_ids(directory)
        ids = stored if keeps_form else None
        if ids == FOLDER:
            logging.info("ids=folder: as %s gives them; the release's: ids=release", fast)
        elif stored == FOLDER and found and found.tokenizer.ids == RELEASE:
            text = "ids=release: %s has %s, unlike what was given; leave that out for its own ids"
            logging.warning(text, fast, ", ".join(others))
    elif ids is None and given == (None,) * 4:  # A tokenizer.json may have been left behind.
        ids = _said_ids(directory)
    is_settled = found and (found.tokenizer.ids == RELEASE or keeps_form)
    if found is None or (is_settled and ids in (None, found.tokenizer.ids)):
        return found
    if found.is_word_piece or not is_alone:
        raise ValueError(
            f"{found.path} has `ids={found.tokenizer.ids}`: others need a {fast_tokenizer.FILE} "
            "of a SentencePiece model beside the weights; then leave out `spm_model_file`, "
            "`vocab_file`, `do_lower_case` and `keep_accents`"
        )
    about = os.path.join(directory, _TOKENIZER_CONFIG)
    config = read_json_object(about) if files.is_file(about) else {}
    is_folder = ids == FOLDER
    content = folder_ids.read(fast, config) if is_folder else fast_tokenizer.read(fast)[0]
    made = Vocabulary.read(fast, False, *found.form, content)
    return dataclasses.replace(made, fast=fast)


def _stored_ids(directory: str) -> str:
    """Returns whose ids the weights beside a tokenizer of Hugging Face's were trained with."""
    if said := _said_ids(directory):
        return said
    about = os.path.join(directory, "config.json")
    # The release's own weights have these classes; any other was fine-tuned in that library.
    classes = read_json_object(about).get("architectures") if files.is_file(about) else None
    is_tuned = isinstance(classes, list) and not _PRETRAINED.issuperset(map(str, classes))
    if not is_tuned and not files.is_file(os.path.join(directory, "modules.json")):
        return RELEASE
    return FOLDER


def _said_ids(directory: str) -> str | None:
    """Returns the `ids` that a tokenizer_config.json states, or None."""
    file = os.path.join(directory, _TOKENIZER_CONFIG)
    said = read_json_object(file).get("ids") if files.is_file(file) else None
    if said not in (None, *IDS):
        raise ValueError(f"{file}: ids must be one of {', '.join(IDS)}, not {said!r}")
    return said


def _find(
    path: str,
    spm_model_file: str | None,
    vocab_file: str | None,
    do_lower_case: bool | None,
    keep_accents: bool | None,
) -> Vocabulary | None:
    """Does what `find` does, but with the ids of the file that it finds first."""
    if spm_model_file and vocab_file:
        raise ValueError("`spm_model_file` and `vocab_file` exclude each other: set one of them")
    asked = do_lower_case, keep_accents
    # A given file comes first, before anything beside the weights.
    if given := spm_model_file or vocab_file:
        form = find_form((path, given), bool(vocab_file), *asked)
        return Vocabulary.read(given, bool(vocab_file), *form)
    directory = files.directory_of(path)
    fast = os.path.join(directory, fast_tokenizer.FILE)
    # A tokenizer.json is the model's only if neither case nor accents were asked for.
    theirs = fast if files.is_file(fast) and asked == (None, None) else None
    # A vocabulary file takes precedence over the vocabulary in a tokenizer.json.
    for patterns, is_word_piece in ((_SENTENCE_PIECE, False), (_WORD_PIECE, True)):
        for pattern in patterns:
            found = files.find(directory, pattern)
            if len(found) > 1:
                raise ValueError(
                    f"{directory} contains several vocabularies ({', '.join(found)}): name one "
                    "with `spm_model_file`"
                )
            if found:
                form = find_form((path, found[0]), is_word_piece, *asked)
                vocabulary = Vocabulary.read(found[0], is_word_piece, *form)
                # KerasHub's own file is called tokenizer.json as well.
                if pattern == _KERAS_HUB:
                    return vocabulary
                return dataclasses.replace(vocabulary, fast=theirs)
    # Without such a file, the vocabulary is in a tokenizer.json, which may tell the case, too.
    if not files.is_file(fast):
        return None
    content, is_word_piece, *stored = fast_tokenizer.read(fast)
    form = find_form((path,), is_word_piece, *asked, *stored)
    if asked == (None, None) and form != tuple(stored):
        raise ValueError(
            f"{fast} and the {_TOKENIZER_CONFIG} beside it differ in lower-casing or accents: set "
            "`do_lower_case` and `keep_accents` as the model was trained"
        )
    return dataclasses.replace(Vocabulary.read(fast, is_word_piece, *form, content), fast=theirs)


def find_form(
    paths: Sequence[str],
    is_word_piece: bool,
    do_lower_case: bool | None = None,
    keep_accents: bool | None = None,
    lower: bool = True,
    keep: bool = False,
) -> tuple[bool, bool]:
    """Returns whether text is lower-cased, and whether it keeps its accents.

    Given values take precedence, then the config of Hugging Face's tokenizer, then the defaults.

    Args:
      paths: Weights and vocabulary; the first one with such a config beside it counts.
      is_word_piece: Whether the vocabulary is a list of WordPiece pieces.
      do_lower_case: The given value, if any.
      keep_accents: The given value, if any.
      lower: Whether text is lower-cased by default.
      keep: Whether accents stay by default.
    """
    places = [os.path.join(files.directory_of(path), _TOKENIZER_CONFIG) for path in paths]
    file = next(filter(files.is_file, places), "")
    config = read_json_object(file) if file else {}
    # BERT's setting is the opposite of ours; null leaves it to lower-casing.
    if is_word_piece and config.get("strip_accents") is not None:
        config["keep_accents"] = not config["strip_accents"]
    elif is_word_piece:
        config.pop("keep_accents", None)  # BERT's tokenizers have no such setting.
    form = {**dict(zip(FORM, (lower, keep), strict=True)), **config}
    given = zip(FORM, (do_lower_case, keep_accents), strict=True)
    form |= {name: value for name, value in given if value is not None}
    for name in FORM:
        if not isinstance(form[name], bool):
            raise ValueError(f"{file}: {name} must be true or false, not {form[name]!r}")
    # Refuse settings that our tokenizers would silently ignore.
    wrong = ""
    if is_word_piece and config.get("strip_accents") and not form["do_lower_case"]:
        wrong = "strip_accents must be null or as do_lower_case: accents go with lower-casing"
    elif is_word_piece and not config.get("tokenize_chinese_chars", True):
        wrong = "tokenize_chinese_chars must be true: Chinese characters are always split"
    if wrong:
        raise ValueError(f"{file}: {wrong}, as in the release; use a model that was trained so")
    # A cased WordPiece vocabulary keeps them anyway.
    keeps = form["keep_accents"] and (form["do_lower_case"] or not is_word_piece)
    return form["do_lower_case"], keeps


def copy(vocabulary: Vocabulary, directory: str) -> str:
    """Copies a vocabulary and its case to a directory, for `find`; returns the file's path."""
    patterns, name = _patterns(vocabulary), os.path.basename(vocabulary.path)
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
        name = patterns[0]
    # The form is written first: a cased vocabulary must not be found without it.
    write_form(vocabulary, directory)
    _copy_file(vocabulary, path := os.path.join(directory, name))
    return path


def keep(vocabulary: Vocabulary, directory: str) -> None:
    """Writes a vocabulary and its case to a run's directory, where `find` takes it first."""
    path = _kept(vocabulary, directory)
    if not files.is_file(path):
        files.replace(os.path.join(directory, _TOKENIZER_CONFIG), json.dumps(_form(vocabulary)))
        _copy_file(vocabulary, path)


def check_kept(vocabulary: Vocabulary, directory: str) -> None:
    """Checks that a vocabulary that `keep` wrote to a directory is this one."""
    path = _kept(vocabulary, directory)
    if files.is_file(path):
        form = find_form((path,), vocabulary.is_word_piece)
        kept = Vocabulary.read(path, vocabulary.is_word_piece, *form)
        before, now = kept.tokenizer, vocabulary.tokenizer
        if before.ids != now.ids:
            raise ValueError(
                f"{path} has `ids={before.ids}`, not `ids={now.ids}`: give the former, or another "
                "`output_dir`"
            )
        if before.digest != now.digest:
            raise ValueError(
                f"{path} is another vocabulary than {vocabulary.path}, or differs in lower-casing "
                "or accents: give another `output_dir`, or the vocabulary in this one"
            )


def keep_beside_records(vocabulary: Vocabulary, output_file: str) -> None:
    """Writes a vocabulary beside a run's first file, where `find_beside_records` looks for it."""
    directory = _beside(output_file)
    files.gfile().makedirs(directory)
    # The records that are replaced may have left another vocabulary.
    for name in (_SENTENCE_PIECE[0], _WORD_PIECE[0]):
        if files.exists(path := os.path.join(directory, name)):
            files.gfile().remove(path)
    keep(vocabulary, directory)


def find_beside_records(paths: Sequence[str]) -> Vocabulary | None:
    """Returns the vocabulary that the generator has put beside record files, or None."""
    directories = dict.fromkeys(_beside(_SHARD.sub("", path)) for path in paths)
    there = [find(directory) for directory in directories if files.is_dir(directory)]
    found = [each for each in there if each]
    if len({each.tokenizer.digest for each in found}) > 1:
        listed = ", ".join(each.path for each in found)
        raise ValueError(f"the records are of different vocabularies ({listed}): give those of one")
    return found[0] if found else None


def _beside(path: str) -> str:
    root, extension = os.path.splitext(path)
    return f"{root if 'record' in extension else path}.vocabulary"


def _kept(vocabulary: Vocabulary, directory: str) -> str:
    return os.path.join(directory, _patterns(vocabulary)[0])


def _patterns(vocabulary: Vocabulary) -> tuple[str, ...]:
    return _WORD_PIECE if vocabulary.is_word_piece else _SENTENCE_PIECE


def _copy_file(vocabulary: Vocabulary, target: str) -> None:
    # With Hugging Face's ids, its tokenizer.json is copied too, for converting back.
    if vocabulary.fast and vocabulary.tokenizer.ids == FOLDER:
        beside = os.path.join(os.path.dirname(target), fast_tokenizer.FILE)
        files.replace(beside, files.read_bytes(vocabulary.fast))
    files.replace(target, vocabulary.tokenizer.content)


def write_form(vocabulary: Vocabulary, directory: str) -> None:
    """Writes the form of text beside a vocabulary, unless it is the default."""
    if vocabulary.form != (True, False) or vocabulary.tokenizer.added_tokens:
        files.replace(os.path.join(directory, _TOKENIZER_CONFIG), json.dumps(_form(vocabulary)))


def _form(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the fields of tokenizer_config.json for case, accents and added tokens."""
    lower, keeps = vocabulary.form
    kept = {"strip_accents": False} if vocabulary.is_word_piece else {"keep_accents": True}
    added = added_tokens.to_config(vocabulary.tokenizer)
    if vocabulary.tokenizer.ids == RELEASE:
        return {"do_lower_case": lower, **(kept if keeps else {}), **added}
    return {
        **_beside_fast(vocabulary),
        "do_lower_case": lower,
        "keep_accents": keeps,
        "ids": FOLDER,
    }


def _beside_fast(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the tokenizer_config.json beside Hugging Face's tokenizer.json."""
    path = os.path.join(os.path.dirname(vocabulary.fast or ""), _TOKENIZER_CONFIG)
    return read_json_object(path) if vocabulary.fast and files.is_file(path) else {}


def write_hugging_face(vocabulary: Vocabulary, directory: str, max_length: int) -> None:
    """Writes the vocabulary, and a tokenizer of Hugging Face's: the one beside it, or a new one."""
    tokenizer, is_word_piece = vocabulary.tokenizer, vocabulary.is_word_piece
    if tokenizer.ids == RELEASE:
        _copy_file(vocabulary, _kept(vocabulary, directory))
    target = os.path.join(directory, _TOKENIZER_CONFIG)
    if vocabulary.fast:
        for name in (fast_tokenizer.FILE, _TOKENIZER_CONFIG):
            file = os.path.join(os.path.dirname(vocabulary.fast), name)
            if files.is_file(file):
                files.replace(os.path.join(directory, name), files.read_bytes(file))
        # Write only what these files don't tell: Hugging Face's copy it into later models.
        if folder_ids.is_own(vocabulary.fast) and _stored_ids(directory) != tokenizer.ids:
            config = _beside_fast(vocabulary) | {"ids": tokenizer.ids}
            files.replace(target, json.dumps(config, indent=2, sort_keys=True))
        return
    if tokenizer.ids == FOLDER:
        raise ValueError(
            f"no {fast_tokenizer.FILE} is beside {vocabulary.path}, which has its ids: put it there"
        )
    names = ("pad", "unk", "cls", "sep", "mask")
    pieces = tokenizer.convert_ids_to_tokens(getattr(tokenizer, f"{name}_id") for name in names)
    config = {f"{name}_token": piece for name, piece in zip(names, pieces, strict=True)}
    config |= {**_form(vocabulary), "model_max_length": max_length}
    config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    # This class uses tokenizer.json as it is; other classes would make one of their own.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if not is_word_piece:
        config["keep_accents"] = tokenizer.keep_accents
        config |= {"bos_token": config["cls_token"], "eos_token": config["sep_token"]}
    if not fast_tokenizer.write(tokenizer, is_word_piece, directory):
        config["tokenizer_class"] = "AlbertTokenizer"
    files.replace(target, json.dumps(config, indent=2, sort_keys=True))


def write_kerashub(vocabulary: Vocabulary, directory: str) -> None:
    """Writes a SentencePiece vocabulary and its case where KerasHub's tokenizer looks for them."""
    target = os.path.join(directory, _KERAS_HUB)
    os.makedirs(os.path.dirname(target))
    _copy_file(vocabulary, target)
    write_form(vocabulary, directory)
