"""Measures the throughput of the input pipeline, on records with and without masks.

    python research/benchmarks/input_pipeline.py --input_file=text.txt --spm_model_file=30k.model

Generates both kinds of records from a text, and reads them back as run_pretraining.py does, on one
core and on all, in separate processes that take turns; a figure is the median of the rounds. The
first batches, which fill the shuffle buffer, don't count.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

from workers import generate

KINDS = ("static", "dynamic")
TURN_SECONDS = 4.0
# The release's dupe_factor: passes over the text in the records with masks.
PASSES = 40


def write_records(kind: str, args: argparse.Namespace, folder: str) -> list[str]:
    """Writes records of one pass over the text; returns the files."""
    output = os.path.join(folder, f"{kind}.tfrecord")
    sizes = {"max_seq_length": args.max_seq_length, "masking": kind, "dupe_factor": 1}
    if kind == "static":
        sizes["max_predictions_per_seq"] = predictions(args)
    generate(args.input_file, output, spm_model_file=args.spm_model_file, **sizes)
    return [output]


def predictions(args: argparse.Namespace) -> int:
    """Masked pieces in a full row, at 15 percent."""
    return math.ceil(0.15 * args.max_seq_length)


def measure(
    kind: str, files: Sequence[str], args: argparse.Namespace, cores: int
) -> tuple[float, float]:
    """Returns records per second, and per second of CPU time; runs in its own process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    count = 0
    batches = _batches(kind, files, args)
    for _ in range(3):
        next(batches)
    start, start_of_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < TURN_SECONDS:
        count += len(next(batches)["input_ids"])
    return count / (time.perf_counter() - start), count / (time.process_time() - start_of_cpu)


def _batches(kind: str, files: Sequence[str], args: argparse.Namespace) -> Iterator[dict]:
    import tensorflow as tf

    from albert_tf.records import input_files, input_pipeline, masking
    from albert_tf.records.input_pipeline import DynamicMasking
    from albert_tf.records.spec import RowFormat, compact_spec, pretraining_spec
    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    finish, spec = None, pretraining_spec(args.max_seq_length, predictions(args))
    if kind == "dynamic":
        spec = input_files.check_features(files, compact_spec())
        row_format = RowFormat(*spec.features["row_format"].expected)
        settings = masking.MaskingSettings(
            row_format.vocab_size, row_format.mask_id, max_predictions_per_seq=predictions(args)
        )
        finish = DynamicMasking(row_format, settings, seed=0)
    indexes = input_files.index_records(files)
    input_fn = functools.partial(
        input_pipeline.training_dataset, files, indexes, spec, args.batch_size, 0, 0, finish=finish
    )
    return TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0")).iterator(input_fn)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input_file", required=True, help="text, one sentence per line")
    parser.add_argument("--spm_model_file", required=True)
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=32, help="examples per replica and batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--step_tokens_per_second",
        type=float,
        help="tokens per second of a training step, for comparison",
    )
    args = parser.parse_args(arguments)
    all_cores = len(os.sched_getaffinity(0))
    core_counts = sorted({1, all_cores})
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: write_records(kind, args, folder) for kind in KINDS}
        sizes = {kind: sum(map(os.path.getsize, files[kind])) for kind in KINDS}
        for _ in range(args.rounds):
            for kind in KINDS:
                for cores in core_counts:
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        measured = pool.apply(measure, (kind, files[kind], args, cores))
                    rates.setdefault((kind, cores), []).append(measured)
        from albert_tf.records import input_files

        counts = {
            kind: sum(index.records for index in input_files.index_records(files[kind]))
            for kind in KINDS
        }
    print(f"rows of {args.max_seq_length}, batches of {args.batch_size}")
    for kind in KINDS:
        for cores in core_counts:
            rate, cpu_rate = map(statistics.median, zip(*rates[kind, cores], strict=True))
            tokens = rate * args.max_seq_length
            print(
                f"{kind:8} {cores} core(s) {rate:10,.0f} records/s {cpu_rate:10,.0f} a CPU second "
                f"{tokens:13,.0f} tokens/s",
                end="",
            )
            step = args.step_tokens_per_second
            print(f" {tokens / step:8,.0f} times a training step" if step else "")
    for kind, passes in zip(KINDS, (PASSES, 1), strict=True):
        mean = sizes[kind] / counts[kind]
        print(
            f"{kind:8} {mean:6.0f} bytes per record, {passes * sizes[kind] / 1e6:9.1f} MB for "
            f"{passes} pass(es)"
        )


if __name__ == "__main__":
    main()
