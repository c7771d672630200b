"""Measures how long training waits for a checkpoint: of weights and LAMB's two moments.

    python benchmarks/checkpoints.py
    KERAS_BACKEND=jax python benchmarks/checkpoints.py --models base_v2 xxlarge_v2

`copied`: the state is on the host, and the next step begins. `written`: the files are complete,
for which only the next checkpoint, an evaluation or the end waits. No steps run meanwhile. On a CPU
nothing is copied before the next step, whose results then need memory of their own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import keras
from base_model import CONFIGS
from contestants import LEARNING_RATE
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.devices import Devices
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.trainer import Trainer


def measure(model: str, directory: str, rounds: int) -> tuple[list[float], list[float], int]:
    """Returns the seconds until the state is copied and until it is written, and the bytes."""

    def make_optimizer() -> keras.optimizers.Optimizer:
        return create_optimizer(LEARNING_RATE, 1_000_000, 0, "lamb")

    config = AlbertConfig.from_json_file(str(CONFIGS / f"albert_{model}.json"))
    trainer = Trainer(PretrainingTask(config), _devices(), directory, make_optimizer)
    copied, written = [], []
    for _ in range(rounds):
        _renew(trainer)
        start = time.perf_counter()
        trainer.save(keep_max=1)
        copied.append(time.perf_counter() - start)
        trainer.wait_until_saved()
        written.append(time.perf_counter() - start)
    return copied, written, next(Path(directory).glob("*.data-*")).stat().st_size


def _renew(trainer: Trainer) -> None:
    """Gives each variable a new array, as a step does: JAX keeps copies of those it has fetched."""
    variables = [*trainer.model.variables, *trainer.optimizer.variables]
    for variable in variables:
        variable.assign(ops.copy(variable.value))
    if keras.backend.backend() == "jax":
        import jax

        jax.block_until_ready([variable.value for variable in variables])


def _devices() -> Devices:
    if keras.backend.backend() == "jax":
        from albert_tf.training.jax_devices import JaxDevices

        return JaxDevices()
    from albert_tf.training import tensorflow_devices
    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    return TensorFlowDevices(tensorflow_devices.create_strategy())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["base_v2"], help="configs/albert_*.json")
    parser.add_argument("--directory", help="where to write; a temporary one by default")
    parser.add_argument("--rounds", type=int, default=7, help="checkpoints; medians are printed")
    args = parser.parse_args(arguments)
    print(f"{'':11} {'MB':>7} {'copied':>9} {'written':>9} {'written / copied':>17}")
    for model in args.models:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            *seconds, size = measure(model, directory, args.rounds)
        copied, written = map(statistics.median, seconds)
        print(
            f"{model:<11} {size / 1e6:7,.0f} {copied:7.4f} s {written:7.3f} s"
            f" {written / copied:17.1f}"
        )


if __name__ == "__main__":
    main()
