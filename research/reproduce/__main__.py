"""Fine-tunes a released model by the paper's recipe, and compares with its published score.

    make reproduce TASK=sst2
    make reproduce TASK=cola ARGS='--model albert-xxlarge-v1 --seeds 3 --precision=bfloat16'
    make reproduce TASK=squad_v1 DATA=path/to/squad WEIGHTS=path/to/albert_base

Weights and data come from the Hugging Face Hub, unless WEIGHTS and DATA name local copies; DATA
holds the files that docs/finetuning.md names. Other flags in ARGS are albert-finetune's. The table
is printed, and written to --output_dir. An interrupted run goes on, a complete one is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.console import errors, settings
from albert_tf.storage import eval_results, hub, run_record
from research.experiments import intervals
from research.reproduce import data
from research.reproduce.data import TASKS, Task

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "research/experiments/published/release.csv"
ROUNDING = 0.05  # Published scores have one digit after the point.
_LOG, _END = "log.txt", "checkpoint to use: "  # A run's log, and how it ends.
_LINES_TO_MEASURE = 3


def main() -> None:
    """Makes the runs, and prints the table."""
    parser = argparse.ArgumentParser("make reproduce", allow_abbrev=False)
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("--data", help="the data's folder, by default from the Hub")
    parser.add_argument("--weights", help="stored weights, by default --model's from the Hub")
    parser.add_argument("--model", default="albert-base-v2", help="whose published score it is")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs")
    parser.add_argument("--output_dir", default="reproduced")
    args, more = parser.parse_known_args()
    with errors.in_one_line():
        reproduce(args, more)


def reproduce(args: argparse.Namespace, more: Sequence[str]) -> None:
    """Does what the arguments say; `more` are flags of albert-finetune."""
    # Refuse impossible requests before anything is downloaded.
    if args.task not in TASKS:
        raise ValueError(f"TASK must be one of {', '.join(TASKS)}, not {args.task!r}")
    task, scores_by_model = TASKS[args.task], read_published()
    if args.model not in scores_by_model:
        models = ", ".join(scores_by_model)
        raise ValueError(f"--model must be one of {models}, not {args.model!r}")
    published = scores_by_model[args.model]
    if args.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, not {args.seeds}")
    folder = pathlib.Path(args.output_dir) / f"{args.task}-{args.model}"
    weights = args.weights or f"hf://albert/{args.model}"
    flags = [
        f"--recipe={task.recipe.format(args.model[-2:])}",
        f"--init_checkpoint={weights}",
        f"--cached_dir={folder / 'features'}",
        f"--do_predict={task.of_test}",  # Scores of the dev set need no predictions.
        *more,
    ]
    settings.parse(FinetuningSettings, ["", *flags, f"--output_dir={folder}"])

    # Say what will be done and downloaded.
    print(f"{args.seeds} runs of albert-finetune {shlex.join(flags)}", flush=True)
    for column in task.scores:
        models = ", ".join(model for model, row in scores_by_model.items() if row[column])
        print(
            f"published {column} of {args.model}: {published[column] or f'none, but of {models}'}"
        )
    wanted = {} if args.weights else {weights: hub.MODEL_FILES}
    wanted |= {} if args.data else {task.data_set: tuple(task.patterns.values())}
    for path, patterns in wanted.items():
        with contextlib.suppress(OSError):  # Without a network, earlier downloads may do.
            sizes = hub.missing(path, patterns)
            files = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in sizes.items())
            print(f"to download from {path}: {files or 'nothing, it is here'}", flush=True)
    hub.download(weights)
    of_data = data.on_disk(task, args.data) if args.data else data.fetch(task, folder / "data")

    # The runs, and what they show.
    scores = []
    for seed in range(args.seeds):
        directory = folder / f"seed-{seed}"
        own = [f"--random_seed={seed}", f"--output_dir={directory}"]
        run([*flags, *of_data, *own], directory, args.seeds - seed)
        scores.append(scores_of(task, directory))
        shown = ", ".join(f"{name} {score:.2f}" for name, score in scores[-1].items())
        print(f"{directory}: {shown}", flush=True)
    lines = [
        f"{args.task} ({'test' if task.of_test else 'dev'}): {weights}, beside {args.model} in "
        f"{published['table']}",
        "",
        *report(scores, published),
    ]
    if more:
        lines += ["", f"Beside the recipe's flags: {shlex.join(more)}"]
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


# --- runs -----------------------------------------------------------------------------------


def run(flags: Sequence[str], directory: pathlib.Path, left: int) -> None:
    """Makes or continues a run; prints how long it takes, and how long all that are `left`."""
    log = directory / _LOG
    record = run_record.find_run(str(directory))
    if record and shlex.split(record.command)[1:] != flags:
        raise ValueError(f"{directory} has a run with other flags: give another --output_dir")
    if log.exists() and _END in log.read_text(encoding="utf-8"):
        return
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "run_finetune.py"), *flags]
    given = settings.parse(FinetuningSettings, command[1:])
    seconds = 0.0
    with open(log, "wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            while process.poll() is None:
                time.sleep(0.5)
                if not seconds and (seconds := seconds_of(log.read_text(errors="replace"), given)):
                    one, all_left = (
                        datetime.timedelta(seconds=int(seconds * n)) for n in (1, left)
                    )
                    print(f"{log}: a run takes about {one}, all {left} {all_left}", flush=True)
        except KeyboardInterrupt:  # Ctrl-C reaches the run, too, which saves.
            process.wait()
            raise
    text = log.read_text(errors="replace")
    if process.returncode or _END not in text:
        found = re.findall("^error: (.*)", text, re.MULTILINE)
        raise ChildProcessError(f"{log}: {found[-1] if found else 'the run was stopped'}")


def seconds_of(log: str, given: FinetuningSettings) -> float:
    """Estimates a run's seconds by the beginning of its log; returns 0 while that is too short.

    Evaluating an example is assumed to take a third of the time of training on it.
    """
    steps = re.findall(r"step \d+/(\d+) \|.* \| ([\d.,]+) examples/s", log)
    if len(steps) < _LINES_TO_MEASURE:
        return 0.0
    rate = statistics.harmonic_mean([float(rate.replace(",", "")) for _, rate in steps])
    num_steps = int(steps[0][0])
    _, dev, *test = map(int, re.findall(r"features of (\d+) examples", log))
    evaluated = dev * -(-num_steps // given.save_checkpoints_steps) + sum(test)
    return (num_steps * given.train_batch_size + evaluated / 3) / rate


def scores_of(task: Task, directory: pathlib.Path) -> dict[str, float]:
    """Returns the scores of a run's best checkpoint in percent, by the columns of release.csv."""
    metrics: Mapping[str, float]
    if task.of_test:
        found = re.findall(
            r"^(\w+) = (\S+)$", (directory / "test_scores.txt").read_text(), re.MULTILINE
        )
        metrics = {name: float(value) for name, value in found}
    else:
        metrics = [each.metrics for each in eval_results.read_all(directory) if each.is_best][-1]
    unit = 1 if task.version else 100
    return {column: unit * metrics[name] for column, name in task.scores.items()}


