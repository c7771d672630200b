"""Fine-tuning: settings and data -> a task -> a Trainer's steps, evaluations, predictions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.answers.kind import checked_options
from albert_tf.cli import run_directory
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.run_directory import RunDirectory
from albert_tf.config import DROPOUT_FIELDS, AlbertConfig
from albert_tf.console import errors, log
from albert_tf.conversion import kinds
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.storage import checkpoint, eval_results, files, hub
from albert_tf.storage.run_record import find_run
from albert_tf.tasks import feature_table, glue, registry
from albert_tf.tasks.distillation import Teacher
from albert_tf.tasks.losses import Distillation
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.tasks.supervised_run import Split, SupervisedRun, write_predictions
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import length_buckets
from albert_tf.training.interfaces import Devices
from albert_tf.training.stop_signals import StopSignals
from albert_tf.training.trainer import NonFiniteLossError

# Split -> the setting that asks for it, and the setting of its batch size.
SPLITS = {
    "train": ("do_train", "train_batch_size"),
    "dev": ("do_eval", "eval_batch_size"),
    "test": ("do_predict", "predict_batch_size"),
}


def main(settings: FinetuningSettings) -> None:
    """Trains, evaluates, predicts and exports, as the settings say."""
    log.begin()
    expected = errors.in_one_line(NonFiniteLossError, flags=settings.names())
    with expected, contextlib.ExitStack() as held:
        # An ensemble only reads stored predictions: it needs neither a model nor devices.
        if settings.ensemble_dirs:
            combine(settings)
            return
        if settings.do_train:  # From the start, even before there is anything to save.
            held.enter_context(StopSignals())
        settings, run = prepare(settings, held)
        if settings.do_train and not train(settings, run):
            return  # Stopped: the next start resumes it.
        # Evaluations choose the best checkpoint; without training an evaluation of it is enough.
        if settings.do_eval:
            chooses = chooses_best(settings, run.splits["dev"].examples)
            if not (chooses and run.evaluate_saved()) and not settings.do_train:
                run.evaluate_best()
        if settings.do_predict:
            run.predict_best()
        if settings.export_dir and run.trainer.devices.is_chief:
            export(settings, run)
        if settings.do_train:
            served_as = run.task.kind.task
            run_directory.log_end(run.trainer, settings.do_eval, served_as, settings.export_dir)


def prepare(
    settings: FinetuningSettings, held: contextlib.ExitStack
) -> tuple[FinetuningSettings, SupervisedRun]:
    """Returns a run's settings and its SupervisedRun with weights; `held` holds its resources."""
    # 1. The run in the directory, or else weights, settings and config to begin with.
    directory, settings, config = RunDirectory.open(settings, find_initial_weights)
    config = with_dropout(settings, config)

    # 2. The devices, before any other TensorFlow operation: workers can't be connected later.
    devices = held.enter_context(settings.create_devices())
    settings.check_batch_sizes(
        devices, eval_batch_size=settings.do_eval, predict_batch_size=settings.predicts
    )

    # 3. The data, which must match task and model, and be the same for all workers.
    vocabulary = find_vocabulary(settings, directory, config)
    task = make_task(settings, config, vocabulary.tokenizer, find_classes(settings, directory))
    check_same_task(settings, task, directory)
    keep_modules(task, directory)
    teacher = make_teacher(settings, task)
    examples = read_examples(settings, task)
    if settings.do_train:
        settings = settings.with_steps(len(examples["train"]))
    check_exportable(settings, task, vocabulary)
    data = {name: feature_table.examples_digest(split) for name, split in examples.items()}
    shared = {**settings.record(), "config": config.to_dict(), "classes": task.classes}
    run_directory.check_workers_agree(devices, {**shared, **dict.fromkeys(SPLITS), **data})
    directory.check_followed(settings, **{n: found for n, found in data.items() if n != "test"})
    directory.hold(devices, held, run=True)
    logging.info("%s with %d replica(s)", devices.name, devices.num_replicas)

    # 4. The model, its weights and features; from then on the directory is this run's.
    run = SupervisedRun(task, settings.make_trainer(task, devices), directory.initial)
    any_depth = settings.num_hidden_layers is not None
    resumes = settings.do_train and directory.initialise(run.trainer, any_depth=any_depth)
    if not settings.do_train:
        run.restore_best()
    make_splits(settings, run, examples, teacher)
    if settings.do_train:
        about = vocabulary, getattr(task.kind, "labels", ()), task.record(settings.task_name)
        data.pop("test", None)  # A later command may predict other examples.
        directory.begin(devices, resumes, settings, config, data, *about)
    return settings, run


