"""Measures the cost of depth: tracing, compiling, program size, memory, step time.

    python benchmarks/depth.py
    python benchmarks/depth.py --layers 3 24 48 --forms loop --run

Sizes are ALBERT-base's, dropout included. Each line is measured in its own process, where XLA
compiles forward and backward pass for this CPU; instructions and memory are XLA's figures for the
program before and after its optimisations. `unrolled` applies the layers one by one, as a Python
loop does, whatever the model would choose. `--run` adds the time of a step without XLA (the
Trainer's default on a CPU), the two forms alternating.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workers import in_process

FORMS = ("loop", "unrolled")
SHAPE = "4x128"
ROUNDS = 7


def compile_one(layers: int, form: str, recompute: bool) -> dict[str, Any]:
    """Compiles a step in this process and returns its figures."""
    with tempfile.TemporaryDirectory() as dump:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump} --xla_dump_hlo_module_re=.*micro_step.*"
        step, trace_seconds = _make_step(layers, form, recompute, jit_compile=True)
        traced = time.perf_counter()
        step().numpy()
        compiled = time.perf_counter()
        step().numpy()
        ran = time.perf_counter()
        (before,) = Path(dump).glob("*before_optimizations.txt")
        (report,) = Path(dump).glob("*memory-usage-report.txt")
        return {
            "trace_seconds": trace_seconds,
            # The first step compiles and runs.
            "compile_seconds": (compiled - traced) - (ran - compiled),
            "instructions": len(re.findall(r"^\s+(?:ROOT )?\S+ = ", before.read_text(), re.M)),
            "bytes": int(re.search(r"Total bytes used: (\d+)", report.read_text())[1]),
        }


def run_in_turns(layers: int, recompute: bool) -> dict[str, float]:
    """Returns, by form, the median seconds of a step without XLA."""
    steps = {form: _make_step(layers, form, recompute, jit_compile=False)[0] for form in FORMS}
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for step in steps.values():
        step()
        step()
    for _ in range(ROUNDS):
        for form, step in steps.items():
            start = time.perf_counter()
            step().numpy()
            seconds[form].append(time.perf_counter() - start)
    return {form: statistics.median(values) for form, values in seconds.items()}


def _make_step(
    layers: int, form: str, recompute: bool, jit_compile: bool
) -> tuple[Callable[[], Any], float]:
    """Returns a step, and how many seconds its tracing took."""
    import tensorflow as tf
    from base_model import CONFIG_FILE
    from step_time import synthetic_batch

    from albert_tf.config import AlbertConfig
    from albert_tf.inspection.costs import Shape
    from albert_tf.model import encoder
    from albert_tf.tasks.pretraining import PretrainingTask
    from albert_tf.training.devices import StepSettings
    from albert_tf.training.optimizers import create_optimizer
    from albert_tf.training.tensorflow_devices import TrainStep

    config = dataclasses.replace(
        AlbertConfig.from_json_file(str(CONFIG_FILE)),
        num_hidden_layers=layers,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    task = PretrainingTask(config, recompute=recompute)
    model = task.build_model()
    optimizer = create_optimizer(1e-4, 1000, 0)
    optimizer.build(model.trainable_variables)
    train_step = TrainStep(task, model, optimizer, StepSettings(jit_compile=jit_compile))
    batch = synthetic_batch(Shape(*map(int, SHAPE.split("x"))), config.vocab_size)
    features = {name: tf.constant(value) for name, value in batch.items()}
    step = tf.function(lambda: train_step(features))
    encoder.MOST_UNROLLED_LAYERS = layers if form == "unrolled" else 0
    start = time.perf_counter()
    step.get_concrete_function()
    return step, time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each number of layers, form and recomputation setting."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", nargs="+", type=int, default=[3, 24, 48])
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--run", action="store_true", help="also measure steps")
    args = parser.parse_args(arguments)
    print(f"{SHAPE}, float32\n{'layers':>6} {'form':<9} {'recompute':<9}", end="")
    print(f" {'trace':>7} {'compile':>8} {'instructions':>12} {'memory':>9}", flush=True)
    for layers in args.layers:
        for recompute in (False, True):
            for form in args.forms:
                figures = in_process(
                    "depth.compile_one", layers, form, recompute, backend="tensorflow"
                )
                print(
                    f"{layers:6} {form:<9} {'yes' if recompute else 'no':<9}"
                    f" {figures['trace_seconds']:5.1f} s {figures['compile_seconds']:6.1f} s"
                    f" {figures['instructions']:12,} {figures['bytes'] / 2**20:5.0f} MiB",
                    flush=True,
                )
            if args.run:
                seconds = in_process("depth.run_in_turns", layers, recompute, backend="tensorflow")
                told = ", ".join(f"{form} {value:.3f} s" for form, value in seconds.items())
                print(f"{layers:6} one step, not compiled: {told}", flush=True)


if __name__ == "__main__":
    main()
