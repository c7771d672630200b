"""The interface of tasks on labelled examples: examples -> features -> outputs -> predictions."""

from __future__ import annotations

import abc
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import keras
import numpy as np
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.conversion.stored_model import model_class
from albert_tf.storage import files
from albert_tf.storage.run_record import TaskRecord
from albert_tf.storage.text_files import json_member, parse_json
from albert_tf.tasks import feature_table
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.losses import Distillation, example_weights
from albert_tf.tasks.registry import TASKS, TaskRow
from albert_tf.text.tokenization import Tokenizer
from albert_tf.training.evaluation import in_row_order
from albert_tf.training.interfaces import Task
from albert_tf.types import Array, Features

if TYPE_CHECKING:
    from albert_tf.model.configured import ConfiguredModel

Example = TypeVar("Example")
Predictions = TypeVar("Predictions")


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The arguments of a FineTunedModel that all tasks share."""

    config: AlbertConfig
    classifier_dropout_prob: float = 0.1  # Dropout of the head; see FineTunedModel.
    dtype: str = "float32"  # Keras dtype policy: "float32" or "mixed_bfloat16".
    recompute: bool = False  # See ConfiguredModel.


class SupervisedTask(Task, Generic[Example, Predictions]):
    """A task whose metrics need the predictions of a whole set.

    Args:
      kind: How texts are read, and what the model's outputs mean.
      options: Options of the model; None if no model is built.
      tokenizer: The model's tokenizer; None if no features are made.
      classes: Names of the classes, by id; () if there are none.
      row: The task's row, which has its metric and the names of its files.
    """

    # Names of the features that the model reads, and of further ones that only training reads.
    inputs: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")
    labels: tuple[str, ...]
    # Prefix of the names of prediction files, if the task shares a directory with others.
    prefix = ""
    # The metrics that `scores` returns for any labelled set; each can compare checkpoints.
    metric_names: tuple[str, ...]
    # How to learn from a teacher; None means from labels only.
    distillation: Distillation | None = None

    def __init__(
        self,
        kind: Any,
        options: ModelOptions | None = None,
        tokenizer: Tokenizer | None = None,
        classes: Sequence[str] = (),
        row: TaskRow = TASKS["classification"],
    ) -> None:
        self.kind = kind
        self.options = options
        self.tokenizer = tokenizer
        self.classes = tuple(classes)
        self.row = row

    def build_model(self) -> keras.Model:
        return self.model_class(**self.kind.model_arguments, **vars(self.options))

    @property
    def can_learn_from_teacher(self) -> bool:
        """Whether the task supports `distillation`."""
        return False

    @property
    def model_class(self) -> type[ConfiguredModel]:
        return model_class(type(self.kind))

    def record(self, task_name: str) -> TaskRecord:
        """Returns what later users of the weights must know about the task."""
        return TaskRecord(task_name, self.kind.to_json())

    def weigh_classes(self, text: str, examples: Sequence[Example]) -> None:
        """Sets the weights of classes in the training loss, if each text has one class.

        `text` is as in classification.parse_class_weights.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that affect the features of given examples, as JSON."""
        return {"tokenizer": self.tokenizer.digest, **self.kind.feature_settings}

    @abc.abstractmethod
    def rows(self, examples: Sequence[Example], is_training: bool) -> Iterator[Mapping[str, Any]]:
        """Yields the features of examples, row by row, as FeatureTable.from_rows takes them."""

    @abc.abstractmethod
    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns losses `<float32>[B]` by name; training minimises the mean of their sum."""

    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the number of examples, for each loss."""
        return dict.fromkeys(self.loss_names, ops.sum(example_weights(features)))

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        weights = example_weights(features)
        losses = self.example_losses(outputs, features)
        return {name: ops.sum(loss * weights) for name, loss in losses.items()}

    def collect(self, features: FeatureTable, parts: Iterable[tuple[np.ndarray, Any]]) -> Any:
        """Returns the outputs that `predictions` needs; by default all, in row order.

        `parts` are row numbers and outputs, batch by batch, as RowOutputs yields them.
        """
        return in_row_order(parts, len(features.lengths))

    @abc.abstractmethod
    def predictions(
        self, examples: Sequence[Example], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Turns the outputs that `collect` returns into predictions."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """Returns metrics by name, including `key_metric`; {} if the examples have no labels."""

    def tuned(self, predictions: Predictions, dev_scores: Mapping[str, float]) -> Predictions:
        """Applies values that were tuned on "dev", such as a threshold, to predictions.

        `dev_scores` are the scores of the same weights on "dev"; empty if unknown.
        """
        return predictions

    def asked(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Returns the examples to predict; by default all."""
        return examples

    @abc.abstractmethod
    def write(
        self, directory: str, split: str, examples: Sequence[Example], predictions: Predictions
    ) -> None:
        """Writes a split's predictions to files: for users, leaderboards and `average`."""

    @abc.abstractmethod
    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[Example]
    ) -> Predictions:
        """Returns the mean of the predictions that `write` stored in several directories."""


def prediction_path(directory: str, split: str, name: str) -> str:
    """Returns the path of a split's file; its name begins with the split, except for "test"."""
    return os.path.join(directory, name if split == "test" else f"{split}_{name}")


def probabilities_file(directory: str, split: str) -> str:
    """Returns the path of a split's probabilities; the name always has the split."""
    return os.path.join(directory, f"{split}_probabilities.json")


def write_probabilities(
    directory: str, split: str, ids: list[str], examples: Sequence[Any], probabilities: np.ndarray
) -> None:
    """Writes the probabilities or numbers of a split's examples, a row for each id."""
    stored = {"ids": ids, "texts": _digest(examples), "probabilities": probabilities.tolist()}
    path = probabilities_file(directory, split)
    # Several students may store their common teacher's probabilities at the same time.
    files.replace(path, json.dumps(stored) + "\n", several_writers=True)


def read_stored(path: str) -> Any:
    """Reads the JSON of predictions that were stored to be averaged."""
    if not files.exists(path):
        raise FileNotFoundError(
            f"{path} does not exist: run prediction (`do_predict`; for dev `do_eval`) there first"
        )
    return parse_json(files.read_bytes(path), path)


def mean_probabilities(
    directories: Sequence[str], split: str, ids: list[str], examples: Sequence[Any]
) -> np.ndarray:
    """Returns the mean of the stored probabilities of these examples in several directories."""
    # Averaging different examples would be silently wrong: compare ids and digests of texts.
    texts, found = _digest(examples), []
    for directory in directories:
        path = probabilities_file(directory, split)
        stored = read_stored(path)
        has_others = json_member(stored, "ids", path, list) != ids
        if has_others or stored.get("texts") != texts:
            raise ValueError(
                f"{path} has other examples than those to predict: predict these there first, or "
                "name the file and the columns that it was made of"
            )
        found.append(np.array(json_member(stored, "probabilities", path, list)))
    if len({values.shape for values in found}) > 1:
        raise ValueError(f"{', '.join(directories)} must have the same number of classes")
    return np.mean(found, axis=0)


def _digest(examples: Sequence[Any]) -> str:
    """Returns a digest of texts if ids are line numbers, which fit any file; else "".

    Labels don't count, because a file to predict may lack them.
    """
    if not all(example.guid.isdigit() for example in examples):
        return ""
    label = "labels" if hasattr(next(iter(examples), None), "labels") else "label"
    unlabelled = [dataclasses.replace(each, **{label: None}) for each in examples]
    return feature_table.examples_digest(unlabelled)
