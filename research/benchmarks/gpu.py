"""Measures training on a GPU, side by side with Hugging Face's, and prints one Markdown table.

    python research/benchmarks/gpu.py --minutes 8
    python research/benchmarks/gpu.py --input_file=text.txt --spm_model_file=30k-clean.model

Each line is a process of its own, which makes runs of steps as the Trainer makes them on JAX, or
steps of Hugging Face's AlbertForPreTraining on torch (SDPA, fused AdamW, autocast). A step is
forward, backward, clip to a global norm of 1 and AdamW, dropout as in the config, on one batch.
Theirs scores all positions, ours the predicted ones; MFU counts for both what the model needs.
Other lines compare the losses of ten steps with the CPU's, break down a step's time, and, with a
text and a vocabulary, run the scripts from end to end; only these need TensorFlow. The first minute
is spent on the decisive question, whether attention and kernels run. The last two rows are for
README's table of states: what is confirmed, and what is not.

The most telling lines come first. A line that is expected to take longer than the minutes left is
left out; one that takes three times as long as expected is ended. Without a GPU it runs on the CPU,
which only shows that it runs. --rehearse, on a CPU, runs all of our lines, except that JAX is told
that it has an H100, and only lowers for CUDA what would run there.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
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
from typing import Any, NamedTuple

import contestants
import numpy as np
from base_model import CONFIGS
from workers import ROOT, generate, in_process

from albert_tf.inspection.costs import Shape

# Models and shapes (examples x tokens x predictions); v1 has dropout.
SIZES = {
    "base_v2": ("64x512x77", "256x128x20"),
    "base_v1": ("64x512x77",),
    "large_v2": ("32x512x77", "128x128x20"),
    "xxlarge_v2": ("8x512x77", "32x128x20"),
}
# Peak dense bfloat16 TFLOP/s from the vendor's data sheets, by device name.
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
OURS, ATTENDS, PLAIN = "albert_tf", "albert_tf, without Triton", "albert_tf, by XLA alone"
KERNELS = {OURS: "attention,elementwise", ATTENDS: "attention", PLAIN: "off"}
COMPILED, EAGER = "Hugging Face, torch.compile", "Hugging Face, eager"
BESIDE_CPU = {dtype: f"albert_tf, {dtype}, beside the CPU" for dtype in ("bfloat16", "float32")}
# Decisive checks: do these run, forward and backward, with the numbers of XLA in float32?
ATTENTION, CHAINS = "cuDNN's attention", "both kernels"
FACTS = {ATTENTION: [(length, "bfloat16") for length in (64, 512, 128, 63, 81)]}
FACTS[CHAINS] = [(512, "float32"), (512, "bfloat16")]
WHERE_TIME_GOES = "albert_tf, where a step's time goes"
SCRIPTS = {
    "dynamic": "run_pretraining.py, dynamic masks",
    "static": "run_pretraining.py, static masks",
    "tuned": "run_finetune.py",
}
# Seconds: for all facts, for one of them, and for a line, by how its name begins: expected for its
# whole process on an H100 with 16 CPU cores, where most of it is compiling.
FACTS_TAKE, FACT_TAKES = 75.0, 10.0
EXPECTED = {PLAIN: 60.0, WHERE_TIME_GOES: 75.0, COMPILED: 75.0, EAGER: 45.0, "run_": 90.0}
EXPECTED |= dict.fromkeys(BESIDE_CPU.values(), 75.0) | {OURS: 60.0, ATTENDS: 60.0}
# Limits above rounding errors: relative to the largest value, and absolute for losses near 10.
NEAR = {"float32": 1e-4, "bfloat16": 2**-5}
NEAR_LOSS = {"float32": 1e-3, "bfloat16": 0.05}
LOWERS, ON_A_CPU = "lowers for CUDA", "a CPU, as lowered for CUDA"
# Kinds of kernels, by what their names contain.
KINDS = {
    "attention": r"sdpa|cudnn|mha|flash",
    "matrix products": r"gemm|nvjet|cublas|cutlass",
    "chains in one kernel": r"add_and_norm|biased_gelu",
    "other chains": r"fusion",
}


def steps_of(name: str, model: str, shape: Shape) -> tuple[Callable[[int], Any], str]:
    """Returns a function that makes a number of steps, and the device's name."""
    config_file = CONFIGS / f"albert_{model}.json"
    if name in KERNELS:
        import jax

        os.environ["ALBERT_KERNELS"] = KERNELS[name]
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
    if name in KERNELS:
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def facts(name: str, seconds: float) -> tuple[str, list[tuple[str, str]]]:
    """Returns the device and, for each try, its difference to XLA in float32 or why it failed.

    At lengths that are no multiple of 8 the library leaves attention to XLA.
    """
    import jax

    found, end = [], time.monotonic() + seconds
    for length, dtype in FACTS[name]:
        if time.monotonic() > end:
            note = "left out: no time is left"
        else:
            try:
                far = _difference(name, length, dtype)
                note = f"{'' if far <= NEAR[dtype] else 'failed: '}within {far:.1e} of float32"
            except Exception as error:
                note = "failed: " + _cause(f"{type(error).__name__}: {error}")
        found.append((f"{dtype}, length {length}", note))
    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}", found


