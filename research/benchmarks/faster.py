"""Measures the cost of a text with fewer layers, a teacher, eight bits, and all of them.

    make bench-faster ARGS='--checkpoint albert_small --glue glue'

All layers share their weights, so a model of fewer layers begins with the same checkpoint; its
teacher is the model of all layers. Each is fine-tuned on SST-2, CoLA, MRPC and RTE with several
seeds, and the last weights are scored on the dev sets. Then time and memory in ONNX are measured
for each number of layers, beside ALBERT-base with random weights: in turns, one text at a time and
32 at once. Runs that are complete in --folder are not made again. Measure costs on an idle machine:
`--only costs`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import server
from workers import ROOT, Worker, in_process

sys.path.insert(0, str(ROOT))
from albert_tf.tasks import glue, metrics
from research.experiments import intervals

FORMATS = ("onnx", "onnx_int8")
BASE = "albert_base_v2"


class Task(NamedTuple):
    """A task to train on, and how it is judged."""

    name: str
    max_seq_length: int
    train_batch_size: int
    train_step: int
    learning_rate: float = 4e-5

    def score(self, labels: Sequence[int], predictions: Sequence[int]) -> float:
        """Returns the leaderboard's metric, in points."""
        is_cola = glue.GLUE_TASKS[self.name].key_metric == "matthew_corr"
        metric = metrics.matthews_correlation if is_cola else metrics.accuracy
        return 100 * metric(labels, predictions)


TASKS = (
    Task("sst-2", 64, 32, 400),
    Task("cola", 32, 32, 400),
    Task("mrpc", 128, 16, 230),
    Task("rte", 128, 16, 156),
)


# A teacher need not predict all 67,349 examples of SST-2: a run reads fewer.
_MOST_EXAMPLES = 12_800


def sample(data: Path, folder: Path) -> None:
    """Copies the tasks' data, with no more rows of a training set than a run reads."""
    for task in TASKS:
        table = glue.GLUE_TASKS[task.name]
        (folder / table.folder).mkdir(parents=True, exist_ok=True)
        for split in ("train", "dev"):
            name = f"{table.folder}/{table.files[split]}"
            lines = (data / name).read_bytes().splitlines(keepends=True)
            if split == "train" and len(lines) > _MOST_EXAMPLES:
                lines[1:] = random.Random(0).sample(lines[1:], _MOST_EXAMPLES)
            (folder / name).write_bytes(b"".join(lines))


