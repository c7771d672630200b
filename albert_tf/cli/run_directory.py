"""The directory of a run: how a command finds, reserves and describes the run in it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import UNKNOWN_STEPS, PretrainingSettings
from albert_tf.cli.training_settings import LOSS, TRAINING
from albert_tf.config import CONFIG_FILE, DROPOUT_FIELDS, AlbertConfig
from albert_tf.console import log
from albert_tf.conversion import labels, layouts
from albert_tf.storage import checkpoint, eval_results, files
from albert_tf.storage.run_record import RunRecord, TaskRecord, find_run
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import evaluation
from albert_tf.training.interfaces import Devices
from albert_tf.training.progress import four_digits
from albert_tf.training.trainer import Trainer

# Settings that say how a run begins, how it decays, and where it ends.
_BEGIN = {"init_checkpoint", "albert_hub_module_handle", "init_from_group0", "decay_from"}
_BEGIN |= {"nearby_attention"}
_DECAY = {"train_minutes", "schedule", "num_train_steps", "decay_steps"}
_END = {"num_train_steps", "train_step", "early_stopping_patience"}
# Settings that replace a size in the config; fine-tuning has only the first.
_SIZES = ("num_hidden_layers", "vocab_size")
# Settings that have no effect unless another one has a certain value.
_NEEDED = dict.fromkeys(("decay_from", "decay_steps", "train_minutes"), ("schedule", "wsd"))
_NEEDED["adam_share"] = ("optimizer", "muon")

AnySettings = TypeVar("AnySettings", FinetuningSettings, PretrainingSettings)


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, and the weights that a command begins with."""

    path: str
    stored: str | None = None  # The newest checkpoint of the run in it.
    initial: str | None = None  # Weights to begin with otherwise; None for random ones.
    # Settings as given, before the run settled other values; see RunRecord.
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(
        cls,
        settings: AnySettings,
        find_initial: Callable[[AnySettings], str | None],
        branches: bool = False,
    ) -> tuple[RunDirectory, AnySettings, AlbertConfig]:
        """Returns a run's directory, its settings, and the config of its model; writes nothing.

        Settings that are not given come from the record of the run in the directory, or of the run
        that the new one `branches` off. `find_initial` returns `initial`; it is only called if the
        directory has no checkpoint.
        """
        path = settings.output_dir
        if settings.do_train:
            check_fresh_or_own(path)
        # 1. Weights: the newest checkpoint in the directory, init_checkpoint, or random ones.
        stored = checkpoint.latest(path)
        own = find_run(path) if checkpoint.read_list(path) else None
        # Every restart takes the values that the run has settled, even before its first checkpoint.
        asked = {"decay_from": settings.record()["decay_from"]} if branches else {}
        if own and (stored or (asked and asked.items() <= own.asked.items())):
            known = [name for name, value in own.asked.items() if getattr(settings, name) == value]
            settings = dataclasses.replace(settings, **{n: own.settings[n] for n in known})
        initial = None if stored else find_initial(settings)
        weights = stored or initial
        # 2. Config: the one that is named, else the one beside the weights.
        if settings.albert_config_file:
            config = AlbertConfig.from_json_file(settings.albert_config_file)
        elif weights:
            config = layouts.read_config(weights)
        elif own and not settings.do_train:  # A run without a checkpoint yet.
            config = AlbertConfig.from_dict(dict(own.config))
        else:
            raise ValueError(
                "no config: set `albert_config_file`, or an `init_checkpoint` with one beside it"
            )
        # Sizes that are given replace the config's, wherever it is from.
        sizes: dict[str, Any] = {name: getattr(settings, name, None) for name in _SIZES}
        config = dataclasses.replace(config, **{n: size for n, size in sizes.items() if size})
        if stored or (own and not settings.do_train):
            _check_same_model(config, path)
        # 3. Settings: those of the recorded run. Training that starts from other weights is a new
        # run with its own settings.
        goes_on = stored or branches or not settings.do_train
        if goes_on and (run := find_run(initial or path)):
            settings = settings.following(run.settings)
        config.check_length(settings.max_seq_length)
        return cls(path, stored, initial, asked), settings, config

    def check_followed(self, settings: AnySettings, **data: str) -> None:
        """Checks that the given settings can take effect, even if the run here had other values.

        `data` are digests of the training data and, if it chooses the best, of the evaluation data.
        """
        if not settings.do_train:
            return
        if self.stored and (run := find_run(self.path)):
            # How a run began is fixed; once it ended, so is its training. The end may be postponed.
            refused, now, before = _fixed(run.settings), settings.record(), run.settings
            step, last = checkpoint.step_of(self.stored), settings.rate["num_train_steps"]
            early = getattr(settings, "early_stopping_patience", None), settings.loop["save_steps"]
            if step >= last or eval_results.is_over(self.path, *early):
                late = {f.name for f in settings.flags() if f.metadata["group"] in (TRAINING, LOSS)}
                refused |= late - _END if step <= last else late
            refused -= {field.name for field in settings.flags() if field.metadata["per_command"]}
            found = [
                f"`{name}` ({before[name]} before, {now[name]} now)"
                for name in sorted(refused & before.keys() & now.keys())
                if len({checkpoint.spelled_out(str(each[name])) for each in (before, now)}) > 1
            ]
            if not settings.accept_other_records:
                others = [n for n, value in data.items() if run.data.get(n, value) != value]
                found += [f"other records ({n}) without `accept_other_records`" for n in others]
            if found:
                raise ValueError(
                    f"`output_dir` {self.path} contains a run, at step {step} now, which can't "
                    f"take {', '.join(found)}: give what it had before, or a new directory"
                )
        for name in sorted(settings.given & _NEEDED.keys()):
            needed, value = _NEEDED[name]
            if (has := getattr(settings, needed)) != value:
                raise ValueError(f"`{name}` needs `{needed}={value}`, not `{needed}={has}`")

    def hold(self, devices: Devices, held: contextlib.ExitStack, **activities: bool) -> None:
        """Lets the chief make the directory, and reserve it for activities until `held` closes."""
        if devices.is_chief:
            make_output_dir(self.path)
            for name in (name for name, is_done in activities.items() if is_done):
                held.enter_context(files.hold(self.path, name))

    def initialise(self, trainer: Trainer, **options: bool) -> bool:
        """Calls Trainer.initialise; all workers must have the same weights afterwards."""
        resumes = trainer.initialise(self.initial, **options)
        if trainer.devices.num_processes > 1:
            check_workers_agree(trainer.devices, {"initial weights": trainer.digest()})
        return resumes

    def begin(
        self,
        devices: Devices,
        resumes: bool,
        settings: AnySettings,
        config: AlbertConfig,
        data: Mapping[str, str],
        kept: Vocabulary | None = None,
        classes: Sequence[str] = (),
        task: TaskRecord | None = None,
    ) -> None:
        """Begins or resumes a training run here, to which the directory then belongs.

        Every worker calls it. The chief writes what later commands read: vocabulary, class names,
        config and run.json. `data` are digests of this command's data; others on record stay.
        """
        if devices.is_chief:
            if kept:
                vocabulary.keep(kept, self.path)
            if classes:
                labels.write(self.path, classes)
            # A resumed run keeps the digests of data that this command doesn't read.
            before = find_run(self.path) if resumes else None
            data = {**(before.data if before else {}), **data}
            asked = before.asked if before else self.asked
            files.replace(os.path.join(self.path, CONFIG_FILE), config.to_json())
            command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
            run = RunRecord(settings.record(), config.to_dict(), data, task, command, asked=asked)
            run.write(self.path)
        # A new run removes an earlier one's scores, which would be mistaken for its own.
        evaluation.begin(self.path, devices, resumes)