def _difference(name: str, length: int, dtype: str) -> float:
    """Returns the largest difference in results and gradients, over the largest value."""
    import jax
    import jax.numpy as jnp

    from albert_tf.model import jax_ops, layers

    jax.config.update("jax_default_matmul_precision", "highest")
    rng = np.random.default_rng(3)
    x, y, upstream = (rng.standard_normal((2, length, 12, 64)) for _ in range(3))
    vectors = [rng.standard_normal(768) for _ in range(3)]
    allowed = np.arange(length) < np.array([length, length * 3 // 4]).reshape(2, 1, 1, 1)

    def attends(implementation: Any, x: Any, y: Any) -> Any:
        return jax_ops._attention_by(implementation, x, y, x + y, jnp.asarray(allowed))

    def chains(module: Any, x: Any, y: Any) -> Any:
        bias, gamma, beta = (jnp.asarray(vector, "float32") for vector in vectors)
        x, y = (each.reshape(2 * length, 768) for each in (x, y))
        seed = jnp.array([3, 5])
        z = module.add_and_norm(x, y, bias.astype(x.dtype), gamma, beta, rate=0.1, seed=seed)
        return module.biased_activation(z, bias.astype(x.dtype), name="gelu")

    def run(function: Any, of: Any, dtype: str) -> list[Any]:
        def both(x: Any, y: Any, upstream: Any) -> tuple[Any, ...]:
            result, back = jax.vjp(functools.partial(function, of), x, y)
            return result, *back(upstream.reshape(result.shape))

        inputs = [jnp.asarray(each, dtype) for each in (x, y, upstream)]
        return [np.asarray(each, np.float64) for each in _call(jax.jit(both), *inputs)]

    tried = run(attends, "cudnn", dtype) if name == ATTENTION else run(chains, jax_ops, dtype)
    os.environ["ALBERT_KERNELS"] = "off"
    plain = run(attends, "xla", "float32") if name == ATTENTION else run(chains, layers, "float32")
    del os.environ["ALBERT_KERNELS"]
    pairs = zip(tried, plain, strict=True)
    return float(np.max([np.abs(a - b).max() / np.abs(b).max() for a, b in pairs]))


def _call(function: Any, *inputs: Any) -> Any:
    return function(*inputs)


def compare(dtype: str, model: str, size: str) -> str:
    """Says how far the losses of ten steps are from those of the CPU in float32."""
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    losses = []
    for device, its_dtype in ((jax.devices()[0], dtype), (jax.devices("cpu")[0], "float32")):
        config_file = CONFIGS / f"albert_{model}.json"
        run = contestants.albert_tf_on_jax(_shape(size), its_dtype, config_file, device)
        losses.append([run(1) for _ in range(10)])
    differences = np.abs(np.subtract(*losses))
    failed = "" if differences.max() <= NEAR_LOSS[dtype] else "failed: "
    by = f"{differences[0]:.1e} in the first step, {differences.max():.1e} in ten"
    return f"{failed}losses differ by {by}"


def kernels(model: str, size: str) -> str:
    """Returns how a step's time divides among kinds of kernels, by the profiler."""
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
        kinds = (kind for kind, names in KINDS.items() if re.search(names, event.name.lower()))
        times[next(kinds, "other")] += event.duration_ns / 2e6
    total = sum(times.values())
    shares = (f"{kind} {ms:.1f} ms ({ms / total:.0%})" for kind, ms in times.most_common())
    return ", ".join(shares) or "no GPU"


def script(kind: str, model: str, size: str, seconds: float, args: argparse.Namespace) -> str:
    """Runs a script from end to end on JAX; returns its speed."""
    shape, end = _shape(size), time.monotonic() + seconds
    flags: dict[str, Any] = {
        "backend": "jax",
        "albert_config_file": CONFIGS / f"albert_{model}.json",
        "max_seq_length": shape.seq,
        "train_batch_size": shape.batch,
        "precision": "bfloat16",
        "iterations_per_loop": args.steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        records, output = os.path.join(folder, "records"), os.path.join(folder, "run")
        if kind == "tuned":
            table = os.path.join(folder, "texts.tsv")
            _write_table(args.input_file, table, 10 * args.steps * shape.batch)
            flags |= {"task_name": "classification", "text_column": "text", "train_file": table}
            flags |= {"train_step": 10 * args.steps, "spm_model_file": args.spm_model_file}
        else:
            sizes = {"max_seq_length": shape.seq, "masking": kind, "dupe_factor": 1}
            if kind == "static":
                sizes["max_predictions_per_seq"] = shape.predictions
            generate(args.input_file, records, spm_model_file=args.spm_model_file, **sizes)
            flags |= {"input_file": records, "masking": kind, "num_train_steps": 10 * args.steps}
            flags["max_predictions_per_seq"] = shape.predictions
        name = "run_finetune.py" if kind == "tuned" else "run_pretraining.py"
        command = [str(ROOT / name), "--do_train", f"--output_dir={output}"]
        command += ["--from_scratch"] if kind == "tuned" else []
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        start = time.perf_counter()
        lowers = ["-c", "import gpu_rehearsal, sys; gpu_rehearsal.run_script(*sys.argv[1:])"]
        done = subprocess.run(
            [sys.executable, *(lowers if args.rehearse else []), *command],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "research/benchmarks"),
                "KERAS_BACKEND": "jax",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1, end - time.monotonic()),
        )
    if done.returncode:
        sys.exit(done.stderr)
    if args.rehearse:
        return LOWERS
    rates = re.findall(r"([\d,.]+) examples/s", done.stderr)
    return f"{rates[-1]} examples/s at its end, {time.perf_counter() - start:.0f} s in all"


def _write_table(text: str, path: str, rows: int) -> None:
    """Writes a table of a text's first lines, with labels that nothing can predict."""
    with open(text, encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as table:
        table.write("text\tlabel\n")
        texts = (line.strip().replace("\t", " ") for line in lines if line.strip())
        for number, line in enumerate(itertools.islice(texts, rows)):
            table.write(f"{line}\t{number % 2}\n")


# --- the table ------------------------------------------------------------------------------


class Line(NamedTuple):
    """The name, model and shape of a line of the table."""

    name: str
    model: str
    size: str


def lines(models: Sequence[str], shapes: Sequence[str] | None) -> Iterator[Line]:
    """Yields the lines, the most telling first."""
    of_model = {model: shapes or SIZES.get(model, SIZES["base_v2"]) for model in models}
    first, *others = ([(model, size) for size in sizes] for model, sizes in of_model.items())
    # Is it correct? Then the first model beside Hugging Face's, and where its time goes.
    yield Line(BESIDE_CPU["float32"], *_small(first[0]))
    yield from (Line(name, *at) for at in first for name in (OURS, COMPILED, ATTENDS))
    yield Line(BESIDE_CPU["bfloat16"], *_small(first[0]))
    yield Line(WHERE_TIME_GOES, *first[0])
    yield Line(SCRIPTS["dynamic"], *first[0])
    # Then other models, and the rest.
    yield from (Line(OURS, *at) for at in itertools.chain(*others))
    yield Line(SCRIPTS["tuned"], *first[-1])
    yield from (Line(COMPILED, *at) for at in itertools.chain(*others))
    yield Line(SCRIPTS["static"], *first[0])
    yield from (Line(WHERE_TIME_GOES, *sizes[0]) for sizes in others)
    yield from (
        Line(name, *at) for name in (PLAIN, EAGER) for at in itertools.chain(first, *others)
    )


def _small(at: tuple[str, str]) -> tuple[str, str]:
    """Returns a model and its shape, made small enough for a CPU."""
    shape = _shape(at[1])
    sizes = min(shape.batch, 8), min(shape.seq, 128), min(shape.predictions, 20)
    return at[0], "x".join(map(str, sizes))


def print_facts(seconds: float, rehearses: bool) -> tuple[str, list[tuple[str, bool]]]:
    """Prints the facts; returns the device, and each fact with whether it holds."""
    device, told, end = "no device", [], time.monotonic() + seconds
    for left, name in zip((len(FACTS) - i for i in range(len(FACTS))), FACTS, strict=True):
        share = max(1.0, (end - time.monotonic()) / left)
        try:
            # A process that is killed returns nothing, so it is told to end a little earlier.
            device, found = _process(rehearses, "facts", name, share - FACT_TAKES, timeout=share)
        except (Exception, SystemExit) as error:
            found = [("all", _why(error))]
        for at, note in found:
            _print_row(name, "-", at, "-", "-", "-", "-", note)
            told.append((f"{name}, {at}: {note}", not _failed(note)))
    return device, told


def print_line(line: Line, seconds: float, args: argparse.Namespace) -> tuple[str, bool]:
    """Measures a line for at most `seconds`, and prints it; returns it as a fact."""
    call = functools.partial(_process, args.rehearse, timeout=seconds)
    try:
        if line.name in SCRIPTS.values():
            kind = next(kind for kind, name in SCRIPTS.items() if name == line.name)
            found = script(kind, line.model, line.size, seconds, args)
        elif line.name in BESIDE_CPU.values():
            dtype = next(dtype for dtype, name in BESIDE_CPU.items() if name == line.name)
            found = call("compare", dtype, line.model, line.size)
        elif line.name == WHERE_TIME_GOES:
            found = call("kernels", line.model, line.size)
        else:
            found = call("measure", *line, args.steps)
        figures = found if isinstance(found, dict) else {"note": found}
    except (Exception, SystemExit) as error:  # A line that fails is a row that says so.
        figures = {"note": _why(error)}
    is_measured = "seconds" in figures
    columns = _columns(line.model, _shape(line.size), figures) if is_measured else ("-",) * 4
    note = f"on {figures['device']}" if is_measured else figures["note"]
    _print_row(*line, *columns, note)
    fact = f"{columns[0]} tokens/s" if is_measured else note
    return f"{', '.join(line)}: {fact}", not _failed(note)


def leave_out(line: Line, reason: str) -> tuple[str, bool]:
    """Prints a line that is not measured; returns it as a fact."""
    _print_row(*line, *("-",) * 4, f"left out: {reason}")
    return f"{', '.join(line)}: left out: {reason}", False


def _process(rehearses: bool, function: str, *arguments: Any, timeout: float) -> Any:
    call = ("gpu_rehearsal.run", function) if rehearses else (f"gpu.{function}",)
    return in_process(*call, *arguments, backend="jax", timeout=timeout)


def _print_row(*columns: str) -> None:
    print("|", " | ".join(columns), "|", flush=True)


def _failed(note: str) -> bool:
    return note.startswith(("failed", "ended", "left out"))


def _why(error: BaseException) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"ended: it took more than {error.timeout:.0f} s"
    is_a_process = isinstance(error, SystemExit)
    return "failed: " + _cause(str(error) if is_a_process else f"{type(error).__name__}: {error}")


def _cause(text: str) -> str:
    """Returns the line of a process's output that names its error, fit for a table's cell."""
    lines = text.strip().splitlines() or ["it wrote nothing"]
    named = (line for line in reversed(lines) if re.match(r"[\w.]*[Ee]rror\b", line))
    return next(named, lines[-1]).replace("|", "/")[:300]


def expected(line: Line) -> float:
    """Returns how many seconds a line is expected to take."""
    return next(time for name, time in EXPECTED.items() if line.name.startswith(name))


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
    parser.add_argument("--rehearse", action="store_true", help="only lower, on a CPU")
    parser.add_argument("--input_file", help="text, for the scripts")
    parser.add_argument("--spm_model_file", help="vocabulary, for the scripts")
    args = parser.parse_args(arguments)
    end = time.monotonic() + 60 * args.minutes
    missing = {
        "no --input_file and --spm_model_file": not (args.input_file and args.spm_model_file),
        "no TensorFlow": importlib.util.find_spec("tensorflow") is None,
    }
    without = next((what for what, is_missing in missing.items() if is_missing), None)
    print("| what | model | shape | tokens/s | MFU | memory | first steps | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    device, told = ON_A_CPU if args.rehearse else "one device", []
    if not args.only:
        device, told = print_facts(min(FACTS_TAKE, 60 * args.minutes), args.rehearse)
    # Seconds that lines took and were expected to take: their ratio scales the next expectation.
    took, thought = 0.0, 0.0
    for line in lines(list(args.models), args.shapes):
        if args.only not in line.name:
            continue
        start = time.monotonic()
        needs, left = expected(line) * max(1.0, took / thought if thought else 1.0), end - start
        if line.name in SCRIPTS.values() and without:
            told.append(leave_out(line, without))
        elif args.rehearse and line.name in (COMPILED, EAGER):
            told.append(leave_out(line, "not ours"))
        elif left < needs:
            told.append(leave_out(line, f"{max(0, left):.0f} s left, some {needs:.0f} needed"))
        else:
            told.append(print_line(line, min(left, 3 * needs), args))
            took, thought = took + time.monotonic() - start, thought + expected(line)
    print("\n| on | what is known |\n| --- | --- |")
    for title, is_so in ((f"{device}: confirmed", True), (f"{device}: not confirmed", False)):
        _print_row(title, "; ".join(fact for fact, fits in told if fits == is_so) or "nothing")


def _shape(size: str) -> Shape:
    return Shape(*map(int, size.split("x")))


def _columns(model: str, shape: Shape, figures: dict[str, Any]) -> tuple[str, str, str, str]:
    seconds, device = figures["seconds"], figures["device"]
    peak = next((value for key, value in PEAKS.items() if key in device), None)
    rate = contestants.step_gflop(shape, CONFIGS / f"albert_{model}.json") / seconds / 1000
    return (
        f"{shape.tokens / seconds:,.0f}",
        f"{rate / peak:.1%}" if peak else "-",
        f"{figures['bytes'] / 2**30:.1f} GiB" if figures["bytes"] else "-",
        f"{figures['ready']:.0f} s",
    )


if __name__ == "__main__":
    main()
