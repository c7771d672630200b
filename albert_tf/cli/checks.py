"""Checks before long work: the config, the output directory, batch sizes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

import tensorflow as tf
from absl import flags, logging

from albert_tf.config import CONFIG_FILE, DROPOUT_FIELDS, AlbertConfig
from albert_tf.conversion import layouts
from albert_tf.storage import checkpoint, files
from albert_tf.training.devices import Devices

# Flags of both scripts that decide how often workers call each other.
CALLS_OF_WORKERS = ("iterations_per_loop", "save_checkpoints_steps", "eval_batch_size")


def write_config(config: AlbertConfig, output_dir: str) -> None:
    """Writes the config beside a run's checkpoints."""
    files.replace(os.path.join(output_dir, CONFIG_FILE), config.to_json())


def check_same_model(config: AlbertConfig, output_dir: str) -> None:
    """Checks that the run in output_dir has the same config; dropout may change.

    Raises:
      ValueError: If it is another model's, even if the weights would fit.
    """
    stored = os.path.join(output_dir, CONFIG_FILE)
    if not checkpoint.latest(output_dir) or not files.exists(stored):
        return
    before = AlbertConfig.from_json_file(stored)
    changed = [
        f"{name} {getattr(before, name)} before, {getattr(config, name)} now"
        for name in config.differences(before, DROPOUT_FIELDS)
    ]
    if changed:
        raise ValueError(
            f"--output_dir holds a run of another model ({'; '.join(changed)}): give another "
            "directory, or the config that the run was started with"
        )


def check_fresh_or_own(output_dir: str) -> None:
    """Checks that output_dir holds checkpoints of this run, or no model.

    Raises:
      ValueError: If it holds another model, whose files the run would replace or delete.
    """
    if checkpoint.latest(output_dir):
        return
    if lost := checkpoint.lost(output_dir):
        raise ValueError(
            f"--output_dir {output_dir}: its file `checkpoint` lists {', '.join(lost)}, of which "
            "none is there: copy one again, or remove that file to start afresh"
        )
    found = checkpoint.unlisted(output_dir)
    try:
        layouts.find(output_dir)
        found = [output_dir]
    except FileNotFoundError:
        pass
    except ValueError:  # Several models: one must be named.
        found = found or [os.path.join(output_dir, "...")]
    if found:
        raise ValueError(
            f"--output_dir {output_dir} contains a model, but no run to resume: give another "
            f"directory, and --init_checkpoint={found[0]} to start from that model"
        )


def check_positions(config: AlbertConfig, max_seq_length: int) -> None:
    """Checks that the model has a position for each piece of a sequence.

    Raises:
      ValueError: If max_seq_length is larger than the model's maximum.
    """
    if max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length {max_seq_length} exceeds the config's max_position_embeddings "
            f"({config.max_position_embeddings}): lower it to that"
        )


def check_predictions(max_predictions_per_seq: int, max_seq_length: int) -> None:
    """Checks that a sequence has room for its masked tokens.

    Raises:
      ValueError: If there are more masked tokens than tokens.
    """
    if max_predictions_per_seq > max_seq_length:
        raise ValueError(
            f"--max_predictions_per_seq {max_predictions_per_seq} is more than --max_seq_length "
            f"{max_seq_length}: lower it"
        )


def check_batch_size(flag: str, batch_size: int, devices: Devices) -> None:
    """Checks that an evaluation batch can be split over the replicas.

    Raises:
      ValueError: If its size is not divisible by their number.
    """
    num_replicas = devices.num_replicas
    if batch_size % num_replicas:
        raise ValueError(
            f"--{flag} {batch_size} can't be split evenly over {num_replicas} replicas: make it a "
            f"multiple of {num_replicas}"
        )


def check_train_batch_size(batch_size: int, accumulation_steps: int, devices: Devices) -> None:
    """Checks that a training batch can be split over the replicas, each in so many parts.

    Raises:
      ValueError: If its size is not divisible by the total number of parts.
    """
    num_replicas = devices.num_replicas
    parts = num_replicas * accumulation_steps
    if batch_size % parts:
        raise ValueError(
            f"--train_batch_size {batch_size} can't be split evenly over {num_replicas} "
            f"replica(s) with {accumulation_steps} part(s) each: make it a multiple of {parts}"
        )


def warn_of_warmup(flag: str, end: int, num_train_steps: int) -> None:
    """Warns if the warm-up does not end before the run does."""
    if end >= num_train_steps:
        logging.warning(
            "the warm-up (--%s) ends at step %d, the run at step %d: the rate never gets to "
            "--learning_rate",
            flag,
            end,
            num_train_steps,
        )


def make_output_dir(path: str) -> None:
    """Makes the output directory, and checks that it is writable.

    Raises:
      ValueError: If it can't be made or written to.
    """
    files.check_expanded(path)
    try:
        tf.io.gfile.makedirs(path)
        # A training and its evaluation may begin at once.
        files.try_to_write(os.path.join(path, f".write_test.{uuid.uuid4().hex}"))
    except tf.errors.OpError as error:
        raise ValueError(f"--output_dir {path} can't be written: {error.message}") from None


def warn_of_changes(output_dir: str, changes: Sequence[str]) -> None:
    """Warns of what differs between a command and the run that it resumes, if anything does."""
    if changes:
        logging.warning(
            "%s: resuming a run that was started with %s: to start a new one, give another "
            "--output_dir",
            output_dir,
            "; ".join(changes),
        )


def check_workers_agree(
    values: flags.FlagValues, devices: Devices, what: str, names: Sequence[str], *others: object
) -> None:
    """Checks that all workers train one model, and call each other equally often.

    Args:
      values: The flags.
      devices: The devices of this worker.
      what: What may differ besides flags, in words, for the message.
      names: The flags that they must have in common.
      *others: What else they must.

    Raises:
      ValueError: If they differ in any of it.
    """
    if not devices.agree(*others, [getattr(values, name) for name in names]):
        raise ValueError(
            f"the workers see different {what}, or differ in flags, such as --random_seed or "
            "--save_checkpoints_steps: give all the same files and flags"
        )


def describe(devices: Devices) -> str:
    """Returns the devices' name and number of replicas, for people."""
    return f"{devices.name} with {devices.num_replicas} replica(s)"
