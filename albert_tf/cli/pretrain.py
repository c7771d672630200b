"""Pre-trains ALBERT on the records of data/create_pretraining_data.py, and evaluates it.

Takes all flags of the release's run_pretraining.py, with its names and defaults, and a few more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence

from absl import app, flags, logging

from albert_tf import errors, scripts
from albert_tf.cli import checks, pretrain_flags
from albert_tf.config import AlbertConfig
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.dynamic_masking import DynamicMasking
from albert_tf.records.feature_spec import FeatureSpec
from albert_tf.records.specs import RowFormat, compact_spec, pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import distribution, evaluation, optimizers, run_lock
from albert_tf.training.progress import ProgressLog
from albert_tf.training.trainer import NonFiniteLossError, Trainer

FLAGS = flags.FLAGS
# Of the masks of an evaluation: those of runs with different --random_seed are the same.
_EVALUATION_SEED = -1


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a run.

    Attributes:
        files: TFRecord files.
        counts: their numbers of records.
        spec: what a record holds.
        row_format: of records without masks; None where they hold them.
    """

    files: list[str]
    counts: list[int]
    spec: FeatureSpec
    row_format: RowFormat | None

    def masking(self, seed: int) -> DynamicMasking | None:
        """What draws masks, where the records hold none."""
        if self.row_format is None:
            return None
        settings = pretrain_flags.masking_settings(self.row_format)
        return DynamicMasking(self.row_format, settings, seed)


def check_records(files: list[str], config: AlbertConfig, cache: str | None) -> Records:
    """Checks that the records are there, whole, and what the flags and the config say.

    Raises:
      ValueError: They are not.
    """
    row_format = None
    if pretrain_flags.is_dynamic():
        found = input_files.check_features(files, compact_spec())
        row_format = RowFormat(*found.features["row_format"].expected)
        _check_row_format(row_format, config)
        spec = compact_spec(FLAGS.max_seq_length, config.vocab_size)
    else:
        most = FLAGS.max_predictions_per_seq or input_files.count_prediction_slots(files[0])
        spec = pretraining_spec(
            FLAGS.max_seq_length,
            most,
            FLAGS.max_examples_per_row,
            config.vocab_size,
            config.type_vocab_size,
        )
    spec = input_files.check_features(files, spec)
    return Records(files, input_files.count_records(files, cache), spec, row_format)


def _check_row_format(row_format: RowFormat, config: AlbertConfig) -> None:
    if row_format.max_seq_length != FLAGS.max_seq_length:
        raise ValueError(
            f"the records are of rows of {row_format.max_seq_length} tokens: set --max_seq_length "
            f"to that, not {FLAGS.max_seq_length}"
        )
    if row_format.vocab_size > config.vocab_size or config.type_vocab_size < 2:
        raise ValueError(
            f"the records are of {row_format.vocab_size} pieces and 2 token types, the config is "
            f"for {config.vocab_size} and {config.type_vocab_size}: use the config (vocab_size...) "
            "that the records were generated for"
        )
    settings = pretrain_flags.masking_settings(row_format)
    shortfall = settings.shortfall(FLAGS.max_seq_length)
    if shortfall:
        logging.warning("%s", shortfall)


def prepare(held: contextlib.ExitStack) -> tuple[Trainer, Records]:
    """Checks everything, and returns a Trainer with its first weights, and the records.

    The output directory is the run's until `held` closes.
    """
    config = AlbertConfig.from_json_file(FLAGS.albert_config_file)
    pretrain_flags.check_flags(config)
    checks.check_same_model(config, FLAGS.output_dir)
    if FLAGS.do_train:
        checks.check_fresh_or_own(FLAGS.output_dir)
    elif FLAGS.init_checkpoint:
        logging.warning("evaluation alone is of --output_dir's checkpoints: no --init_checkpoint")
    files = input_files.find_files(FLAGS.input_file)
    # Before any other TensorFlow operation: workers can be connected only then.
    strategy = distribution.create_strategy(
        FLAGS.use_tpu,
        FLAGS.tpu_name,
        FLAGS.tpu_zone,
        FLAGS.gcp_project,
        FLAGS.master,
        FLAGS.num_tpu_cores,
    )
    pretrain_flags.check_strategy(strategy)
    chief = distribution.is_chief(strategy)
    if chief:
        checks.make_output_dir(FLAGS.output_dir)
        # Evaluation may stand beside a training.
        work = "run" if FLAGS.do_train else "evaluation"
        held.enter_context(run_lock.hold(FLAGS.output_dir, work))
    cache = os.path.join(FLAGS.output_dir, "input_files.json") if chief else None
    records = check_records(files, config, cache)
    logging.info(
        "%d records in %d files; %s", sum(records.counts), len(files), checks.describe(strategy)
    )

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
        start = trainer.initialise(FLAGS.init_checkpoint, FLAGS.init_from_group0)
        if chief:
            if start != "resume":
                evaluation.begin(FLAGS.output_dir)
            checks.write_config(config, FLAGS.output_dir)
    return trainer, records


def train(trainer: Trainer, records: Records) -> bool:
    """Trains as the flags say; returns whether it came to the last step."""
    input_fn = functools.partial(
        input_pipeline.training_dataset,
        records.files,
        records.counts,
        records.spec,
        FLAGS.train_batch_size,
        FLAGS.random_seed,
        trainer.step,
        finish=records.masking(FLAGS.random_seed),
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


def evaluate(trainer: Trainer, records: Records) -> None:
    """Evaluates checkpoints up to the last step."""
    input_fn = functools.partial(
        input_pipeline.evaluation_dataset,
        records.files,
        records.counts,
        records.spec,
        FLAGS.eval_batch_size,
        FLAGS.max_eval_steps,
        finish=records.masking(_EVALUATION_SEED),
    )
    evaluation.evaluate_checkpoints(trainer, input_fn, FLAGS.num_train_steps)


def _make_optimizer():
    return optimizers.create_optimizer(
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
    logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
    with errors.in_one_line(NonFiniteLossError), contextlib.ExitStack() as held:
        trainer, records = prepare(held)
        with input_files.naming_bad_records(records.files, records.spec):
            finished = not FLAGS.do_train or train(trainer, records)
            if FLAGS.do_eval and finished:
                evaluate(trainer, records)


def run() -> None:
    """Runs this script on the process's command line."""
    app.run(main, flags_parser=scripts.flag_file_in_one_line(app.parse_flags_with_usage))


if __name__ == "__main__":
    run()
