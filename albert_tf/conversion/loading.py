"""Fills models from stored weights, strictly both ways: each difference is reported or an error."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from absl import logging

from albert_tf.answers.kind import checked_options
from albert_tf.config import AlbertConfig
from albert_tf.conversion import bundles, kinds, labels, layouts
from albert_tf.conversion.names import ENCODER, HEADS, POOLER, WORD_EMBEDDINGS, tf1_name
from albert_tf.storage import hub

if TYPE_CHECKING:
    import keras


_Model = TypeVar("_Model", bound="keras.Model")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading a checkpoint.

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
        for label, names in (("missing", map(tf1_name, self.missing)), ("unused", self.unused)):
            # Name heads, such as cls/predictions, rather than each of their weights.
            if heads := list(dict.fromkeys("/".join(name.split("/")[:2]) for name in names)):
                text += f"; {label}: {', '.join(heads)}"
        return text


def named_weights(model: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns the variables of a built model, or of a layer, by the release's names."""
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
    run. Every variable of the encoder must match. Heads may be on one side only, since pre-training
    and fine-tuning have different ones, and so may the pooler, which some of Hugging Face's models
    lack: that is reported and logged. Optimizer moments and the step are ignored.

    Args:
      model: A built model.
      path: A directory, a checkpoint's prefix, a file, or hf://OWNER/NAME; see hub.download.
      expand_group0: Whether groups that the checkpoint lacks are filled from its group_0.
      any_depth: Whether the model may have more or fewer layers than the stored one: as a start
        for further training or, if the stored model was trained with `elastic_depths`, to use it
        with fewer layers.
      replace_heads: Whether a head of another shape (another task's) is skipped: it then counts
        as unused in the checkpoint and missing in the model.
      replace_config: Whether the model's config replaces an invalid one beside the weights;
        otherwise that is an error.
      classes: Names of the model's classes, by id. If class names are stored beside the weights,
        the stored classifier's rows are put into this order; a classifier of other classes is an
        error or, with `replace_heads`, skipped.

    Returns:
      The variables that were loaded, missing and unused.

    Raises:
      ValueError: The weights do not fit. It names every variable, and the model is unchanged.

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
    # All weights are read before any is assigned, so that an error leaves the model as it was.
    path = hub.download(path)
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
    """Fills a model from `tensors`, which checkpoint.read returned for a prefix."""
    return _fill(model, prefix, bundles, bundles.weights_of(tensors, prefix))


def lacking(model: keras.Model, report: LoadReport) -> list[str]:
    """Returns the release's names of missing weights that the model's outputs depend on."""
    names = [tf1_name(path) for path in report.missing]
    return [name for name in names if model.reads_pooler or not name.startswith(POOLER)]


def from_weights(
    model_class: type[_Model], path: str | os.PathLike[str], **arguments: Any
) -> _Model:
    """Implements ConfiguredModel.from_weights; see there."""
    path = hub.download(path)
    config = layouts.read_config(path)
    # Refuse the classifier's head of another class, whose weights would fit.
    task = kinds.find(path)
    trained = kinds.kind_of(task)
    own = {each.__name__ for each in model_class.__mro__} & kinds.HEAD_DROPOUT.keys()
    if task and trained and own & kinds.ALIKE.keys() and trained.model in kinds.ALIKE.keys() - own:
        raise ValueError(
            f"{path} was trained for {task.name}: load it with {trained.model}, or its encoder "
            "alone with AlbertModel"
        )
    # Take arguments that are not given from the stored model.
    names = inspect.signature(model_class.__init__).parameters
    if "num_labels" in names and "num_labels" not in arguments:
        arguments["num_labels"] = labels.count(path)
        if not arguments["num_labels"]:
            raise ValueError(f"{path} has no classifier: set `num_labels` to the number of classes")
    if task and trained and trained.model in {each.__name__ for each in model_class.__mro__}:
        options = checked_options(trained, task.kind, path)
        arguments = {**{n: options[n] for n in names if n in options}, **arguments}
    for name in own:
        arguments.setdefault("classifier_dropout_prob", kinds.head_dropout(path, name))
    # Fill the model, and warn of random weights.
    model = model_class(config, **arguments)
    absent = lacking(model, load_weights(model, path, replace_heads=True))
    if absent:
        logging.warning(
            "%s lacks weights that the model needs; they are randomly initialised, so train it "
            "first: %s",
            path,
            ", ".join(absent),
        )
    return model


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
    # Find each variable's source among the stored weights, by the release's names, or None.
    named = named_weights(model)
    sources: dict[str, str | None] = {}
    for name in named:
        # With expand_group0 a group that the checkpoint lacks begins as a copy of its first one.
        from_group0 = re.sub(r"/group_\d+/", "/group_0/", name) if expand_group0 else name
        sources[name] = next((each for each in (name, from_group0) if each in values), None)

    # A weight of another shape is an error, unless it belongs to another task's head, which is left
    # out whole.
    wrong = {
        name: f"{name} {list(values[source].shape)}"
        for name, source in sources.items()
        if source and tuple(values[source].shape) != tuple(named[name].shape)
    }
    if replace_heads:
        _leave_other_heads(path, wrong, sources, values)
    wrong = {name: text for name, text in wrong.items() if sources[name]}
    if wrong:
        # Suggest what is most likely wrong: another model's config, or a head of another task.
        remedy = "use the albert_config.json that belongs to it"
        if WORD_EMBEDDINGS in wrong:
            remedy += f", whose embedding_size is {values[WORD_EMBEDDINGS].shape[-1]}"
        if not any(name.startswith(ENCODER) for name in wrong):
            remedy = "leave its head out with `replace_heads=True`"
        differences = [
            f"{text} in the checkpoint, {list(named[name].shape)} in the model"
            for name, text in wrong.items()
        ]
        listed = "; ".join(differences)
        raise ValueError(f"checkpoint {path} has other shapes than the model ({listed}): {remedy}")

    # Only heads may be missing or unused, and the configs must agree on what no shape reveals.
    missing = [name for name, source in sources.items() if source is None]
    unused = sorted(set(values) - set(sources.values()))
    _check_encoder(path, missing, unused, values)
    config = _config_of(model)
    if config is not None:
        free = {"num_hidden_groups": expand_group0, "num_hidden_layers": any_depth}
        ignored = [name for name, may_differ in free.items() if may_differ]
        layouts.check_config(config, layout, path, ignored, replace_config)

    # Nothing has been changed so far, and nothing can fail from here on.
    for name, source in sources.items():
        if source is not None:
            named[name].assign(values[source])
    return LoadReport(
        loaded=tuple(named[name].path for name in named if sources[name] is not None),
        missing=tuple(named[name].path for name in missing),
        unused=tuple(unused),
    )


def _leave_other_heads(
    path: str,
    wrong: Collection[str],
    sources: dict[str, str | None],
    values: Mapping[str, np.ndarray],
) -> None:
    """Clears the sources of each head that has a variable of another shape."""
    # A head is left out whole: its other weights fit by chance, but belong to the other task.
    heads = [head for head in HEADS if any(name.startswith(head) for name in wrong)]
    own = [name for name in wrong if not name.startswith((ENCODER, *HEADS))]  # A user's own heads.
    others = [
        name
        for name, source in sources.items()
        if source and (name.startswith(tuple(heads)) or name in own)
    ]
    if others:
        found = ", ".join(f"{name} {list(values[sources[name]].shape)}" for name in others)
        logging.warning("%s has the head of another task (%s), which is not loaded", path, found)
    sources.update(dict.fromkeys(others))


def _check_encoder(
    path: str, missing: list[str], unused: list[str], values: dict[str, np.ndarray]
) -> None:
    # Weights without a pooler are no error: masked-LM and question-answering models have none.
    has_pooler = any(name.startswith(POOLER) for name in values)
    differences = []
    for label, names in (("lacks", missing), ("has, unlike the model,", unused)):
        names = [n for n in names if n.startswith(ENCODER) and (has_pooler or POOLER not in n)]
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
    """Returns the AlbertConfig of a model, or of a model nested in it; None if there is none."""
    import keras  # Not at the top: a command's --help needs no framework.

    if isinstance(config := getattr(model, "config", None), AlbertConfig):
        return config
    found = [_config_of(layer) for layer in model.layers if isinstance(layer, keras.Model)]
    return next((config for config in found if config), None)
