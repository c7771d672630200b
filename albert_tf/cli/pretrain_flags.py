"""The flags of run_pretraining.py, and the masks that they ask for.

All flags of the release's script, with its names and defaults, and a few more.
"""

from __future__ import annotations

from absl import flags

from albert_tf.cli import recipes, shared_flags
from albert_tf.generator import masking_flags
from albert_tf.records.masking import MaskingSettings, count_full_row
from albert_tf.records.spec import RowFormat
from albert_tf.scripts import FlagGroup


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of run_pretraining.py."""
    _define_model(values)
    _define_records(values)
    _define_training(values)
    _define_evaluation(values)
    _define_masking(values)
    shared_flags.define_devices(values)
    recipes.define_flag(values, shared_flags.MODEL, "pretraining")


def _define_model(values: flags.FlagValues) -> None:
    shared_flags.define_model(values, required=True)
    FlagGroup(values, shared_flags.MODEL).boolean(
        "init_from_group0",
        False,
        "Fill the layer groups that init_checkpoint lacks with its group 0: for a config with a "
        "larger num_hidden_groups.",
    )


def _define_records(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Records")
    group.string(
        "input_file",
        None,
        "TFRecord files of albert-create-pretraining-data: paths or glob patterns, separated by "
        "commas.",
        required=True,
    )
    group.integer(
        "max_seq_length",
        512,
        "Length of a row in tokens, with [CLS], [SEP] and padding; must be the length that the "
        "records were made with. 512 is the paper's.",
        lower_bound=1,
    )
    group.integer(
        "max_predictions_per_seq",
        20,
        "Maximum number of masked tokens per row; must be the number that the records were made "
        "with. 0 means the records' number or, with --masking=dynamic, the number that a full row "
        "needs. 20 is the release's.",
        lower_bound=0,
    )
    group.integer(
        "max_examples_per_row",
        1,
        "Maximum number of examples packed into a row; must be the number that the records were "
        "made with. Above 1, batch sizes count rows. 1 means not packed.",
        lower_bound=1,
    )


def _define_training(values: flags.FlagValues) -> None:
    group = FlagGroup(values, shared_flags.TRAINING)
    group.boolean("do_train", True, "Train the model.")
    shared_flags.define_batch_size(group, "train_batch_size", 4096)
    group.integer(
        "num_train_steps",
        125000,
        "Number of training steps, at the last of which the learning rate is 0. 125000 is the "
        "paper's.",
        lower_bound=1,
    )
    group.integer(
        "num_warmup_steps",
        3125,
        "Number of steps during which the learning rate rises to its peak. 3125 is the paper's.",
        lower_bound=0,
    )
    group.integer(
        "start_warmup_step",
        0,
        "Step at which the warm-up starts. Before it the learning rate is negative, as in the "
        "release.",
        lower_bound=0,
    )
    group.number(
        "poly_power",
        1.0,
        "Exponent of the learning rate's polynomial decay. 1, the release's, is linear.",
        "(0, inf)",
    )
    group.number(
        "sentence_order_weight",
        1.0,
        "Weight of the sentence-order loss, in the reported loss too. 1 is the paper's; 0 trains "
        "masked LM alone: the pooler and the sentence-order head do not change.",
        "[0, inf)",
    )
    shared_flags.define_optimizer(
        values,
        optimizer="lamb",
        learning_rate=0.00176,
        reason="0.00176 is the paper's for batches of 4096.",
    )
    shared_flags.define_checkpoints(
        values, save_checkpoints_steps=5000, reason="5000 is the release's."
    )


def _define_evaluation(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Evaluation")
    group.boolean(
        "do_eval",
        False,
        "Evaluate checkpoints and keep the best one. Without --do_train, wait for the checkpoints "
        "of a training run in another process.",
    )
    shared_flags.define_batch_size(group, "eval_batch_size", 64)
    group.integer(
        "max_eval_steps",
        100,
        "Maximum number of evaluation steps. 100 is the release's.",
        lower_bound=1,
    )


def _define_masking(values: flags.FlagValues) -> None:
    group = FlagGroup(values, masking_flags.HEADING)
    group.enum(
        "masking",
        None,
        ["static", "dynamic"],
        "static: use the masks in the records. dynamic: draw new masks each time an example is "
        "fed, for records made by albert-create-pretraining-data --masking=dynamic. By default "
        "static, as in the release, unless masked_lm_budget is set.",
    )
    group.number(
        "masked_lm_budget",
        0,
        "Share of the tokens that dynamic masking masks, from 0 to 1; above 0 it implies "
        "--masking=dynamic. 0 means the paper's 0.15.",
    )
    masking_flags.define_masking(values, " Only with --masking=dynamic.")


def is_dynamic(values: flags.FlagValues) -> bool:
    """Returns whether masks are drawn during training."""
    return values.masking == "dynamic" or (values.masking is None and values.masked_lm_budget > 0)


def masking_settings(values: flags.FlagValues, row_format: RowFormat) -> MaskingSettings:
    """Returns what dynamic masking masks: the generator's flags, except masked_lm_budget.

    Raises:
      ValueError: If a number is out of range.
    """
    share = values.masked_lm_budget or MaskingSettings.masked_lm_prob
    most = values.max_predictions_per_seq or count_full_row(share, row_format.max_seq_length)
    return MaskingSettings(
        vocab_size=row_format.vocab_size,
        mask_id=row_format.mask_id,
        masked_lm_prob=share,
        max_predictions_per_seq=most,
        **{name: getattr(values, name) for name in masking_flags.NAMES},
    )
