"""The contract of tasks on labelled examples: examples -> features -> outputs -> predictions."""

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
    """The model options shared by all tasks: arguments of a FineTunedModel."""

    config: AlbertConfig
    classifier_dropout_prob: float = 0.1  # Dropout of the head; see FineTunedModel.
    dtype: str = "float32"  # Keras dtype policy: "float32" or "mixed_bfloat16".
    recompute: bool = False  # See ConfiguredModel.


class SupervisedTask(Task, Generic[Example, Predictions]):
    """A task whose metrics need the predictions of a whole set, from examples of one type.

    Args:
      kind: How texts are read, and what the model's outputs mean.
      options: Options of the model; None if no model is built.
      tokenizer: The model's tokenizer; None if no features are made.
      classes: Names of the classes, by id; () if there are none.
      row: The task's row, which tells its metric and its files.
    """

    # Names of the features that the model reads, and of those that only training reads besides.
    inputs: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")
    labels: tuple[str, ...]
    # Before the names of files of predictions, of a task that shares its directory.
    prefix = ""
    # The metrics that `scores` has on any labelled set; checkpoints can be compared by each.
    metric_names: tuple[str, ...]
    # How to learn from a teacher; None learns from labels only.
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

    # --- what others need of it -------------------------------------------------------------

    def build_model(self) -> keras.Model:
        """Returns a new model, with random weights."""
        return self.model_class(**self.kind.model_arguments, **vars(self.options))

    @property
    def can_learn_from_teacher(self) -> bool:
        """Whether `distillation` can be set."""
        return False

    @property
    def model_class(self) -> type[ConfiguredModel]:
        """The class of its model."""
        return model_class(type(self.kind))

    def record(self, task_name: str) -> TaskRecord:
        """Returns what later users of the weights must know of the task."""
        return TaskRecord(task_name, self.kind.to_json())

    def weigh_classes(self, text: str, examples: Sequence[Example]) -> None:
        """Sets the weights of a text's classes, if it has one class, in the training loss."""

    # --- examples -> features ---------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that affect the features of given examples, as JSON."""
        return {"tokenizer": self.tokenizer.digest, **self.kind.feature_settings}

    @abc.abstractmethod
    def rows(self, examples: Sequence[Example], is_training: bool) -> Iterator[Mapping[str, Any]]:
        """Yields the features of examples, row by row, in the form of FeatureTable.from_rows."""

    # --- batches -> losses ------------------------------------------------------------------

    @abc.abstractmethod
    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns losses `<float32>[B]` by name; the mean of their sum is minimised."""

    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the number of examples, for each loss."""
        return dict.fromkeys(self.loss_names, ops.sum(example_weights(features)))

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns each loss, summed over the examples."""
        weights = example_weights(features)
        losses = self.example_losses(outputs, features)
        return {name: ops.sum(loss * weights) for name, loss in losses.items()}

    # --- outputs -> predictions -------------------------------------------------------------

    def collect(self, features: FeatureTable, parts: Iterable[tuple[np.ndarray, Any]]) -> Any:
        """Returns what `predictions` needs of the outputs; by default all, in row order.

        They come as RowOutputs yields them: row numbers and outputs, batch by batch.
        """
        return in_row_order(parts, len(features.lengths))

    @abc.abstractmethod
    def predictions(
        self, examples: Sequence[Example], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Turns the outputs that `collect` returns into predictions to be scored."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """Returns metrics by name, including `key_metric`; none if the examples have no labels."""

    def tuned(self, predictions: Predictions, dev_scores: Mapping[str, float]) -> Predictions:
        """Returns predictions of another set with what `scores` found to be best on "dev", if any.

        `dev_scores` are those of the same weights on "dev"; empty if unknown.
        """
        return predictions

    @abc.abstractmethod
    def write(
        self, directory: str, split: str, examples: Sequence[Example], predictions: Predictions
    ) -> None:
        """Writes a split's predictions to files: for users, leaderboards and `average`."""

    @abc.abstractmethod
    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[Example]
    ) -> Predictions:
        """Returns the mean of the predictions that `write` wrote to several directories."""


def prediction_path(directory: str, split: str, name: str) -> str:
    """Returns the path of a file about a split: those of "test" are named without it."""
    return os.path.join(directory, name if split == "test" else f"{split}_{name}")


def probabilities_file(directory: str, split: str) -> str:
    """Returns the path of a split's probabilities: even those of "test" are named with it."""
    return os.path.join(directory, f"{split}_probabilities.json")


def write_probabilities(
    directory: str, split: str, ids: list[str], examples: Sequence[Any], probabilities: np.ndarray
) -> None:
    """Writes the probabilities or numbers of a split's examples, a row for each id."""
    stored = {"ids": ids, "texts": _digest(examples), "probabilities": probabilities.tolist()}
    path = probabilities_file(directory, split)
    # Several students may share a teacher's.
    files.replace(path, json.dumps(stored) + "\n", several_writers=True)


def mean_probabilities(
    directories: Sequence[str], split: str, ids: list[str], examples: Sequence[Any]
) -> np.ndarray:
    """Returns the mean of what `write_probabilities` wrote to directories for these examples."""
    texts, found = _digest(examples), []
    for directory in directories:
        path = probabilities_file(directory, split)
        if not files.exists(path):
            raise FileNotFoundError(
                f"{path} does not exist: run prediction (`do_predict`; for dev `do_eval`) there "
                "first"
            )
        stored = parse_json(files.read_bytes(path), path)
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
    """Returns a digest of texts, if the ids of examples are numbers of lines, which tell nothing.

    Labels don't count: not every file to predict has them.
    """
    if not all(example.guid.isdigit() for example in examples):
        return ""
    label = "labels" if hasattr(next(iter(examples), None), "labels") else "label"
    unlabelled = [dataclasses.replace(each, **{label: None}) for each in examples]
    return feature_table.examples_digest(unlabelled)
