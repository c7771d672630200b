"""The exports after fine-tuning: the best checkpoint as a SavedModel."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from absl import flags, logging

from albert_tf.cli import finetune_flags
from albert_tf.conversion import layouts
from albert_tf.conversion.stored import Stored
from albert_tf.serving import description
from albert_tf.storage import checkpoint, eval_results, files
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.tasks.supervised_run import SupervisedRun
from albert_tf.text.vocabulary import Vocabulary


def check(values: flags.FlagValues, task: SupervisedTask, words: Vocabulary) -> None:
    """Checks before training that the task can be exported as a SavedModel.

    Raises:
      ImportError: If tensorflow_text is not installed.
      ValueError: If the flags ask for what the task doesn't have, or a graph can't split text as
        the vocabulary does.
    """
    _import_exporters()
    # It needs tensorflow_text as well.
    from albert_tf.serving import graph_tokenizer

    graph_tokenizer.build(words)
    _serving(values, task)


def check_free(values: flags.FlagValues, task: SupervisedTask, num_train_steps: int) -> None:
    """Checks that each directory doesn't exist, or holds the export that this run would make.

    Raises:
      ValueError: If it holds anything else, or can't be made.
    """
    path = _to_export(values)
    for flag, (is_there, _) in EXPORTS.items():
        directory = values[flag].value
        if directory and not (
            _is_trained(values, num_train_steps) and path and is_there(values, task, path)
        ):
            files.check_free(directory)


def _is_trained(values: flags.FlagValues, num_train_steps: int) -> bool:
    """Whether there is nothing to train, or no more."""
    if not values.do_train:
        return True
    newest = checkpoint.latest(values.output_dir)
    if newest is None:
        return False
    return checkpoint.step_of(newest) >= num_train_steps or eval_results.is_over(
        values.output_dir, values.early_stopping_patience, values.save_checkpoints_steps
    )


def export_best(values: flags.FlagValues, run: SupervisedRun) -> None:
    """Writes the best checkpoint as the flags say, unless it is there."""
    for flag, (is_there, write) in EXPORTS.items():
        directory, path = values[flag].value, _to_export(values)
        if directory and is_there(values, run.task, path):
            logging.info("%s already contains the export of %s", directory, path)
        elif directory:
            write(values, run)


def _holds_saved_model(values: flags.FlagValues, task: SupervisedTask, path: str) -> bool:
    kind, options = _serving(values, task)
    same = description.is_of(values.export_dir, kind, options)
    return same and layouts.holds_weights_of(values.export_dir, path)


def _export_saved_model(values: flags.FlagValues, run: SupervisedRun) -> None:
    """Writes a SavedModel that takes raw text."""
    if not run.trainer.devices.is_chief:
        return
    kind, options = _serving(values, run.task)
    saved_model, served_tasks = _import_exporters()
    stored = Stored(
        _to_export(values),
        values.albert_config_file,
        values.spm_model_file,
        None if values.spm_model_file else values.vocab_file,
        values.do_lower_case,
    )
    served = served_tasks.serve(kind, stored, options, run.task.classes)
    saved_model.save(served, values.export_dir)
    logging.info("exported %s to %s", stored.path, values.export_dir)
    if hint := saved_model.hint(values.export_dir):
        logging.info("%s", hint)


# A flag -> whether its directory holds this run's export of a checkpoint, and what writes it.
EXPORTS = {
    "export_dir": (_holds_saved_model, _export_saved_model),
}


def _to_export(values: flags.FlagValues) -> str | None:
    evaluates = values.do_eval or not values.do_train
    found = checkpoint.to_use(values.output_dir, evaluates)
    return found or finetune_flags.initial_weights(values)


def _import_exporters() -> tuple[ModuleType, ModuleType]:
    """Returns serving.saved_model and serving.served_tasks, which need tensorflow_text.

    Raises:
      ImportError: If tensorflow_text is not installed.
    """
    # Not at the top: the script also runs without tensorflow_text.
    try:
        from albert_tf.serving import saved_model, served_tasks
    except ImportError as error:
        raise ImportError(
            f"--export_dir needs the package {error.name!r}, which is not installed: install its "
            "version that matches TensorFlow's, or leave --export_dir out and export on another "
            "machine"
        ) from error
    return saved_model, served_tasks


def _serving(values: flags.FlagValues, task: SupervisedTask) -> tuple[str, dict[str, Any]]:
    """Returns the task's name for served_tasks.serve, and the options of its serving class.

    Raises:
      ValueError: If there is a threshold, but nothing that it applies to.
    """
    threshold = None if math.isnan(values.threshold_to_export) else values.threshold_to_export
    return task.served_as, task.serving_options(threshold)
