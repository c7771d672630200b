"""Trainer: the training loop, the input of each step, and the contents of a checkpoint."""

from __future__ import annotations

import collections
import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from albert_tf import conversion
from albert_tf.conversion import arrays, labels, names
from albert_tf.storage import checkpoint
from albert_tf.training.deadline import Deadline
from albert_tf.training.interfaces import Devices, InputFn, Run, StepSettings, Task, stat_names
from albert_tf.training.progress import ProgressLog, bar
from albert_tf.training.stop_signals import StopSignals
from albert_tf.types import Array, Features

# Longest on-device loop, whatever steps_per_loop allows: users want to see progress, and after
# SIGTERM a process has about 30 seconds to save.
_LOOP_SECONDS = 10.0
# The slowest of this many recent loops sets the pace, since steps vary on a busy machine.
_LOOPS_REMEMBERED = 10


class NonFiniteLossError(ArithmeticError):
    """The loss or the gradient norm became infinite or NaN."""


class Trainer:
    """Trains and evaluates a task's model on devices.

    Args:
      task: Defines model, losses and metrics.
      devices: Devices to run on.
      output_dir: Existing directory for checkpoints and summaries.
      make_optimizer: Makes the optimizer; None for a Trainer that only evaluates.
      settings: How to compute a step; their seed also initialises the weights. None for defaults.

    Example:
      >>> import tensorflow as tf
      >>> from albert_tf.config import AlbertConfig
      >>> from albert_tf.tasks.pretraining import PretrainingTask
      >>> from albert_tf.training.optimizers import create_optimizer
      >>> from albert_tf.training.tensorflow_devices import TensorFlowDevices
      >>> config = AlbertConfig(31, hidden_size=12, num_attention_heads=3)
      >>> devices = TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
      >>> trainer = Trainer(
      ...     PretrainingTask(config), devices, ".", lambda: create_optimizer(1e-3, 100, 10)
      ... )
      >>> trainer.initialise()  # Nothing to resume in this directory: random weights.
      False
      >>> trainer.save(keep_max=1)
      >>> trainer.wait_until_saved()
      >>> trainer.initialise(), trainer.step
      (True, 0)
    """

    def __init__(
        self,
        task: Task,
        devices: Devices,
        output_dir: str,
        make_optimizer: Callable[[], keras.optimizers.Optimizer] | None = None,
        settings: StepSettings | None = None,
    ) -> None:
        self.task = task
        self.devices = devices
        self.output_dir = output_dir
        self._writer = CheckpointWriter(output_dir)
        self._seconds = 0.0  # Training time so far, according to the restored checkpoint.
        settings = settings or StepSettings()
        self._seed = settings.seed
        keras.utils.set_random_seed(settings.seed)
        with devices.scope():
            self.model = task.build_model()
            self.optimizer = make_optimizer() if make_optimizer else None
            if self.optimizer:
                self.optimizer.build(self.model.trainable_variables)
        if self.optimizer:
            self._step_parts = (task, self.model, self.optimizer, settings)
            self._train_runs = devices.train_steps(*self._step_parts)
        self._metrics = devices.summed(self.model, self._metric_pairs)

    @property
    def step(self) -> int:
        """Updates done so far."""
        return int(self.optimizer.iterations.numpy())

    def initialise(
        self,
        init_checkpoint: str | None = None,
        expand_group0: bool = False,
        any_depth: bool = False,
    ) -> bool:
        """Sets the model's initial weights, and logs their origin.

        Removes checkpoints in output_dir that a killed process left half-written.

        Args:
          init_checkpoint: A checkpoint to start from if output_dir holds none.
          expand_group0: See conversion.load_weights.
          any_depth: See conversion.load_weights.

        Returns:
          Whether the run resumes from a checkpoint in output_dir.
        """
        # 1. Resume from output_dir.
        latest = checkpoint.latest(self.output_dir)
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
                # The caller has read a config; one beside init_checkpoint need not be valid.
                replace_config=True,
                classes=self.task.classes,
            )
            logging.info("init_checkpoint: %s (%s)", init_checkpoint, report)
            return False
        # 3. Random initialisation.
        logging.info("random initialisation: %d weights", self.model.count_params())
        return False

    def digest(self) -> int:
        """Returns a checksum of weights and step, for comparing workers.

        Each worker loads its own files, and a difference would otherwise go unnoticed.
        """
        state = self.devices.host_values(conversion.named_weights(self.model))
        number = self.step if self.optimizer else 0
        for value in state.values():
            number = zlib.crc32(np.asarray(value).tobytes(), number)
        return number

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
        deadline: Deadline | None = None,
    ) -> bool:
        """Trains up to a given step and saves checkpoints; returns whether the run is complete.

        Training continues while a checkpoint is written, but never ends before it is complete.
        SIGINT and SIGTERM end the training early, after a checkpoint. If there is nothing to save,
        they end the process with exit code 0.

        Args:
          source: Makes a host's dataset, from the Trainer's current step.
          progress: Receives a report of every loop.
          num_train_steps: The step to train up to.
          steps_per_loop: Maximum number of steps per on-device loop.
          save_steps: Steps between checkpoints.
          keep_max: Number of checkpoints to keep; 0 keeps all.
          after_save: Called after each checkpoint, unless a signal asked for it; True ends the
            training. It may change weights, moments and step if it restores that checkpoint.
          deadline: Decides when the decay of a timed run begins, and thereby its last step.

        Raises:
          NonFiniteLossError: If a loss becomes NaN or infinite. Nothing is saved then.
        """
        step = saved = self.step
        if step >= num_train_steps:
            logging.info("already trained for %d of %d steps", step, num_train_steps)
            return True
        iterators = StepIterators(self.devices, source, step, num_train_steps)
        is_over = is_stopped = False
        step_seconds: collections.deque[float] = collections.deque(maxlen=_LOOPS_REMEMBERED)
        stop, ended = num_train_steps, time.monotonic()
        if deadline:
            deadline.used = self._seconds
        with StopSignals() as signals, self._writer, progress:
            while not (is_over or is_stopped):
                # Plan a loop up to the next checkpoint, but only a few seconds long. The first step
                # of each length runs alone: its time is mostly compilation.
                count = min(steps_per_loop, save_steps - step % save_steps, stop - step)
                quick = int(_LOOP_SECONDS / max(step_seconds)) if step_seconds else 1
                known = iterators.count_known(step, min(count, max(1, quick)))
                count, compiled = max(1, known), not known

                # Run it.
                start = time.monotonic()
                stats = self._train_runs(iterators.runs(step, count))
                signals.set_unsaved(True)
                ended, since = time.monotonic(), ended

                # All workers use the same times, and all stop if a signal reached any of them.
                # Otherwise some would wait for the others forever.
                seconds, passed, told = self.devices.mean_over_processes(
                    (ended - start) / count, ended - since, float(signals.requested is not None)
                )
                is_stopped = told > 0

                # Raise if a checkpoint could not be written or a loss is not finite, before
                # anything else is saved.
                self._writer.check()
                self._check_finite(stats, step, saved)
                step += count
                # Report the loop; a timed run's last step is an estimate until its decay begins.
                if deadline:
                    deadline.add(count, passed, compiled)
                    stop, progress.num_train_steps = deadline.decay(step)
                progress.report(step, self._by_name(stats.mean(0)), seconds, compiled)
                if not compiled:
                    step_seconds.append(seconds)

                # When its decay begins, a timed run becomes one of a fixed number of steps.
                if deadline and stop == step:
                    stop = num_train_steps = progress.num_train_steps
                    self.optimizer.learning_rate = deadline.settle(step, stop)
                    self._train_runs = self.devices.train_steps(*self._step_parts)
                    iterators.known.clear()
                    deadline = None

                # Save, and evaluate what was saved.
                is_over = step >= num_train_steps
                if step % save_steps == 0 or is_over or is_stopped:
                    self.save(keep_max, deadline)
                    saved = step
                    if after_save and not is_stopped:
                        self.wait_until_saved()
                        signals.set_unsaved(False)
                        is_over = after_save() or is_over
                        signals.set_unsaved(True)
            self.wait_until_saved()
            # From here on a signal ends the process, unless an earlier one asked to stop.
            signals.set_unsaved(is_stopped)
        if is_stopped:
            # This holds even after the last step: the next start evaluates and exports.
            logging.info("stopped at step %d: the same command resumes from there", step)
        return not is_stopped

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

    def save(self, keep_max: int, deadline: Deadline | None = None) -> None:
        """Starts to write a checkpoint of the run's state; see `wait_until_saved`.

        It holds the weights under the release's names, the optimizer's variables under the names
        of `_slots`, such as `<weight>/adam_m`, and the number of updates, `global_step`. Before
        the decay of a timed run it also holds the seconds used.

        The devices wait only until the previous checkpoint is written and the state is copied to
        the host. If writing fails, a later call raises the error.
        """
        self._writer.wait()  # Before the copy, so that the host holds only one state.
        named = conversion.named_weights(self.model)
        state = {**named, **_slots(self.optimizer, named), _STEP: np.int64(self.step)}
        if deadline:
            state[_SECONDS] = np.float64(deadline.used)
        tensors = self.devices.host_values(state)
        if self.devices.is_chief:
            self._writer.start(self.step, tensors, keep_max)

    def wait_until_saved(self) -> None:
        """Waits, on all workers, until the chief has written its checkpoint."""
        self._writer.wait()
        self.devices.wait_for_all()

    def restore(self, prefix: str) -> int:
        """Restores a checkpoint of this task's model, written by a Trainer or by the release.

        Returns:
          The checkpoint's step. The optimizer gets its variables and the step. Without an optimizer
          only the weights are restored; if the classes stored beside the checkpoint are in another
          order than the task's, the classifier's rows are put into the task's order.
        """
        stored = checkpoint.read(prefix)
        # Weights, strictly by name.
        slots = {}
        if self.optimizer:
            slots = _slots(self.optimizer, conversion.named_weights(self.model))
        else:  # Not for training: the rows of slots would have to move as well.
            stored = labels.in_order(prefix, stored, self.task.classes, leave_others=False)
        report = conversion.load_tensors(self.model, prefix, stored)
        # If another optimizer saved the checkpoint, it has other variables of the same weights.
        others = {name.rpartition("/")[0] for name in stored if name not in slots}
        fresh = {n for n in slots if n not in stored and n.rpartition("/")[0] in others}
        slots = {name: slot for name, slot in slots.items() if name not in fresh}
        missing = [*report.missing, *(name for name in (*slots, _STEP) if name not in stored)]
        if missing:
            raise ValueError(
                f"checkpoint {prefix} lacks {len(missing)} variables, as {missing[0]}: no such run "
                "saved it; give another `output_dir`, and start from it with `init_checkpoint`"
            )
        if fresh:
            text = "%s is another optimizer's: %d variables begin at 0, as %s"
            logging.warning(text, prefix, len(fresh), min(fresh))
        # The optimizer's variables, the step, and the seconds of a timed run.
        found = arrays.as_float32({name: stored[name] for name in slots}, prefix)
        for name, slot in slots.items():
            slot.assign(found[name])
        step = int(stored[_STEP])
        self._seconds = float(stored.get(_SECONDS, 0.0))
        if self.optimizer:
            self.optimizer.iterations.assign(step)
        return step

    def evaluate(self, *input_fns: InputFn) -> dict[str, float]:
        """Returns the task's metrics over a whole dataset, by name, and their total `loss`.

        Each function makes a host's finite dataset of a part of the data. A metric of weight 0,
        for example if no piece is masked, is 0.
        """
        # Sum over all batches, then divide by the weights.
        totals: dict[str, np.ndarray] = {}
        for input_fn in input_fns:
            for batch in bar(self.devices.batches(input_fn)):
                for name, value in self._metrics(batch).items():
                    totals[name] = totals.get(name, 0.0) + value.astype(np.float64)
        results = {
            name: float(value[0] / value[1]) if value[1] else 0.0 for name, value in totals.items()
        }
        losses = [value for name, value in results.items() if name.endswith("_loss")]
        return {"loss": sum(losses), **results}

    def _metric_pairs(self, features: Features) -> dict[str, Array]:
        """Returns sum and weight of each metric, `<float32>[2]`."""
        features = self.task.with_drawn(features, self._seed, None)
        metrics = self.task.metrics(self.model(features, training=False), features)
        return {name: ops.stack(pair) for name, pair in metrics.items()}


