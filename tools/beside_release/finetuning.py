"""Fine-tunes one checkpoint by the release, by ours and by transformers; one evaluator judges."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.tasks import glue
from experiments import intervals
from tools.beside_release.scripts import OURS, THEIRS, Scripts

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
{UNCORRECTED} undoes that by its schedule, which is the release's otherwise. Both draw a classifier
that is not truncated, and of a pair too long by an odd number they keep one piece more or less.

Intervals are the paired t's over the seeds, 95 % each. The release has no seed: the runs of a pair
share the order of the rows on disk, no more. For pairs that don't correlate the interval is valid,
but wider than that of two samples; with two seeds it excludes next to nothing. Where nothing
differs, some {{missed:.1f}} of {{count}} such intervals exclude 0 by chance.
"""


class Task(NamedTuple):
    """What is trained, with the same flags on all sides."""

    name: str
    max_seq_length: int
    train_batch_size: int
    train_step: int
    learning_rate: float
    metrics: tuple[str, ...]
    sides: tuple[str, ...] = (THEIRS, OURS, TRAINER, UNCORRECTED)
    seeds: int = 5  # Runs of each side.

    @property
    def flags(self) -> dict[str, object]:
        """Flags of all scripts."""
        fields = ("max_seq_length", "train_batch_size", "train_step", "learning_rate")
        warmup = self.train_step // 10
        return {**{name: getattr(self, name) for name in fields}, "warmup_step": warmup}


_ACCURACY, _MATTHEWS = (
    ("eval_accuracy", "eval_loss"),
    ("matthew_corr", "eval_accuracy", "eval_loss"),
)
TASKS = (
    Task("mrpc", 64, 16, 200, 1e-4, _ACCURACY),
    Task("rte", 64, 16, 200, 1e-4, _ACCURACY),
    Task("cola", 24, 16, 300, 1e-4, _MATTHEWS),
)
SQUAD = Task("squad_v1", 192, 16, 250, 1e-4, ("exact_match", "f1"), (THEIRS, OURS), 2)
QUESTIONS = {"train": 8000, "dev": 1000}


class Run(NamedTuple):
    """One training."""

    task: Task
    seed: int
    side: str

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.task.train_step}-{self.seed}-{self.side}"


class Weights(NamedTuple):
    """The checkpoint to begin with, in two layouts."""

    tf1: pathlib.Path
    huggingface: pathlib.Path

    @property
    def flags(self) -> dict[str, object]:
        """Flags of the release's scripts and of ours."""
        return {
            "albert_config_file": self.tf1 / "albert_config.json",
            "spm_model_file": self.tf1 / "spiece.model",
            "init_checkpoint": self.tf1 / "model.ckpt-best",
        }


def convert(checkpoint: pathlib.Path, folder: pathlib.Path) -> Weights:
    """Writes the checkpoint for all sides, unless that has been done.

    For transformers, too: from a spiece.model alone, its version 5 makes a tokenizer that gives
    other pieces than the release's.
    """
    weights = Weights(*(folder / "checkpoint" / layout for layout in Weights._fields))
    for layout, path in weights._asdict().items():
        if not path.exists():
            from albert_tf.conversion import convert as conversion

            conversion.convert(str(checkpoint), layout, str(path))
    return weights


# --- the data -------------------------------------------------------------------------------


def shuffle_rows(data: pathlib.Path, task_name: str, seed: int, folder: pathlib.Path) -> None:
    """Copies a task of GLUE; the training rows come in an order that is a function of the seed."""
    task = glue.GLUE_TASKS[task_name]
    target = folder / task.folder
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data / task.folder / task.files["dev"], target / task.files["dev"])
    lines = (data / task.folder / task.files["train"]).read_bytes().splitlines()
    header = 0 if "train" in task.headless else 1
    rows = lines[header:]
    random.Random(seed).shuffle(rows)
    (target / task.files["train"]).write_bytes(b"\n".join([*lines[:header], *rows, b""]))


def choose_questions(path: pathlib.Path, count: int, target: pathlib.Path) -> None:
    """Writes some questions of a SQuAD file, with their paragraphs, drawn at random."""
    content = json.loads(path.read_text(encoding="utf-8"))
    paragraphs = [each for article in content["data"] for each in article["paragraphs"]]
    random.Random(0).shuffle(paragraphs)
    chosen = []
    for paragraph in paragraphs:
        questions = paragraph["qas"][:count]
        count -= len(questions)
        if questions:
            chosen.append({**paragraph, "qas": questions})
    article = {"title": "", "paragraphs": chosen}
    text = json.dumps({"version": content["version"], "data": [article]})
    target.write_text(text, encoding="utf-8")


# --- the runs -------------------------------------------------------------------------------


