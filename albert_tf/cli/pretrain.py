"""Pre-training: from flags to checks, records, a Trainer. What users read is in commands.py."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os

from absl import flags, logging

from albert_tf.cli import (
    backend,
    checks,
    pretrain_checks,
    pretrain_flags,
    pretrain_record,
    shared_flags,
)
from albert_tf.config import AlbertConfig
from albert_tf.console import errors
from albert_tf.conversion import layouts
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.input_pipeline import DynamicMasking
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import FeatureSpec, RowFormat, compact_spec, pretraining_spec
from albert_tf.storage import checkpoint, files, hub
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import evaluation, optimizers, run_lock
from albert_tf.training.devices import Devices, InputFn
from albert_tf.training.progress import ProgressLog
from albert_tf.training.trainer import NonFiniteLossError, Trainer

# What decides how often workers call each other, besides pretrain_record.RECORDED.
_SHARED = (*checks.CALLS_OF_WORKERS, "shard_optimizer_state", "do_eval", "max_eval_steps")
# Seed of an evaluation's masks: the same for every --random_seed.
_EVALUATION_SEED = -1


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a run.

    Attributes:
      files: TFRecord files.
      indexes: Where their records are.
      spec: What a record holds.
      row_format: Of records without masks; else None.
      settings: How those are masked; else None.
    """

    files: list[str]
    indexes: list[input_files.FileIndex]
    spec: FeatureSpec
    row_format: RowFormat | None = None
    settings: MaskingSettings | None = None

    @property
    def counts(self) -> list[int]:
        """Number of records in each file."""
        return [index.records for index in self.indexes]

    def masking(self, seed: int) -> DynamicMasking | None:
        """Returns what draws masks if the records hold none."""
        if self.row_format is None or self.settings is None:
            return None
        return DynamicMasking(self.row_format, self.settings, seed)


def check_records(
    values: flags.FlagValues, files: list[str], config: AlbertConfig, cache: str | None
) -> Records:
    """Checks that the records exist, are intact, and match the flags and the config.

    Raises:
      ValueError: If a file is missing or damaged, or its records don't fit the flags or the config.
    """
    if pretrain_flags.is_dynamic(values):
        found = input_files.check_features(files, compact_spec())
        stored = found.features["row_format"].expected
        if stored is None:
            raise ValueError(f"{files[0]} holds no record: generate it again")
        row_format = RowFormat(*stored)
        _check_row_format(values, row_format, config)
        settings = pretrain_flags.masking_settings(values, row_format)
        shortfall = settings.shortfall(values.max_seq_length)
        if shortfall:
            logging.warning("%s", shortfall)
        spec = compact_spec(values.max_seq_length, config.vocab_size)
        spec = input_files.check_features(files, spec)
        indexes = input_files.index_records(files, cache)
        return Records(files, indexes, spec, row_format, settings)
    most = values.max_predictions_per_seq or input_files.count_prediction_slots(files[0])
    spec = pretraining_spec(
        values.max_seq_length,
        most,
        values.max_examples_per_row,
        config.vocab_size,
        config.type_vocab_size,
    )
    spec = input_files.check_features(files, spec)
    return Records(files, input_files.index_records(files, cache), spec)


def _check_shared(
    values: flags.FlagValues, config: AlbertConfig, records: Records, devices: Devices
) -> None:
    # Each worker takes its part of an order that it works out itself, from that of the files.
    names = list(map(os.path.basename, records.files))
    what = f"configs or records (this one {sum(records.counts)} in {len(names)} files)"
    flags_of_all = (*pretrain_record.RECORDED, *_SHARED)
    remote = sum(map(files.is_remote, records.files))  # They have another order.
    shared = (names, records.counts, remote, config.to_dict())
    checks.check_workers_agree(values, devices, what, flags_of_all, *shared)


def _check_row_format(
    values: flags.FlagValues, row_format: RowFormat, config: AlbertConfig
) -> None:
    if row_format.max_seq_length != values.max_seq_length:
        raise ValueError(
            f"the records have rows of {row_format.max_seq_length} tokens: set --max_seq_length "
            f"to that, not {values.max_seq_length}"
        )
    if row_format.vocab_size > config.vocab_size or config.type_vocab_size < 2:
        raise ValueError(
            f"the records have {row_format.vocab_size} pieces and 2 token types, but the config "
            f"{config.vocab_size} and {config.type_vocab_size}: use the config (vocab_size...) "
            "that the records were generated for"
        )


def _check_initial(path: str, config: AlbertConfig) -> None:
    """Checks the initial weights by their config, before records are read; see load_weights."""
    layout = layouts.find(path)
    # That tells which groups are missing.
    free = ("num_hidden_layers", "num_hidden_groups")
    layouts.check_config(config, layout, path, free, replace=True)