# --- the input of each step -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InputByLength:
    """Batches of several lengths, and the length of each step.

    A step is compiled once for each shape, so each length has its own dataset, and the host picks
    one. Where shapes need not be static, one number may stand for several lengths.

    Attributes:
      input_fns: Maps a length to a function that makes a host's dataset of the batches of that
        length, in step order, from the Trainer's current step.
      lengths: `<int>[T]`, the length at each step of the run, from step 0.
    """

    input_fns: Mapping[int, InputFn]
    lengths: np.ndarray


class StepIterators:
    """Splits the steps from `first_step` on into runs of batches of one length."""

    def __init__(
        self, devices: Devices, source: InputFn | InputByLength, first_step: int, num_steps: int
    ) -> None:
        if callable(source):
            # A broadcast array: one number in memory, whatever the number of steps.
            source = InputByLength({0: source}, np.broadcast_to(0, num_steps))
            lengths = [0]
        else:
            lengths = np.unique(source.lengths[first_step:num_steps]).tolist()
        self._lengths = source.lengths
        self._iterators = {length: devices.iterator(source.input_fns[length]) for length in lengths}
        self.known: set[int] = set()  # Lengths for which a step has been compiled.

    def count_known(self, step: int, most: int) -> int:
        """Counts the steps from a step on, at most `most`, whose lengths have been compiled."""
        lengths = self._lengths[step : step + most].tolist()
        return next((i for i, each in enumerate(lengths) if each not in self.known), most)

    def runs(self, step: int, count: int) -> Iterator[Run]:
        """Yields the runs of `count` steps: an iterator, and the steps to take from it."""
        lengths = self._lengths[step : step + count]
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), count]
        self.known |= set(lengths.tolist())
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield self._iterators[int(lengths[start])], end - start


