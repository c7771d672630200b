"""Runs of run_pretraining.py on a tiny model: records, command lines, processes, what they wrote.

Processes come from a fork server that has imported TensorFlow once and started nothing of it: each
is as fresh as `python run_pretraining.py`, and seven seconds cheaper.
"""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import pkgutil
import sys
import time
import types
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from albert_tf.cli import commands, pretrain
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.generator.examples import pack_rows
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import FeatureSpec, RowFormat, compact_spec, pretraining_spec
from albert_tf.storage import eval_results
from albert_tf.training import trainer
from albert_tf.training.interfaces import RunSteps, StepSettings, Task, stat_names
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from tests.kit import tiny, tolerances

LENGTH, PREDICTIONS = 23, 5
STATS = {"loss", "masked_lm_loss", "sentence_order_loss", "learning_rate", "grad_norm"}
# Far longer than any run takes, so that only one that hangs fails.
TIMEOUT_SECONDS = 240
_HELD = "held by the test"

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.kit.frozen"])


def examples(count: int, seed: int = 0, length: int = LENGTH) -> list[dict[str, np.ndarray]]:
    """Returns in-memory features; every other example has one masked piece, the others two to P.

    Pieces are drawn from a skewed distribution and half of the examples are in order, so that
    there is something to learn.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        used = int(rng.integers(PREDICTIONS + 3, length + 1))
        masked = 1 if i % 2 else int(rng.integers(2, PREDICTIONS + 1))
        keep = np.arange(length) < used
        weights = (np.arange(PREDICTIONS) < masked).astype("float32")
        label = int(rng.integers(2))
        ids = 5 + np.minimum(rng.geometric(0.2, length), tiny.CONFIG["vocab_size"] - 6)
        ids[1] = 3 + label  # Gives the order away.
        positions = np.sort(rng.choice(np.arange(2, used), PREDICTIONS, replace=False))
        row = {
            "input_ids": ids * keep,
            "input_mask": keep.astype("int32"),
            "segment_ids": (np.arange(length) >= used // 2) * keep,
            "token_boundary": keep.astype("int32"),
            "masked_lm_positions": positions * weights.astype("int32"),
            "masked_lm_ids": ids[positions] * weights.astype("int32"),
            "masked_lm_weights": weights,
            "sentence_order_labels": np.int32(label),
        }
        rows.append(row)
    return rows


def packed(rows: list[dict[str, np.ndarray]], max_examples_per_row: int) -> list[dict]:
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    batch = pack_rows(batch, max_examples_per_row, pad_id=0)
    count = len(batch["input_ids"])
    return [{name: values[i] for name, values in batch.items()} for i in range(count)]


def serialized(rows: Sequence[Mapping[str, np.ndarray]], spec: FeatureSpec) -> list[bytes]:
    return spec.serialize({name: [row[name] for row in rows] for name in rows[0]})


def write_records(path: pathlib.Path, rows: list[dict[str, np.ndarray]]) -> pathlib.Path:
    """Writes examples, packed rows of one shape, or compact examples as a TFRecord file."""
    spec = compact_spec()
    if "input_ids" in rows[0]:
        names = ("input_ids", "masked_lm_ids", "sentence_order_labels")
        spec = pretraining_spec(*(rows[0][name].size for name in names))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in serialized(rows, spec):
            writer.write(record)
    return path


def compact_examples(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Returns in-memory features of compact records; as `examples`, there is something to learn."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        used = int(rng.integers(PREDICTIONS, LENGTH - 2))
        label = int(rng.integers(2))
        ids = 5 + np.minimum(rng.geometric(0.2, used), tiny.CONFIG["vocab_size"] - 6)
        ids[0] = 5 + label
        length_a = int(rng.integers(1, used))
        row = {
            "token_ids": ids,
            "segment_lengths": np.array([length_a, used - length_a]),
            "word_starts": rng.random(used) < 0.7,
            "sentence_order_labels": np.int32(label),
            "row_format": np.array(RowFormat(LENGTH, tiny.CONFIG["vocab_size"], 0, 2, 3, 4)),
        }
        rows.append(row)
    return rows


def write_config(path: pathlib.Path, **changes: Any) -> pathlib.Path:
    path.write_text(tiny.config(**changes).to_json())
    return path


def command(folder: pathlib.Path, **changes: Any) -> list[str]:
    """Returns the flags of a run on `folder`'s albert_config.json and *.tfrecord."""
    values = {
        "albert_config_file": folder / "albert_config.json",
        "input_file": folder / "*.tfrecord",
        "output_dir": folder / "out",
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "train_batch_size": 12,
        "eval_batch_size": 12,
        "learning_rate": 0.01,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
        "iterations_per_loop": 1,
        **changes,
    }
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def parse(command: list[str]) -> PretrainingSettings:
    return tiny.parse(PretrainingSettings, *command)


