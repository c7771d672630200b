"""Evaluates new or saved checkpoints and keeps the best; runs a model on the rows of a set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import ops

from albert_tf.storage import checkpoint, eval_results, files
from albert_tf.storage.eval_results import Evaluation, Trial
from albert_tf.training.interfaces import Devices, InputFn
from albert_tf.training.progress import four_digits, write_metrics
from albert_tf.training.trainer import Trainer
from albert_tf.types import Features

_POLL_SECONDS = 5.0
_REMIND_SECONDS = 60.0


def evaluate_checkpoints(
    trainer: Trainer, input_fn: InputFn, last_step: Callable[[], int], known: Mapping[str, float]
) -> dict[str, float]:
    """Evaluates the newest checkpoint in the output directory, repeatedly up to `last_step`.

    Adds to the files of `eval_results`, and copies a checkpoint to model.ckpt-best when the task's
    key metric is the best so far in this directory.

    Args:
      trainer: Evaluates; each checkpoint replaces its weights.
      input_fn: Makes a host's finite dataset.
      last_step: Returns the training run's last step, as far as it is known.
      known: Metrics of the data, reported beside the model's.

    Returns:
      The last metrics, and `global_step`.

    Source: run_pretraining.py, main.
    Differs: a checkpoint is evaluated only once. A restarted evaluation remembers the best
    checkpoint and keeps earlier results, each followed by a rule.
    """
    results: dict[str, float] = {}
    step, evaluated, waiting_since = -1, None, None
    while step < last_step():
        # Wait for a checkpoint that has not been evaluated.
        prefix = checkpoint.latest(trainer.output_dir)
        if prefix in (None, evaluated):
            what = f"a new one up to step {last_step()}" if prefix else "the first checkpoint"
            waiting_since = _remind(f"{what} in {trainer.output_dir}", waiting_since)
            time.sleep(_POLL_SECONDS)
            continue
        try:
            step = trainer.restore(prefix)
        except FileNotFoundError:
            continue  # The training run has just replaced it with a newer one.
        metrics = {**trainer.evaluate(input_fn), **known}
        check_finite(metrics, prefix)
        results = {"global_step": step, **metrics}
        evaluated, waiting_since = prefix, None
        # The chief keeps the checkpoint if it is the best, and records the results.
        key_metric, is_chief = trainer.task.key_metric, trainer.devices.is_chief
        copied = _keep_if_best(prefix, results[key_metric], key_metric) if is_chief else []
        lines = log_results(prefix, results, key_metric, is_best=bool(copied))
        if is_chief:
            write_metrics(trainer.output_dir, step, results)
            evaluation = Evaluation(step, key_metric, metrics, bool(copied))
            eval_results.add(trainer.output_dir, evaluation, lines + copied)
    return results


def begin(directory: str, devices: Devices, resumes: bool) -> None:
    """Claims a directory for a fresh run, and removes the results of an earlier evaluation.

    Every worker calls it: the chief changes the directory, and all check that they see the change.
    If the run `resumes` in this directory, nothing changes.
    """
    if devices.is_chief and not resumes:
        checkpoint.claim(directory)
        for name in eval_results.FILES:
            path = os.path.join(directory, name)
            if files.exists(path):
                tf.io.gfile.remove(path)
    devices.wait_for_all()
    # A worker that does not see the run would wait for its checkpoints forever.
    if devices.any_process(not checkpoint.read_list(directory)):
        raise ValueError(
            f"not all workers see the run that the chief has begun in {directory}: give all the "
            "same `output_dir`, on shared storage"
        )


def evaluate_saved(
    trainer: Trainer,
    evaluate: Callable[[str], dict[str, float]],
    write: Callable[[], None],
    counts: Callable[[int], bool] = lambda step: True,
) -> int:
    """Evaluates saved checkpoints that have not been evaluated, oldest first.

    Adds to the files of `eval_results`, and copies a checkpoint to model.ckpt-best when the task's
    key metric is the best so far. Afterwards the trainer holds the newest checkpoint.

    Args:
      trainer: Evaluates; each checkpoint replaces its weights.
      evaluate: Returns the metrics of the trainer's weights, given their checkpoint for messages.
      write: Called after `evaluate` for the best result so far; saves whatever else to keep.
      counts: Whether to evaluate the checkpoint of a step.

    Returns:
      The number of checkpoints evaluated.

    Source: run_classifier.py, main.
    Differs: only --keep_checkpoint_max deletes checkpoints other than the best; the best is copied
    at once; evaluation does not wait for a concurrent training run.
    """
    # The chief's files say what an earlier start has evaluated; other workers may see older ones.
    directory, key_metric = trainer.output_dir, trainer.task.key_metric
    trial = Trial.read(directory, key_metric)
    last_step, count = trainer.devices.of_chief(trial.last_step), 0
    saved = checkpoint.listed(directory)
    for prefix in saved:
        # Skip checkpoints that an earlier start has evaluated or that don't count.
        number = checkpoint.step_of(prefix)
        if number <= last_step or not counts(number):
            continue
        # All workers evaluate and compare with the best so far; the chief records the result.
        step = trainer.restore(prefix)
        metrics = evaluate(prefix)
        count += 1
        results = {"global_step": step, **metrics}
        value = metrics[key_metric]
        is_best = trial.is_beaten(value, key_metric)
        lines = log_results(prefix, results, key_metric, is_best)
        best = (step, value) if is_best else (trial.best_step, trial.best_value)
        trial = Trial(step, *best)
        if trainer.devices.is_chief:
            write_metrics(directory, step, results)
            if is_best:
                lines += _copied_to_best(prefix)
                write()
            lines.append(f"best = {trial.best_value}")
            # This comes last: a run killed before evaluates the checkpoint again.
            evaluation = Evaluation(step, key_metric, metrics, is_best)
            eval_results.add(directory, evaluation, lines)
    # Training goes on from the newest checkpoint, even if that one doesn't count.
    if count and step != checkpoint.step_of(saved[-1]):
        trainer.restore(saved[-1])
    # The other workers need the files that the chief writes.
    trainer.devices.wait_for_all()
    return count


def log_results(
    prefix: str, results: Mapping[str, float], key_metric: str = "", is_best: bool = False
) -> list[str]:
    """Logs the metrics of a checkpoint in one line, the key metric first.

    Returns the metrics as lines of text, with all digits.
    """
    names = sorted(results, key=lambda name: (name != key_metric, name))
    shown = [f"{name} {four_digits(results[name])}" for name in names if name != "global_step"]
    best = " | the best so far" if is_best else ""
    logging.info("%s: %s%s", prefix, " | ".join(shown), best)
    return [f"{name} = {results[name]}" for name in sorted(results)]


def check_finite(values: Any, source: str) -> None:
    """Refuses outputs of NaN, which would pass for a class, or +inf; -inf marks excluded values."""
    if not all(np.isfinite(np.maximum(value, 0)).all() for value in keras.tree.flatten(values)):
        raise ValueError(
            f"the outputs of {source} are NaN or infinite: its weights are damaged, or too large; "
            "use another checkpoint"
        )


def _keep_if_best(prefix: str, value: float, key_metric: str) -> list[str]:
    """Copies the checkpoint if it beats the best; returns the release's lines about it."""
    directory = os.path.dirname(prefix)
    # A best score counts only as long as its checkpoint exists.
    trial = Trial.read(directory, key_metric) if checkpoint.best(directory) else Trial()
    if not trial.is_beaten(value, key_metric):
        return []
    try:
        return _copied_to_best(prefix)
    except tf.errors.NotFoundError:
        logging.warning(
            "%s was the best checkpoint, but was deleted before it could be kept", prefix
        )
        return []