def find_initial_weights(settings: FinetuningSettings) -> str | None:
    """Returns the path of the weights to begin with, on this machine; None for random ones."""
    # The best checkpoint may be all that is left of a run.
    if not settings.do_train and (best := checkpoint.best(settings.output_dir)):
        return best
    if named := settings.init_checkpoint or settings.albert_hub_module_handle:
        files.check_not_url(named)
        return hub.download(named)
    if not settings.from_scratch:
        raise ValueError(
            f"no weights to start from: {settings.output_dir} contains no checkpoint; set "
            "`init_checkpoint`, or `from_scratch` to train from random initialisation"
        )
    if not settings.do_train:
        raise ValueError(
            "`from_scratch` without `do_train` would evaluate a randomly initialised model: set "
            "`do_train`, or `init_checkpoint`"
        )
    return None


def with_dropout(settings: FinetuningSettings, config: AlbertConfig) -> AlbertConfig:
    """Returns the config with the settings' dropout rates, and logs all rates."""
    rates = {name: getattr(settings, name) for name in DROPOUT_FIELDS}
    given = {name: rate for name, rate in rates.items() if rate is not None}
    config = dataclasses.replace(config, **given)
    both = config.hidden_dropout_prob, config.attention_probs_dropout_prob
    logging.info("dropout: hidden %g, attention %g, head %g", *both, settings.dropout_prob)
    return config


def find_vocabulary(
    settings: FinetuningSettings, directory: RunDirectory, config: AlbertConfig
) -> Vocabulary:
    """Reads the vocabulary that is named, or the one beside the weights."""
    for path in filter(None, (directory.initial, directory.path)):
        if found := vocabulary.find(path, *vocabulary_arguments(settings)):
            logging.info("vocabulary: %s", found.path)
            found.check(config)
            vocabulary.check_kept(found, directory.path)
            return found
    raise ValueError(
        "no vocabulary: set `spm_model_file`, or `vocab_file` for a WordPiece one, or put it "
        "beside the weights of `init_checkpoint`"
    )


def vocabulary_arguments(settings: FinetuningSettings) -> list[Any]:
    """Returns arguments of `vocabulary.find`: files, case and accents; None where not given."""
    # If both files are named, the release takes the SentencePiece model.
    spm_model_file = settings.spm_model_file
    form = [getattr(settings, n) if n in settings.given else None for n in vocabulary.FORM]
    return [spm_model_file, None if spm_model_file else settings.vocab_file, *form, settings.ids]


def find_classes(settings: FinetuningSettings, directory: RunDirectory) -> tuple[str, ...] | None:
    """Returns the classes of the trained model; None for the task's own or the training file's."""
    if not registry.row_of(settings).find_classes:
        return None
    # A run's own labels.jsonl comes first; weights by themselves may name the classes.
    has_own = files.exists(os.path.join(directory.path, labels_file.LABELS_FILE))
    if settings.do_train:
        return labels_file.read(directory.path) if directory.stored and has_own else None
    beside = None if has_own else directory.initial
    return (labels_file.stored(beside) if beside else ()) or labels_file.read(directory.path)


def check_same_task(
    settings: FinetuningSettings, task: SupervisedTask, directory: RunDirectory
) -> None:
    """Checks that stored weights belong to the same task; a new run may start from another's.

    Without training a task of the same kind will do, except for two tasks of GLUE; mismnli and ax
    use MNLI's weights.
    """
    path = directory.stored or (None if settings.do_train else directory.initial)
    before = kinds.find(path) if path else None
    if not (before and before.name):  # The release wrote no record.
        return
    # Compare names and label types: the same table may be read as classes or as numbers.
    now = task.record(settings.task_name)
    types = [kinds.problem_type(each) for each in (before, now)]
    if settings.do_train:
        # Training goes on only with the very same task; an evaluation may be of a related one.
        is_another = before.name != now.name or (types[0] or types[1]) != types[1]
    else:
        is_another = kinds.is_another(before, now) or glue.are_two(before.name, now.name)
    if is_another:
        names = zip((before.name, now.name), types, strict=True)
        texts = [", ".join(filter(None, each)) for each in names]
        raise ValueError(
            f"{path} was trained for another task ({texts[0]} before, {texts[1]} now): set "
            f"`task_name={before.name}`, or give another `output_dir`, and `init_checkpoint` for "
            "what to start from"
        )


def keep_modules(task: SupervisedTask, directory: RunDirectory) -> None:
    """Keeps the stored model's way of computing vectors, if it embeds texts."""
    path, kind = directory.stored or directory.initial, type(task.kind)
    stored = kinds.find(path) if path and kind.vector else None
    if stored and kinds.kind_of(stored) is kind:
        options = checked_options(kind, stored.kind, path)
        task.kind = task.kind.replace(**{**options, "max_seq_length": task.kind.max_seq_length})