def train(
    scripts: Scripts, weights: Weights, task: Task, data: pathlib.Path
) -> dict[Run, pathlib.Path]:
    """Makes all runs of a task; returns their directories."""
    found = {}
    for seed in range(task.seeds):
        for side in task.sides:
            run = Run(task, seed, side)
            if not (scripts.folder / run.name / "complete").exists():
                # The release would train on features of which only some were written.
                shutil.rmtree(scripts.folder / run.name, ignore_errors=True)
            train_one = _train_squad if task.name == SQUAD.name else _train_glue
            found[run] = train_one(scripts, weights, run, data)
    return found


def _train_glue(scripts: Scripts, weights: Weights, run: Run, data: pathlib.Path) -> pathlib.Path:
    folder = scripts.folder / "data" / str(run.seed)
    shuffle_rows(data, run.task.name, run.seed, folder)
    flags = {"task_name": run.task.name, "data_dir": folder, **run.task.flags}
    if run.side in (TRAINER, UNCORRECTED):
        return scripts.run_ours(
            run.name,
            "tools/beside_release/with_transformers",
            **flags,
            init_checkpoint=weights.huggingface,
            random_seed=run.seed,
            bias_correction=run.side == TRAINER,
        )
    flags |= {**weights.flags, "do_train": True, "save_checkpoints_steps": 10**6}
    if run.side == THEIRS:
        return scripts.run_theirs(run.name, "run_classifier", **flags)
    return scripts.run_ours(
        run.name, "run_finetune", **flags, static_lengths=1, random_seed=run.seed
    )


def _train_squad(scripts: Scripts, weights: Weights, run: Run, data: pathlib.Path) -> pathlib.Path:
    task = run.task
    flags = {**weights.flags, "do_train": True, "save_checkpoints_steps": 10**6}
    flags |= {**task.flags, "train_file": squad_file(scripts.folder, data, "train")}
    if run.side == OURS:
        return scripts.run_ours(
            run.name, "run_finetune", **flags, task_name=task.name, random_seed=run.seed
        )
    # The release counts in epochs, and takes six minutes to make the features.
    steps, warmup = flags.pop("train_step"), flags.pop("warmup_step")
    flags["num_train_epochs"] = (steps + 0.5) * task.train_batch_size / QUESTIONS["train"]
    flags["warmup_proportion"] = (warmup + 0.5) / steps
    features = scripts.folder / run._replace(seed=0).name / "train.features"
    return scripts.run_theirs(run.name, "run_squad_v1", **flags, train_feature_file=features)


def squad_file(folder: pathlib.Path, data: pathlib.Path, split: str) -> pathlib.Path:
    """Returns the questions of SQuAD 1.1 that all train on, or are judged on."""
    path = folder / "data" / f"squad_{split}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        choose_questions(data / f"{split}-v1.1.json", QUESTIONS[split], path)
    return path


def judge(
    scripts: Scripts, weights: Weights, directories: Mapping[Run, pathlib.Path], data: pathlib.Path
) -> dict[Run, dict[str, float]]:
    """Evaluates the last weights of one task's runs, on the same examples and by the same code.

    What a directory's score.json tells is not measured again.
    """
    scores = {}
    with contextlib.ExitStack() as held:
        evaluate = None
        for run, directory in directories.items():
            kept = directory / "score.json"
            if not kept.exists():
                is_folder = (directory / "model.safetensors").exists()
                path = directory if is_folder else directory / f"model.ckpt-{run.task.train_step}"
                if not evaluate:
                    flags = {**weights.flags, "init_checkpoint": path, "data_dir": data}
                    if run.task.name == SQUAD.name:
                        flags["predict_file"] = squad_file(scripts.folder, data, "dev")
                    evaluate = held.enter_context(_evaluator(run.task, flags))
                kept.write_text(json.dumps(evaluate(str(path))) + "\n", encoding="utf-8")
            scores[run] = json.loads(kept.read_text(encoding="utf-8"))
    return scores


@contextlib.contextmanager
def _evaluator(
    task: Task, flags: Mapping[str, object]
) -> Iterator[Callable[[str], dict[str, float]]]:
    """Yields what returns the dev scores of stored weights."""
    from albert_tf.console import quiet

    quiet.import_tensorflow()
    from albert_tf import conversion
    from albert_tf.cli import finetune
    from albert_tf.cli.finetune_settings import FinetuningSettings
    from albert_tf.console import settings

    with contextlib.ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        flags = {**flags, "task_name": task.name, "max_seq_length": task.max_seq_length}
        flags |= {"output_dir": folder, "do_train": False, "do_eval": True, "eval_batch_size": 32}
        given = [f"--{name}={value}" for name, value in flags.items()]
        _, run = finetune.prepare(
            settings.parse(FinetuningSettings, ["beside_release", *given]), held
        )

        def evaluate(path: str) -> dict[str, float]:
            model = run.trainer.model
            report = conversion.load_weights(model, path, classes=run.task.classes)
            assert not conversion.lacking(model, report), report.missing
            return run.task.scores(run.splits["dev"].examples, run.predict("dev", path))

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
