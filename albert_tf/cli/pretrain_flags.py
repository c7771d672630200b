"""The flags of run_pretraining.py, and what they may not say together.

All flags of the release's script, with its names and defaults, and a few more.
"""

from __future__ import annotations

import math

import tensorflow as tf
from absl import flags

from albert_tf.cli import checks
from albert_tf.config import AlbertConfig
from albert_tf.records.masking import MaskingSettings, count_full_row
from albert_tf.records.specs import RowFormat

FLAGS = flags.FLAGS

flags.DEFINE_string("albert_config_file", None, "albert_config.json of the model.", required=True)
flags.DEFINE_string(
    "input_file", None, "TFRecord files: names or globs, separated by commas.", required=True
)
flags.DEFINE_string(
    "output_dir", None, "Directory of checkpoints and results; a run goes on there.", required=True
)
flags.DEFINE_string("init_checkpoint", None, "Checkpoint to start from, where none is there yet.")
flags.DEFINE_integer("max_seq_length", 512, "Length of the records.")
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Masked pieces of a record, at most; 0: as many as the records have room for, or, where masks "
    "are drawn while training, as a full row needs.",
)
flags.DEFINE_bool("do_train", True, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate; alone, it follows a running training.")
flags.DEFINE_integer("train_batch_size", 4096, "Examples of an update, over all devices.")
flags.DEFINE_integer("eval_batch_size", 64, "Examples of an evaluation step, over all devices.")
flags.DEFINE_enum("optimizer", "lamb", ["adamw", "lamb"], "Optimizer.")
flags.DEFINE_float("learning_rate", 0.00176, "Rate that the decay starts from.")
flags.DEFINE_float("poly_power", 1.0, "Exponent of the decay; 1 is linear.")
flags.DEFINE_integer("num_train_steps", 125000, "Updates; the rate is 0 at the last.")
flags.DEFINE_integer("num_warmup_steps", 3125, "Updates of warm-up.")
flags.DEFINE_integer("start_warmup_step", 0, "Update at which the warm-up starts.")
flags.DEFINE_integer("save_checkpoints_steps", 5000, "Updates between checkpoints.")
flags.DEFINE_integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 keeps all.")
flags.DEFINE_integer("iterations_per_loop", 1000, "Most updates between two looks from the host.")
flags.DEFINE_integer("max_eval_steps", 100, "Evaluation steps, at most.")
flags.DEFINE_bool("use_tpu", False, "Whether to run on a TPU.")
flags.DEFINE_bool("init_from_group0", False, "Fill groups init_checkpoint lacks from its group 0.")
flags.DEFINE_string("tpu_name", None, "Name or grpc address of the TPU; none is this TPU VM's.")
flags.DEFINE_string("tpu_zone", None, "Zone of the TPU.")
flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
flags.DEFINE_string("master", None, "grpc address of the TPU, where it has no name.")
flags.DEFINE_integer("num_tpu_cores", 8, "Cores of the TPU.")
flags.DEFINE_float(
    "masked_lm_budget", 0, "Above 0: --masking=dynamic, and the share of tokens that it masks."
)
# Not in the release:
flags.DEFINE_integer(
    "random_seed", 12345, "Of fresh weights, the order of examples, dropout and dynamic masks."
)
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What the model computes in.")
flags.DEFINE_bool("jit_compile", False, "Compile with XLA; a TPU always does.")
flags.DEFINE_integer("gradient_accumulation_steps", 1, "Parts in which a device takes its batch.")
flags.DEFINE_integer(
    "max_examples_per_row", 1, "What the records were packed with; batch sizes then count rows."
)
flags.DEFINE_bool("recompute", False, "Save memory: compute blocks again in the backward pass.")
flags.DEFINE_enum(
    "masking",
    None,
    ["static", "dynamic"],
    "static (the default): the records hold masks. dynamic: each example gets other masks each "
    "time it is fed; its records are those of create_pretraining_data.py --masking=dynamic.",
)
flags.DEFINE_integer("ngram", 3, "Dynamic masking: longest masked n-gram, in words.")
flags.DEFINE_bool("favor_shorter_ngram", True, "Dynamic masking: short n-grams are likelier.")
flags.DEFINE_bool("do_whole_word_mask", True, "Dynamic masking: whole words, or else pieces.")
flags.DEFINE_bool("do_permutation", False, "Dynamic masking: also exchange as many tokens.")

_LEAST = {
    "max_seq_length": 1,
    "max_predictions_per_seq": 0,
    "train_batch_size": 1,
    "eval_batch_size": 1,
    "num_train_steps": 1,
    "num_warmup_steps": 0,
    "start_warmup_step": 0,
    "save_checkpoints_steps": 1,
    "keep_checkpoint_max": 0,
    "iterations_per_loop": 1,
    "max_eval_steps": 1,
    "random_seed": 0,
    "gradient_accumulation_steps": 1,
    "max_examples_per_row": 1,
}
_DYNAMIC_ONLY = ("ngram", "favor_shorter_ngram", "do_whole_word_mask", "do_permutation")


def check_flags(config: AlbertConfig) -> None:
    """Compares the flags with each other and with the config.

    Raises:
      ValueError: They contradict.
    """
    if not FLAGS.do_train and not FLAGS.do_eval:
        raise ValueError("nothing to do: set --do_train or --do_eval")
    for name, least in _LEAST.items():
        if FLAGS[name].value < least:
            raise ValueError(f"--{name} must be at least {least}, not {FLAGS[name].value}")
    for name in ("learning_rate", "poly_power"):
        if not 0 < FLAGS[name].value < math.inf:
            raise ValueError(f"--{name} must be above 0, not {FLAGS[name].value}")
    if not FLAGS.output_dir:
        raise ValueError("--output_dir is empty: name a directory; . is this one")
    checks.check_positions(config, FLAGS.max_seq_length)
    if FLAGS.max_predictions_per_seq > FLAGS.max_seq_length:
        raise ValueError(
            f"--max_predictions_per_seq {FLAGS.max_predictions_per_seq} is more than "
            f"--max_seq_length {FLAGS.max_seq_length}"
        )
    if FLAGS.init_from_group0 and not FLAGS.init_checkpoint:
        raise ValueError("--init_from_group0 says how to read --init_checkpoint: set that too")
    _check_masking()


def is_dynamic() -> bool:
    """Whether masks are drawn while training."""
    return FLAGS.masking == "dynamic" or (FLAGS.masking is None and FLAGS.masked_lm_budget > 0)


def masking_settings(row_format: RowFormat) -> MaskingSettings:
    """What dynamic masking masks: the flags are the generator's, but for masked_lm_budget.

    Raises:
      ValueError: A flag is out of its range.
    """
    share = FLAGS.masked_lm_budget or MaskingSettings.masked_lm_prob
    most = FLAGS.max_predictions_per_seq or count_full_row(share, row_format.max_seq_length)
    return MaskingSettings(
        vocab_size=row_format.vocab_size,
        mask_id=row_format.mask_id,
        masked_lm_prob=share,
        max_predictions_per_seq=most,
        **{name: FLAGS[name].value for name in _DYNAMIC_ONLY},
    )


def _check_masking() -> None:
    if not 0 <= FLAGS.masked_lm_budget <= 1:
        raise ValueError(
            f"--masked_lm_budget {FLAGS.masked_lm_budget} is no share of the tokens: it must be "
            "within [0, 1]; --max_predictions_per_seq limits their number"
        )
    if FLAGS.masking == "static" and FLAGS.masked_lm_budget:
        raise ValueError(
            f"--masked_lm_budget {FLAGS.masked_lm_budget} draws masks while training, "
            "--masking=static takes those of the records: leave one of them out"
        )
    if is_dynamic():
        if FLAGS.max_examples_per_row > 1:
            raise ValueError(
                f"--max_examples_per_row {FLAGS.max_examples_per_row} is for packed records, which "
                "hold masks: leave out --masking=dynamic and --masked_lm_budget, or the packing"
            )
        tpu = FLAGS.tpu_name or FLAGS.master or "local"
        if FLAGS.use_tpu and tpu != "local":
            raise ValueError(
                f"--masking=dynamic draws masks in this process, which TPU {tpu!r} can't call "
                "from afar: run on the TPU VM itself without --tpu_name and --master, or on "
                "records with masks"
            )
        return
    for name in _DYNAMIC_ONLY:
        if FLAGS[name].present:
            raise ValueError(
                f"--{name} is for --masking=dynamic: these masks are those of the records"
            )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Checks that the replicas can share the batches, and that several workers can do the job.

    Raises:
      ValueError: They can't.
    """
    if FLAGS.do_train:
        checks.check_train_batch_size(
            FLAGS.train_batch_size, FLAGS.gradient_accumulation_steps, strategy
        )
    if FLAGS.do_eval:
        checks.check_batch_size("eval_batch_size", FLAGS.eval_batch_size, strategy)
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if several and not FLAGS.do_train:
        # Each would pick its own newest checkpoint of a training run that goes on beside them.
        raise ValueError("--do_eval without --do_train is for one process: unset TF_CONFIG")
