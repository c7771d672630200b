"""Files that runs leave for later runs."""

from __future__ import annotations

import contextlib
import math
import pathlib
import types
from typing import Any

import numpy as np

from albert_tf.cli import run_directory
from albert_tf.conversion import labels
from albert_tf.generator import documents, report, shards, workers
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.records import input_files
from albert_tf.storage import checkpoint, eval_results
from albert_tf.tasks import feature_table
from albert_tf.training import evaluation
from tests.kit import finetune_runs
from tests.kit import pretraining_runs as runs
from tools.campaign import file_types, mutators
from tools.campaign.file_types import Evidence, FileType

_SETTINGS = {"a flag": 3}
_LABELS = ("no", "yes", "it may be")


# --- lists of checkpoints, results ----------------------------------------------------------


def _make_checkpoints(folder: pathlib.Path) -> None:
    for step in (4, 8, 12):
        checkpoint.save(str(folder), step, {"weight": np.full(5, step, "float32")}, keep_max=0)


def _read_list(folder: pathlib.Path) -> list[str]:
    run_directory.check_fresh_or_own(str(folder))
    return [pathlib.Path(path).name for path in checkpoint.listed(str(folder))]


def _judge_list(evidence: Evidence) -> str | None:
    return file_types.part(evidence) or (None if evidence.result else "a run would start afresh")


class _Trainer(types.SimpleNamespace):
    """The part of a Trainer that an evaluation needs."""

    task = types.SimpleNamespace(key_metric="accuracy")
    devices = types.SimpleNamespace(is_chief=True)

    def restore(self, prefix: str) -> int:
        return checkpoint.step_of(prefix)

    def evaluate(self, *_: Any) -> dict[str, float]:
        return {"accuracy": 0.5, "loss": 1.0}


def _evaluate(folder: pathlib.Path) -> None:
    evaluation.evaluate_checkpoints(_Trainer(output_dir=str(folder)), None, lambda: 12, {})


def _make_best(folder: pathlib.Path) -> None:
    _make_checkpoints(folder)
    _evaluate(folder)


def _read_best(folder: pathlib.Path) -> float:
    _evaluate(folder)
    return eval_results.Trial.read(str(folder)).best_value


def _judge_best(evidence: Evidence) -> str | None:
    return None if math.isfinite(evidence.result) else "a best value that is not finite"


# --- caches ---------------------------------------------------------------------------------


def _make_counts(folder: pathlib.Path) -> None:
    runs.write_records(folder / "a.tfrecord", runs.examples(7))
    runs.write_records(folder / "b.tfrecord", runs.examples(11))
    _read_counts(folder)


def _read_counts(folder: pathlib.Path) -> list[tuple[int, list[int]]]:
    found = input_files.find_files(str(folder / "*.tfrecord"))
    indexes = input_files.index_records(found, str(folder / "input_files.json"))
    return [(index.records, index.starts.tolist()) for index in indexes]


def _features(folder: pathlib.Path) -> list[tuple[Any, ...]]:
    rows = [
        {"input_ids": np.arange(length), "label_ids": np.float32(length)} for length in range(3, 9)
    ]
    table = feature_table.load_or_make_features(
        list(range(6)), lambda examples: iter(rows), {}, str(folder / "train")
    )
    found = {**table.scalars, **table.sequences, "lengths": table.lengths}
    return [(name, str(v.dtype), v.shape, v.tobytes()) for name, v in sorted(found.items())]


# --- labels, flags --------------------------------------------------------------------------


def _make_labels(folder: pathlib.Path) -> None:
    labels.write(str(folder), _LABELS)


def _read_labels(folder: pathlib.Path) -> tuple[str, ...]:
    return labels.read(str(folder))


def _judge_labels(evidence: Evidence) -> str | None:
    labels = evidence.result
    return None if len(set(labels)) == len(labels) else "a duplicate label"


def _make_flags(folder: pathlib.Path) -> None:
    lines = (
        "# These stay unchanged.",
        "--task_name=mrpc",
        "--do_train",
        "--train_step=100",
        "--learning_rate=3e-5",
        "--output_dir=out",
    )
    (folder / "flags.txt").write_text("\n".join(lines) + "\n")


def _read_flags(folder: pathlib.Path) -> dict[str, Any]:
    found = finetune_runs.parse([f"--flagfile={folder / 'flags.txt'}"])
    return {name: getattr(found, name) for name in ("train_step", "learning_rate", "output_dir")}


def _judge_flags(evidence: Evidence) -> str | None:
    found = evidence.result
    steps, rate = found["train_step"], found["learning_rate"]
    return None if steps >= 1 and 0 < rate < float("inf") else f"{steps} steps at a rate of {rate}"


# --- the generator's --------------------------------------------------------------------------


class _KilledError(Exception):
    pass


def _make_unfinished(folder: pathlib.Path) -> None:
    with contextlib.suppress(_KilledError), _open(folder) as run:
        for shard in range(2):
            path = folder / f"{shard}.part"
            path.write_bytes(bytes(50 + shard))
            end = documents.Place(0, shard + 1, shard + 1, 100 * (shard + 1))
            counts = report.Report(rows=7)  # A shard without records ends the run.
            run.append(workers.Part(str(path), shard, end, counts))
        raise _KilledError


def _open(folder: pathlib.Path) -> Any:
    settings = GeneratorSettings(input_file="", output_file="", keep_order=True)
    paths = [str(folder / f"{i}.tfrecord") for i in range(3)]
    return shards.open_run(workers.Plan(None, None, settings, paths), _SETTINGS)


def _read_unfinished(folder: pathlib.Path) -> Any:
    with contextlib.suppress(_KilledError), _open(folder) as run:
        found = run.num_whole, run.start, run.report.to_json()
        raise _KilledError
    return found


# A changed number can't be noticed in files without a checksum; a rename completes such files.
_NO_NUMBERS = (mutators.truncate, mutators.empty, mutators.cut, mutators.append, mutators.insert)
FILE_TYPES = (
    FileType(
        "checkpoint list", _make_checkpoints, mutators.TEXT, _read_list, _judge_list, "checkpoint"
    ),
    FileType("eval_results.jsonl", _make_best, mutators.JSON, _read_best, _judge_best),
    FileType(
        "input_files.json", _make_counts, mutators.LOST, _read_counts, file_types.same, named=False
    ),
    FileType("feature cache", _features, mutators.LOST, _features, file_types.same, "*.npz"),
    FileType("labels.jsonl", _make_labels, mutators.JSON, _read_labels, _judge_labels),
    FileType("flags.txt", _make_flags, mutators.TEXT, _read_flags, _judge_flags, named=False),
    FileType(
        "unfinished.json",
        _make_unfinished,
        _NO_NUMBERS,
        _read_unfinished,
        lambda evidence: None if evidence.result[0] <= 2 else "more shards than were written",
        "*.unfinished.json",
    ),
)