def log_end(trainer: Trainer, evaluates: bool, served_as: str, exported: str | None = None) -> None:
    """Logs the checkpoint to use, its score, and a command that tries the model.

    `served_as` is the task of that command; `exported` the directory of an export, if there is one.
    """
    if not trainer.devices.is_chief:
        return
    directory, key_metric = trainer.output_dir, trainer.task.key_metric
    # The best checkpoint after evaluations, else the newest one.
    path = checkpoint.to_use(directory, evaluates)
    score = eval_results.of_checkpoint(path).get(key_metric)
    said = "" if score is None else f" | {key_metric} {four_digits(score)}"
    if path == checkpoint.best(directory):
        said = f", of step {eval_results.Trial.read(directory).best_step}{said}"
    logging.info("checkpoint to use: %s%s", path, said)
    # Without a vocabulary no text can be read: show the curves instead.
    following = log.command("tensorboard", logdir=directory)
    with contextlib.suppress(ValueError):  # The directory contains several vocabularies.
        if exported:
            following = log.command("albert-predict", model=exported)
        elif vocabulary.find(directory):
            following = log.command("albert-predict", model=path, task=served_as)
    logging.info("next: %s", following)


def _fixed(recorded: Mapping[str, Any]) -> set[str]:
    """Returns the names of the settings that a run with these recorded values can't change."""
    if not (recorded.get("decay_from") or recorded.get("train_minutes")):
        return _BEGIN | {"train_minutes"}
    # Until a timed run's decay is settled, it can be changed.
    is_open = recorded.get("num_train_steps") == UNKNOWN_STEPS
    return _BEGIN | (_DECAY - {"train_minutes", "decay_steps"} if is_open else _DECAY)


