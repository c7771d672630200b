"""Checks the flags of run_pretraining.py against each other, the config and the devices."""

from __future__ import annotations

from absl import flags, logging

from albert_tf.cli import checks, pretrain_flags, shared_flags
from albert_tf.config import AlbertConfig
from albert_tf.console import tf_config
from albert_tf.generator import masking_flags
from albert_tf.training.devices import Devices

_ALONE = "--do_eval without --do_train runs in a single process: unset TF_CONFIG"


def check_flags(values: flags.FlagValues, config: AlbertConfig) -> None:
    """Checks the flags against each other and the config.

    Raises:
      ValueError: If they contradict each other.
    """
    if not values.do_train and not values.do_eval:
        raise ValueError("nothing to do: set --do_train or --do_eval")
    if not values.do_train and tf_config.num_workers() > 1:
        # Before anything connects: the processes that train would take it for one of them.
        raise ValueError(_ALONE)
    shared_flags.check_output_dir(values)
    checks.check_positions(config, values.max_seq_length)
    if pretrain_flags.is_dynamic(values):  # Others have as many as the records.
        checks.check_predictions(values.max_predictions_per_seq, values.max_seq_length)
    if values.init_from_group0 and not values.init_checkpoint:
        raise ValueError("--init_from_group0 applies only with --init_checkpoint: set that too")
    _check_masking(values)


def _check_masking(values: flags.FlagValues) -> None:
    if not 0 <= values.masked_lm_budget <= 1:
        raise ValueError(
            "--masked_lm_budget must be a share of the tokens in [0, 1], not "
            f"{values.masked_lm_budget}; to limit their number, set --max_predictions_per_seq"
        )
    if values.masking == "static" and values.masked_lm_budget:
        raise ValueError(
            f"--masked_lm_budget {values.masked_lm_budget} draws masks during training, "
            "--masking=static uses those in the records: leave one of them out"
        )
    if pretrain_flags.is_dynamic(values):
        if values.max_examples_per_row > 1:
            raise ValueError(
                f"--max_examples_per_row {values.max_examples_per_row} is for packed records, "
                "which already have masks: leave it out, or --masking=dynamic and "
                "--masked_lm_budget"
            )
        tpu = values.tpu_name or values.master or "local"
        if values.use_tpu and tpu != "local":
            raise ValueError(
                f"--masking=dynamic draws masks in this process, which the remote TPU {tpu!r} "
                "can't call: run on the TPU VM itself without --tpu_name and --master, or use "
                "records with masks"
            )
        return
    for name in masking_flags.NAMES:
        if values[name].present:
            raise ValueError(
                f"--{name} applies only to --masking=dynamic: static masks come with the records"
            )


def warn(values: flags.FlagValues) -> None:
    """Warns of flags that may do something else than is meant."""
    if values.init_checkpoint and not values.do_train:
        logging.warning(
            "--init_checkpoint is ignored: without --do_train, the checkpoints in --output_dir "
            "are evaluated"
        )
    if values.do_train and values.do_eval:
        logging.warning(
            "--do_eval after --do_train evaluates on the records of the training, --input_file, "
            "and model.ckpt-best is chosen by that: for others, leave --do_eval out, and evaluate "
            "with --do_train=false and their --input_file"
        )
    if values.do_train and values.num_warmup_steps:
        end = values.start_warmup_step + values.num_warmup_steps
        checks.warn_of_warmup("num_warmup_steps", end, values.num_train_steps)


def check_devices(values: flags.FlagValues, devices: Devices) -> None:
    """Checks that batches can be split over the replicas, and that several workers are allowed.

    Raises:
      ValueError: If a batch can't be split, or several workers would only evaluate.
    """
    if values.do_train:
        checks.check_train_batch_size(
            values.train_batch_size, values.gradient_accumulation_steps, devices
        )
    if values.do_eval:
        checks.check_batch_size("eval_batch_size", values.eval_batch_size, devices)
    if devices.num_processes > 1 and not values.do_train:
        # Beside a training run, each could pick a different newest checkpoint.
        raise ValueError(_ALONE)
