"""The exports after fine-tuning: the best checkpoint as a SavedModel, or as a span model."""

from __future__ import annotations

import dataclasses
import math
from types import ModuleType
from typing import Any

from absl import flags, logging

from albert_tf.cli import finetune_flags, finetune_records, finetune_tasks
from albert_tf.conversion import bundles, layouts, run_record
from albert_tf.conversion.stored import Stored
from albert_tf.serving import description
from albert_tf.storage import checkpoint, eval_results, files
from albert_tf.tasks import span_model
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.tasks.supervised_run import SupervisedRun
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary


def splits_to_fit(values: flags.FlagValues) -> list[str]:
    """Returns the splits that a span model takes besides those that the steps need.

    After training it takes only those; otherwise the splits whose file is given.
    """
    if not values.span_model_dir or values.do_train:
        return []
    return [split for split, (_, flag, _) in finetune_tasks.SPLITS.items() if values[flag].value]


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
    saved_model, trained = _import_exporters()
    stored = Stored(
        _to_export(values),
        values.albert_config_file,
        values.spm_model_file,
        None if values.spm_model_file else values.vocab_file,
        values.do_lower_case,
    )
    served = trained.serve(kind, stored, options, run.task.classes)
    saved_model.save(served, values.export_dir)
    logging.info("exported %s to %s", stored.path, values.export_dir)
    if hint := saved_model.hint(values.export_dir):
        logging.info("%s", hint)


def _holds_span_model(values: flags.FlagValues, task: SupervisedTask, path: str) -> bool:
    return span_model.holds_span_model_of(values.span_model_dir, path)


def _export_span_model(values: flags.FlagValues, run: SupervisedRun) -> None:
    """Writes a checkpoint of the release's layout, without the unused pooler."""
    path = run.restore_best()
    splits = {
        name: dataclasses.replace(split, batch_size=values.predict_batch_size)
        for name, split in run.splits.items()
    }
    fitted_on, *others = (splits[name] for name in finetune_tasks.SPLITS if name in splits)
    # SQuAD's file to evaluate on may be the one to predict.
    unseen = (split for split in others if split.examples != fitted_on.examples)
    weights, note = span_model.make(run, fitted_on, next(unseen, None))
    logging.info("%s", note)
    if not run.trainer.devices.is_chief:
        return
    config = run.task.options.config
    record = run_record.find(path) or finetune_records.record(values, run.task, path)
    with files.whole_directory(values.span_model_dir) as temporary:
        bundles.write(temporary, config, weights)
        vocabulary.copy(finetune_records.read_vocabulary(values, config), temporary)
        dataclasses.replace(record, note=note).write(temporary)
    logging.info("exported %s to %s, as a span model", path, values.span_model_dir)


# A flag -> whether its directory holds this run's export of a checkpoint, and what writes it.
EXPORTS = {
    "export_dir": (_holds_saved_model, _export_saved_model),
    "span_model_dir": (_holds_span_model, _export_span_model),
}


def _to_export(values: flags.FlagValues) -> str | None:
    evaluates = values.do_eval or not values.do_train
    found = checkpoint.to_use(values.output_dir, evaluates)
    return found or finetune_flags.initial_weights(values)


def _import_exporters() -> tuple[ModuleType, ModuleType]:
    """Returns serving.saved_model and serving.trained, which need tensorflow_text.

    Raises:
      ImportError: If tensorflow_text is not installed.
    """
    # Not at the top: the script also runs without tensorflow_text.
    try:
        from albert_tf.serving import saved_model, trained
    except ImportError as error:
        raise ImportError(
            f"--export_dir needs the package {error.name!r}, which is not installed: install its "
            "version that matches TensorFlow's, or leave --export_dir out and export on another "
            "machine"
        ) from error
    return saved_model, trained


def _serving(values: flags.FlagValues, task: SupervisedTask) -> tuple[str, dict[str, Any]]:
    """Returns the task's name for trained.serve, and the options of its serving class.

    Raises:
      ValueError: If there is a threshold, but nothing that it applies to.
    """
    threshold = None if math.isnan(values.threshold_to_export) else values.threshold_to_export
    return task.served_as, task.serving_options(threshold)