def prepare(values: flags.FlagValues, held: contextlib.ExitStack) -> tuple[Trainer, Records]:
    """Checks everything, and returns a Trainer with its initial weights, and the records.

    The run holds the output directory until `held` closes.
    """
    config = AlbertConfig.from_json_file(values.albert_config_file)
    pretrain_checks.check_flags(values, config)
    checks.check_same_model(config, values.output_dir)
    initial = values.init_checkpoint
    if values.do_train:
        checks.check_fresh_or_own(values.output_dir)
        if initial and not checkpoint.latest(values.output_dir):
            initial = hub.local(initial)
            _check_initial(initial, config)
    paths = input_files.find_files(values.input_file)
    # Before any other TensorFlow operation: workers can't be connected later.
    devices = held.enter_context(backend.create_devices(values))
    pretrain_checks.check_devices(values, devices)
    chief = devices.is_chief
    if chief:
        checks.make_output_dir(values.output_dir)
        # Another process may evaluate beside training.
        for does, work in ((values.do_train, "run"), (values.do_eval, "evaluation")):
            if does:
                held.enter_context(run_lock.hold(values.output_dir, work))
    pretrain_checks.warn(values)
    if not values.do_train:
        pretrain_record.follow(values)
    # The chief makes the directory: other workers may be earlier.
    has_cache = chief or files.is_dir(values.output_dir)
    cache = os.path.join(values.output_dir, "input_files.json") if has_cache else None
    records = check_records(values, paths, config, cache)
    _check_shared(values, config, records, devices)
    logging.info(
        "%d records in %d files; %s", sum(records.counts), len(paths), checks.describe(devices)
    )

    trainer = _make_trainer(values, config, devices)
    if values.do_train:
        # The paper's deeper models were started from shallower ones.
        resumes = trainer.initialise(initial, values.init_from_group0, any_depth=True)
        evaluation.begin(values.output_dir, devices, resumes)
        if chief:
            checks.write_config(config, values.output_dir)
            counts = dict(zip(paths, records.counts, strict=True))
            pretrain_record.keep(values, counts, resumes)
    return trainer, records


def _make_trainer(values: flags.FlagValues, config: AlbertConfig, devices: Devices) -> Trainer:
    return Trainer(
        PretrainingTask(
            config,
            shared_flags.dtype_policy(values),
            values.recompute,
            values.sentence_order_weight,
        ),
        devices,
        values.output_dir,
        functools.partial(_make_optimizer, values) if values.do_train else None,
        seed=values.random_seed,
        jit_compile=values.jit_compile and not values.use_tpu,
        accumulation_steps=values.gradient_accumulation_steps,
    )


def train(values: flags.FlagValues, trainer: Trainer, records: Records) -> bool:
    """Trains as the flags say; returns whether it reached the last step."""
    input_fn = functools.partial(
        input_pipeline.training_dataset,
        records.files,
        records.indexes,
        records.spec,
        values.train_batch_size,
        values.random_seed,
        trainer.step,
        finish=records.masking(values.random_seed),
    )
    summaries = values.output_dir if trainer.devices.is_chief else None
    progress = ProgressLog(
        summaries, values.num_train_steps, values.train_batch_size, values.max_seq_length
    )
    return trainer.train(
        input_fn,
        progress,
        values.num_train_steps,
        steps_per_loop=values.iterations_per_loop,
        save_steps=values.save_checkpoints_steps,
        keep_max=values.keep_checkpoint_max,
    )


def evaluate(values: flags.FlagValues, trainer: Trainer, records: Records) -> None:
    """Evaluates checkpoints up to the last step."""
    input_fn = evaluation_input(values, records)
    evaluation.evaluate_checkpoints(trainer, input_fn, values.num_train_steps)


def evaluation_input(values: flags.FlagValues, records: Records) -> InputFn:
    """Returns what makes the batches of an evaluation."""
    return functools.partial(
        input_pipeline.evaluation_dataset,
        records.files,
        records.counts,
        records.spec,
        values.eval_batch_size,
        values.max_eval_steps,
        finish=records.masking(_EVALUATION_SEED),
    )


def _make_optimizer(values: flags.FlagValues) -> optimizers.AdamW:
    return optimizers.create_optimizer(
        values.learning_rate,
        values.num_train_steps,
        values.num_warmup_steps,
        values.optimizer,
        values.poly_power,
        values.start_warmup_step,
        sum_over_replicas=False,
    )


def main(values: flags.FlagValues) -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
    with errors.in_one_line(NonFiniteLossError, flags=values), contextlib.ExitStack() as held:
        trainer, records = prepare(values, held)
        with input_files.naming_bad_records(records.files, records.spec):
            finished = not values.do_train or train(values, trainer, records)
            if values.do_eval and finished:
                evaluate(values, trainer, records)
