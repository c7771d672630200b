"""Fine-tuning: from flags to checks, a task, a Trainer. What users read is in commands.py."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any

from absl import flags, logging

from albert_tf import conversion
from albert_tf.cli import (
    backend,
    checks,
    finetune_checks,
    finetune_export,
    finetune_flags,
    finetune_records,
    finetune_run_flags,
    finetune_tasks,
    run_directory,
    shared_flags,
)
from albert_tf.config import CONFIG_FILE, DROPOUT_FIELDS, AlbertConfig
from albert_tf.console import errors
from albert_tf.storage import checkpoint, files
from albert_tf.tasks import feature_table
from albert_tf.tasks.distillation import Teacher
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.losses import Distillation
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.tasks.supervised_run import Split, SupervisedRun, write_predictions
from albert_tf.text import vocabulary
from albert_tf.training import evaluation, length_buckets, optimizers, run_lock
from albert_tf.training.devices import Devices, StepSettings
from albert_tf.training.trainer import NonFiniteLossError, Trainer


def check_weights(values: flags.FlagValues) -> None:
    """Checks that there are weights to start from.

    Raises:
      ValueError: If there are none, and random initialisation was not requested; or if output_dir
        holds another model.
    """
    if values.do_train:
        checks.check_fresh_or_own(values.output_dir)
    if _stored(values) or finetune_flags.initial_weights(values):
        return
    if not values.from_scratch:
        raise ValueError(
            f"no weights to start from: {values.output_dir} contains no checkpoint; set "
            "--init_checkpoint, or --from_scratch to train from random initialisation"
        )
    if not values.do_train:
        raise ValueError(
            "--from_scratch without --do_train would evaluate a randomly initialised model: set "
            "--do_train, or --init_checkpoint"
        )


def _stored(values: flags.FlagValues) -> str | None:
    """Returns the checkpoint in output_dir to resume from: for training, never a best."""
    newest = checkpoint.latest(values.output_dir)
    return newest if values.do_train else newest or checkpoint.best(values.output_dir)


def load_config(values: flags.FlagValues) -> AlbertConfig:
    """Reads the model's config, and applies the dropout flags."""
    config = _stored_config(values)
    given = {name: rate for name in DROPOUT_FIELDS if (rate := getattr(values, name)) is not None}
    return dataclasses.replace(config, **given)


def _stored_config(values: flags.FlagValues) -> AlbertConfig:
    """Reads the named config, or that of the continued run, or the one beside the weights."""
    if values.albert_config_file:
        return AlbertConfig.from_json_file(values.albert_config_file)
    beside = os.path.join(values.output_dir, CONFIG_FILE)
    if _stored(values) and files.exists(beside):
        return AlbertConfig.from_json_file(beside)
    initial = finetune_flags.initial_weights(values)
    if not initial:
        raise ValueError(
            "no config: set --albert_config_file, or an --init_checkpoint with a config beside it"
        )
    return conversion.load_config(initial)


def read_splits(values: flags.FlagValues, read: finetune_tasks.Reader) -> dict[str, list[Any]]:
    """Reads the examples of the required splits."""
    return {
        split: read(split)
        for split, (flag, _, _) in finetune_tasks.SPLITS.items()
        if values[flag].value
    }


def make_splits(
    values: flags.FlagValues, task: SupervisedTask, examples: dict[str, list[Any]]
) -> dict[str, Split]:
    """Makes the examples' features, or finds them cached."""
    splits = {}
    for name, (_, _, batch_size) in finetune_tasks.SPLITS.items():
        if name in examples:
            is_training = name == "train"
            features = feature_table.load_or_make_features(
                examples[name],
                functools.partial(task.rows, is_training=is_training),
                {**task.settings, "is_training": is_training},
                _feature_stem(values, is_training),
            )
            lengths = _static_lengths(values, task, features, is_training)
            splits[name] = Split(examples[name], features, getattr(values, batch_size), lengths)
    return splits


def _static_lengths(
    values: flags.FlagValues, task: SupervisedTask, features: FeatureTable, is_training: bool
) -> tuple[int, ...]:
    if values.static_lengths == 1:
        return (values.max_seq_length,)
    count = values.static_lengths
    if not is_training:  # Such a set is read once for each compilation.
        count = min(count, length_buckets.USUAL_COUNT)
    lengths = length_buckets.choose_static_lengths(features.lengths, values.max_seq_length, count)
    return tuple(sorted({max(length, task.least_length) for length in lengths}))


def _feature_stem(values: flags.FlagValues, is_training: bool) -> str:
    # If "dev" and "test" are the same examples, they share a file.
    folder = values.cached_dir or os.path.join(values.output_dir, "features")
    default = os.path.join(folder, f"{values.task_name}_{'train' if is_training else 'predict'}")
    return (values.train_feature_file if is_training else values.predict_feature_file) or default


def create_devices(values: flags.FlagValues) -> Devices:
    """Chooses the devices, and checks that batches can be split over them."""
    devices = backend.create_devices(values)  # type: ignore[arg-type]
    if values.do_train:
        checks.check_train_batch_size(
            values.train_batch_size, values.gradient_accumulation_steps, devices
        )
    used = {name: values[flag].value for flag, _, name in finetune_tasks.SPLITS.values()}
    used["predict_batch_size"] |= bool(values.teacher)
    for name in ("eval_batch_size", "predict_batch_size"):
        if used[name]:
            checks.check_batch_size(name, getattr(values, name), devices)
    return devices


