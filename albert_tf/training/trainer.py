"""Trainer: the loop around the training step, what a checkpoint holds, and evaluation."""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from albert_tf import conversion
from albert_tf.conversion import labels, values
from albert_tf.storage import checkpoint
from albert_tf.training.devices import Devices, InputFn, Run, stat_names
from albert_tf.training.progress import ProgressLog
from albert_tf.training.stop_signals import StopSignals
from albert_tf.training.task import Task
from albert_tf.types import Array, Features

_STEP = "global_step"


def state_tensors(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the contents of a training checkpoint, by the release's names."""
    named = conversion.named_weights(model)
    step = np.int64(optimizer.iterations.numpy())
    return {**named, **_slots(model, optimizer, named), _STEP: step}


def restore_state(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | None,
    prefix: str,
    classes: Sequence[str] = (),
) -> int:
    """Restores weights and, if there is an optimizer, moments and step from a checkpoint.

    Args:
      model: Receives the weights.
      optimizer: Receives moments and step; None to restore only weights.
      prefix: A checkpoint that a Trainer, or the release, wrote for this model.
      classes: Names of the classes, by id. Without an optimizer, a classifier whose classes are
        stored beside it in another order is put into this one.

    Returns:
      The checkpoint's step.

    Raises:
      ValueError: If it is damaged, lacks a tensor, has one of another shape, holds NaN or
        infinite values, or has other classes.
    """
    stored = checkpoint.read(prefix)
    if not optimizer:  # Moments would have to be moved, too.
        stored = labels.in_order(prefix, stored, classes, leave_others=False)
    slots = _slots(model, optimizer, conversion.named_weights(model)) if optimizer else {}
    report = conversion.load_tensors(model, prefix, stored)
    missing = [*report.missing, *(name for name in (*slots, _STEP) if name not in stored)]
    if missing:
        raise ValueError(
            f"checkpoint {prefix} lacks {', '.join(missing)}: it was not saved by this training "
            "run; give another `output_dir`, and start from it with `init_checkpoint`"
        )
    moments = values.as_float32({name: stored[name] for name in slots}, prefix)
    for name, slot in slots.items():
        slot.assign(moments[name])
    step = int(stored[_STEP])
    if optimizer:
        optimizer.iterations.assign(step)
    return step


def _slots(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, named: Mapping[str, Any]
) -> dict[str, Any]:
    names = {variable.path: name for name, variable in named.items()}
    slots = {}
    for i, variable in enumerate(model.trainable_variables):
        slots[f"{names[variable.path]}/adam_m"] = optimizer.adam_m[i]
        slots[f"{names[variable.path]}/adam_v"] = optimizer.adam_v[i]
    return slots


class CheckpointWriter:
    """Writes one checkpoint at a time.

    An error in writing is raised by the next call of `check` or `wait`. A `with` statement waits
    for its last checkpoint, whatever ends it.

    Args:
      directory: An existing directory.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._started: futures.Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()

    def start(self, step: int, tensors: Mapping[str, Any], keep_max: int) -> None:
        """Starts to write a checkpoint; to be called after `wait`.

        Args: see checkpoint.save; nothing may change the tensors any more.
        """
        self._started = self._thread.submit(self._write, step, tensors, keep_max)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written."""
        if self._started and self._started.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the checkpoint is written, and listed; raises the error if it can't be."""
        started, self._started = self._started, None
        if started:
            started.result()

    def _write(self, step: int, tensors: Mapping[str, Any], keep_max: int) -> None:
        logging.info("saved %s", checkpoint.save(self._directory, step, tensors, keep_max))


@dataclasses.dataclass(frozen=True)
class InputByLength:
    """Batches of several lengths, and which length each step takes.

    A step is compiled once for each shape: so each length has its own dataset, and the host picks.
    Where no shape is needed, several lengths may go by one number.

    Attributes:
      input_fns: By length, a function that makes a host's dataset of the batches of that length, in
        step order, from the Trainer's current step.
      lengths: `<int>[T]`, the length at each step of the run, from step 0.
    """

    input_fns: Mapping[int, InputFn]
    lengths: np.ndarray


class StepIterators:
    """Splits steps into runs, each fed by an iterator over batches of one length.

    Args:
      devices: What the batches are for.
      source: Makes the datasets.
      first_step: The step of the first batch.
      num_steps: The last step.
    """

    def __init__(
        self,
        devices: Devices,
        source: InputFn | InputByLength,
        first_step: int,
        num_steps: int,
    ) -> None:
        if callable(source):
            # A broadcast: one number in memory, however many steps.
            source = InputByLength({0: source}, np.broadcast_to(0, num_steps))
            lengths = [0] if first_step < num_steps else []
        else:
            lengths = np.unique(source.lengths[first_step:num_steps]).tolist()
        self._lengths = source.lengths
        self._iterators = {length: devices.iterator(source.input_fns[length]) for length in lengths}

    def runs(self, step: int, count: int) -> Iterator[Run]:
        """Splits the next `count` steps, from `step` on, into runs of one length.

        Yields:
          The iterator of each run, and its number of steps.
        """
        lengths = self._lengths[step : step + count]
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), count]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield self._iterators[int(lengths[start])], end - start