def main(command: list[str]) -> None:
    pretrain.main(parse(command))


class Progress(contextlib.AbstractContextManager):
    """Replaces ProgressLog: keeps the reported statistics of each loop, by step, and calls back."""

    def __init__(self, on_report: Callable[[int], Any] = lambda step: None) -> None:
        self.stats: dict[int, Mapping[str, float]] = {}
        self._on_report = on_report

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def steps(self) -> list[int]:
        return list(self.stats)

    def report(
        self, step: int, stats: Mapping[str, float], step_seconds: float, compiled: bool
    ) -> None:
        """See ProgressLog."""
        # The first step is compiled; so are the first ones of other lengths.
        assert step_seconds > 0 and (compiled or self.stats)
        self.stats[step] = stats
        self._on_report(step)


@contextlib.contextmanager
def clock_by_steps(seconds: float) -> Iterator[None]:
    """Makes training's clock advance by so many seconds with each step, in whatever process."""
    train = trainer.Trainer.train

    def timed(self: trainer.Trainer, *args: Any, **kwargs: Any) -> bool:
        clock = types.SimpleNamespace(monotonic=lambda: seconds * self.step)
        with mock.patch.object(trainer, "time", clock):
            return train(self, *args, **kwargs)

    with mock.patch.object(trainer.Trainer, "train", timed):
        yield


@contextlib.contextmanager
def counted_steps() -> Iterator[None]:
    """Replaces steps on TensorFlow by fakes, 100 times as fast, for tests of which steps are taken.

    A fake step mixes its rate, beta_2 and a checksum of its batch into the first weight: runs that
    differ in any of these end with different bits.
    """

    def train_steps(
        self: TensorFlowDevices, task: Task, model: Any, optimizer: Any, settings: StepSettings
    ) -> RunSteps:
        def step(batch: Mapping[str, Any]) -> list[float]:
            rate = float(optimizer.learning_rate)
            seen = zlib.crc32(b"".join(batch[name].numpy().tobytes() for name in sorted(batch)))
            weight = model.trainable_variables[0]
            weight.assign(weight * (1 - rate) + rate * optimizer.beta_2 * seen / 2**32)
            optimizer.iterations.assign_add(1)
            return [rate] * len(stat_names(task))

        return lambda runs: np.array([step(next(it)) for it, count in runs for _ in range(count)])

    with mock.patch.object(TensorFlowDevices, "train_steps", train_steps):
        yield


@dataclasses.dataclass
class Run:
    """A process of run_pretraining.py."""

    process: multiprocessing.Process
    log_file: pathlib.Path

    @property
    def log(self) -> str:
        """What it has written to stdout and stderr."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def wait(self) -> int:
        """Waits for the end; returns the exit code (-9 after SIGKILL)."""
        self.wait_until(lambda: not self.process.is_alive())
        return self.process.exitcode

    def wait_until(self, condition: Callable[[], bool], pause: float = 0.01) -> None:
        """Waits for something, for as long as the process lives."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert self.process.is_alive() or condition(), self.log
            if time.monotonic() > end:
                self.process.kill()
                raise TimeoutError(f"waited for {TIMEOUT_SECONDS} s:\n{self.log}")
            time.sleep(pause)

    def wait_until_held(self) -> None:
        """Waits until the process has reached the call at which `start` was told to hold it."""
        self.wait_until(lambda: _HELD in self.log)

    def release(self) -> None:
        """Lets a held process go on."""
        _release_file(self.log_file).touch()