# --- the optimizer in a checkpoint, and the thread that writes checkpoints ----------------------

_STEP = "global_step"
_SECONDS = f"{names.OPTIMIZER}seconds"


def _slots(
    optimizer: keras.optimizers.Optimizer, named: Mapping[str, keras.Variable]
) -> dict[str, keras.Variable]:
    """Returns an optimizer's variables by their names in a checkpoint.

    A weight's variable is `<weight>/<slot>`, such as output_bias/adam_m; any other is
    `optimizer/<its number>`. The step is stored separately, and the learning rate is a setting.
    """
    # Keras names a variable after the weight's path: dense_kernel_adam_m for dense/kernel.
    weights = {variable.path.replace("/", "_"): name for name, variable in named.items()}
    slots = {}
    for number, variable in enumerate(optimizer.variables):
        if variable.name in ("iteration", "learning_rate"):
            continue
        words = variable.name.split("_")
        # The weight with the longest matching name.
        of_weight = ["_".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
        owner = next((name for name in of_weight if name in weights), None)
        if owner:
            slots[f"{weights[owner]}/{variable.name.removeprefix(owner + '_')}"] = variable
        else:
            # Not by name: Keras numbers unnamed variables across the whole process.
            slots[f"{names.OPTIMIZER}{number}"] = variable
    return slots


class CheckpointWriter:
    """Writes one checkpoint at a time, in a thread.

    If writing fails, the next call of `check` or `wait` raises the error. A `with` statement always
    waits for its last checkpoint.
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
        """Starts to write a checkpoint; call `wait` first.

        Args: see checkpoint.save; nothing may change the tensors afterwards.
        """
        self._started = self._thread.submit(self._write, step, tensors, keep_max)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written."""
        if self._started and self._started.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the checkpoint is written and listed; raises the error if that fails."""
        started, self._started = self._started, None
        if started:
            started.result()

    def _write(self, step: int, tensors: Mapping[str, Any], keep_max: int) -> None:
        logging.info("saved %s", checkpoint.save(self._directory, step, tensors, keep_max))
