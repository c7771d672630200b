"""Evaluates checkpoints as they appear and keeps the best."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from albert_tf import checkpoint, distribution
from albert_tf.training import Trainer
from albert_tf.training_input import InputFn

RESULTS_FILE = "eval_results.txt"
_BEST_FILE = "best_checkpoint.json"
_POLL_SECONDS = 5.0
_REMIND_SECONDS = 60.0


def evaluate_checkpoints(
    trainer: Trainer, input_fn: InputFn, last_step: int, poll_seconds: float = _POLL_SECONDS
) -> dict[str, float]:
    """Evaluates the newest checkpoint of the output directory, until one of `last_step` was.

    Writes eval_results.txt, and copies a checkpoint to model.ckpt-best when the task's key metric
    is higher than ever before in this directory.

    Args:
      trainer: Its weights are replaced by each checkpoint's.
      input_fn: Makes a host's dataset; it ends.
      last_step: The training run's last step.
      poll_seconds: Seconds between two looks for a new checkpoint.

    Returns:
      The last metrics, and `global_step`.

    Source: run_pretraining.py, main.
    Differs: a checkpoint is evaluated once; the best one is remembered when evaluation restarts.
    """
    lines: list[str] = []
    results: dict[str, float] = {"global_step": -1}
    evaluated, waiting_since = None, None
    while results["global_step"] < last_step:
        prefix = checkpoint.latest(trainer.output_dir)
        if prefix in (None, evaluated):
            waiting_since = _remind(trainer.output_dir, waiting_since)
            time.sleep(poll_seconds)
            continue
        try:
            step = trainer.restore(prefix)
        except FileNotFoundError:
            continue  # The training run has just deleted it for a newer one.
        results = {"global_step": step, **trainer.evaluate(input_fn)}
        evaluated, waiting_since = prefix, None
        logging.info("***** Eval results of %s *****", prefix)
        for key in sorted(results):
            logging.info("  %s = %s", key, results[key])
            lines.append(f"{key} = {results[key]}")
        if distribution.is_chief(trainer.strategy):
            lines += _keep_if_best(prefix, results, trainer.task.key_metric)
            checkpoint.write_text(
                os.path.join(trainer.output_dir, RESULTS_FILE), "\n".join(lines) + "\n"
            )
    return results


def _keep_if_best(prefix: str, results: Mapping[str, float], key_metric: str) -> list[str]:
    """Copies the checkpoint if it beats the best; returns the release's lines about it."""
    directory = os.path.dirname(prefix)
    record = os.path.join(directory, _BEST_FILE)
    best = -1.0
    if checkpoint.best(directory) and tf.io.gfile.exists(record):
        with tf.io.gfile.GFile(record) as file:
            best = json.load(file)[key_metric]
    if results[key_metric] <= best:
        return []
    try:
        target = checkpoint.copy_to_best(prefix)
    except tf.errors.NotFoundError:
        logging.warning("%s was the best, but deleted before it could be kept", prefix)
        return []
    checkpoint.write_text(
        record, json.dumps({key: results[key] for key in ("global_step", key_metric)}) + "\n"
    )
    logging.info("saving %s to %s", prefix, target)
    return [
        f"saved {prefix}.{ending} to {target}.{ending}"
        for ending in ("data-00000-of-00001", "index")
    ]


def _remind(directory: str, waiting_since: float | None) -> float:
    now = time.monotonic()
    if waiting_since is not None and now - waiting_since < _REMIND_SECONDS:
        return waiting_since
    logging.info("waiting for a new checkpoint in %s", directory)
    return now