def chooses_best(settings: FinetuningSettings, examples: Sequence[Any]) -> bool:
    """Whether an evaluation chooses the best checkpoint of the run in output_dir.

    An evaluation on another task's examples doesn't. Without training, only one on the run's own
    examples does: others may be the test set, and scores on two sets can't be compared.
    """
    run = find_run(settings.output_dir)
    if run and run.task and run.task.name != settings.task_name:
        return False
    own = run.data.get("dev") if run else None
    return settings.do_train or own in (None, feature_table.examples_digest(examples))


def make_task(
    settings: FinetuningSettings,
    config: AlbertConfig | None = None,
    tokenizer: Tokenizer | None = None,
    classes: tuple[str, ...] | None = None,
) -> SupervisedTask:
    """Makes the task that the settings name.

    Without config and tokenizer it only reads prediction files. `classes` are those of the trained
    model; None for the task's own or the training file's.
    """
    # Without options no model is built: reading stored predictions needs none.
    how = settings.dropout_prob, settings.dtype_policy, settings.recompute
    options = ModelOptions(config, *how) if config else None
    task = registry.row_of(settings).make(settings, options, tokenizer, classes)
    # The task knows its metrics only now that it knows its classes.
    if settings.key_metric:
        if settings.key_metric not in task.metric_names:
            raise ValueError(
                f"`key_metric` of {settings.task_name} must be one of "
                f"{', '.join(task.metric_names)}, not {settings.key_metric!r}"
            )
        task.key_metric = settings.key_metric
    return task


def read_examples(settings: FinetuningSettings, task: SupervisedTask) -> dict[str, list[Any]]:
    """Reads the splits that are asked for, and weighs the classes to train on."""
    examples = {
        split: registry.row_of(settings).read(settings, split, task)
        for split, (does, _) in SPLITS.items()
        if getattr(settings, does)
    }
    is_alone = settings.train_batch_size == 1 and not settings.negative_columns
    if settings.do_train and task.compares_examples and is_alone:
        raise ValueError(
            "`train_batch_size` 1 teaches nothing: without scores, pairs are compared with the "
            "others of their batch; give at least 2, or `negative_columns`"
        )
    if settings.do_train and settings.class_weights:
        task.weigh_classes(settings.class_weights, examples["train"])
    return examples


def make_splits(
    settings: FinetuningSettings,
    run: SupervisedRun,
    examples: Mapping[str, list[Any]],
    teacher: Teacher | None,
) -> None:
    """Makes the features of each split; a teacher adds its predictions to the training set's."""
    task, devices, splits = run.task, run.trainer.devices, run.splits
    for name, part in examples.items():
        splits[name] = make_split(settings, task, devices, name, part, splits)
    if teacher:
        folder = os.path.dirname(settings.feature_prefix(is_training=True))
        splits["train"] = teacher.teach(devices, splits["train"], folder)


def make_split(
    settings: FinetuningSettings,
    task: SupervisedTask,
    devices: Devices,
    name: str,
    examples: list[Any],
    before: Mapping[str, Split],
) -> Split:
    """Makes the features of a split, or finds them cached; `before` has the splits made so far."""
    # Rows are stored without padding; the lengths to which batches are padded come after.
    is_training, batch_size = name == "train", getattr(settings, SPLITS[name][1])
    features = feature_table.load_or_make_features(
        examples,
        functools.partial(task.rows, is_training=is_training),
        {**task.settings, "is_training": is_training},
        settings.feature_prefix(is_training),
    )
    # More lengths mean less padding, but each one is another program to compile.
    rows, longest, usual = features.lengths, settings.max_seq_length, length_buckets.USUAL_COUNT
    count, price = settings.static_lengths or usual, 0.0
    if count == 1:
        return Split(examples, features, batch_size, (longest,))

    # If XLA compiles the whole step, a length must save more padding than its compilation costs.
    if devices.static_shapes or settings.jit_compile:
        price = length_buckets.compile_price(task.options.config, devices.on_cpu)
    if is_training:
        # Every epoch saves the padding once more, and so bears only its share of the price.
        epochs = settings.train_step * settings.train_batch_size / len(rows)
        price = 0.0 if settings.static_lengths else price / epochs
    else:
        count = min(count, usual)  # An evaluation may read the set only once per compilation.
        if settings.do_train:
            price *= min(1.0, settings.save_checkpoints_steps / settings.train_step)
    # Reuse an earlier split's lengths, and its compiled programs, if that costs little padding.
    for split in before.values():
        allowed = np.unique([*split.static_lengths, longest])
        padding = np.sum(allowed[np.searchsorted(allowed, rows)] - rows)
        if len(split.static_lengths) <= usual and padding < price:
            return Split(examples, features, batch_size, tuple(allowed.tolist()))
    # A beam of starts or ends can't be wider than its row.
    rows = np.maximum(rows, task.kind.least_length)
    lengths = length_buckets.choose_static_lengths(rows, longest, count, price, devices.on_cpu)
    return Split(examples, features, batch_size, lengths)