def main_of_a_process(command: list[str]) -> None:
    """Runs run_pretraining.py as `python run_pretraining.py` does."""
    sys.argv = ["run_pretraining.py", *command]
    commands.pretrain()


def main_of_counted_steps(command: list[str]) -> None:
    """Runs it with `counted_steps`."""
    with counted_steps():
        main_of_a_process(command)


def start(
    flags: list[str],
    log_file: pathlib.Path,
    *,
    main: Callable[[list[str]], None] = main_of_a_process,
    cpus: int = 1,
    env: Mapping[str, str] | None = None,
    hold: tuple[str, int] | None = None,
) -> Run:
    """Starts run_pretraining.py, or another module's `main`, in a process of its own.

    It writes stdout and stderr to a new file; each logical CPU is a replica. With `hold`, a
    function's name and a number N, it stops before the N-th call until it is killed or released.
    """
    assert not log_file.exists()
    args = main, flags, log_file, cpus, dict(env or {}), hold
    process = FORK_SERVER.Process(target=_main, args=args, daemon=True)
    process.start()
    return Run(process, log_file)


def _main(main, flags, log_file: pathlib.Path, cpus: int, env: dict[str, str], hold) -> None:
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    split_cpu(cpus)
    if hold:
        _hold_at(*hold, _release_file(log_file))
    main(flags)


def split_cpu(count: int) -> None:
    """Splits the CPU into the only devices, in a process where TensorFlow hasn't started yet."""
    tf.config.set_visible_devices([], "GPU")
    device = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(device, parts)


def _hold_at(function: str, call: int, release_file: pathlib.Path) -> None:
    owner, _, name = function.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    real = getattr(owner, name)
    calls = itertools.count(1)

    def held(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            print(_HELD, flush=True)
            while not release_file.exists():
                time.sleep(0.01)
        return real(*args, **kwargs)

    setattr(owner, name, held)


def _release_file(log_file: pathlib.Path) -> pathlib.Path:
    return log_file.with_suffix(".release")


def tensors(checkpoint: pathlib.Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_bits(actual: pathlib.Path, expected: pathlib.Path) -> None:
    found, theirs = tensors(actual), tensors(expected)
    assert set(found) == set(theirs)
    for name, value in theirs.items():
        assert found[name].tobytes() == value.tobytes(), name


def assert_close(
    actual: pathlib.Path, expected: pathlib.Path, noise: Collection[str] = ("self/key/bias",)
) -> None:
    """Compares checkpoints; the true gradient of weights whose names end in `noise` is 0."""
    found, theirs = tensors(actual), tensors(expected)
    assert found.keys() == theirs.keys()
    for name, value in theirs.items():
        assert found[name].dtype == value.dtype, name
        tolerances.assert_weight(name, found[name], value, tuple(noise))


def assert_same_run(
    actual: pathlib.Path, expected: pathlib.Path, limit: float = tolerances.TRAJECTORY_LOSS
) -> dict[int, dict[str, float]]:
    """Compares two runs' logged steps and last evaluations; returns the expected steps' scalars."""
    found, theirs = scalars(actual), scalars(expected)
    assert list(found) == list(theirs)
    for step, stats in theirs.items():
        names = STATS & stats.keys()
        assert names == STATS & found[step].keys() and "grad_norm" in names
        for name in names:
            assert abs(found[step][name] - stats[name]) <= limit, (step, name)
    mine, results = map(eval_results.read_last, (actual, expected))
    assert mine.keys() == results.keys()
    for name, value in results.items():
        tolerances.assert_close(mine[name], value, limit, name)
    return theirs


def scalars(directory: pathlib.Path) -> dict[int, dict[str, float]]:
    """Reads TensorBoard's files: step -> scalar name -> value."""
    found: dict[int, dict[str, float]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for record in untuned(tf.data.TFRecordDataset(str(path))):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = float(tf.make_ndarray(value.tensor))
    return found
