"""Detects the layout of a stored model, and reads its config."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from types import ModuleType

from absl import logging

from albert_tf import weight_shapes
from albert_tf.config import DROPOUT_FIELDS, AlbertConfig, shipped_models
from albert_tf.conversion import bundles, huggingface, keras_files, kerashub, sentence_transformers
from albert_tf.storage import files, hub

# The layouts that convert writes.
LAYOUTS = ("tf1", "huggingface", "keras", "kerashub")
_READERS = (huggingface, kerashub, bundles, keras_files)
# Fields that don't change the outputs of trained weights.
_FREE = (*DROPOUT_FIELDS, "initializer_range", "down_scale_factor")
# OWNER/NAME, perhaps with a mistyped scheme.
_HUB_NAME = re.compile(r"(?:hf:/*)?([\w-][\w.-]*/[\w.-]+)")
# One of the release's models, by its name on the Hub or the name of its config here.
_RELEASED = re.compile(r"albert[-_](base|x{0,2}large)[-_](v[12])")


def find(path: str | os.PathLike[str]) -> ModuleType:
    """Returns the module whose `read_config` and `read_weights` read what is at a path."""
    path = os.fspath(path)
    files.check_not_url(path)
    found = [layout for layout in _READERS if layout.matches(path)]
    if len(found) == 1:
        return found[0]
    if found:
        found_layouts = "; ".join(layout.LOOKED_FOR for layout in found)
        raise ValueError(
            f"{path} contains several models ({found_layouts}): keep one, or give one of its files"
        )
    raise FileNotFoundError(_missing(path))


def _missing(path: str) -> str:
    """Returns a message that says why a path has no model, and what to give instead."""
    if files.is_dir(path):
        several = keras_files.found_in(path)
        if len(several) > 1:
            names = ", ".join(map(os.path.basename, several))
            return f"{path} contains several models of Keras ({names}): give one of its files"
        if sentence_transformers.matches(path):
            lacking = "has modules of sentence-transformers, but no ALBERT encoder in itself"
            return f"{path} {lacking}: if it is older than their version 2, save it again"
        looked_for = "; ".join(layout.LOOKED_FOR for layout in _READERS)
        return f"{path} contains no checkpoint: expected one of {looked_for}"
    # There is nothing at the path: perhaps it was meant as a name on the Hub.
    named, released = _HUB_NAME.fullmatch(path), _RELEASED.fullmatch(path)
    hint = ""
    if named and not os.path.isdir(os.path.dirname(path)):
        hint = f"; a model on the Hugging Face Hub is hf://{named[1]}"
    elif released:
        hint = f"; the release's is hf://albert/albert-{released[1]}-{released[2]}"
    return (
        f"there is no checkpoint {path}: expected a directory, a .keras or .weights.h5 file, or a "
        f"checkpoint's prefix, with {os.path.basename(path)}.index beside it{hint}"
    )


def load_config(path: str | os.PathLike[str]) -> AlbertConfig:
    """Reads the config that belongs to stored weights.

    Args:
      path: A path that `load_weights` takes, or the name of a model that comes with the package, as
        in AlbertConfig.from_json_file.

    Example:
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> albert_tf.AlbertModel(config).save("model.keras")
      >>> albert_tf.load_config("model.keras") == config
      True
    """
    path = os.fspath(path)
    # Weights of that name in the working directory take precedence.
    if path in shipped_models() and not any(layout.matches(path) for layout in _READERS):
        return AlbertConfig.from_json_file(path)
    return read_config(path)


def read_config(path: str | os.PathLike[str]) -> AlbertConfig:
    """Reads the config that belongs to stored weights, and checks that it fits their size."""
    path = hub.download(path)
    config = find(path).read_config(path)
    # A damaged config must not make anyone build a huge model. Every layout stores the encoder in
    # two or more bytes per number, though some leave out its pooler.
    parts = weight_shapes.parts(config)
    declared = sum(parts[name].count() for name in weight_shapes.ENCODER if name != "pooler")
    if files.is_dir(path):
        found = files.walk(path)
    else:
        found = files.find(os.path.dirname(path) or ".", "*")
    held = sum(files.size(name) for name in found if files.is_file(name))
    if declared > held:
        raise ValueError(
            f"the config beside the weights of {path} declares at least {declared:,} "
            f"numbers, but they have {held:,} bytes: use the config that belongs to them"
        )
    return config


def read_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of stored weights by the release's names."""
    return {name: value.shape for name, value in find(path).read_weights(path).items()}


def check_config(
    config: AlbertConfig,
    layout: ModuleType,
    path: str,
    ignored: Collection[str] = (),
    replace: bool = False,
) -> None:
    """Compares fields that no shape reveals (layers, heads, activation) with the config at a path.

    Args:
      config: The model's config.
      layout: The module that reads the path.
      path: Where the weights are stored.
      ignored: Fields that may differ, which is logged. Dropout may always differ.
      replace: Whether an invalid config at the path is ignored.
    """
    try:
        theirs = layout.read_config(path)
    except FileNotFoundError:  # There is nothing to compare with.
        return
    except ValueError as error:
        if not replace:
            raise
        logging.warning("the config beside the weights is not compared with the model's: %s", error)
        return
    # Fields that differ are an error, unless they are ignored, which is logged.
    found = {
        name: f"{name} {getattr(theirs, name)} there, {getattr(config, name)} here"
        for name in config.differences(theirs, _FREE)
    }
    allowed = [found.pop(name) for name in ignored if name in found]
    if allowed:
        logging.info("the config beside the weights of %s differs: %s", path, "; ".join(allowed))
    if found:
        raise ValueError(
            f"the config beside the weights of {path} contradicts the model's "
            f"({'; '.join(found.values())}): use the config that belongs to them"
        )