class Run(NamedTuple):
    """One training."""

    task: Task
    seed: int
    depth: int
    is_taught: bool = False

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.seed}-{self.depth}{'-taught' if self.is_taught else ''}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files and settings that all runs share.

    Attributes:
      checkpoint: The weights that albert-finetune begins with.
      folder: Has a folder for each run, and one for the tasks' data.
      depths: Numbers of layers, the checkpoint's own first.
    """

    checkpoint: str
    folder: Path
    depths: tuple[int, ...]

    def train(self, run: Run) -> Path:
        """Makes a run, unless it is complete; returns its folder."""
        directory = self.folder / run.name
        if (directory / "complete").exists():
            return directory
        flags = {
            "task_name": run.task.name,
            "data_dir": self.folder / "glue",
            "init_checkpoint": self.checkpoint,
            "output_dir": directory,
            "cached_dir": self.folder / "features",
            "max_seq_length": run.task.max_seq_length,
            "train_batch_size": run.task.train_batch_size,
            "train_step": run.task.train_step,
            "warmup_step": run.task.train_step // 10,
            "learning_rate": run.task.learning_rate,
            "num_hidden_layers": run.depth,
            "random_seed": run.seed,
            "save_checkpoints_steps": run.task.train_step,
            "do_train": True,
        }
        if run.is_taught:
            flags["teacher"] = self.folder / Run(run.task, run.seed, self.depths[0]).name
        command = [sys.executable, str(ROOT / "run_finetune.py")]
        command += [f"--{name}={value}" for name, value in flags.items()]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        print(f"{run.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        (directory / "complete").touch()
        return directory


def config_of(checkpoint: str) -> dict[str, Any]:
    """Returns the config of a checkpoint."""
    import albert_tf

    return albert_tf.load_config(checkpoint).to_dict()


# --- in processes with TensorFlow ------------------------------------------------------------


def judge(data: str, runs: Sequence[tuple[str, str]]) -> None:
    """Writes scores.json to each run's folder: of its last weights in float32 and in 8 bits.

    Args:
      data: GLUE's folder of folders.
      runs: Folders, and the names of their tasks.
    """
    from albert_tf.conversion.stored_model import ModelLocation
    from albert_tf.serving import other_formats, predict, served_tasks

    for directory, name in runs:
        (task,) = (each for each in TASKS if each.name == name)
        examples = glue.read_glue(name, data, "dev")
        served = served_tasks.load_served("classify", ModelLocation(directory), {})
        for file_format in FORMATS:
            if not Path(directory, file_format).exists():
                other_formats.save(served, str(Path(directory, file_format)), file_format)
        scores = {}
        for file_format in FORMATS:
            predictor = predict.load_exported(Path(directory, file_format))
            rows = [[e.text_a, *([e.text_b] if e.text_b else [])] for e in examples]
            size = 1 if predictor.depends_on_batch else 32
            found = [
                np.argmax(each["probabilities"])
                for start in range(0, len(rows), size)
                for each in predictor.outputs(rows[start : start + size])
            ]
            scores[file_format] = task.score([e.label for e in examples], found)
        Path(directory, "scores.json").write_text(json.dumps(scores) + "\n")


# --- costs ------------------------------------------------------------------------------------


def answers(directory: str) -> Callable[..., dict[str, Any]]:
    """Returns a function that runs an exported model on texts, and measures time and memory."""
    from albert_tf.serving.predict import load_exported

    predictor, texts = load_exported(directory), server.make_texts(96)

    def answer(batch: int) -> dict[str, Any]:
        rows = [[text] for text in texts]
        started = time.perf_counter()
        for start in range(0, len(rows), batch):
            predictor.outputs(rows[start : start + batch])
        seconds = time.perf_counter() - started
        # Not from getrusage, which begins with the peak of the process that started this one.
        (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        return {"seconds": seconds / len(rows), "megabytes": int(kilobytes) / 1e3}

    return answer


def measure_costs(config: Path | str, depths: Sequence[int], folder: Path, rounds: int) -> None:
    """Prints a row for each number of layers and format, measured in turns."""
    values = in_process("faster.config_of", str(config), backend="tensorflow")
    workers = []
    for depth in depths:
        directory = folder / f"costs-{Path(config).stem}-{depth}"
        if not (directory / FORMATS[-1]).exists():
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "config.json").write_text(
                json.dumps({**values, "num_hidden_layers": depth})
            )
            in_process(
                "server.export",
                str(directory),
                str(directory / "config.json"),
                FORMATS,
                backend="tensorflow",
            )
        workers += [(depth, name, directory / name) for name in FORMATS]
    asked = [(*each, Worker(each[1], "faster.answers", str(each[2]))) for each in workers]
    found = {(depth, name): ([], [], []) for depth, name, _ in workers}
    for _, (depth, name, _, worker) in itertools.product(range(rounds + 1), asked):
        alone, many = worker.ask(batch=1), worker.ask(batch=32)
        for kept, value in zip(
            found[depth, name],
            (1e3 * alone["seconds"], 1 / many["seconds"], alone["megabytes"]),
            strict=True,
        ):
            kept.append(value)
    first = np.median(found[depths[0], FORMATS[0]][0][1:])
    for depth, name, directory, worker in asked:
        worker.close()
        # The first round is a warm-up.
        alone, many, memory = (np.median(values[1:]) for values in found[depth, name])
        size = sum(path.stat().st_size for path in directory.glob("*.onnx")) / 1e6
        cells = (
            f"{alone:.2f}",
            f"{alone / first:.2f}",
            f"{many:,.0f}",
            f"{memory:.0f}",
            f"{size:.1f}",
        )
        print(f"| {Path(config).stem}, {depth} | {name} | {' | '.join(cells)} |", flush=True)


# --- scores -----------------------------------------------------------------------------------


def report(scores: dict[Run, dict[str, float]], whole_depth: int) -> None:
    """Prints a row for each depth with and without a teacher: all seeds by task and format."""
    tasks = list(dict.fromkeys(run.task for run in scores))
    columns = list(itertools.product(tasks, FORMATS))
    print(f"| layers | {' | '.join(f'{task.name}, {name}' for task, name in columns)} |")
    print("| --- " * (1 + len(columns)) + "|")
    least = []
    for depth, is_taught in dict.fromkeys((run.depth, run.is_taught) for run in scores):
        cells = []
        for task, name in columns:
            values = _of(scores, task, depth, is_taught, name)
            whole = _of(scores, task, whole_depth, False, FORMATS[0])
            found = intervals.judge(np.subtract(values, whole).tolist(), effect=0.0)
            least += [] if found.least is None else [found.least]
            cells.append(f"{' '.join(f'{value:.1f}' for value in values)} ({found.gain:+.1f})")
        print(f"| {depth}{', a teacher' if is_taught else ''} | {' | '.join(cells)} |")
    print("Each seed's score, and the mean difference to all layers in float32.")
    if least:  # More than one seed.
        print(f"Half its 95 % interval: median {np.median(least):.1f}, at most {max(least):.1f}.")


def _of(scores, task: Task, depth: int, is_taught: bool, name: str) -> list[float]:
    return [
        found[name]
        for run, found in scores.items()
        if (run.task, run.depth, run.is_taught) == (task, depth, is_taught)
    ]


def measure_scores(plan: Plan, tasks: Sequence[Task], seeds: int) -> None:
    """Makes all runs, judges them, and prints a table."""
    runs = [
        Run(task, seed, depth, is_taught)
        for task, seed, depth in itertools.product(tasks, range(seeds), plan.depths)
        for is_taught in ((False, True) if depth < plan.depths[0] else (False,))
    ]
    kept = {run: plan.train(run) / "scores.json" for run in runs}
    for task in tasks:
        new = [(str(path.parent), task.name) for run, path in kept.items() if run.task == task]
        new = [each for each in new if not Path(each[0], "scores.json").exists()]
        if new:
            in_process("faster.judge", str(plan.folder / "glue"), new, backend="tensorflow")
    report({run: json.loads(path.read_text()) for run, path in kept.items()}, plan.depths[0])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that define a plan."""
    parser.add_argument("--checkpoint", required=True, help="What albert-finetune begins with.")
    parser.add_argument("--glue", type=Path, help="GLUE's folder of folders.")
    parser.add_argument("--folder", type=Path, default=Path("faster"))
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[6, 4, 3, 2], help="The checkpoint's own first."
    )
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS])
    parser.add_argument("--seeds", type=int, default=3)


def planned(args: argparse.Namespace) -> tuple[Plan, list[Task]]:
    """Returns the plan and the tasks, after copying the tasks' data into the plan's folder."""
    plan = Plan(args.checkpoint, args.folder.absolute(), tuple(args.depths))
    if args.glue and not (plan.folder / "glue").exists():
        sample(args.glue, plan.folder / "glue")
    return plan, [task for task in TASKS if task.name in args.tasks]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_flags(parser)
    parser.add_argument("--rounds", type=int, default=5, help="Turns in which costs are measured.")
    parser.add_argument("--only", choices=("scores", "costs"))
    args = parser.parse_args(arguments)
    plan, tasks = planned(args)
    if args.only != "costs":
        measure_scores(plan, tasks, args.seeds)
    if args.only != "scores":
        print("| model, layers | | ms a text | of all layers | texts/s at 32 | MB | file, MB |")
        print("| --- " * 7 + "|", flush=True)
        measure_costs(args.checkpoint, plan.depths, plan.folder, args.rounds)
        measure_costs(BASE, [12, 6, 4, 3], plan.folder, args.rounds)


if __name__ == "__main__":
    main()
