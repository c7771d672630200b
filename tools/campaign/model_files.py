"""Models in others' formats, and vocabularies."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np

import albert_tf
from albert_tf import conversion
from albert_tf.config import AlbertConfig
from albert_tf.conversion.convert import convert
from albert_tf.text.tokenization import Tokenizer
from tests.kit import goldens
from tools.campaign import file_types, mutators
from tools.campaign.file_types import Evidence, FileType

_GOLDEN = goldens.FOLDER.parent
_SPM = _GOLDEN / "spm" / "en_small.model"
_TEXTS = ("The Capital of France, 1990, yes.", "Ünï  code 例文 don't", "")
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_REALS = (*_PROBABILITIES, "initializer_range")
_WEIGHTS = (".safetensors", ".index", ".h5", ".keras", ".data-00000-of-00001")


# --- weights --------------------------------------------------------------------------------


@functools.cache
def _model() -> albert_tf.AlbertModel:
    return albert_tf.AlbertModel(goldens.config("base"))


def _read_weights(folder: pathlib.Path) -> tuple[str, bool]:
    """Fills a model; returns a digest of its weights, and whether all are finite."""
    model = _model()
    conversion.load_config(folder)
    conversion.load_weights(model, folder)
    weights = model.get_weights()
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    return digest, all(np.isfinite(weight).all() for weight in weights)


def _judge_weights(evidence: Evidence) -> str | None:
    if not evidence.result[1]:
        return "weights that are not finite"
    if not evidence.suffix.endswith(_WEIGHTS) and evidence.result != evidence.expected:
        return "different weights, from a file that contains none"
    return None


def _make_layout(layout: str, folder: pathlib.Path) -> None:
    convert(str(goldens.FOLDER / "base"), layout, str(folder / "model"), drop=["cls/"])
    for path in (folder / "model").iterdir():
        path.rename(folder / path.name)
    (folder / "model").rmdir()


def _make_hub(folder: pathlib.Path) -> None:
    shutil.copytree(_GOLDEN / "tfhub", folder, dirs_exist_ok=True)


# --- config ---------------------------------------------------------------------------------


def _make_config(folder: pathlib.Path) -> None:
    shutil.copy(goldens.FOLDER / "base" / "albert_config.json", folder)


def _read_config(folder: pathlib.Path) -> dict[str, Any]:
    return AlbertConfig.from_json_file(folder / "albert_config.json").to_dict()


def _judge_config(evidence: Evidence) -> str | None:
    """Checks the range of each number, by its name in the release."""
    given = json.loads(evidence.after)
    for name, value in evidence.result.items():
        if name in given and given[name] != value:
            return f"{name} differs from the file's"
        if not isinstance(value, (int, float)):
            continue
        most = sys.float_info.max if name in _REALS else 2**31
        if isinstance(value, bool) or not 0 <= value < most:
            return f"{name} is {value!r}"
        if name in _PROBABILITIES and value >= 1:
            return f"{name} is {value!r}"
        if name not in _REALS and value == 0:
            return f"{name} is {value!r}"
    unknown = set(given) - set(evidence.result) - {"net_structure_type", "layers_to_keep"}
    unknown -= {"gap_size", "num_memory_blocks", "ln_type", "parameter_sharing"}
    return f"unknown keys {sorted(unknown)}" if unknown else None


# --- vocabularies ---------------------------------------------------------------------------


def _make_spm(folder: pathlib.Path) -> None:
    shutil.copy(_SPM, folder / "spiece.model")


def _make_vocab(folder: pathlib.Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "capital", "##s", "of", ",", "."]
    pieces += [chr(ord("a") + i) for i in range(26)] + [f"##{chr(ord('a') + i)}" for i in range(26)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def _read_vocabulary(argument: str, name: str, folder: pathlib.Path) -> dict[str, Any]:
    tokenizer = Tokenizer(**{argument: str(folder / name)})
    special = [getattr(tokenizer, f"{n}_id") for n in ("pad", "unk", "cls", "sep", "mask")]
    return {
        "size": tokenizer.vocab_size,
        "special": special,
        "ids": [id for text in _TEXTS for id in tokenizer.encode(text)],
        "starts": len(tokenizer.word_starts()),
    }


def _judge_vocabulary(evidence: Evidence) -> str | None:
    found = evidence.result
    if len(set(found["special"])) != 5:
        return "two special pieces have the same id"
    if not all(0 <= id < found["size"] for id in (*found["ids"], *found["special"])):
        return "an id outside the vocabulary"
    if found["starts"] != found["size"]:
        return "word starts and pieces differ in number"
    return None


def _layout(name: str, targets: str) -> FileType:
    make, damage = functools.partial(_make_layout, name), (*mutators.BINARY, *mutators.JSON)
    return FileType(name, make, damage, _read_weights, _judge_weights, targets)


def _vocabulary(argument: str, file: str, make, damage) -> FileType:
    return FileType(
        file, make, damage, functools.partial(_read_vocabulary, argument, file), _judge_vocabulary
    )


_CHECKPOINT = "*.index *.data-*"
_make_checkpoint = functools.partial(_make_layout, "tf1")
_IN_CONFIG = (*mutators.JSON, mutators.member, mutators.member)
FILE_TYPES = (
    FileType(
        "checkpoint", _make_checkpoint, mutators.BINARY, _read_weights, file_types.same, _CHECKPOINT
    ),
    _layout("huggingface", "*.safetensors config.json"),
    _layout("kerashub", "*.json *.h5"),
    _layout("keras", "*.keras *.h5"),
    FileType(
        "TF-Hub",
        _make_hub,
        mutators.BINARY,
        _read_weights,
        file_types.same,
        f"{_CHECKPOINT} *.pb albert_config.json",
    ),
    FileType("albert_config.json", _make_config, _IN_CONFIG, _read_config, _judge_config),
    _vocabulary("spm_model_file", "spiece.model", _make_spm, mutators.BINARY),
    _vocabulary("vocab_file", "vocab.txt", _make_vocab, mutators.TEXT),
)
