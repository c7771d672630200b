"""Makes the task that run_finetune.py's flags name, and the reader of its examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags, logging

from albert_tf.cli import finetune_flags, shared_flags
from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels as labels_file
from albert_tf.storage import checkpoint, files
from albert_tf.tasks.registry import TASKS, TaskSettings
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer

# A split -> the flag that needs it, the flag of its file and that of its batch size.
SPLITS = {
    "train": ("do_train", "train_file", "train_batch_size"),
    "dev": ("do_eval", "eval_file", "eval_batch_size"),
    "test": ("do_predict", "predict_file", "predict_batch_size"),
}
# From the name of a split to its examples.
Reader = Callable[[str], list[Any]]


def make_task(
    values: flags.FlagValues, config: AlbertConfig | None, tokenizer: Tokenizer | None
) -> tuple[SupervisedTask, Reader]:
    """Returns the task, and the function that reads a split's examples.

    Args:
      values: The flags.
      config: The model's; None if only prediction files are read.
      tokenizer: The model's, or None.

    Raises:
      ValueError: If there is no such task, or it needs another flag.
    """
    options = None
    if config:
        dtype = shared_flags.dtype_policy(values)
        options = ModelOptions(config, values.dropout_prob, dtype, values.recompute)
    settings = task_settings(values)
    task = settings.row.make(settings, options, tokenizer, _classes(values, settings))
    if values.key_metric:
        if values.key_metric not in task.metric_names:
            raise ValueError(
                f"--key_metric of {values.task_name} must be one of "
                f"{', '.join(task.metric_names)}, not {values.key_metric!r}"
            )
        task.key_metric = values.key_metric
    return task, lambda split: settings.row.read(settings, split, task)


def task_settings(values: flags.FlagValues) -> TaskSettings:
    """Returns the flags that say what the task is made of."""
    if values.task_name not in TASKS:
        raise ValueError(f"--task_name must be one of {', '.join(TASKS)}, not {values.task_name!r}")
    given = {name: getattr(values, name) for name in TaskSettings.names()}
    return TaskSettings(**{**given, "choice_columns": tuple(values.choice_columns)})


def find_vocabulary(values: flags.FlagValues) -> None:
    """Sets the vocabulary's flags to those of the weights or the run; a file that is named stays.

    Raises:
      ValueError: If several lie there, or it is damaged.
    """
    given = values.do_lower_case if values["do_lower_case"].present else None
    initial = finetune_flags.initial_weights(values)
    if values.spm_model_file or values.vocab_file:
        is_word_piece, case = not values.spm_model_file, given
        has_run = checkpoint.latest(values.output_dir) or checkpoint.best(values.output_dir)
        if initial and not has_run:
            files.check_not_url(initial)
            case = vocabulary.is_uncased(initial, is_word_piece, given)
        # A run keeps the case that it began with.
        values["do_lower_case"].value = vocabulary.is_uncased(
            values.output_dir, is_word_piece, given, default=case is not False
        )
        return
    found = vocabulary.find(initial, given) if initial else None
    found = found or vocabulary.find(values.output_dir, given)
    if found:
        values["vocab_file" if found.is_word_piece else "spm_model_file"].value = found.path
        values["do_lower_case"].value = found.tokenizer.do_lower_case
        logging.info("vocabulary: %s", found.path)


def write_labels(values: flags.FlagValues, task: SupervisedTask) -> None:
    """Writes a classifier's class names beside its checkpoints, for their later users."""
    if task.class_names:
        labels_file.write(values.output_dir, task.class_names)


def _classes(values: flags.FlagValues, settings: TaskSettings) -> tuple[str, ...] | None:
    """Returns the classes trained on before; None for those of the task or of the training file.

    They lie in output_dir or, if that has no model, may lie beside the initial weights.
    """
    if not settings.row.finds_classes:
        return None
    if values.ensemble_dirs:
        return _shared_labels(values.ensemble_dirs)
    path = os.path.join(values.output_dir, labels_file.LABELS_FILE)
    latest = checkpoint.latest(values.output_dir)
    if values.do_train and not (latest and files.exists(path)):
        return None
    initial = finetune_flags.initial_weights(values)
    is_fresh = not (latest or checkpoint.best(values.output_dir) or files.exists(path))
    named = labels_file.stored(initial) if initial and is_fresh else ()
    return named or labels_file.read(values.output_dir)


def _shared_labels(directories: Sequence[str]) -> tuple[str, ...]:
    first, *others = directories
    labels = labels_file.read(first)
    for other in others:
        found = labels_file.read(other)
        if found != labels:
            raise ValueError(
                f"--ensemble_dirs {first} and {other} contain runs with different classes "
                f"({', '.join(labels)}; {', '.join(found)}): give runs with the same classes"
            )
    return labels
