"""A run's directory: what a command takes from it, what may not be there, and its record."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import uuid
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

from albert_tf import conversion
from albert_tf.cli.training_settings import TrainingSettings
from albert_tf.config import CONFIG_FILE, DROPOUT_FIELDS, AlbertConfig
from albert_tf.console import log
from albert_tf.conversion import layouts
from albert_tf.storage import checkpoint, eval_results, files
from albert_tf.storage.run_record import RunRecord, TaskRecord, find_run
from albert_tf.text import vocabulary
from albert_tf.training.interfaces import Devices, Task
from albert_tf.training.progress import four_digits

AnySettings = TypeVar("AnySettings", bound=TrainingSettings)


def follow_run(settings: AnySettings, path: str | None) -> AnySettings:
    """Returns the settings of the run that made stored weights, except those given now.

    A training goes on only from a checkpoint in `output_dir`; else it begins anew.

    `path` is of the weights or their directory; None for random ones.
    """
    begins = settings.do_train and not checkpoint.latest(settings.output_dir)
    run = find_run(path) if path and not begins else None
    return settings.following(run.settings) if run else settings


def load_config(settings: TrainingSettings, path: str | None) -> AlbertConfig:
    """Reads the config that is named, or else the one beside weights."""
    if settings.albert_config_file:
        return AlbertConfig.from_json_file(settings.albert_config_file)
    if path is None:
        raise ValueError(
            "no config: set `albert_config_file`, or an `init_checkpoint` with a config beside it"
        )
    return conversion.load_config(path)


def record_run(
    settings: TrainingSettings,
    config: AlbertConfig,
    data: Mapping[str, str],
    resumes: bool,
    task: TaskRecord | None = None,
) -> None:
    """Writes config and run.json, by which later commands go: a training begins or goes on.

    Args:
      settings: Those that it goes by.
      config: The model's.
      data: Digests of the data that it reads; if it resumes, those that it doesn't read now stay.
      resumes: Whether the run is in the directory.
      task: What a fine-tuned model is for.
    """
    before = find_run(settings.output_dir) if resumes else None
    data = {**(before.data if before else {}), **data}
    files.replace(os.path.join(settings.output_dir, CONFIG_FILE), config.to_json())
    command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])  # As typed in a shell.
    run = RunRecord(settings.record(), config.to_dict(), data, task, command)
    run.write(settings.output_dir)


def log_end(path: str, task: Task, served_as: str, exported: str | None = None) -> None:
    """Logs a run's checkpoint to use, its score, and a command that answers with it.

    `served_as` is which of serving's tasks does; `exported` is where it was exported to, if it was.
    """
    directory = os.path.dirname(path)
    score = eval_results.of_checkpoint(path).get(task.key_metric)
    said = "" if score is None else f" | {task.key_metric} {four_digits(score)}"
    if path == checkpoint.best(directory):
        said = f", of step {eval_results.Trial.read(directory).best_step}{said}"
    logging.info("checkpoint to use: %s%s", path, said)
    following = log.command("tensorboard", logdir=directory)
    with contextlib.suppress(ValueError):  # Of several vocabularies none is taken.
        if exported:
            following = log.command("albert-predict", model=exported)
        elif vocabulary.find(directory):
            following = log.command("albert-predict", model=path, task=served_as)
    logging.info("next: %s", following)


def check_same_model(config: AlbertConfig, output_dir: str) -> None:
    """Checks that the run in output_dir has the same config; dropout may change."""
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
            f"`output_dir` holds a run of another model ({'; '.join(changed)}): give another "
            "directory, or the config that the run was started with"
        )


def check_positions(config: AlbertConfig, max_seq_length: int) -> None:
    """Raises ValueError if the model hasn't a position for each piece of a sequence."""
    if max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"`max_seq_length` {max_seq_length} exceeds the config's max_position_embeddings "
            f"({config.max_position_embeddings}): lower it to that"
        )


def check_fresh_or_own(output_dir: str) -> None:
    """Checks that output_dir holds checkpoints of this run, or no model."""
    if checkpoint.latest(output_dir):
        return
    if lost := checkpoint.lost(output_dir):
        raise ValueError(
            f"`output_dir` {output_dir}: its file checkpoint lists {', '.join(lost)}, of which "
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
            f"`output_dir` {output_dir} contains a model, but no run to resume: give another "
            f"directory, and `init_checkpoint={found[0]}` to start from that model"
        )


def make_output_dir(path: str) -> None:
    """Makes the output directory, and checks that it is writable."""
    files.check_expanded(path)
    try:
        tf.io.gfile.makedirs(path)
        # A training and its evaluation may begin at once.
        files.try_to_write(os.path.join(path, f".write_test.{uuid.uuid4().hex}"))
    except tf.errors.OpError as error:
        raise ValueError(f"`output_dir` {path} can't be written: {files.reason(error)}") from None


def check_workers_agree(devices: Devices, parts: Mapping[str, Any]) -> None:
    """Checks that all workers were given the same; every worker calls it, with the same names.

    Else they would train different models, or wait for each other for ever. `parts` is what they
    must have in common, by name; plain JSON.
    """
    numbers = [zlib.crc32(repr(part).encode()) for part in parts.values()]
    means = devices.mean_over_processes(*numbers)
    different = [
        f"`{name}`"
        for name, number, mean in zip(parts, numbers, means, strict=True)
        if number != mean
    ]
    if not different:
        return
    # Whoever ended now could take the answer away from a worker that still waits for it. That the
    # others have ended is no news.
    with contextlib.suppress(Exception):
        devices.wait_for_all()
    raise ValueError(
        f"the workers differ in {', '.join(different)}: give all the same files and flags"
    )