def _check_same_model(config: AlbertConfig, directory: str) -> None:
    """Checks that the run in a directory has the same config; dropout rates may differ."""
    # The release's own runs have no config here: there is nothing to compare.
    stored = os.path.join(directory, CONFIG_FILE)
    if not files.exists(stored):
        return
    before = AlbertConfig.from_json_file(stored)
    changed = [
        f"{name} {getattr(before, name)} before, {getattr(config, name)} now"
        for name in config.differences(before, DROPOUT_FIELDS)
    ]
    if changed:
        raise ValueError(
            f"`output_dir` holds a run of another model ({'; '.join(changed)}): give another "
            "directory, or the config that the run was started with"
        )


def check_fresh_or_own(output_dir: str) -> None:
    """Checks that output_dir holds a run to resume, or no model at all."""
    if checkpoint.latest(output_dir):
        return
    if lost := checkpoint.lost(output_dir):
        raise ValueError(
            f"`output_dir` {output_dir}: its file checkpoint lists {', '.join(lost)}, of which "
            "none is there: copy one again, or remove that file to start afresh"
        )
    # Weights that no run lists would be mistaken for this run's later.
    found = checkpoint.unlisted(output_dir)
    try:
        layouts.find(output_dir)
        found = [output_dir]
    except FileNotFoundError:
        pass
    except ValueError:  # Several models: one must be named.
        found = found or [os.path.join(output_dir, "...")]
    if found:
        raise ValueError(
            f"`output_dir` {output_dir} contains a model, but no run to resume: give another "
            f"directory, and `init_checkpoint={found[0]}` to start from that model"
        )


def make_output_dir(path: str) -> None:
    """Makes the output directory, and checks that it is writable."""
    files.check_expanded(path)
    try:
        tf.io.gfile.makedirs(path)
        # Training and evaluation may start at the same time: each tests with a file of its own.
        files.try_to_write(os.path.join(path, f".write_test.{uuid.uuid4().hex}"))
    except tf.errors.OpError as error:
        raise ValueError(f"`output_dir` {path} can't be written: {files.reason(error)}") from None


def check_workers_agree(devices: Devices, parts: Mapping[str, Any]) -> None:
    """Checks that `parts`, plain JSON by name, are the same on all workers, which all call it.

    Workers that differ would train different models, or wait for each other for ever.
    """
    # The mean over processes is every process's own number only if all have the same.
    numbers = [zlib.crc32(repr(part).encode()) for part in parts.values()]
    means = devices.mean_over_processes(*numbers)
    different = [
        f"`{name}`"
        for name, number, mean in zip(parts, numbers, means, strict=True)
        if number != mean
    ]
    if not different:
        return
    # Wait until every worker has the answer: one that exits first would break the collective
    # operation of the others. An error here only means that some have ended.
    with contextlib.suppress(Exception):
        devices.wait_for_all()
    raise ValueError(
        f"the workers differ in {', '.join(different)}: give all the same files and flags"
    )
