"""Measures pre-training steps on a GPU in bfloat16, side by side with Hugging Face's.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --models base_v2 --shapes 64x128x20 16x512x77

This project's contestant is the step that the Trainer runs on JAX; Hugging Face's
AlbertForPreTraining runs on torch (compiled, SDPA, fused AdamW); each in its own process, one after
the other, on one batch. A step is forward, backward, clip to a global norm of 1 and AdamW, dropout
as in the config. Theirs scores all positions, ours the predicted ones; MFU counts for both what the
model needs. Without a GPU it runs on the CPU, which only shows that it runs: it was written without
access to a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import contestants
from base_model import CONFIGS
from workers import in_process

from albert_tf.inspection.costs import Shape

MODELS = ("base_v2", "large_v2", "xxlarge_v2")
SHAPES = ("64x128x20", "16x512x77")
# Peak dense bfloat16 TFLOP/s from the vendor's data sheets, by device name.
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
WARM_UP_STEPS = 3

Step = Callable[[], float]


def albert_tf(model: str, shape: Shape) -> tuple[Step, Callable[[], int], str]:
    """This project on JAX: a step, its peak memory in bytes, the device's name."""
    import jax

    step = contestants.albert_tf_on_jax(shape, "bfloat16", CONFIGS / f"albert_{model}.json")
    device = jax.devices()[0]

    def peak() -> int:
        return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)

    return step, peak, device.device_kind


def hugging_face(model: str, shape: Shape) -> tuple[Step, Callable[[], int], str]:
    """Hugging Face's model with its own loss; returns the same as albert_tf()."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {"config_file": CONFIGS / f"albert_{model}.json", "attn_implementation": "sdpa"}
    step = contestants.hugging_face(shape, "bfloat16", True, device, **options)
    if device == "cpu":
        return step, lambda: 0, "cpu"
    return step, torch.cuda.max_memory_allocated, torch.cuda.get_device_name()


CONTESTANTS = {"albert_tf, JAX": albert_tf, "Hugging Face, torch.compile": hugging_face}


def measure(name: str, model: str, size: str, steps: int) -> dict[str, Any]:
    """Returns a contestant's figures, measured in this process."""
    step, peak, device = CONTESTANTS[name](model, _shape(size))
    start = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        step()
    ready = time.perf_counter() - start
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    figures = {"seconds": statistics.median(seconds), "ready": ready}
    return {**figures, "bytes": peak(), "device": device}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each model, shape and contestant."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models", nargs="+", default=MODELS, help="models, by their name in configs/albert_*.json"
    )
    parser.add_argument(
        "--shapes", nargs="+", default=SHAPES, help="examples x tokens x predictions"
    )
    parser.add_argument("--steps", type=int, default=20, help="number of measured steps")
    parser.add_argument("--only", default="", help="only contestants whose name contains this")
    args = parser.parse_args(arguments)
    print(f"{'':46} {'examples/s':>10} {'tokens/s':>9} {'MFU':>5} {'memory':>9} {'first':>7}")
    for model in args.models:
        for size in args.shapes:
            shape = _shape(size)
            for name in CONTESTANTS:
                if args.only in name:
                    figures = in_process(
                        "gpu.measure", name, model, size, args.steps, backend="jax"
                    )
                    print(f"{model:<11} {size:<10} {name:<28} {_row(model, shape, figures)}")


def _shape(size: str) -> Shape:
    return Shape(*map(int, size.split("x")))


def _row(model: str, shape: Shape, figures: dict[str, Any]) -> str:
    seconds, device = figures["seconds"], figures["device"]
    peak = next((value for key, value in PEAKS.items() if key in device), None)
    rate = contestants.step_gflop(shape, CONFIGS / f"albert_{model}.json") / seconds / 1000
    mfu = f"{rate / peak:5.0%}" if peak else f"{'':>5}"
    return (
        f"{shape.batch / seconds:7.1f} {shape.tokens / seconds:9.0f} {mfu}"
        f" {figures['bytes'] / 2**30:5.1f} GiB {figures['ready']:5.0f} s  {device}"
    )


if __name__ == "__main__":
    main()
