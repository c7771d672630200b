"""A fine-tuning run: trains, evaluates each checkpoint, and predicts with the best one."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from albert_tf import conversion
from albert_tf.storage import checkpoint, eval_results
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.training import evaluation, length_buckets
from albert_tf.training.evaluation import RowOutputs
from albert_tf.training.progress import ProgressLog, bar
from albert_tf.training.trainer import Trainer

_SCORES_FILES = {"dev": eval_results.RESULTS_FILE, "test": "test_scores.txt"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a task's data: "train", "dev" or "test"."""

    examples: Sequence[Any]  # The examples read from its files.
    features: FeatureTable  # The examples' rows; an example may have several rows or none.
    batch_size: int  # Rows per batch, over all replicas.
    static_lengths: Sequence[int]  # The lengths that batches are padded to, ascending.


class SupervisedRun:
    """Trains, evaluates and predicts a task with the trainer's model.

    Its weights come from the trainer's output_dir or, if that has none, from `initial_weights`. Set
    `splits`, by name, before anything else.
    """

    def __init__(
        self, task: SupervisedTask, trainer: Trainer, initial_weights: str | None = None
    ) -> None:
        self.task = task
        self.trainer = trainer
        self.splits: dict[str, Split] = {}
        self.initial_weights = initial_weights
        self._outputs = RowOutputs(trainer.devices, trainer.model)
        # The outputs of shallower depths, if the run trains any.
        self._shallower = {
            depth: RowOutputs(trainer.devices, trainer.model, depth)
            for depth in trainer.task.depths
        }
        # The scores on "dev" of the weights to predict with, once evaluate_best has made them, and
        # the step of these weights, if they come from one of the run's checkpoints.
        self._dev_scores: dict[str, float] = {}
        self._step = -1

    def train(
        self,
        num_train_steps: int,
        seed: int,
        patience: int | None = None,
        *,
        save_steps: int,
        **loop: Any,
    ) -> bool:
        """Trains up to a given step, and evaluates each checkpoint if there is a "dev" split.

        Args:
          num_train_steps: The step to train up to.
          seed: Seed of the order of examples.
          patience: Number of evaluations without a better key metric after which training ends;
            None never ends it early.
          save_steps: See Trainer.train.
          **loop: Other arguments of Trainer.train.

        Returns:
          Whether the training is over.
        """
        # Plan the rows and the length of each batch.
        trainer, split = self.trainer, self.splits["train"]
        table = split.features.select(self.task.inputs + self.task.labels)
        plan = length_buckets.training_batches(
            table.lengths, split.batch_size, split.static_lengths, seed, num_train_steps
        )
        # An example of multiple choice has C sequences; progress is counted in positions.
        rows_an_example = math.prod(table.sequences["input_ids"].shape[1:])
        positions = float(plan.lengths.mean()) * rows_an_example
        summaries = trainer.output_dir if trainer.devices.is_chief else None

        def evaluate() -> bool:
            self.evaluate_saved(
                lambda step: eval_results.is_scheduled(step, save_steps) or step == num_train_steps
            )
            # The chief decides, because only it writes the results.
            own = eval_results.is_over(trainer.output_dir, patience, save_steps)
            is_over = bool(trainer.devices.of_chief(own))
            if is_over:
                text = "stopped early: %d evaluations without a better %s"
                logging.info(text, patience, self.task.key_metric)
            return is_over

        # An interrupted run may have left checkpoints that are not evaluated.
        if evaluate():
            return True
        return trainer.train(
            table.training_input(plan, trainer.step, trainer.devices.static_shapes),
            ProgressLog(summaries, num_train_steps, split.batch_size, positions),
            num_train_steps,
            save_steps=save_steps,
            after_save=evaluate,
            **loop,
        )

    def evaluate_saved(self, counts: Callable[[int], bool] = lambda step: True) -> int:
        """Evaluates on "dev", if there is one, the checkpoints that were not evaluated yet.

        `counts` decides by step whether a checkpoint is evaluated. Returns how many were.
        """
        if "dev" not in self.splits:
            return 0
        # `write` takes the predictions that `evaluate` has made last.
        directory, examples = self.trainer.output_dir, self.splits["dev"].examples
        predictions = None

        def evaluate(source: str) -> dict[str, float]:
            nonlocal predictions
            predictions = self.predict("dev", source)
            scores = self.task.scores(examples, predictions)
            for depth, outputs in self._shallower.items():
                shallow = predict(self.task, outputs, self.splits["dev"], source)
                found = self.task.scores(examples, shallow)
                scores |= {f"{name}_after_{depth}": score for name, score in found.items()}
            return scores

        # Only the chief calls it, and only for the best checkpoint so far.
        def write() -> None:
            self.task.write(directory, "dev", self.task.asked(examples), predictions)

        return evaluation.evaluate_saved(self.trainer, evaluate, write, counts)

    def evaluate_best(self) -> None:
        """Evaluates the best checkpoint on "dev", and appends the result to eval_results.txt."""
        self._dev_scores = self._predict_and_write("dev")

    def predict_best(self) -> None:
        """Predicts "test" with the best checkpoint; writes predictions and, if labelled, scores.

        The task uses thresholds that were best on "dev", unless "dev" has the same examples.
        """
        self._predict_and_write("test")

    def predict(self, name: str, source: str) -> Any:
        """Returns predictions for a split with the trainer's weights, which came from `source`."""
        return predict(self.task, self._outputs, self.splits[name], source)

    def restore_best(self) -> str:
        """Loads the best weights available; returns where they come from."""
        # 1. A checkpoint of the run: the best one, if evaluations on a "dev" split have chosen it.
        directory = self.trainer.output_dir
        trains = self.trainer.optimizer is not None
        saved = checkpoint.to_use(directory, evaluates="dev" in self.splits or not trains)
        if saved:
            self._step = self.trainer.restore(saved)
            return saved
        # 2. The weights that the run was given, if they have this task's head.
        # A missing head is reported below, where the message can say more.
        report = conversion.load_weights(
            self.trainer.model, self.initial_weights, replace_config=True, classes=self.task.classes
        )
        lacking = conversion.lacking(self.trainer.model, report)
        if lacking:
            raise ValueError(
                f"{self.initial_weights} is not fine-tuned for this task (it lacks "
                f"{', '.join(lacking)}): train first (`do_train`)"
            )
        return self.initial_weights

    def _predict_and_write(self, name: str) -> dict[str, float]:
        # All processes predict together, but only the chief has files to write.
        source = self.restore_best()
        predictions = self.predict(name, source)
        if not self.trainer.devices.is_chief:
            return {}
        # Tune with the same weights' scores on "dev", if these are known. As in the release,
        # examples that are the same as in "dev" are scored at their own best threshold.
        directory, examples = self.trainer.output_dir, self.splits[name].examples
        has_own_labels = "dev" in self.splits and self.splits["dev"].examples == examples
        if name == "test" and not has_own_labels:
            scores = self._dev_scores
            if not scores and self._step < 0:
                scores = eval_results.of_checkpoint(source)
            elif not scores:
                scores = eval_results.read(directory, self._step)
            predictions = self.task.tuned(predictions, scores)
        return write_predictions(self.task, directory, source, name, examples, predictions)


def predict(task: SupervisedTask, outputs_of: RowOutputs, split: Split, source: str) -> Any:
    """Returns a task's predictions for a split with a model's weights, which came from `source`."""
    table = split.features.select(task.inputs)
    plan = length_buckets.evaluation_batches(table.lengths, split.batch_size, split.static_lengths)
    batches = bar(outputs_of(table.evaluation_inputs(plan), source), len(plan.lengths))
    outputs = task.collect(split.features, batches)
    return task.predictions(split.examples, split.features, outputs)


def write_predictions(
    task: SupervisedTask,
    directory: str,
    source: str,
    split: str,
    examples: Sequence[Any],
    predictions: Any,
) -> dict[str, float]:
    """Writes predictions and, if the examples have labels, appends their scores to a file.

    `source` tells the user what made the predictions. Returns the scores.
    """
    task.write(directory, split, asked := task.asked(examples), predictions)
    scores = task.scores(examples, predictions)
    # A file without labels gives predictions, but no scores.
    if scores:
        lines = evaluation.log_results(source, scores, task.key_metric)
        eval_results.append_text(os.path.join(directory, _SCORES_FILES[split]), lines)
    logging.info(
        "predictions of %s for %d examples were written to %s", source, len(asked), directory
    )
    return scores
