"""Fine-tunes one checkpoint by the release, by ours and by transformers; one evaluator judges."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.tasks import glue
from research.beside_release import judging
from research.beside_release.scripts import OURS, THEIRS, Scripts
from research.experiments import intervals

# transformers' Trainer as it is, and one that takes the steps of the release's optimizer.
TRAINER, UNCORRECTED = "transformers", "transformers-uncorrected"
NOTES = f"""
All runs are listed, in the order of their seeds. All sides begin with the same weights and read
the same rows: for each seed a copy of the training set in another order, since the release's reader
shuffles through a buffer of 100 only. Scores are those of the weights after the last step, computed
by one evaluator, {OURS}'s. The release's code runs as it is, on Python 3.7: nothing is patched.

All have AdamW (0.9, 0.999, 1e-6), decay 0.01 but for biases and LayerNorm, gradients clipped at 1,
a tenth of the steps as warm-up, rows padded to max_seq_length, and the dropout of the checkpoint's
config, with 0.1 before the classifier and none in SQuAD. {TRAINER} is Trainer with AdamW of its
own, whose bias correction makes smaller steps: 0.31 of the release's after 100, 0.51 after 300.
{UNCORRECTED} undoes that by its schedule, which is the release's otherwise. Both
draw the classifier from a normal distribution that is not truncated, and of a pair that is too long
they may keep one piece more of one text, and one less of the other.

Intervals are the paired t's over the seeds, 95 % each. The release has no seed: the runs of a pair
share the order of the rows on disk, no more. For pairs that don't correlate the interval is valid,
but wider than that of two samples; with two seeds it excludes next to nothing. Where nothing
differs, some {{missed:.1f}} of these {{count}} intervals exclude 0 by chance.
"""


class Task(NamedTuple):
    """A fine-tuning, with the same flags on all sides."""

    name: str
    max_seq_length: int
    train_batch_size: int
    train_step: int
    learning_rate: float
    metrics: tuple[str, ...] = ("eval_accuracy", "eval_loss")
    sides: tuple[str, ...] = (THEIRS, OURS, TRAINER, UNCORRECTED)
    seeds: int = 5  # Runs of each side.

    @property
    def flags(self) -> dict[str, float]:
        """Flags of all scripts."""
        numbers = {name: value for name, value in self._asdict().items() if name in _NUMBERS}
        return {**numbers, "warmup_step": self.train_step // 10}


_NUMBERS = ("max_seq_length", "train_batch_size", "train_step", "learning_rate")
TASKS = (
    Task("mrpc", 64, 16, 125, 4e-5),
    Task("rte", 64, 16, 80, 4e-5),
    Task("cola", 24, 16, 200, 4e-5, ("matthew_corr", "eval_accuracy", "eval_loss")),
)
SQUAD = Task("squad_v1", 192, 16, 500, 5e-5, ("exact_match", "f1"), (THEIRS, OURS), 2)
_DEV_QUESTIONS = 1000


class Run(NamedTuple):
    """One training."""

    task: Task
    seed: int
    side: str

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.task.train_step}-{self.seed}-{self.side}"


# --- what all begin with --------------------------------------------------------------------


def convert(checkpoint: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the checkpoint for all sides, unless that has been done.

    transformers gets a converted folder, too: from spiece.model alone its version 5 makes a
    tokenizer whose pieces differ from the release's.
    """
    for layout in ("tf1", "huggingface"):
        path = folder / "checkpoint" / layout
        if not path.exists():
            from albert_tf.conversion import convert as conversion

            conversion.convert(str(checkpoint), layout, str(path))


def weights_flags(folder: pathlib.Path) -> dict[str, object]:
    """Returns flags of the release's scripts and of ours."""
    converted = folder / "checkpoint" / "tf1"
    return {
        "albert_config_file": converted / "albert_config.json",
        "spm_model_file": converted / "spiece.model",
        "init_checkpoint": converted / "model.ckpt-best",
    }


