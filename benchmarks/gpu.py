"""Measures training on a GPU, side by side with Hugging Face's, and prints one Markdown table.

    python benchmarks/gpu.py --minutes 8
    python benchmarks/gpu.py --input_file=text.txt --spm_model_file=30k-clean.model

Each line is a process of its own, which makes runs of steps as the Trainer makes them on JAX, or
steps of Hugging Face's AlbertForPreTraining on torch (SDPA, fused AdamW, autocast). A step is
forward, backward, clip to a global norm of 1 and AdamW, dropout as in the config, on one batch.
Theirs scores all positions, ours the predicted ones; MFU counts for both what the model needs. Then
come losses of ten steps beside those of the CPU, where a step's time goes, and, with a text and a
vocabulary, the scripts. Only these need TensorFlow. What no longer fits in the minutes is left out.
Without a GPU it runs on the CPU, which only shows that it runs.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import contestants
from base_model import CONFIGS
from workers import ROOT, generate, in_process

from albert_tf.inspection.costs import Shape

# Model and shapes (examples x tokens x predictions), the most telling first; v1 has dropout.
SIZES = {
    "base_v2": ("64x512x77", "256x128x20"),
    "base_v1": ("64x512x77",),
    "large_v2": ("32x512x77", "128x128x20"),
    "xxlarge_v2": ("8x512x77", "32x128x20"),
}
# Peak dense bfloat16 TFLOP/s from the vendor's data sheets, by device name.
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
OURS, PLAIN = "albert_tf", "albert_tf, by XLA alone"
COMPILED, EAGER = "Hugging Face, torch.compile", "Hugging Face, eager"
# Kernels by what their names contain.
KERNELS = {
    "attention": r"sdpa|cudnn|mha|flash",
    "matrix products": r"gemm|nvjet|cublas|cutlass",
    "chains in one kernel": r"add_and_norm|biased_gelu",
    "other chains": r"fusion",
}


def steps_of(name: str, model: str, shape: Shape) -> tuple[Callable[[int], Any], str]:
    """Returns what makes so many steps, and the device's name."""
    config_file = CONFIGS / f"albert_{model}.json"
    if name in (OURS, PLAIN):
        import jax

        from albert_tf.model import jax_ops

        if name == PLAIN:
            jax_ops.on_nvidia = lambda: False
        run = contestants.albert_tf_on_jax(shape, "bfloat16", config_file)
        return run, jax.devices()[0].device_kind
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {"config_file": config_file, "attn_implementation": "sdpa"}
    step = contestants.hugging_face(shape, "bfloat16", name == COMPILED, device, **options)
    kind = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return lambda count: [step() for _ in range(count)], kind


def measure(name: str, model: str, size: str, steps: int) -> dict[str, Any]:
    """Returns a contestant's figures, measured in this process."""
    run, device = steps_of(name, model, _shape(size))
    start = time.perf_counter()
    run(2)
    ready = time.perf_counter() - start
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run(steps)
        seconds.append((time.perf_counter() - start) / steps)
    figures = {"seconds": statistics.median(seconds), "ready": ready, "device": device}
    return {**figures, "bytes": _peak_bytes(name)}


def _peak_bytes(name: str) -> int:
    if name in (OURS, PLAIN):
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def compare(dtype: str, size: str) -> str:
    """Says how far losses of ten steps of base are from those of the CPU in float32."""
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    losses = []
    for device, its_dtype in ((jax.devices()[0], dtype), (jax.devices("cpu")[0], "float32")):
        run = contestants.albert_tf_on_jax(_shape(size), its_dtype, device=device)
        losses.append([run(1) for _ in range(10)])
    differences = [abs(a - b) for a, b in zip(*losses, strict=True)]
    return f"{differences[0]:.1e} in the first step, at most {max(differences):.1e} in ten"


def kernels(model: str, size: str) -> str:
    """Says where the time of a step goes, by the profiler."""
    import jax

    run, _ = steps_of(OURS, model, _shape(size))
    run(2)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(2)
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    times: collections.Counter[str] = collections.Counter()
    streams = [line for plane in planes if "GPU" in plane.name for line in plane.lines]
    for event in (e for line in streams if line.name.startswith("Stream") for e in line.events):
        kinds = (kind for kind, names in KERNELS.items() if re.search(names, event.name.lower()))
        times[next(kinds, "other")] += event.duration_ns / 2e6
    total = sum(times.values())
    shares = (f"{kind} {ms:.1f} ms ({ms / total:.0%})" for kind, ms in times.most_common())
    return ", ".join(shares) or "no GPU"