# An on-device loop is kept this short, whatever steps_per_loop allows: users want to see a progress
# line, and after SIGTERM a process has some 30 seconds to save.
_LOOP_SECONDS = 10.0


class NonFiniteLossError(ArithmeticError):
    """The loss or the gradient norm became infinite or NaN."""


class Trainer:
    """Trains and evaluates a task's model on devices.

    Args:
      task: Defines model, losses and metrics.
      devices: Where it runs.
      output_dir: Existing directory for checkpoints and summaries.
      make_optimizer: Makes the optimizer, with `sum_over_replicas=False`; None only evaluates.
      seed: Seed of weight initialisation and dropout.
      jit_compile: Whether XLA compiles forward and backward pass; on a TPU it always does.
      accumulation_steps: Number of micro-batches that a replica splits its batch into.

    Raises:
      ValueError: If the optimizer would sum gradients over replicas a second time.

    Example:
      >>> import os
      >>> import tensorflow as tf
      >>> from albert_tf.config import AlbertConfig
      >>> from albert_tf.tasks.pretraining import PretrainingTask
      >>> from albert_tf.training.optimizers import create_optimizer
      >>> from albert_tf.training.tensorflow_devices import TensorFlowDevices
      >>> config = AlbertConfig(31, hidden_size=12, num_attention_heads=3)
      >>> devices = TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
      >>> optimizer = lambda: create_optimizer(1e-3, 10, 0, sum_over_replicas=False)
      >>> os.mkdir("out")
      >>> trainer = Trainer(PretrainingTask(config), devices, "out", optimizer)
      >>> trainer.initialise()  # Nothing to resume from.
      False
      >>> trainer.save(keep_max=1)
      >>> trainer.wait_until_saved()
      >>> "model.ckpt-0.index" in os.listdir("out")
      True
    """

    def __init__(
        self,
        task: Task,
        devices: Devices,
        output_dir: str,
        make_optimizer: Callable[[], keras.optimizers.Optimizer] | None = None,
        *,
        seed: int = 0,
        jit_compile: bool = False,
        accumulation_steps: int = 1,
    ) -> None:
        self.task = task
        self.devices = devices
        self.output_dir = output_dir
        self._writer = CheckpointWriter(output_dir)
        keras.utils.set_random_seed(seed)
        with devices.scope():
            self.model = task.build_model()
            self.optimizer = make_optimizer() if make_optimizer else None
            if self.optimizer:
                self.optimizer.build(self.model.trainable_variables)
        if self.optimizer:
            self._train_runs = devices.train_steps(
                task, self.model, self.optimizer, seed, jit_compile, accumulation_steps
            )
        self._metrics = devices.summed(self.model, self._metric_pairs)

    @property
    def step(self) -> int:
        """Updates done so far."""
        return int(self.optimizer.iterations.numpy())

    # --- the loop ---------------------------------------------------------------------------

    def train(
        self,
        source: InputFn | InputByLength,
        progress: ProgressLog,
        num_train_steps: int,
        *,
        steps_per_loop: int,
        save_steps: int,
        keep_max: int,
        after_save: Callable[[], bool] | None = None,
    ) -> bool:
        """Trains up to a given step, with checkpoints on the way; returns whether it is over.

        Steps go on while one is written; whatever ends the run waits for it. SIGINT and SIGTERM end
        it early, after a checkpoint; or, if there is nothing to save, the process with exit code 0.

        Args:
          source: Makes a host's dataset, from the Trainer's current step.
          progress: Receives a report of every loop.
          num_train_steps: The step to train up to.
          steps_per_loop: Maximum number of steps per on-device loop.
          save_steps: Steps between checkpoints.
          keep_max: Checkpoints to keep; 0 keeps all.
          after_save: Called when a checkpoint is written that no signal asked for; True ends the
            training. It may change weights, moments and step if it restores that checkpoint.

        Raises:
          NonFiniteLossError: If a loss becomes NaN or infinite. Nothing is saved then.
        """
        iterators = StepIterators(self.devices, source, self.step, num_train_steps)
        step, saved, step_seconds = self.step, self.step, None
        stop, is_over = False, self.step >= num_train_steps
        if is_over:
            logging.info("already trained for %d of %d steps", step, num_train_steps)
        with StopSignals() as signals, self._writer:
            while not (is_over or stop):
                most = min(steps_per_loop, save_steps - step % save_steps, num_train_steps - step)
                count = _quick_enough(most, step_seconds)
                start = time.monotonic()
                stats = self._train_runs(iterators.runs(step, count))
                signals.set_unsaved(True)
                seconds, stop = self._over_processes((time.monotonic() - start) / count, signals)
                self._writer.check()
                self._check_finite(stats, step, saved)
                step += count
                progress.report(step, self._by_name(stats.mean(0)), seconds, step_seconds is None)
                step_seconds = seconds
                is_over = step >= num_train_steps
                if step % save_steps == 0 or is_over or stop:
                    self.save(keep_max)
                    saved = step
                    if after_save and not stop:
                        is_over = self._after_save(after_save, signals) or is_over
            self.wait_until_saved()
            signals.set_unsaved(stop)
        # Told to stop in the last loop: what follows the training is the next start's.
        is_over = is_over and not stop
        if not is_over:
            logging.info("stopped at step %d: the same command resumes from there", step)
        return is_over

    def _after_save(self, after_save: Callable[[], bool], signals: StopSignals) -> bool:
        self.wait_until_saved()
        signals.set_unsaved(False)
        is_over = after_save()
        signals.set_unsaved(True)
        return is_over

    def save(self, keep_max: int) -> None:
        """Starts to write a checkpoint of weights, moments and step; see `wait_until_saved`.

        Only while the state is copied to the host, and the checkpoint before is written, does it
        hold up the devices. An error in writing is raised by a later call.
        """
        self._writer.wait()  # First: the host need not hold two states.
        tensors = self.devices.host_values(state_tensors(self.model, self.optimizer))
        if self.devices.is_chief:
            self._writer.start(self.step, tensors, keep_max)

    def wait_until_saved(self) -> None:
        """Waits, on all workers, until the chief has written its checkpoint."""
        self._writer.wait()
        self.devices.wait_for_all()

    def _check_finite(self, stats: np.ndarray, step: int, saved: int) -> None:
        bad = np.flatnonzero(~np.isfinite(stats).all(axis=1))
        if bad.size:
            found = self._by_name(stats[bad[0]])
            raise NonFiniteLossError(
                f"the loss or gradient norm of step {step + bad[0] + 1} is not finite ({found}): "
                f"nothing was saved after step {saved}; lower `learning_rate`, lengthen the "
                "warm-up, or check the data"
            )

    def _by_name(self, stats: np.ndarray) -> dict[str, float]:
        return dict(zip(stat_names(self.task), stats.tolist(), strict=True))

    def _over_processes(self, step_seconds: float, signals: StopSignals) -> tuple[float, bool]:
        """Returns the mean step time, and whether any worker has been told to stop."""
        stop = float(signals.requested is not None)
        means = self.devices.mean_over_processes(step_seconds, stop)
        return means[0], means[1] > 0

    # --- where weights come from ------------------------------------------------------------

    def initialise(
        self,
        init_checkpoint: str | None = None,
        expand_group0: bool = False,
        any_depth: bool = False,
    ) -> bool:
        """Sets the model's initial weights, and says in the log where they come from.

        Removes checkpoints in output_dir that a killed process left half-written.

        Args:
          init_checkpoint: A checkpoint to start from if output_dir holds none.
          expand_group0: See conversion.load_weights.
          any_depth: See conversion.load_weights.

        Returns:
          Whether they are a checkpoint's in output_dir: the run resumes.

        Raises:
          FileNotFoundError: If init_checkpoint doesn't exist.
          ValueError: If a checkpoint is damaged or doesn't fit, or the workers' weights differ.
        """
        resumes = self._set_weights(init_checkpoint, expand_group0, any_depth)
        self._check_same_weights()
        return resumes

    def _set_weights(
        self, init_checkpoint: str | None, expand_group0: bool, any_depth: bool
    ) -> bool:
        # 1. Resume from output_dir.
        latest = checkpoint.latest(self.output_dir)
        self._check_shared(latest)
        if self.devices.is_chief:
            checkpoint.remove_unfinished(self.output_dir)
        if latest:
            self.restore(latest)
            logging.info("resume: step %d of %s", self.step, latest)
            return True
        # 2. Warm start from init_checkpoint.
        if init_checkpoint:
            report = conversion.load_weights(
                self.model,
                init_checkpoint,
                expand_group0=expand_group0,
                any_depth=any_depth,
                replace_heads=True,
                # If the config is the one beside init_checkpoint, it has already been read.
                replace_config=True,
                classes=self.task.classes,
            )
            logging.info("init_checkpoint: %s (%s)", init_checkpoint, report)
            return False
        # 3. Random initialisation.
        logging.info("random initialisation: %d weights", self.model.count_params())
        return False

    def _check_shared(self, latest: str | None) -> None:
        # Each worker assigns what it reads; a difference would go unnoticed.
        if not self.devices.agree(os.path.basename(latest or "")):
            raise ValueError(
                f"the workers see different checkpoints in {self.output_dir} (this one sees "
                f"{latest}): give all the same `output_dir`, on shared storage"
            )

    def _check_same_weights(self) -> None:
        if self.devices.num_processes == 1:
            return
        values = self.devices.host_values(conversion.named_weights(self.model))
        if not self.devices.agree([zlib.crc32(np.asarray(v).tobytes()) for v in values.values()]):
            raise ValueError(
                "the workers start from different weights: give all the same files at "
                "`init_checkpoint` or in `output_dir`, and the same packages"
            )

    def restore(self, prefix: str) -> int:
        """Restores weights and, if there is an optimizer, moments and step; see state.restore."""
        return restore_state(self.model, self.optimizer, prefix, self.task.classes)

    # --- evaluation -------------------------------------------------------------------------

    def evaluate(self, *input_fns: InputFn) -> dict[str, float]:
        """Returns the task's metrics over a whole dataset, by name, and their total `loss`.

        A metric with weight 0, for example if no piece is masked, is 0.

        Args:
          *input_fns: Each makes a host's finite dataset of a part of the data.
        """
        totals: dict[str, np.ndarray] = {}
        for input_fn in input_fns:
            for batch in self.devices.batches(input_fn):
                for name, value in self._metrics(batch).items():
                    totals[name] = totals.get(name, 0.0) + value.astype(np.float64)
        results = {
            name: float(value[0] / value[1]) if value[1] else 0.0 for name, value in totals.items()
        }
        losses = [value for name, value in results.items() if name.endswith("_loss")]
        return {"loss": sum(losses), **results}

    def _metric_pairs(self, features: Features) -> dict[str, Array]:
        """Returns sum and weight of each metric, `<float32>[2]`."""
        metrics = self.task.metrics(self.model(features, training=False), features)
        return {name: ops.stack(pair) for name, pair in metrics.items()}


def _quick_enough(most: int, step_seconds: float | None) -> int:
    """Returns how many steps to run in one loop."""
    # A single step first: it triggers compilation and gives the step time.
    return min(most, max(1, int(_LOOP_SECONDS / step_seconds))) if step_seconds else 1
