"""Pre-training: records -> batches -> a Trainer's steps and evaluations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import conversion
from albert_tf.cli import run_directory
from albert_tf.cli.pretraining_settings import UNKNOWN_STEPS, PretrainingSettings
from albert_tf.cli.run_directory import RunDirectory
from albert_tf.config import AlbertConfig
from albert_tf.console import errors, log
from albert_tf.conversion import layouts
from albert_tf.conversion.names import POOLER, SENTENCE_ORDER_HEAD
from albert_tf.generator.settings import MASKING
from albert_tf.records import frequencies, input_files, input_pipeline
from albert_tf.records.input_pipeline import DynamicMasking
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import FeatureSpec, RowFormat, compact_spec, pretraining_spec
from albert_tf.storage import checkpoint, eval_results, files, hub
from albert_tf.storage.run_record import digest, find_run
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import evaluation
from albert_tf.training.deadline import Deadline
from albert_tf.training.interfaces import Devices, InputFn
from albert_tf.training.optimizers import SCHEDULES, count_decay_steps
from albert_tf.training.progress import ProgressLog
from albert_tf.training.schedules import WarmupPolynomialDecay
from albert_tf.training.stop_signals import StopSignals
from albert_tf.training.trainer import NonFiniteLossError, Trainer

# Seed of an evaluation's masks, whatever `random_seed` is.
_EVALUATION_SEED = -1


def main(settings: PretrainingSettings) -> None:
    """Trains, evaluates, or both, as the settings say."""
    log.begin()
    in_one_line = errors.in_one_line(NonFiniteLossError, flags=settings.names())
    with in_one_line, contextlib.ExitStack() as held:
        if settings.do_train:  # From the start, even before there is anything to save.
            held.enter_context(StopSignals())
        settings, trainer, records, weights = prepare(settings, held)
        # From here on a damaged record is looked up and named, with its file.
        with input_files.naming_bad_records(records.files, records.spec):
            known = {"masked_lm_loss_by_frequency": frequency_loss(settings, records)}
            text = "guessing masked pieces by their frequency alone has a loss of %.3f"
            logging.info(text, *known.values())
            finished = not settings.do_train or train(settings, trainer, records)
            if settings.do_eval and finished:
                input_fn = evaluation_input(settings, records)
                # Evaluate weights of no run once, else every checkpoint of the run in output_dir.
                if weights and not settings.do_train:
                    evaluate_once(settings, trainer, weights, input_fn, known)
                    return
                last = functools.partial(last_step, settings)
                evaluation.evaluate_checkpoints(trainer, input_fn, last, known)
        # A run that was stopped has no checkpoint to use yet: the next start resumes it.
        if finished:
            run_directory.log_end(trainer, settings.do_eval, "fill_mask")


def prepare(
    settings: PretrainingSettings, held: contextlib.ExitStack
) -> tuple[PretrainingSettings, Trainer, Records, str | None]:
    """Returns a run's settings, Trainer, records and weights; `held` holds its resources.

    For training the Trainer already has the weights; otherwise they are to be evaluated.
    """
    # 1. The run in the directory, or else weights, settings and config to begin with.
    if settings.output_dir is None:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        settings = dataclasses.replace(settings, output_dir=folder)
    branches = settings.do_train and settings.decay_from is not None
    directory, settings, config = RunDirectory.open(settings, find_initial_weights, branches)
    settings = check_weights(settings, config, directory.initial)
    paths = input_files.find_files(settings.input_file)

    # 2. The devices, before any other TensorFlow operation: workers can't be connected later.
    devices = held.enter_context(settings.create_devices())
    settings.check_batch_sizes(devices, eval_batch_size=settings.do_eval)
    if settings.do_train and not directory.stored:  # A resumed run already has its decay.
        settings = place_decay(settings, directory.initial)
    directory.check_followed(settings)

    # 3. The records, which must match settings and config, and be the same for all workers.
    if devices.is_chief:
        run_directory.make_output_dir(settings.output_dir)
    has_cache = files.is_dir(settings.output_dir)  # Other workers may be earlier than the chief.
    cache = os.path.join(settings.output_dir, "input_files.json") if has_cache else None
    records = check_records(settings, paths, config, cache)
    vocabulary = find_vocabulary(paths, directory, config) if settings.do_train else None
    data = {"train": records.digest()}
    shared = {**settings.record(), "config": config.to_dict(), "records": data}
    run_directory.check_workers_agree(devices, shared)
    directory.check_followed(settings, **data)
    # Training and evaluation are reserved separately: another process may evaluate this run.
    directory.hold(devices, held, run=settings.do_train, evaluation=settings.do_eval)
    text = "%d records in %d files; %s with %d replica(s)"
    logging.info(text, sum(records.counts), len(paths), devices.name, devices.num_replicas)

    # 4. The model and its weights; from then on the directory is this run's.
    trainer = make_trainer(settings, config, devices)
    if settings.do_train:
        # The paper's deeper models began with the weights of shallower ones.
        depth = {"expand_group0": settings.init_from_group0, "any_depth": True}
        resumes = directory.initialise(trainer, **depth)
        if branches and not resumes:  # A branch also takes over optimizer state and step.
            logging.info("branch: step %d", trainer.restore(directory.initial))
        directory.begin(devices, resumes, settings, config, data, vocabulary)
    return settings, trainer, records, directory.initial


def find_initial_weights(settings: PretrainingSettings) -> str | None:
    """Returns the path of the weights to start from, or to evaluate once, on this machine.

    None stands for random weights or, without training, for the checkpoints of output_dir's run.
    """
    # The run to evaluate may be another process's, and have no checkpoint yet.
    if not settings.do_train and checkpoint.read_list(settings.output_dir):
        return None
    # A branch goes on from a run's checkpoint, with its optimizer state and step.
    if settings.do_train and settings.decay_from:
        return checkpoint.resolve(settings.decay_from)
    # Other weights begin a new run, or are evaluated once.
    if settings.init_checkpoint:
        return hub.download(settings.init_checkpoint)
    if settings.do_train:
        return None
    # output_dir may hold a model that was converted or unpacked into it.
    try:
        layouts.find(settings.output_dir)
    except FileNotFoundError:
        return None
    return settings.output_dir


def check_weights(
    settings: PretrainingSettings, config: AlbertConfig, weights: str | None
) -> PretrainingSettings:
    """Checks initial weights; returns the settings, without the loss of a head that they lack."""
    if weights is None:
        return settings
    layout = layouts.find(weights)
    if settings.do_train:
        # A branch goes on with its run's model. Other weights may be of a shallower one, and
        # loading says which groups they lack.
        free = () if settings.decay_from else ("num_hidden_layers", "num_hidden_groups")
        layouts.check_config(config, layout, weights, free, replace=True)
    elif not any(name.startswith(SENTENCE_ORDER_HEAD) for name in layouts.read_shapes(weights)):
        logging.info("%s has no sentence-order head: masked LM alone is evaluated", weights)
        return dataclasses.replace(settings, sentence_order_weight=0.0)
    return settings


def place_decay(settings: PretrainingSettings, initial: str | None) -> PretrainingSettings:
    """Returns a new run's settings, with the decay steps of a branch off `initial` or a timed run.

    A timed run's decay begins when the time that is left just suffices; see settle_decay.
    """
    changes: dict[str, Any] = {"num_train_steps": UNKNOWN_STEPS}
    changes |= {} if "schedule" in settings.given else {"schedule": "wsd"}
    if not settings.decay_from:
        return dataclasses.replace(settings, **changes) if settings.train_minutes else settings
    # 1. The learning rate at the branch point, by that run's record or, without one, by settings.
    first = int(checkpoint.read(initial).get("global_step", 0))
    left = settings
    if run := find_run(initial):
        left = dataclasses.replace(settings, given=frozenset()).following(run.settings)
    steps = left.num_train_steps, count_decay_steps(left.decay_steps, left.num_train_steps)
    schedule = {**left.rate, "first_decay_step": SCHEDULES[left.schedule](*steps)}
    peak = left.learning_rate
    rate = float(WarmupPolynomialDecay(peak, **schedule)(first))
    if not math.isclose(rate, peak, rel_tol=1e-6):
        if not (settings.decay_from_any and rate > 0):
            raise ValueError(
                f"`decay_from` {initial}: its rate at step {first} is {rate:g}, no stable {peak:g} "
                f"({'its' if run else 'no'} run.json, `schedule={left.schedule}`): name one of a "
                "constant or wsd run between warm-up and decay, or set `decay_from_any` if not 0"
            )
        if "learning_rate" not in settings.given:
            changes |= {"learning_rate": rate, "num_warmup_steps": 0}
    # 2. The branch decays from its first step on.
    asked = settings.decay_steps if "decay_steps" in settings.given else None
    decay_steps = count_decay_steps(asked, first)
    changes |= {"decay_steps": decay_steps, "num_train_steps": first + decay_steps}
    return dataclasses.replace(settings, decay_from=initial, train_minutes=None, **changes)


def settle_decay(
    settings: PretrainingSettings, devices: Devices, first: int, last: int
) -> WarmupPolynomialDecay:
    """Records the steps of a timed run's decay before it begins; returns the schedule."""
    logging.info("the learning rate decays from step %d to step %d", first, last)
    asked = {"decay_steps": settings.decay_steps}  # There may be time for fewer.
    settings = dataclasses.replace(settings, num_train_steps=last, decay_steps=last - first)
    if devices.is_chief:
        # A restart reads these steps, and neither trains longer nor decays elsewhere.
        run = find_run(settings.output_dir)
        run = dataclasses.replace(run, settings=settings.record(), asked=asked)
        run.write(settings.output_dir)
    return WarmupPolynomialDecay(settings.learning_rate, **settings.rate, first_decay_step=first)


