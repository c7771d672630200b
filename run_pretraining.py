"""Pre-trains ALBERT on the records of data/create_pretraining_data.py, and evaluates it.

Takes all flags of the release's run_pretraining.py, with its names and defaults, and a few more.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Sequence

import tensorflow as tf
from absl import app, flags, logging

from albert_tf import distribution, evaluation, input_pipeline, optimization, running
from albert_tf.config import AlbertConfig
from albert_tf.progress import ProgressLog
from albert_tf.records import pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import NonFiniteLossError, Trainer

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
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked pieces of a record, at most.")
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
flags.DEFINE_integer("iterations_per_loop", 1000, "Updates between two looks from the host.")
flags.DEFINE_integer("max_eval_steps", 100, "Evaluation steps, at most.")
flags.DEFINE_bool("use_tpu", False, "Whether to run on a TPU.")
flags.DEFINE_bool("init_from_group0", False, "Fill groups init_checkpoint lacks from its group 0.")
flags.DEFINE_string("tpu_name", None, "Name or grpc address of the TPU; none is this TPU VM's.")
flags.DEFINE_string("tpu_zone", None, "Zone of the TPU.")
flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
flags.DEFINE_string("master", None, "grpc address of the TPU, where it has no name.")
flags.DEFINE_integer("num_tpu_cores", 8, "Cores of the TPU.")
flags.DEFINE_float("masked_lm_budget", 0, "Share to mask on the fly; not there yet, must be 0.")
# Not in the release:
flags.DEFINE_integer("random_seed", 12345, "Of fresh weights, the order of examples and dropout.")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What the model computes in.")
flags.DEFINE_bool("jit_compile", False, "Compile with XLA; a TPU always does.")
flags.DEFINE_integer("gradient_accumulation_steps", 1, "Parts in which a device takes its batch.")
flags.DEFINE_bool("recompute", False, "Save memory: compute blocks again in the backward pass.")

_LEAST = {
    "max_seq_length": 1,
    "max_predictions_per_seq": 1,
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
}


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
    running.check_positions(config, FLAGS.max_seq_length)
    if FLAGS.max_predictions_per_seq > FLAGS.max_seq_length:
        raise ValueError(
            f"--max_predictions_per_seq {FLAGS.max_predictions_per_seq} is more than "
            f"--max_seq_length {FLAGS.max_seq_length}"
        )
    if FLAGS.init_from_group0 and not FLAGS.init_checkpoint:
        raise ValueError("--init_from_group0 says how to read --init_checkpoint: set that too")
    if FLAGS.masked_lm_budget:
        raise ValueError(
            "--masked_lm_budget is not built (the release's never ran): leave it at 0, the "
            "records hold the masks"
        )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Checks that the replicas can share the batches, and that several workers can do the job.

    Raises:
      ValueError: They can't.
    """
    if FLAGS.do_train:
        running.check_train_batch_size(
            FLAGS.train_batch_size, FLAGS.gradient_accumulation_steps, strategy
        )
    if FLAGS.do_eval:
        running.check_batch_size("eval_batch_size", FLAGS.eval_batch_size, strategy)
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if several and not FLAGS.do_train:
        # Each would pick its own newest checkpoint of a training run that goes on beside them.
        raise ValueError("--do_eval without --do_train is for one process: unset TF_CONFIG")


def prepare() -> tuple[Trainer, list[str], list[int]]:
    """Checks everything, and returns a Trainer with its first weights, the files, their counts."""
    config = running.read_config(FLAGS.albert_config_file)
    check_flags(config)
    running.check_same_model(config, FLAGS.output_dir)
    files = input_pipeline.find_files(FLAGS.input_file)
    # Before any other TensorFlow operation: workers can be connected only then.
    strategy = distribution.create_strategy(
        FLAGS.use_tpu,
        FLAGS.tpu_name,
        FLAGS.tpu_zone,
        FLAGS.gcp_project,
        FLAGS.master,
        FLAGS.num_tpu_cores,
    )
    check_strategy(strategy)
    chief = distribution.is_chief(strategy)
    if chief:
        running.make_output_dir(FLAGS.output_dir)
    limits = {
        "input_ids": config.vocab_size,
        "segment_ids": config.type_vocab_size,
        "masked_lm_positions": FLAGS.max_seq_length,
        "masked_lm_ids": config.vocab_size,
        "sentence_order_labels": 2,
    }
    input_pipeline.check_features(files, _spec(), limits)
    cache = os.path.join(FLAGS.output_dir, "input_files.json") if chief else None
    counts = input_pipeline.count_records(files, cache)
    logging.info("%d records in %d files; %s", sum(counts), len(files), running.describe(strategy))

    dtype = "mixed_bfloat16" if FLAGS.precision == "bfloat16" else "float32"
    trainer = Trainer(
        PretrainingTask(config, dtype, FLAGS.recompute),
        strategy,
        FLAGS.output_dir,
        _make_optimizer if FLAGS.do_train else None,
        seed=FLAGS.random_seed,
        jit_compile=FLAGS.jit_compile and not FLAGS.use_tpu,
        accumulation_steps=FLAGS.gradient_accumulation_steps,
    )
    if FLAGS.do_train:
        trainer.initialise(FLAGS.init_checkpoint, FLAGS.init_from_group0)
        if chief:
            running.write_config(config, FLAGS.output_dir)
    return trainer, files, counts


def train(trainer: Trainer, files: Sequence[str], counts: Sequence[int]) -> bool:
    """Trains as the flags say; returns whether it came to the last step."""
    input_fn = functools.partial(
        input_pipeline.training_dataset,
        files,
        counts,
        _spec(),
        FLAGS.train_batch_size,
        FLAGS.random_seed,
        trainer.step,
    )
    summaries = FLAGS.output_dir if distribution.is_chief(trainer.strategy) else None
    progress = ProgressLog(
        summaries, FLAGS.num_train_steps, FLAGS.train_batch_size, FLAGS.max_seq_length
    )
    return trainer.train(
        input_fn,
        progress,
        FLAGS.num_train_steps,
        steps_per_loop=FLAGS.iterations_per_loop,
        save_steps=FLAGS.save_checkpoints_steps,
        keep_max=FLAGS.keep_checkpoint_max,
    )


def evaluate(trainer: Trainer, files: Sequence[str], counts: Sequence[int]) -> None:
    """Evaluates checkpoints up to the last step."""
    input_fn = functools.partial(
        input_pipeline.evaluation_dataset,
        files,
        counts,
        _spec(),
        FLAGS.eval_batch_size,
        FLAGS.max_eval_steps,
    )
    evaluation.evaluate_checkpoints(trainer, input_fn, FLAGS.num_train_steps)


def _spec():
    return pretraining_spec(FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)


def _make_optimizer():
    return optimization.create_optimizer(
        FLAGS.learning_rate,
        FLAGS.num_train_steps,
        FLAGS.num_warmup_steps,
        FLAGS.optimizer,
        FLAGS.poly_power,
        FLAGS.start_warmup_step,
        sum_over_replicas=False,
    )


def main(argv: Sequence[str]) -> None:
    """Does what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.INFO)
    try:
        trainer, files, counts = prepare()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    try:
        finished = not FLAGS.do_train or train(trainer, files, counts)
    except NonFiniteLossError as error:
        sys.exit(f"error: {error}")
    if FLAGS.do_eval and finished:
        evaluate(trainer, files, counts)


if __name__ == "__main__":
    app.run(main)