def scripts(folder: str, args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields runs of the scripts from end to end: what each is, and what it says when it ran."""
    config = CONFIGS / f"albert_{args.models[0]}.json"
    shape = _shape(args.shapes[0] if args.shapes else SIZES[args.models[0]][0])
    both = {
        "albert_config_file": config,
        "max_seq_length": shape.seq,
        "train_batch_size": shape.batch,
        "precision": "bfloat16",
        "iterations_per_loop": args.steps,
    }

    def pretrain(masking: str) -> str:
        records = os.path.join(folder, f"{masking}.tfrecord")
        sizes = {"max_seq_length": shape.seq, "masking": masking, "dupe_factor": 1}
        if masking == "static":
            sizes["max_predictions_per_seq"] = shape.predictions
        generate(args.input_file, records, spm_model_file=args.spm_model_file, **sizes)
        flags = {
            "input_file": records,
            "masking": masking,
            "num_train_steps": 10 * args.steps,
            **both,
        }
        flags["max_predictions_per_seq"] = shape.predictions
        return _rate("run_pretraining.py", os.path.join(folder, masking), flags)

    def finetune() -> str:
        with open(args.input_file) as lines, open(os.path.join(folder, "t.tsv"), "w") as table:
            texts = (line.strip().replace("\t", " ") for line in lines if line.strip())
            table.write("text\tlabel\n")
            for number, text in enumerate(itertools.islice(texts, 10 * args.steps * shape.batch)):
                table.write(f"{text}\t{number % 2}\n")
        flags = {
            "task_name": "classification",
            "train_file": table.name,
            "train_step": 10 * args.steps,
        }
        flags |= {"spm_model_file": args.spm_model_file, "text_column": "text", **both}
        return _rate("run_finetune.py", os.path.join(folder, "tuned"), flags, "--from_scratch")

    for masking in ("static", "dynamic"):
        yield f"pre-training, {masking} masks", functools.partial(pretrain, masking)
    yield "fine-tuning", finetune


def _rate(script: str, output_dir: str, flags: dict[str, Any], *more: str) -> str:
    flags = {"backend": "jax", "output_dir": output_dir, **flags}
    command = [sys.executable, str(ROOT / script), "--do_train", *more]
    command += [f"--{name}={value}" for name, value in flags.items()]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {done.stderr.splitlines()[-1]}"
    rates = re.findall(r"([\d,.]+) examples/s", done.stderr)
    return f"{rates[-1]} examples/s at its end, {time.perf_counter() - start:.0f} s in all"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop")
    parser.add_argument(
        "--models", nargs="+", default=SIZES, help="models, by their name in configs/albert_*.json"
    )
    parser.add_argument("--shapes", nargs="+", help="examples x tokens x predictions")
    parser.add_argument("--steps", type=int, default=20, help="number of steps of a run")
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    parser.add_argument("--input_file", help="text, for the scripts")
    parser.add_argument("--spm_model_file", help="vocabulary, for the scripts")
    args = parser.parse_args(arguments)
    end, longest = time.monotonic() + 60 * args.minutes, 0.0

    def fits(name: str) -> bool:
        """Whether a line is asked for, and as much time is left as the longest has taken."""
        if args.only not in name:
            return False
        if time.monotonic() + longest > end:
            print(f"left out: {name}", file=sys.stderr)
            return False
        return True

    print("| contestant | model | shape | tokens/s | MFU | memory | first steps |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    notes, device = [], ""
    for model in args.models:
        for size, name in itertools.product(
            args.shapes or SIZES.get(model, SIZES["base_v2"]), (OURS, COMPILED, PLAIN, EAGER)
        ):
            if fits(name):
                start = time.monotonic()
                figures = in_process("gpu.measure", name, model, size, args.steps, backend="jax")
                longest, device = max(longest, time.monotonic() - start), figures["device"]
                print(f"| {name} | {model} | {size} | {_row(model, _shape(size), figures)} |")
                sys.stdout.flush()
    if device:
        notes.append(f"- on {device}")
    of_ours: list[tuple[str, str, Any]] = [
        (f"{dtype} beside the CPU's float32", "gpu.compare", (dtype, "8x128x20"))
        for dtype in ("float32", "bfloat16")
    ]
    of_ours += [
        (f"a step of {model}, {size}", "gpu.kernels", (model, size))
        for model, sizes in SIZES.items()
        for size in sizes[:1]
    ]
    for name, function, given in of_ours if not args.shapes else ():
        if fits(name):
            notes.append(f"- {name}: {in_process(function, *given, backend='jax')}")
    if args.input_file and args.spm_model_file:
        with tempfile.TemporaryDirectory() as folder:
            notes += [f"- {name}: {run()}" for name, run in scripts(folder, args) if fits(name)]
    print("\n".join(["", *notes]))


def _shape(size: str) -> Shape:
    return Shape(*map(int, size.split("x")))


def _row(model: str, shape: Shape, figures: dict[str, Any]) -> str:
    seconds, device = figures["seconds"], figures["device"]
    peak = next((value for key, value in PEAKS.items() if key in device), None)
    rate = contestants.step_gflop(shape, CONFIGS / f"albert_{model}.json") / seconds / 1000
    mfu = f"{rate / peak:.1%}" if peak else "-"
    memory = f"{figures['bytes'] / 2**30:.1f} GiB" if figures["bytes"] else "-"
    return f"{shape.tokens / seconds:,.0f} | {mfu} | {memory} | {figures['ready']:.0f} s"


if __name__ == "__main__":
    main()
