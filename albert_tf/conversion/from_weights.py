"""The models' `from_weights`: a model of a class, built and filled from stored weights.

model/ imports nothing of this folder, which is above it: this module puts the function there.
registration.py imports it as soon as there are models, right after Keras.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, TypeVar

from absl import logging

from albert_tf import conversion
from albert_tf.conversion import kinds, labels
from albert_tf.model import albert
from albert_tf.storage import hub

_Model = TypeVar("_Model", bound=albert.ConfiguredModel)


def from_weights(
    model_class: type[_Model], path: str | os.PathLike[str], **arguments: Any
) -> _Model:
    """Builds a model from the config beside stored weights, and fills it with them.

    A head that isn't stored, or is of another shape, keeps its random initialisation: a warning
    names it.

    Args:
      model_class: One of our models.
      path: What `load_weights` takes.
      **arguments: Arguments of the class besides `config`. `num_labels` defaults to the number of
        classes stored.
    """
    path = hub.local(path)
    config = conversion.load_config(path)
    _check_kind(model_class, path)
    names = inspect.signature(model_class.__init__).parameters
    if "num_labels" in names and "num_labels" not in arguments:
        arguments["num_labels"] = labels.count(path)
        if not arguments["num_labels"]:
            raise ValueError(f"{path} has no classifier: set `num_labels` to the number of classes")
    model = model_class(config, **arguments)
    report = conversion.load_weights(model, path, replace_heads=True)
    lacking = conversion.lacking(model, report)
    if lacking:
        logging.warning(
            "%s lacks weights that the model needs; they are randomly initialised, so train it "
            "first: %s",
            path,
            ", ".join(lacking),
        )
    return model


def _check_kind(model_class: type, path: str) -> None:
    """Refuses the head of a tagger for texts and so on: its weights would fit."""
    task = kinds.find(path)
    own = {each.__name__ for each in model_class.__mro__} & kinds.CLASSIFIERS
    if task and own and task.architecture and task.architecture not in own:
        raise ValueError(
            f"{path} was trained for {task.name}: load it with {task.architecture}, or its "
            "encoder alone with AlbertModel"
        )


albert.ConfiguredModel.builder = from_weights