def files_of(task: Task, data: pathlib.Path) -> list[pathlib.Path]:
    """Returns the training and the dev set of a task."""
    if task.name == SQUAD.name:
        return [data / "train-v1.1.json", data / "dev-v1.1.json"]
    table = glue.GLUE_TASKS[task.name]
    return [data / table.folder / table.files[split] for split in ("train", "dev")]


def shuffle_rows(task: Task, data: pathlib.Path, seed: int, folder: pathlib.Path) -> None:
    """Copies a GLUE task's training set, its rows shuffled by the seed."""
    source, target = (files_of(task, each)[0] for each in (data, folder))
    lines = source.read_bytes().splitlines(keepends=True)
    header = 0 if "train" in glue.GLUE_TASKS[task.name].headless else 1
    rows = [line.rstrip(b"\r\n") + b"\n" for line in lines[header:]]
    random.Random(seed).shuffle(rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"".join([*lines[:header], *rows]))


def choose_questions(source: pathlib.Path, count: int, target: pathlib.Path) -> None:
    """Writes some questions of a SQuAD file, with their paragraphs, drawn at random."""
    content = json.loads(source.read_text(encoding="utf-8"))
    paragraphs = [each for article in content["data"] for each in article["paragraphs"]]
    random.Random(0).shuffle(paragraphs)
    for paragraph in paragraphs:
        paragraph["qas"] = paragraph["qas"][:count]
        count -= len(paragraph["qas"])
    chosen = {"title": "", "paragraphs": [each for each in paragraphs if each["qas"]]}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({**content, "data": [chosen]}), encoding="utf-8")


# --- the runs -------------------------------------------------------------------------------


def train(scripts: Scripts, task: Task, data: pathlib.Path) -> dict[Run, pathlib.Path]:
    """Makes all runs of a task; returns their directories."""
    found = {}
    for seed in range(task.seeds):
        for side in task.sides:
            run = Run(task, seed, side)
            if not (scripts.folder / run.name / "complete").exists():
                # The release would reuse features that were written only in part.
                shutil.rmtree(scripts.folder / run.name, ignore_errors=True)
            start = _train_squad if task.name == SQUAD.name else _train_glue
            found[run] = start(scripts, run, data)
    return found


def _train_glue(scripts: Scripts, run: Run, data: pathlib.Path) -> pathlib.Path:
    folder = scripts.folder / "data" / str(run.seed)
    shuffle_rows(run.task, data, run.seed, folder)
    flags = {**run.task.flags, "task_name": run.task.name, "data_dir": folder}
    if run.side in (TRAINER, UNCORRECTED):
        flags |= {"init_checkpoint": scripts.folder / "checkpoint" / "huggingface"}
        flags |= {"random_seed": run.seed, "bias_correction": run.side == TRAINER}
        return scripts.run_ours(run.name, "research/beside_release/with_transformers", **flags)
    flags |= {**weights_flags(scripts.folder), "do_train": True, "save_checkpoints_steps": 10**6}
    if run.side == THEIRS:
        return scripts.run_theirs(run.name, "run_classifier", **flags)
    flags |= {"static_lengths": 1, "random_seed": run.seed}
    return scripts.run_ours(run.name, "run_finetune", **flags)


def _train_squad(scripts: Scripts, run: Run, data: pathlib.Path) -> pathlib.Path:
    task, count = run.task, run.task.train_step * run.task.train_batch_size
    questions = scripts.folder / "data" / f"squad-{count}.json"
    if not questions.exists():
        choose_questions(files_of(task, data)[0], count, questions)
    flags = {**task.flags, **weights_flags(scripts.folder), "train_file": questions}
    flags |= {"do_train": True, "save_checkpoints_steps": 10**6}
    if run.side == OURS:
        flags |= {"task_name": task.name, "random_seed": run.seed}
        return scripts.run_ours(run.name, "run_finetune", **flags)
    # The release counts epochs, not steps. Making features takes minutes: all seeds share them.
    steps, warmup = flags.pop("train_step"), flags.pop("warmup_step")
    flags |= {"num_train_epochs": 1 + 0.5 / steps, "warmup_proportion": (warmup + 0.5) / steps}
    features = scripts.folder / run._replace(seed=0).name / "train.features"
    return scripts.run_theirs(run.name, "run_squad_v1", **flags, train_feature_file=features)