def prepare(values: flags.FlagValues, held: contextlib.ExitStack) -> tuple[SupervisedRun, int]:
    """Checks everything, and returns a run with its initial weights, and its last step.

    The run holds the output directory until `held` closes.
    """
    check_weights(values)
    shared_flags.fetch_weights(values, "init_checkpoint", "albert_hub_module_handle", "teacher")
    config = load_config(values)
    checks.check_positions(config, values.max_seq_length)
    checks.check_same_model(config, values.output_dir)
    # Before any other TensorFlow operation: workers can't be connected later.
    devices = held.enter_context(create_devices(values))
    finetune_tasks.find_vocabulary(values)
    words = finetune_records.read_vocabulary(values, config)
    task, read = finetune_tasks.make_task(values, config, words.tokenizer)
    used = _stored(values) or (None if values.do_train else finetune_flags.initial_weights(values))
    finetune_records.check_same_task(values, task, used)
    if values.export_dir:
        finetune_export.check(values, task, words)
    teacher = _teacher(values, task) if values.teacher else None
    examples = read_splits(values, read)
    if values.class_weights:
        task.weigh_classes(values.class_weights, examples["train"])
    num_train_steps = finetune_run_flags.num_train_steps(values, len(examples.get("train", ())))
    digests = {name: feature_table.examples_digest(split) for name, split in examples.items()}
    finetune_checks.check_shared(values, devices, task.classes, digests, task.reading)
    finetune_export.check_free(values, task, num_train_steps)
    chief = devices.is_chief
    if chief:
        checks.make_output_dir(values.output_dir)
        held.enter_context(run_lock.hold(values.output_dir))
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob, values.dropout_prob)
    logging.info("%s; dropout: hidden %g, attention %g, head %g", checks.describe(devices), *rates)
    trainer = _make_trainer(values, task, devices, num_train_steps)
    initial = finetune_flags.initial_weights(values)
    resumes = values.do_train and trainer.initialise(initial)
    if values.do_train and devices.num_processes > 1:
        run_directory.check_workers_agree(devices, {"initial weights": trainer.digest()})
    run = SupervisedRun(task, trainer, initial)
    if not values.do_train:
        run.restore_best()
    run.splits = make_splits(values, task, examples)
    if teacher:
        folder = os.path.dirname(_feature_stem(values, is_training=True))
        run.splits["train"] = teacher.teach(devices, run.splits["train"], folder)
    if values.do_train:
        evaluation.begin(values.output_dir, devices, resumes)
    if values.do_train and chief:
        checks.write_config(config, values.output_dir)
        finetune_tasks.write_labels(values, task)
        data = {name: digest for name, digest in digests.items() if name != "test"}
        vocabulary.keep(words, values.output_dir)
        if not resumes:
            finetune_records.record(values, task, config, data).write(values.output_dir)
    return run, num_train_steps


def _make_trainer(
    values: flags.FlagValues, task: SupervisedTask, devices: Devices, num_train_steps: int
) -> Trainer:
    return Trainer(
        task,
        devices,
        values.output_dir,
        functools.partial(_make_optimizer, values, num_train_steps) if values.do_train else None,
        StepSettings(
            values.random_seed,
            values.jit_compile and not values.use_tpu,
            values.gradient_accumulation_steps,
        ),
    )


def _teacher(values: flags.FlagValues, task: SupervisedTask) -> Teacher:
    distillation = Distillation(values.distillation_weight, values.temperature)
    batch_size = values.predict_batch_size
    return Teacher(values.teacher, task, distillation, batch_size, values.task_name)


def _make_optimizer(values: flags.FlagValues, num_train_steps: int) -> Any:
    num_warmup_steps = finetune_run_flags.num_warmup_steps(values, num_train_steps)
    flag = "warmup_step" if values.warmup_proportion is None else "warmup_proportion"
    checks.warn_of_warmup(flag, num_warmup_steps, num_train_steps)
    return optimizers.create_optimizer(
        values.learning_rate,
        num_train_steps,
        num_warmup_steps,
        values.optimizer,
    )


def do_steps(values: flags.FlagValues, run: SupervisedRun, num_train_steps: int) -> None:
    """Trains, evaluates, predicts and exports, as the flags say."""
    if values.do_train:
        finished = run.train(
            num_train_steps,
            values.random_seed,
            steps_per_loop=values.iterations_per_loop,
            save_steps=values.save_checkpoints_steps,
            keep_max=values.keep_checkpoint_max,
            patience=values.early_stopping_patience,
        )
        if not finished:
            return
    if values.do_eval:
        chooses = finetune_records.chooses_best(values, run.splits["dev"].examples)
        if not (chooses and run.evaluate_saved()) and not values.do_train:
            run.evaluate_best()
    if values.do_predict:
        run.predict_best()
    finetune_export.export_best(values, run)


def combine(values: flags.FlagValues) -> None:
    """Averages the predictions of several output directories."""
    task, read = finetune_tasks.make_task(values, None, None)
    examples = read_splits(values, read)
    found = {
        split: task.average(values.ensemble_dirs, split, examples[split]) for split in examples
    }
    checks.make_output_dir(values.output_dir)
    to = task, values.output_dir, f"the ensemble of {', '.join(values.ensemble_dirs)}"
    scores: dict[str, float] = {}
    for split, predictions in found.items():
        if scores and examples[split] != examples["dev"]:
            predictions = task.tuned(predictions, scores)
        scores = write_predictions(*to, split, examples[split], predictions)


def main(values: flags.FlagValues) -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
    finetune_flags.set_task_defaults(values)
    expected = errors.in_one_line(NonFiniteLossError, flags=values)
    with expected, contextlib.ExitStack() as held:
        finetune_checks.check_flags(values)
        if values.ensemble_dirs:
            combine(values)
            return
        run, num_train_steps = prepare(values, held)
        do_steps(values, run, num_train_steps)