# --- what was found -------------------------------------------------------------------------

_HEADER = "score", "published", "ours", "median", "mean", "95 %: mean", "95 %: one more run"
_HEADER += ("published is",)


def report(scores: Sequence[Mapping[str, float]], published: Mapping[str, str]) -> list[str]:
    """Returns a table with a row for each score: all runs, and whether the published one fits."""
    lines = [f"| {' | '.join(_HEADER)} |", "| --- " * len(_HEADER) + "|"]
    for column in scores[0]:
        ours, known = [each[column] for each in scores], published[column]
        mean, middle = statistics.mean(ours), statistics.median(ours)
        found = intervals.judge([score - float(known or 0) for score in ours], effect=ROUNDING)
        spans, verdict = ["-", "-"], "cannot tell: no spread"
        if found.low is not None:
            # One more run also deviates from the mean by its own spread.
            halves = (found.least, found.least * (len(ours) + 1) ** 0.5)
            spans = [f"{mean - half:.1f} to {mean + half:.1f}" for half in halves]
            is_within = found.low - ROUNDING <= 0 <= found.high + ROUNDING
            verdict = "within" if is_within else "outside"
        cells = [column, known or "-", ", ".join(f"{score:.1f}" for score in ours)]
        cells += [f"{middle:.1f}", f"{mean:.1f}", *spans, verdict if known else "not known"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def read_published() -> dict[str, dict[str, str]]:
    """Returns the release's scores by model and column, "" where it has none."""
    with open(PUBLISHED, encoding="utf-8") as file:
        return {row["row"]: row for row in csv.DictReader(file)}


if __name__ == "__main__":
    main()