def judge(
    scripts: Scripts, directories: Mapping[Run, pathlib.Path], data: pathlib.Path
) -> dict[Run, dict[str, float]]:
    """Evaluates the last weights of one task's runs, on the same examples and by the same code."""
    weights = {
        run: directory
        if run.side in (TRAINER, UNCORRECTED)
        else directory / f"model.ckpt-{run.task.train_step}"
        for run, directory in directories.items()
    }
    evaluator = functools.partial(_evaluator, scripts, weights, data)
    return judging.judge(directories, "score.json", evaluator)


@contextlib.contextmanager
def _evaluator(
    scripts: Scripts, weights: Mapping[Run, pathlib.Path], data: pathlib.Path, first: Run
) -> Iterator[Callable[[Run], dict[str, float]]]:
    """Yields a function that returns the dev scores of a run's weights."""
    from albert_tf.console import tensorflow_logs

    tensorflow_logs.import_tensorflow()
    from albert_tf import conversion
    from albert_tf.cli import finetune
    from albert_tf.cli.finetune_settings import FinetuningSettings
    from albert_tf.console import settings

    task = first.task
    flags = {**weights_flags(scripts.folder), "init_checkpoint": weights[first], "data_dir": data}
    if task.name == SQUAD.name:
        flags["predict_file"] = questions = scripts.folder / "data" / "squad-dev.json"
        if not questions.exists():
            choose_questions(files_of(task, data)[1], _DEV_QUESTIONS, questions)
    flags |= {"task_name": task.name, "max_seq_length": task.max_seq_length}
    flags |= {"do_train": False, "do_eval": True, "eval_batch_size": 32}
    with contextlib.ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        given = [f"--{name}={value}" for name, value in {**flags, "output_dir": folder}.items()]
        parsed = settings.parse(FinetuningSettings, ["beside_release", *given])
        _, tuning = finetune.prepare(parsed, held)
        model, dev = tuning.trainer.model, tuning.splits["dev"]

        def evaluate(run: Run) -> dict[str, float]:
            report = conversion.load_weights(model, weights[run], classes=tuning.task.classes)
            assert not conversion.lacking(model, report), report.missing
            return tuning.task.scores(dev.examples, tuning.predict("dev", str(weights[run])))

        yield evaluate


# --- what was found -------------------------------------------------------------------------


def report(scores: Mapping[Run, Mapping[str, float]]) -> list[str]:
    """Returns a table of all scores and of intervals of ours minus each other side, and notes."""
    columns = ("task", "dev", "side", "runs", "mean", f"{OURS} minus it, 95 %")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    tasks, count = dict.fromkeys(run.task for run in scores), 0
    for task, metric in [(each, metric) for each in tasks for metric in each.metrics]:
        values = {
            side: np.array([v[metric] for run, v in scores.items() if run[::2] == (task, side)])
            for side in task.sides
        }
        for side, runs in values.items():
            difference = ""
            if side != OURS:
                found = intervals.judge((values[OURS] - runs).tolist(), effect=0.0)
                difference = f"{found.gain:+.4f}"
                if found.low is not None:
                    difference += f" ({found.low:+.4f} to {found.high:+.4f})"
                    count += 1
            shown = ", ".join(f"{value:.4f}" for value in runs)
            cells = (task.name, metric, side, shown, f"{runs.mean():.4f}", difference)
            lines.append(f"| {' | '.join(cells)} |")
    settings = [
        f"- {task.name}: " + ", ".join(f"{name} {value:g}" for name, value in task.flags.items())
        for task in tasks
    ]
    notes = NOTES.format(count=count, missed=count * (1 - intervals.CONFIDENCE))
    return [*lines, notes, *settings]