def find_vocabulary(
    paths: list[str], directory: RunDirectory, config: AlbertConfig
) -> Vocabulary | None:
    """Returns the vocabulary to keep: the one beside the records, else beside the weights."""
    # The records were made with the vocabulary beside them; the weights' may differ.
    found, weights = vocabulary.find_beside_records(paths), directory.initial
    try:
        found = found or (vocabulary.find(weights) if weights else None)
    except ValueError as error:  # Pre-training itself needs none.
        logging.warning("no vocabulary is kept with the checkpoints: %s", error)
    if found:
        found.check(config)
        vocabulary.check_kept(found, directory.path)
    return found


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a run."""

    files: list[str]  # TFRecord files.
    indexes: list[input_files.FileIndex]  # Where their records are.
    spec: FeatureSpec  # The features of a record.
    # The layout of rows without masks; None if the records have masks.
    row_format: RowFormat | None = None

    @property
    def counts(self) -> list[int]:
        """Number of records in each file."""
        return [index.records for index in self.indexes]

    def digest(self) -> str:
        """Returns a digest of the records and their order, wherever they lie."""
        remote = sum(map(files.is_remote, self.files))  # Remote files are read in another order.
        return digest([[(each.records, each.digest) for each in self.indexes], remote])

    def masking(self, masks: Callable[..., MaskingSettings], seed: int) -> DynamicMasking | None:
        """Returns how to draw masks; None if the records already have masks."""
        rows = self.row_format
        return DynamicMasking(rows, masks(rows), seed) if rows else None


def check_records(
    settings: PretrainingSettings, paths: list[str], config: AlbertConfig, cache: str | None
) -> Records:
    """Checks that the records are intact, and match the settings and the config."""
    # Records with masks say how many masks a row has room for.
    if not settings.has_dynamic_masks:
        drawing = {f.name for f in settings.flags() if f.metadata["group"] == MASKING}
        if unused := sorted(settings.given & drawing - {"masked_lm_prob"}):  # It is 0 here.
            raise ValueError(
                f"`{unused[0]}` is for masks that are drawn while training: set `masking=dynamic`, "
                "with records made for it, or leave it out"
            )
        most = settings.max_predictions_per_seq or input_files.count_prediction_slots(paths[0])
        sizes = settings.max_seq_length, most, settings.max_examples_per_row
        spec = pretraining_spec(*sizes, config.vocab_size, config.type_vocab_size)
        spec = input_files.check_features(paths, spec)
        return Records(paths, input_files.index_records(paths, cache), spec)

    # Records without masks say how their rows are laid out.
    found = input_files.check_features(paths, compact_spec())
    stored = found.features["row_format"].expected
    if stored is None:
        raise ValueError(f"{paths[0]} holds no record: generate it again")
    row_format = RowFormat(*stored)
    if row_format.max_seq_length != settings.max_seq_length:
        raise ValueError(
            f"the records have rows of {row_format.max_seq_length} tokens: set `max_seq_length` "
            f"to that, not {settings.max_seq_length}"
        )
    if row_format.vocab_size > config.vocab_size or config.type_vocab_size < 2:
        raise ValueError(
            f"the records have {row_format.vocab_size} pieces and 2 token types, but the config "
            f"{config.vocab_size} and {config.type_vocab_size}: use the config (`vocab_size`...) "
            "that the records were generated for"
        )
    if shortfall := settings.mask_settings(row_format).shortfall(settings.max_seq_length):
        logging.warning("%s", shortfall)
    # Only now, with the sizes known, are all records checked against them.
    spec = compact_spec(settings.max_seq_length, config.vocab_size)
    spec = input_files.check_features(paths, spec)
    return Records(paths, input_files.index_records(paths, cache), spec, row_format)


def frequency_loss(settings: PretrainingSettings, records: Records) -> float:
    """Returns the loss of guessing masked pieces by their frequency, in the first records."""
    settings = dataclasses.replace(settings, eval_batch_size=256, max_eval_steps=32)
    batches = evaluation_input(settings, records)(tf.distribute.InputContext())
    return frequencies.loss(frequencies.count_masked(batches.as_numpy_iterator()))


def make_trainer(settings: PretrainingSettings, config: AlbertConfig, devices: Devices) -> Trainer:
    """Returns the Trainer of a run, whose weights are still random."""
    task = PretrainingTask(
        config,
        settings.dtype_policy,
        settings.recompute,
        settings.sentence_order_weight,
        settings.nearby_attention,
    )
    return settings.make_trainer(task, devices)


def train(settings: PretrainingSettings, trainer: Trainer, records: Records) -> bool:
    """Trains up to the last step; returns whether it got there."""
    # The order of records depends on seed and step alone, so a resumed run continues exactly.
    input_fn = functools.partial(
        input_pipeline.training_dataset,
        records.files,
        records.indexes,
        records.spec,
        settings.train_batch_size,
        settings.random_seed,
        trainer.step,
        finish=records.masking(settings.mask_settings, settings.random_seed),
    )
    # Only the chief writes curves; the other workers' numbers would be the same.
    directory = settings.output_dir if trainer.devices.is_chief else None
    sizes = settings.train_batch_size, settings.max_seq_length
    progress = ProgressLog(directory, settings.num_train_steps, *sizes)
    # The last step of a timed run is not known yet.
    deadline = None
    if settings.num_train_steps == UNKNOWN_STEPS:
        settle = functools.partial(settle_decay, settings, trainer.devices)
        deadline = Deadline(60 * settings.train_minutes, settings.decay_steps, settle)
    steps, loop = settings.num_train_steps, settings.loop
    return trainer.train(input_fn, progress, steps, **loop, deadline=deadline)


def last_step(settings: PretrainingSettings) -> int:
    """Returns the last step of the run in output_dir, or num_train_steps if that is earlier.

    It is 0 if no run has begun there: no checkpoints will come.
    """
    run = find_run(settings.output_dir)
    last = run.settings.get("num_train_steps", 0) if run else 0
    return min(last, settings.num_train_steps) if "num_train_steps" in settings.given else last


def evaluate_once(
    settings: PretrainingSettings,
    trainer: Trainer,
    path: str,
    input_fn: InputFn,
    known: Mapping[str, float],
) -> None:
    """Evaluates stored weights once; appends the results and `known` to eval_results.txt."""
    # A model without the sentence-order head is evaluated on masked LM alone.
    report = conversion.load_weights(trainer.model, path)
    unused = () if settings.sentence_order_weight else (POOLER, SENTENCE_ORDER_HEAD)
    names = map(conversion.tf1_name, report.missing)
    if lacking := [name for name in names if not name.startswith(unused)]:
        raise ValueError(f"{path} can't be evaluated: it lacks {', '.join(lacking)}")
    # These weights belong to no run, so no best checkpoint is kept: the results are only appended.
    results = {**trainer.evaluate(input_fn), **known}
    evaluation.check_finite(results, path)
    lines = evaluation.log_results(path, results)
    file = os.path.join(settings.output_dir, eval_results.RESULTS_FILE)
    eval_results.append_text(file, [f"init_checkpoint = {path}", *lines])


def evaluation_input(settings: PretrainingSettings, records: Records) -> InputFn:
    """Returns the function that makes the batches of an evaluation."""
    return functools.partial(
        input_pipeline.evaluation_dataset,
        records.files,
        records.counts,
        records.spec,
        settings.eval_batch_size,
        settings.max_eval_steps,
        finish=records.masking(settings.eval_mask_settings, _EVALUATION_SEED),
    )
