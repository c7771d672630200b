"""Loads ALBERT weights strictly into our models, however they are stored."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from albert_tf.config import AlbertConfig
from albert_tf.conversion import bundles, labels, layouts
from albert_tf.conversion.layouts import load_config
from albert_tf.conversion.names import ENCODER, HEADS, POOLER, WORD_EMBEDDINGS, tf1_name
from albert_tf.storage import hub

if TYPE_CHECKING:
    import keras

    from albert_tf.model.albert import ConfiguredModel

__all__ = [
    "LoadReport",
    "lacking",
    "load_config",
    "load_tensors",
    "load_weights",
    "named_weights",
    "tf1_name",
]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What loading a checkpoint did, by name.

    Attributes:
      loaded: Paths of the model's variables that were filled.
      missing: Paths of the model's variables that the checkpoint lacks; unchanged.
      unused: Names in the checkpoint that the model has no variable for.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{len(self.loaded)} variables loaded"
        for label, names in (("missing", self.missing), ("unused", self.unused)):
            if names:
                text += f"; {label}: {', '.join(names)}"
        return text


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns a model's weights by their name in a checkpoint.

    Args:
      model: A built model.

    Returns:
      Variables by name.
    """
    named: dict[str, keras.Variable] = {}
    for variable in model.weights:
        name = tf1_name(variable.path)
        if name in named:
            raise ValueError(
                f"{named[name].path} and {variable.path} would both be stored as {name}: give the "
                "layers different names"
            )
        named[name] = variable
    return named


def load_weights(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    expand_group0: bool = False,
    any_depth: bool = False,
    replace_heads: bool = False,
    replace_config: bool = False,
    classes: Sequence[str] = (),
) -> LoadReport:
    """Fills a model from stored weights.

    The layout is detected: a checkpoint of the release or ours, a TF-Hub module or SavedModel, a
    Hugging Face directory, a KerasHub preset, or a .keras or .weights.h5 file. No stored code is
    run. Every encoder variable must match. Heads come and go between pre-training and fine-tuning,
    and Hugging Face's masked-LM and question-answering models have no pooler: what only one side
    has is reported and logged. Optimizer moments and the step are ignored.

    Args:
      model: A built model.
      path: A directory, a checkpoint's prefix, a file, or hf://OWNER/NAME; see hub.local.
      expand_group0: Whether groups that the checkpoint lacks are filled from its group_0.
      any_depth: Whether the model may apply its blocks more or fewer times than the one that was
        stored: a start for further training, not a model that has been trained.
      replace_heads: Whether a head of another shape (another task's) is skipped: unused in the
        checkpoint, missing in the model.
      replace_config: Whether the model's config replaces an invalid one beside the weights;
        otherwise that is an error.
      classes: Names of the classes that the model is for, by id. If the stored classifier's are
        beside it, its rows are put into this order; one of other classes is an error or, with
        `replace_heads`, skipped.

    Returns:
      What was loaded, missing and unused.

    Raises:
      FileNotFoundError: If there is no such checkpoint.
      ValueError: If it is damaged, holds NaN or infinite numbers, or does not fit. The message
        names every variable, and the model is unchanged.

    Source: albert/modeling.py, get_assignment_map_from_checkpoint.
    Differs: the release loads what happens to match and says nothing about the rest.

    Example:
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> albert_tf.AlbertForPreTraining(config).save("pretrained.keras")
      >>> classifier = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
      >>> report = albert_tf.load_weights(classifier, "pretrained.keras")
      >>> len(report.missing)  # The new head.
      2
    """
    path = hub.local(path)
    layout = layouts.find(path)
    return _fill(
        model,
        path,
        layout,
        labels.in_order(path, layout.read_weights(path), classes, leave_others=replace_heads),
        expand_group0=expand_group0,
        any_depth=any_depth,
        replace_heads=replace_heads,
        replace_config=replace_config,
    )


def load_tensors(model: keras.Model, prefix: str, tensors: Mapping[str, np.ndarray]) -> LoadReport:
    """Fills a model from a checkpoint of the release or ours that is already read.

    Args:
      model: A built model.
      prefix: Its prefix.
      tensors: What checkpoint.read returned for it.

    Returns:
      What was loaded, missing and unused.
    """
    return _fill(model, prefix, bundles, bundles.weights_of(tensors, prefix))


