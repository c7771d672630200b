"""Checks the flags of run_finetune.py against each other."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from albert_tf.cli import (
    checks,
    finetune_export,
    finetune_flags,
    finetune_run_flags,
    shared_flags,
)
from albert_tf.training.devices import Devices

# What workers must have in common besides data, classes and what shapes the weights: the rate, and
# what decides how often they call each other.
_SHARED = (
    *checks.CALLS_OF_WORKERS,
    *("learning_rate", "gradient_accumulation_steps"),
    *("early_stopping_patience", "predict_batch_size"),
)
_TABLES_OF_TEXTS = ("classification", "multilabel", "regression")


def check_flags(values: flags.FlagValues) -> None:
    """Checks the flags against each other.

    Raises:
      ValueError: If they contradict each other.
    """
    exports = [name for name in finetune_export.EXPORTS if values[name].value]
    if not (values.do_train or values.do_eval or values.do_predict or exports):
        raise ValueError("nothing to do: set --do_train, --do_eval, --do_predict or --export_dir")
    shared_flags.check_output_dir(values)
    _check_exports(values, exports)
    if values.ensemble_dirs and values.do_train:
        raise ValueError(
            "--ensemble_dirs averages stored predictions and trains nothing: leave --do_train out"
        )
    if os.path.realpath(values.output_dir) in map(os.path.realpath, values.ensemble_dirs or []):
        raise ValueError(
            "--output_dir is one of --ensemble_dirs, whose predictions would be replaced: give "
            "another directory"
        )
    for name, other in finetune_run_flags.SAME.items():
        if values[name].present and values[other].present:
            raise ValueError(f"--{name} and --{other} exclude each other: set one of them")
    if values.high_only and values.middle_only:
        raise ValueError("--high_only and --middle_only exclude each other: set one of them")
    if values.init_checkpoint and values.albert_hub_module_handle:
        raise ValueError(
            "--init_checkpoint and --albert_hub_module_handle exclude each other: set one of them"
        )
    if values.from_scratch and finetune_flags.initial_weights(values):
        raise ValueError("--from_scratch and --init_checkpoint exclude each other: set one of them")
    if values.windows and (values.task_name not in _TABLES_OF_TEXTS or values.text_pair_column):
        raise ValueError(
            "--windows applies only to classification, multilabel and regression of single texts: "
            "leave it out"
        )
    if values.class_weights and not values.do_train:
        raise ValueError("--class_weights applies to the training loss: set --do_train too")
    if values.key_metric and not values.do_eval:
        raise ValueError("--key_metric chooses among evaluated checkpoints: set --do_eval too")
    if values.early_stopping_patience and not (values.do_train and values.do_eval):
        raise ValueError(
            "--early_stopping_patience counts evaluations during training: set --do_train and "
            "--do_eval"
        )
    if values.teacher and not values.do_train:
        raise ValueError("--teacher applies only to training: set --do_train, or leave it out")
    for name in ("distillation_weight", "temperature"):
        if values[name].present and not values.teacher:
            raise ValueError(f"--{name} applies only with --teacher: set that too")
    _check_what_is_served(values)


def check_shared(
    values: flags.FlagValues,
    devices: Devices,
    classes: Sequence[str],
    digests: Mapping[str, str],
    settings: Mapping[str, Any],
) -> None:
    """Checks that all workers train one model, and call each other equally often.

    Args:
      values: The flags.
      devices: The devices of this worker.
      classes: The task's.
      digests: Those of the examples, by split.
      settings: How texts are read, and what shapes the weights.

    Raises:
      ValueError: If they differ in anything that decides it.
    """
    what = f"examples or classes (this one {', '.join(classes) or 'none'})"
    checks.check_workers_agree(values, devices, what, _SHARED, classes, digests, settings)


def _check_exports(values: flags.FlagValues, exports: list[str]) -> None:
    """Checks the flags of exports; `exports` are those with a directory, which appears whole."""
    if values.ensemble_dirs and exports:
        raise ValueError(
            "--ensemble_dirs averages stored predictions, so there is no model to export: leave "
            f"--{exports[0]} out"
        )
    if not math.isnan(values.threshold_to_export) and not values.export_dir:
        raise ValueError("--threshold_to_export is stored in --export_dir: set that too")
    for name in exports:
        for other in ("output_dir", *exports):
            path, inside = (os.path.realpath(values[flag].value) for flag in (name, other))
            if other != name and f"{inside}/".startswith(f"{path}/"):
                raise ValueError(
                    f"--{name} {values[name].value} would contain --{other} {values[other].value}: "
                    "give it a new directory of its own"
                )


def _check_what_is_served(values: flags.FlagValues) -> None:
    """Checks what would otherwise fail only after training, when serving."""
    columns, longest = values.choice_columns, values.max_seq_length
    if len(columns) == 1:
        raise ValueError(f"--choice_columns must name at least two columns, not only {columns[0]}")
    widest = max(values.start_n_top, values.end_n_top)
    model = finetune_flags.squad_model(values)
    if values.allow_no_answer and values.task_name != "question_answering":
        raise ValueError(
            "--allow_no_answer applies only to --task_name=question_answering: set both, or leave "
            "it out"
        )
    if model == "squad_v2" and widest > longest:
        raise ValueError(
            f"--start_n_top and --end_n_top must be at most {longest} (--max_seq_length), not "
            f"{widest}"
        )
    if not values.export_dir:
        return
    threshold = values.threshold_to_export
    if model != "squad_v2" and not (math.isnan(threshold) or 0 <= threshold <= 1):
        raise ValueError(f"--threshold_to_export must be in [0, 1], not {threshold}")