def make_teacher(settings: FinetuningSettings, task: SupervisedTask) -> Teacher | None:
    """Returns the teacher, which also sets the task's loss; None without one."""
    if not (settings.do_train and settings.teacher):
        return None
    distillation = Distillation(settings.distillation_weight, settings.temperature)
    path = hub.download(settings.teacher)
    return Teacher(path, task, distillation, settings.predict_batch_size, settings.task_name)


def train(settings: FinetuningSettings, run: SupervisedRun) -> bool:
    """Trains up to the last step, with evaluations if asked to; returns whether it got there."""
    steps, seed = settings.train_step, settings.random_seed
    return run.train(steps, seed, settings.early_stopping_patience, **settings.loop)


def combine(settings: FinetuningSettings) -> None:
    """Averages the predictions of several runs, with the settings of the first."""
    # Predictions are averaged by position, so all runs must have their classes in the same order.
    first, *others = settings.ensemble_dirs
    if run := find_run(first):
        settings = dataclasses.replace(settings, do_train=False).following(run.settings)
    classes = labels_file.read(first) if registry.row_of(settings).find_classes else None
    for other in others if classes else ():
        found = labels_file.read(other)
        if found != classes:
            raise ValueError(
                f"`ensemble_dirs` {first} and {other} contain runs with different classes "
                f"({', '.join(classes)}; {', '.join(found)}): give runs with the same classes"
            )
    task = make_task(settings, classes=classes)
    examples = read_examples(settings, task)
    # All files are read before the first one is written.
    averages = {
        split: task.average(settings.ensemble_dirs, split, task.asked(part))
        for split, part in examples.items()
    }
    run_directory.make_output_dir(settings.output_dir)
    to = task, settings.output_dir, f"the ensemble of {', '.join(settings.ensemble_dirs)}"
    scores: dict[str, float] = {}
    for split, predictions in averages.items():
        # The development set comes first: the test set is predicted with its tuned thresholds.
        if scores and examples[split] != examples["dev"]:
            predictions = task.tuned(predictions, scores)
        scores = write_predictions(*to, split, examples[split], predictions)


def check_exportable(
    settings: FinetuningSettings, task: SupervisedTask, vocabulary: Vocabulary
) -> None:
    """Checks before training that an export will succeed, and that its directory is free."""
    if not settings.export_dir:
        return
    # Imported here: training needs no tokenizer in the graph.
    from albert_tf.serving.graphs import tokenizer as graph_tokenizer

    # Some vocabularies can't be tokenised in a graph: find out now, not after the training.
    graph_tokenizer.build(vocabulary)
    task.kind.with_threshold(settings.threshold)
    if not is_exported(settings):
        files.check_free(settings.export_dir)
        files.check_literal(settings.export_dir)


def is_exported(settings: FinetuningSettings) -> bool:
    """Whether the run is over and has been exported; an export is complete once it appears."""
    if settings.do_train:
        # An export from before the run's end may hold another checkpoint than the one to use.
        newest = checkpoint.latest(settings.output_dir)
        ends_early = settings.early_stopping_patience, settings.save_checkpoints_steps
        if not newest or (
            checkpoint.step_of(newest) < settings.train_step
            and not eval_results.is_over(settings.output_dir, *ends_early)
        ):
            return False
    return files.exists(os.path.join(settings.export_dir, "saved_model.pb"))


def export(settings: FinetuningSettings, run: SupervisedRun) -> None:
    """Exports the checkpoint to use as a SavedModel, unless there is one already."""
    if files.exists(os.path.join(settings.export_dir, "saved_model.pb")):
        logging.info("%s already contains an export, which is kept", settings.export_dir)
        return
    from albert_tf.serving import saved_model, served_tasks  # See check_exportable.

    # Without evaluations the newest checkpoint is exported, not the best one.
    evaluates = settings.do_eval or not settings.do_train
    path = checkpoint.to_use(settings.output_dir, evaluates) or run.initial_weights
    stored = ModelLocation(path, settings.albert_config_file, *vocabulary_arguments(settings))
    kind = run.task.kind.with_threshold(settings.threshold)
    served = served_tasks.load_served(kind.task, stored, kind.options(), run.task.classes)
    saved_model.save(served, settings.export_dir)
    logging.info("exported %s to %s", path, settings.export_dir)
    if hint := saved_model.hint(settings.export_dir):
        logging.info("%s", hint)
