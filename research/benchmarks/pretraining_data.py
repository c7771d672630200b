"""Measures data/create_pretraining_data.py, and in the same run the limits on its speed.

    python research/benchmarks/pretraining_data.py --text=wikipedia.txt --spm_model=30k-clean.model

The text has one sentence per line and a blank line between documents; it is repeated to the size
that a measurement needs. All settings take turns, interleaved with the limits, so that other load
on the machine affects all alike; a figure is the median of the rounds.

The generator's rate is that of its own report: from the start of the work, including the start of
the worker processes, to the last record; without the three seconds in which Python and TensorFlow
start. Limits: bare SentencePiece encoding of the same lines, in one process and in several at once;
and bare writing of the same records, already serialized.

Can't see: disks slower than the page cache, remote stores, more processes than cores.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import platform
import re
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sentencepiece
import workers

from albert_tf.records.example_encoding import frame_records

RECORD_BYTES = 100_000_000
MEGABYTE = 10**6


class Setting(NamedTuple):
    """The generator's settings for a run."""

    dupe_factor: int
    max_seq_length: int
    num_processes: int


class Run(NamedTuple):
    """Time and tokens of a run of the generator."""

    seconds: float
    output_tokens: int


def generate(text: Path, output: Path, spm_model: str, setting: Setting) -> Run:
    """Runs the script in its own process."""
    most = math.ceil(0.15 * setting.max_seq_length)
    flags = {"spm_model_file": spm_model, "max_predictions_per_seq": most, **setting._asdict()}
    log = workers.generate(text, output, **flags)
    seconds = re.search(r"([\d.]+) seconds, [\d,]+ output tokens/s", log)
    tokens = re.search(r"wrote [\d,]+ instances, ([\d,]+) tokens", log)
    return Run(float(seconds[1]), int(tokens[1].replace(",", "")))


def encode_bare(text: Path, spm_model: str) -> float:
    """Returns the SentencePiece library's tokens/s on lines in memory, in lower case."""
    processor = sentencepiece.SentencePieceProcessor(model_file=spm_model)
    lines = text.read_text(encoding="utf-8").lower().split("\n")
    started = time.perf_counter()
    tokens = sum(len(ids) for ids in map(processor.encode, lines))
    return tokens / (time.perf_counter() - started)


def write_bare(records_file: Path, output: Path) -> float:
    """Returns bytes/s of writing already serialized records."""
    content = records_file.read_bytes()[:RECORD_BYTES]
    records, begin = [], 0
    while begin + 12 < len(content):
        (length,) = struct.unpack_from("<Q", content, begin)
        records.append(content[begin + 12 : begin + 12 + length])
        begin += length + 16
    started = time.perf_counter()
    with open(output, "wb") as file:
        file.writelines(frame_records(records))
    return begin / (time.perf_counter() - started)


def measure_speed(
    text: Path, sample: Path, folder: Path, spm_model: str, settings: Sequence[Setting], rounds: int
) -> None:
    """Prints the limits and a row for each setting."""
    most = max(setting.num_processes for setting in settings)
    runs: dict[Setting, list[Run]] = {setting: [] for setting in settings}
    encoding: dict[int, list[float]] = {1: [], most: []}
    writing: dict[Setting, list[float]] = {setting: [] for setting in settings}
    output = folder / "out.tfrecord"
    for _ in range(rounds):
        for setting in settings:
            for processes, rates in encoding.items():
                with multiprocessing.get_context("spawn").Pool(processes) as pool:
                    given = [(sample, spm_model)] * processes
                    rates.append(sum(pool.starmap(encode_bare, given, chunksize=1)))
            run = generate(text, output, spm_model, setting)
            runs[setting].append(run)
            tokens_per_byte = run.output_tokens / output.stat().st_size
            writing[setting].append(tokens_per_byte * write_bare(output, folder / "copy"))
    limits = {processes: statistics.median(rates) for processes, rates in encoding.items()}
    for processes, rate in limits.items():
        print(f"bare encoding, {processes} at once: {rate:,.0f} tokens/s")
    written = [rate for rates in writing.values() for rate in rates]
    print(f"bare writing of records: {min(written):,.0f} to {max(written):,.0f} tokens/s\n")
    print("| dupe_factor | length | processes | text MB/s | output tokens/s ", end="")
    print("| of bare encoding in one process | times one process |\n" + "| --- " * 7 + "|")
    rates = {
        setting: statistics.median(run.output_tokens / run.seconds for run in of_setting)
        for setting, of_setting in runs.items()
    }
    for setting, of_setting in runs.items():
        seconds = statistics.median(run.seconds for run in of_setting)
        alone = rates.get(setting._replace(num_processes=1))
        print(
            f"| {setting.dupe_factor} | {setting.max_seq_length} | {setting.num_processes} "
            f"| {text.stat().st_size / MEGABYTE / seconds:.2f} | {rates[setting]:,.0f} "
            f"| {rates[setting] / limits[1]:.2f} "
            f"| {f'{rates[setting] / alone:.2f}' if alone else ''} |"
        )


def repeat(text: Path, path: Path, megabytes: int) -> Path:
    """Repeats the text, the last time in part, up to about the given size in MB."""
    content = text.read_bytes()
    wanted = megabytes * MEGABYTE
    with open(path, "wb") as file:
        for _ in range(wanted // len(content)):
            file.write(content + b"\n\n")
        begin = content[: wanted % len(content)]
        file.write(begin[: begin.rfind(b"\n") + 1])
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the limits, and a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--spm_model", required=True)
    parser.add_argument(
        "--megabytes", type=int, default=80, help="megabytes of text per speed measurement"
    )
    parser.add_argument("--dupe_factors", type=int, nargs="+", default=[1, 5, 10])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start, ", end="")
    print(f"Python {platform.python_version()}, sentencepiece {sentencepiece.__version__}")
    settings = [
        Setting(*setting)
        for setting in itertools.product(args.dupe_factors, args.lengths, args.processes)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = repeat(args.text, folder / "text.txt", args.megabytes)
        sample = repeat(args.text, folder / "sample.txt", min(args.megabytes, 8))
        measure_speed(text, sample, folder, args.spm_model, settings, args.rounds)


if __name__ == "__main__":
    main()
