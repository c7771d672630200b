"""The export after fine-tuning: the best checkpoint as a SavedModel."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from absl import flags, logging

from albert_tf import checkpoint, directories, eval_results
from albert_tf.cli import finetune_flags
from albert_tf.conversion import layouts
from albert_tf.tasks.classification import MultipleChoiceTask, SequenceClassificationTask
from albert_tf.tasks.glue import GLUE_TASKS
from albert_tf.tasks.multilabel import MultiLabelTask
from albert_tf.tasks.question_answering import SquadTask, SquadV1Task, SquadV2Task
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.tasks.token_classification import TokenClassificationTask


def check(values: flags.FlagValues, task: SupervisedTask) -> None:
    """Checks before training that the task can be exported.

    Raises:
      ImportError: If tensorflow_text is not installed.
      ValueError: If the flags ask for what the task doesn't have.
    """
    _import_exporters()
    _serving(values, task)


def check_free(values: flags.FlagValues, num_train_steps: int) -> None:
    """Checks that the directory doesn't exist, or holds the export that this run would make.

    Raises:
      ValueError: If it holds anything else, or can't be made.
    """
    newest = checkpoint.latest(values.output_dir) if values.do_train else None
    is_done = not values.do_train or (
        newest is not None
        and (
            int(newest.rpartition("-")[2]) >= num_train_steps
            or eval_results.is_over(
                values.output_dir, values.early_stopping_patience, values.save_checkpoints_steps
            )
        )
    )
    if not (is_done and _is_exported(values)):
        directories.check_free(values.export_dir)


def export_best(values: flags.FlagValues, task: SupervisedTask) -> None:
    """Writes the best checkpoint as a SavedModel that takes raw text, unless it exists."""
    if _is_exported(values):
        logging.info("%s already contains the export of %s", values.export_dir, _to_export(values))
        return
    kind, options = _serving(values, task)
    saved_model, trained = _import_exporters()
    stored = trained.Stored(
        _to_export(values),
        values.albert_config_file,
        values.spm_model_file,
        None if values.spm_model_file else values.vocab_file,
        values.do_lower_case,
    )
    saved_model.save(trained.serve(kind, stored, options), values.export_dir)
    logging.info("exported %s to %s", stored.path, values.export_dir)
    if hint := saved_model.hint(values.export_dir):
        logging.info("%s", hint)


def _to_export(values: flags.FlagValues) -> str | None:
    found = checkpoint.best(values.output_dir) or checkpoint.latest(values.output_dir)
    return found or finetune_flags.initial_weights(values)


def _is_exported(values: flags.FlagValues) -> bool:
    path = _to_export(values)
    return path is not None and layouts.holds_weights_of(values.export_dir, path)


def _import_exporters() -> tuple[ModuleType, ModuleType]:
    """Returns serving.saved_model and serving.trained, the only users of tensorflow_text.

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
    options: dict[str, Any] = {"max_seq_length": values.max_seq_length}
    threshold = None if math.isnan(values.threshold_to_export) else values.threshold_to_export
    if isinstance(task, SquadTask):
        names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size")
        options |= {name: getattr(values, name) for name in names}
    if isinstance(task, SquadV2Task):
        options |= {"start_n_top": values.start_n_top, "end_n_top": values.end_n_top}
        options |= {"null_threshold": threshold} if threshold is not None else {}
        return "answer_v2", options
    several = isinstance(task, MultiLabelTask)
    binary = isinstance(task, SequenceClassificationTask) and len(task.classes) == 2
    if threshold is not None and not (binary or several):
        raise ValueError(
            "--threshold_to_export applies only to multilabel, to tasks with two classes and to "
            f"squad_v2, not to {values.task_name}: leave it out"
        )
    if isinstance(task, SquadV1Task):
        return "answer_v1", options
    if isinstance(task, MultipleChoiceTask):
        sizes = {"num_choices": len(task.classes), "max_qa_length": values.max_qa_length}
        return "choose", options | sizes
    if isinstance(task, TokenClassificationTask):
        return "tag", options | {"labels": task.classes}
    assert isinstance(task, SequenceClassificationTask)
    row = GLUE_TASKS.get(values.task_name)
    pairs = bool(row.text_b if row else values.text_pair_column)
    options |= {"labels": task.classes, "pairs": pairs, "threshold": threshold}
    if task.windows:
        options |= {"windows": task.windows.combination, "doc_stride": task.windows.doc_stride}
    return "classify", options | {"multilabel": several}
