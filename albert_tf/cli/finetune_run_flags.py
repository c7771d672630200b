"""The flags of run_finetune.py for training, evaluation, prediction and export."""

from __future__ import annotations

import math

from absl import flags

from albert_tf.cli import shared_flags
from albert_tf.scripts import FlagGroup
from albert_tf.training import length_buckets

# Flags that say the same in another unit: only one of a pair can be set.
SAME = {"num_train_epochs": "train_step", "warmup_proportion": "warmup_step"}


def define_flags(values: flags.FlagValues) -> None:
    """Adds these flags."""
    _define_training(values)
    _define_objective(values)
    _define_evaluation(values)
    _define_export(values)


def num_train_steps(values: flags.FlagValues, num_examples: int) -> int:
    """Returns the step to train up to, which may be given in epochs; 0 without training.

    Raises:
      ValueError: If a run can't be that long.
    """
    if not values.do_train:
        return 0
    num_steps = values.train_step
    if values.num_train_epochs is not None:
        num_steps = max(1, int(num_examples / values.train_batch_size * values.num_train_epochs))
    if num_steps * values.train_batch_size > length_buckets.MOST_ROWS:
        raise ValueError(
            f"{num_steps} steps of {values.train_batch_size} examples exceed a run's maximum of "
            f"{length_buckets.MOST_ROWS} examples: lower --train_step or --num_train_epochs"
        )
    return num_steps


def num_warmup_steps(values: flags.FlagValues, num_train_steps: int) -> int:
    """Returns the number of warm-up steps, which may be given as a share of all."""
    share = values.warmup_proportion
    return values.warmup_step if share is None else int(share * num_train_steps)


def _define_training(values: flags.FlagValues) -> None:
    group = FlagGroup(values, shared_flags.TRAINING)
    group.boolean("do_train", False, "Train the model. True by default for race.")
    shared_flags.define_batch_size(group, "train_batch_size", 32)
    group.integer(
        "train_step",
        1000,
        "Number of training steps. 1000 is the release's; 12000 for race, and 3 epochs for SQuAD.",
        lower_bound=1,
    )
    group.number(
        "num_train_epochs",
        None,
        "Number of epochs to train, instead of train_step. 3 by default for SQuAD.",
        "(0, inf)",
    )
    group.integer(
        "warmup_step",
        0,
        "Number of steps during which the learning rate rises to its peak. 0 is the release's; "
        "1000 for race, and a tenth of all steps for SQuAD.",
        lower_bound=0,
    )
    group.number(
        "warmup_proportion",
        None,
        "Share of the steps that are warm-up steps, instead of warmup_step. 0.1 by default for "
        "SQuAD.",
        "[0, 1]",
    )
    group.integer(
        "early_stopping_patience",
        None,
        "Number of evaluations without a better key_metric after which training ends. By default "
        "it runs to the last step.",
        lower_bound=1,
    )
    shared_flags.define_optimizer(
        values,
        optimizer="adamw",
        learning_rate=5e-5,
        reason="5e-5 is the release's; 1e-5 for race.",
    )
    shared_flags.define_checkpoints(
        values, save_checkpoints_steps=1000, reason="1000 is the release's; 100 for race."
    )
    group.alias("num_keep_checkpoint", "keep_checkpoint_max")


def _define_objective(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Loss")
    group.string(
        "class_weights",
        None,
        "Weights of the classes in the loss. balanced: in inverse proportion to the number of "
        "their examples in train_file; or listed, as in a=1.0,b=2.5, where classes not listed "
        "have 1. By default all have 1.",
    )
    group.string(
        "teacher",
        None,
        "Output directory of a fine-tuning run of the same task, whose predicted probabilities "
        "are learned in addition to the labels (distillation). Its model may be larger, and have "
        "another vocabulary. It predicts in batches of predict_batch_size.",
    )
    group.number(
        "distillation_weight",
        0.5,
        "Weight of the teacher's probabilities in the loss; the labels have the rest.",
        "[0, 1]",
    )
    group.number(
        "temperature",
        2.0,
        "Number by which the teacher's and the student's logits are divided before they are "
        "compared.",
        "(0, inf)",
    )


def _define_evaluation(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Evaluation and prediction")
    group.boolean(
        "do_eval",
        False,
        "Evaluate each checkpoint and keep the best one. True by default for race, for SQuAD "
        "with do_predict, and for question_answering if there is an eval_file.",
    )
    group.string(
        "key_metric",
        None,
        "The metric by which checkpoints are compared, any that the task reports, such as "
        "macro_f1; or eval_loss, whose smallest value is the best. f1 of two classes is that of "
        "the second class in labels.jsonl. By default the task's main metric.",
    )
    group.boolean(
        "do_predict",
        False,
        "Predict the test set with the best checkpoint; after training without do_eval, with the "
        "newest.",
    )
    shared_flags.define_batch_size(group, "eval_batch_size", 8)
    shared_flags.define_batch_size(group, "predict_batch_size", 8)
    group.list(
        "ensemble_dirs",
        None,
        "Output directories of several runs, separated by commas, whose stored predictions are "
        "averaged; no model is loaded.",
    )


def _define_export(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Export")
    group.string(
        "export_dir",
        None,
        "New directory in which the best checkpoint is written as a SavedModel that takes raw "
        "text. By default nothing is exported.",
    )
    group.number(
        "threshold_to_export",
        math.nan,
        "Decision threshold stored in the SavedModel: with two classes, the minimum probability "
        "of the second one to be the answer; for multilabel, the minimum probability of a label "
        '(0.5 by default); for squad_v2, the null odds (score of "no answer") at or above which '
        "it gives no answer (0 by default). By default (nan), of two classes the likelier one.",
    )