def _copied_to_best(prefix: str) -> list[str]:
    """Copies a checkpoint to model.ckpt-best; returns the release's lines about it."""
    return [f"saved {old} to {new}" for old, new in checkpoint.copy_to_best(prefix).items()]


def _remind(what: str, waiting_since: float | None) -> float:
    now = time.monotonic()
    if waiting_since is not None and now - waiting_since < _REMIND_SECONDS:
        return waiting_since
    logging.info("waiting for %s", what)
    return now


class RowOutputs:
    """Runs a model, which maps features to tensors `[B, ...]`, on rows that devices share.

    Args:
      devices: The devices.
      model: The model.
      depth: Number of layers after which its outputs are read; None for all.
    """

    def __init__(self, devices: Devices, model: keras.Model, depth: int | None = None) -> None:
        self._devices = devices
        self._model = model
        self._depth = depth
        self._outputs = devices.gathered(model, self._replica_outputs)

    def __call__(
        self, input_fns: Iterable[InputFn], source: str = "the model"
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields row numbers `<int32>[B]` and the model's outputs on these rows, batch by batch.

        Args:
          input_fns: Each makes a host's finite dataset. Besides the features a batch has
            `example_rows` `<int32>[B]`, the row numbers, and `example_weights` `<float32>[B]`, 0
            for rows that only fill it up.
          source: Name of the weights, for messages.
        """
        for input_fn in input_fns:
            for batch in self._devices.batches(input_fn):
                # Leave out the rows that only fill up a batch.
                outputs, rows, weights = self._outputs(batch)
                counted = weights > 0
                values = [value[counted] for value in keras.tree.flatten(outputs)]
                check_finite(values, source)
                yield rows[counted], keras.tree.pack_sequence_as(outputs, values)

    def _replica_outputs(self, batch: Features) -> tuple[Any, Any, Any]:
        features = dict(batch)
        rows, weights = features.pop("example_rows"), features.pop("example_weights")
        if self._depth is None:
            return self._model(features, training=False), rows, weights
        # The rows read after fewer layers follow those read after all layers.
        count = ops.shape(rows)[0]
        features["depths"] = ops.full((count, 1), self._depth, "int32")
        outputs = self._model(features, training=False)
        return keras.tree.map_structure(lambda x: x[count:], outputs), rows, weights


def in_row_order(parts: Iterable[tuple[np.ndarray, Any]], num_rows: int) -> Any:
    """Assembles the outputs that RowOutputs yields for N rows into arrays `[N, ...]`.

    The longest rows must come first: shorter outputs of later rows are padded with -inf.
    """
    results: list[np.ndarray] = []
    for rows, outputs in parts:
        values = keras.tree.flatten(outputs)
        if not results:
            results = [_blank((num_rows, *value.shape[1:]), value) for value in values]
        for result, value in zip(results, values, strict=True):
            place: tuple[Any, ...] = (rows, *(slice(size) for size in value.shape[1:]))
            result[place] = value
    return keras.tree.pack_sequence_as(outputs, results)


def _blank(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    return np.full(shape, -np.inf if like.dtype.kind == "f" else 0, like.dtype)