def _fill(
    model: keras.Model,
    path: str,
    layout: ModuleType,
    values: dict[str, np.ndarray],
    *,
    expand_group0: bool = False,
    any_depth: bool = False,
    replace_heads: bool = False,
    replace_config: bool = False,
) -> LoadReport:
    """Fills a model from weights that `layout` read; see `load_weights`."""
    named = named_weights(model)
    sources = {name: _source(name, values, expand_group0) for name in named}
    if replace_heads:
        _leave_other_heads(path, named, sources, values)
    _check_shapes(path, named, sources, values)

    missing = [name for name, source in sources.items() if source is None]
    unused = sorted(set(values) - set(sources.values()))
    _check_encoder(path, missing, unused, values)
    config = _config_of(model)
    if config is not None:
        free = {"num_hidden_groups": expand_group0, "num_hidden_layers": any_depth}
        ignored = [name for name, may_differ in free.items() if may_differ]
        layouts.check_config(config, layout, path, ignored, replace_config)
    for name, source in sources.items():
        if source is not None:
            named[name].assign(values[source])
    report = LoadReport(
        loaded=tuple(named[name].path for name in named if sources[name] is not None),
        missing=tuple(named[name].path for name in missing),
        unused=tuple(unused),
    )
    logging.info("%s: %s", path, report)
    return report


def lacking(model: ConfiguredModel, report: LoadReport) -> list[str]:
    """Returns the release's names of missing weights that the model's outputs depend on."""
    names = [tf1_name(path) for path in report.missing]
    return [name for name in names if model.reads_pooler or not name.startswith(POOLER)]


def _is_encoder(name: str) -> bool:
    return name.startswith(ENCODER)


def _source(name: str, values: dict[str, Any], expand_group0: bool) -> str | None:
    if name in values:
        return name
    from_group0 = re.sub(r"/group_\d+/", "/group_0/", name)
    return from_group0 if expand_group0 and from_group0 in values else None


def _leave_other_heads(
    path: str,
    named: dict[str, keras.Variable],
    sources: dict[str, str | None],
    values: dict[str, np.ndarray],
) -> None:
    """Clears the sources of heads of which a variable has another shape."""
    loaded = [name for name, source in sources.items() if source and not _is_encoder(name)]
    wrong = {
        _head(name)
        for name in loaded
        if tuple(values[sources[name]].shape) != tuple(named[name].shape)
    }
    others = [name for name in loaded if _head(name) in wrong]
    if others:
        found = ", ".join(f"{name} {list(values[sources[name]].shape)}" for name in others)
        logging.warning("%s has the head of another task (%s), which is not loaded", path, found)
    sources.update(dict.fromkeys(others))


def _head(name: str) -> str:
    """Returns the prefix of all variables of a variable's head."""
    return next((head for head in HEADS if name.startswith(head)), name)


def _check_shapes(
    path: str,
    named: dict[str, keras.Variable],
    sources: dict[str, str | None],
    values: dict[str, np.ndarray],
) -> None:
    wrong = {
        name: f"{name} {list(values[source].shape)} in the checkpoint, {list(named[name].shape)} "
        "in the model"
        for name, source in sources.items()
        if source is not None and tuple(values[source].shape) != tuple(named[name].shape)
    }
    if wrong:
        remedy = "use the albert_config.json that belongs to it"
        if WORD_EMBEDDINGS in wrong:
            remedy += f", whose embedding_size is {values[WORD_EMBEDDINGS].shape[-1]}"
        if not any(_is_encoder(name) for name in wrong):
            remedy = "leave its head out with `replace_heads=True`"
        raise ValueError(
            f"checkpoint {path} has other shapes than the model ({'; '.join(wrong.values())}): "
            f"{remedy}"
        )


def _check_encoder(
    path: str, missing: list[str], unused: list[str], values: dict[str, np.ndarray]
) -> None:
    differences = []
    has_pooler = any(name.startswith(POOLER) for name in values)
    for label, names in (("lacks", missing), ("has, unlike the model,", unused)):
        names = [name for name in names if _is_encoder(name)]
        names = [name for name in names if has_pooler or not name.startswith(POOLER)]
        if names:
            differences.append(f"it {label} {', '.join(names)}")
    if len(unused) == len(values):
        differences.append("it shares no variable with the model")
    if differences:
        raise ValueError(
            f"checkpoint {path} does not fit the model: {'; '.join(differences)}; use the "
            "albert_config.json that belongs to it"
        )


def _config_of(model: keras.Model) -> AlbertConfig | None:
    """Returns the config of one of our models, or of one nested in the model; None without one."""
    import keras  # Not at the top: a command's --help needs no framework.

    from albert_tf.model.albert import ConfiguredModel

    if isinstance(model, ConfiguredModel):
        return model.config
    found = [_config_of(layer) for layer in model.layers if isinstance(layer, keras.Model)]
    return next((config for config in found if config), None)
