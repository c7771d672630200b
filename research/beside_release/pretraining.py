"""Pre-trains by both on the same records; one evaluator judges all checkpoints."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from research.beside_release import judging
from research.beside_release.scripts import OURS, THEIRS, Scripts
from research.experiments import intervals

METRICS = (
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_order_loss",
    "sentence_order_accuracy",
)
RATES = {"adamw": 1e-3, "lamb": 3e-3}
_CHECKPOINTS = 10  # For each run.


class Run(NamedTuple):
    """One training."""

    side: str
    optimizer: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.optimizer}-{self.seed}-{self.side}"


# Step -> metric -> value.
Curve = dict[int, dict[str, float]]


def train(
    scripts: Scripts, records: str, sizes: Mapping[str, object], steps: int, seeds: int
) -> dict[Run, pathlib.Path]:
    """Makes all runs; returns their directories.

    Args:
      scripts: Both sides' scripts.
      records: TFRecord files to train on.
      sizes: Flags with the model's config and the records' sizes.
      steps: Training steps of 16 rows.
      seeds: Runs of each side and optimizer. The release has no seed: its runs differ by chance.
    """
    found = {}
    for seed in range(seeds):
        for optimizer, rate in RATES.items():
            flags = {
                **sizes,
                "input_file": records,
                "do_train": True,
                "train_batch_size": 16,
                "optimizer": optimizer,
                "learning_rate": rate,
                "num_train_steps": steps,
                "num_warmup_steps": steps // 10,
                "save_checkpoints_steps": -(-steps // _CHECKPOINTS),
                "keep_checkpoint_max": 0,
            }
            theirs, ours = (Run(side, optimizer, seed) for side in (THEIRS, OURS))
            found[theirs] = scripts.run_theirs(theirs.name, "run_pretraining", **flags)
            found[ours] = scripts.run_ours(ours.name, "run_pretraining", **flags, random_seed=seed)
    return found


def judge(
    directories: Mapping[Run, pathlib.Path], records: str, sizes: Mapping[str, object]
) -> dict[Run, Curve]:
    """Evaluates all checkpoints on the same held-out records, by the same code."""
    evaluator = functools.partial(_evaluator, directories, records, sizes)
    stored = judging.judge(directories, "curve.json", evaluator)
    return {
        run: {int(step): values for step, values in curve.items()} for run, curve in stored.items()
    }


def _checkpoints(directory: pathlib.Path) -> list[tuple[int, str]]:
    """Returns steps and prefixes, without the random weights that the release saves first."""
    prefixes = [str(path.with_suffix("")) for path in directory.glob("model.ckpt-*.index")]
    found = sorted((int(prefix.rpartition("-")[2]), prefix) for prefix in prefixes)
    return [(step, prefix) for step, prefix in found if step > 0]


@contextlib.contextmanager
def _evaluator(
    directories: Mapping[Run, pathlib.Path], records: str, sizes: Mapping[str, object], first: Run
) -> Iterator[Callable[[Run], Curve]]:
    """Yields a function that evaluates a run's checkpoints; the model's sizes are the first's."""
    from albert_tf.console import tensorflow_logs

    tensorflow_logs.import_tensorflow()
    from albert_tf import conversion
    from albert_tf.cli import pretrain
    from albert_tf.cli.pretraining_settings import PretrainingSettings
    from albert_tf.console import settings

    (_, weights), *_ = _checkpoints(directories[first])
    flags = {**sizes, "input_file": records, "init_checkpoint": weights}
    flags |= {"do_train": False, "do_eval": True}
    flags |= {"eval_batch_size": 64, "max_eval_steps": 10**6}
    given = [f"--{name}={value}" for name, value in flags.items()]
    with contextlib.ExitStack() as held:
        parsed, trainer, found, _ = pretrain.prepare(
            settings.parse(PretrainingSettings, ["beside_release", *given]), held
        )
        input_fn = pretrain.evaluation_input(parsed, found)

        def evaluate(prefix: str) -> dict[str, float]:
            report = conversion.load_weights(trainer.model, prefix)
            assert not report.missing, report.missing
            return {name: float(value) for name, value in trainer.evaluate(input_fn).items()}

        yield lambda run: {step: evaluate(path) for step, path in _checkpoints(directories[run])}


# --- what was found -------------------------------------------------------------------------


def report(curves: Mapping[Run, Curve]) -> list[str]:
    """Returns a table: where the runs of both end, and the interval of the difference."""
    lines = [
        "| optimizer | held-out | " + f"{THEIRS}'s runs | {OURS}'s | difference, 95 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for optimizer in RATES:
        ends = {
            side: [
                curve[max(curve)] for run, curve in curves.items() if run[:2] == (side, optimizer)
            ]
            for side in (THEIRS, OURS)
        }
        for metric in METRICS:
            theirs, ours = (np.array([end[metric] for end in ends[s]]) for s in (THEIRS, OURS))
            found = intervals.judge((ours - theirs).tolist(), effect=0.0)
            interval = f"{found.low:+.4f} to {found.high:+.4f}" if found.low is not None else "-"
            shown = (", ".join(f"{value:.3f}" for value in values) for values in (theirs, ours))
            lines.append(
                "| "
                + " | ".join([optimizer, metric, *shown, f"{found.gain:+.4f} ({interval})"])
                + " |"
            )
    return lines


def draw(curves: Mapping[Run, Curve], path: pathlib.Path) -> None:
    """Draws the curves of both: the mean of the runs, and a band from the lowest to the highest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = ("masked_lm_loss", "sentence_order_loss")
    figure, axes = pyplot.subplots(len(shown), len(RATES), figsize=(9, 6), sharex=True)
    for row, metric in zip(axes, shown, strict=True):
        for axis, optimizer in zip(row, RATES, strict=True):
            for side, colour in ((THEIRS, "tab:orange"), (OURS, "tab:blue")):
                runs = [c for run, c in curves.items() if run[:2] == (side, optimizer)]
                steps = sorted(set.intersection(*map(set, runs)))
                values = np.array([[run[step][metric] for step in steps] for run in runs])
                axis.plot(steps, values.mean(0), color=colour, label=side)
                axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2)
            axis.set_title(f"{optimizer}: held-out {metric}", fontsize=9)
            axis.grid(alpha=0.3)
    axes[0, 0].legend()
    for axis in axes[-1]:
        axis.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
