"""A run of fine-tuning: trains, evaluates each checkpoint, predicts with the best; ensembles."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf import checkpoint, conversion
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.training import distribution, evaluation, length_buckets
from albert_tf.training.progress import ProgressLog
from albert_tf.training.row_outputs import RowOutputs
from albert_tf.training.trainer import Trainer

_SCORES_FILES = {"dev": evaluation.RESULTS_FILE, "test": "test_scores.txt"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a task's data: "train", "dev" or "test".

    Attributes:
      examples: What was read from its files.
      features: The rows made of them; one need not be an example.
      batch_size: Rows of a batch, over all replicas.
      static_lengths: The lengths that batches are padded to, ascending.
    """

    examples: Sequence[Any]
    features: FeatureTable
    batch_size: int
    static_lengths: Sequence[int]


class SupervisedRun:
    """A task, a model, and the splits that are worked on.

    Args:
      task: The task.
      trainer: Holds the task's model.
      splits: By name, those that are needed.
      initial_weights: Where weights come from if the trainer's output_dir has none.
    """

    def __init__(
        self,
        task: SupervisedTask,
        trainer: Trainer,
        splits: Mapping[str, Split],
        initial_weights: str | None = None,
    ) -> None:
        self.task = task
        self.trainer = trainer
        self.splits = splits
        self.initial_weights = initial_weights
        self._outputs = RowOutputs(trainer.strategy, trainer.model)
        self._dev_predictions: Any = None

    def train(
        self,
        num_train_steps: int,
        seed: int,
        *,
        steps_per_loop: int,
        save_steps: int,
        keep_max: int,
    ) -> bool:
        """Trains up to a step, and evaluates each checkpoint on "dev" if that is there.

        Args:
          num_train_steps: The step.
          seed: Of the order of examples.
          steps_per_loop: See Trainer.train.
          save_steps: See Trainer.train.
          keep_max: See Trainer.train.

        Returns:
          Whether the step was reached.

        Raises:
          NonFiniteLossError: See Trainer.train.
        """
        trainer, split = self.trainer, self.splits["train"]
        table = _columns(split.features, self.task.inputs + self.task.labels)
        plan = length_buckets.training_batches(
            table.lengths, split.batch_size, split.static_lengths, seed, num_train_steps
        )
        rows_an_example = math.prod(table.sequences["input_ids"].shape[1:])
        positions = float(plan.lengths.mean()) * rows_an_example
        summaries = trainer.output_dir if distribution.is_chief(trainer.strategy) else None
        self.evaluate_saved()  # A run that was stopped may have left some.
        return trainer.train(
            table.training_input(plan, trainer.step),
            ProgressLog(summaries, num_train_steps, split.batch_size, positions),
            num_train_steps,
            steps_per_loop=steps_per_loop,
            save_steps=save_steps,
            keep_max=keep_max,
            after_save=self.evaluate_saved,
        )

    def evaluate_saved(self) -> int:
        """Evaluates the checkpoints that have not been on "dev", if that is there.

        Returns:
          How many there were; see evaluation.evaluate_saved.
        """
        if "dev" not in self.splits:
            return 0
        return evaluation.evaluate_saved(self.trainer, self._evaluate, self._write_dev)

    def evaluate_best(self) -> None:
        """Evaluates the best checkpoint on "dev", and adds that to eval_results.txt.

        Raises:
          ValueError: The initial weights lack the task's head.
        """
        self._predict_and_write("dev")

    def predict_best(self) -> None:
        """Predicts "test" with the best checkpoint, and writes predictions and, if any, scores.

        Raises:
          ValueError: The initial weights lack the task's head.
        """
        self._predict_and_write("test")

    def predict(self, name: str) -> Any:
        """Returns the predictions of the trainer's weights for a split; see SupervisedTask."""
        split = self.splits[name]
        table = _columns(split.features, self.task.inputs)
        plan = length_buckets.evaluation_batches(
            table.lengths, split.batch_size, split.static_lengths
        )
        outputs = self._outputs(table.evaluation_inputs(plan), len(table.lengths))
        return self.task.predictions(split.examples, split.features, outputs)

    def _evaluate(self) -> dict[str, float]:
        self._dev_predictions = self.predict("dev")
        return self.task.scores(self.splits["dev"].examples, self._dev_predictions)

    def _write_dev(self) -> None:
        examples = self.splits["dev"].examples
        self.task.write(self.trainer.output_dir, "dev", examples, self._dev_predictions)

    def _predict_and_write(self, name: str) -> None:
        source = self._restore_best()
        predictions = self.predict(name)
        if distribution.is_chief(self.trainer.strategy):
            write_predictions(
                self.task,
                self.trainer.output_dir,
                source,
                name,
                self.splits[name].examples,
                predictions,
            )

    def _restore_best(self) -> str:
        """Takes the best weights there are; returns where they are from."""
        directory = self.trainer.output_dir
        saved = checkpoint.best(directory) or checkpoint.latest(directory)
        if saved:
            self.trainer.restore(saved)
            return saved
        report = conversion.load_weights(
            self.trainer.model, self.initial_weights, replace_config=True
        )
        lacking = conversion.lacking(self.trainer.model, report)
        if lacking:
            raise ValueError(
                f"{self.initial_weights} is not fine-tuned for this task (it lacks "
                f"{', '.join(lacking)}): train first (`do_train`)"
            )
        return self.initial_weights


def write_predictions(
    task: SupervisedTask,
    directory: str,
    source: str,
    split: str,
    examples: Sequence[Any],
    predictions: Any,
) -> None:
    """Writes predictions and, if the examples have labels, adds their scores to a file.

    Args:
      task: The task.
      directory: Where.
      source: What predicted, for a person.
      split: "dev" or "test".
      examples: The split's.
      predictions: For them.
    """
    task.write(directory, split, examples, predictions)
    scores = task.scores(examples, predictions)
    if scores:
        lines = evaluation.log_results(source, scores)
        evaluation.append_results(os.path.join(directory, _SCORES_FILES[split]), lines)
    logging.info("predictions of %s for %d examples are in %s", source, len(examples), directory)


def _columns(table: FeatureTable, names: Sequence[str]) -> FeatureTable:
    kept = [
        {name: column[name] for name in names if name in column}
        for column in (table.scalars, table.sequences)
    ]
    return FeatureTable(table.lengths, *kept)
