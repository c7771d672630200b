"""A run's shards: each shuffled; resumable after a kill, renamed once all are complete.

During a run there are, beside the future shards:

    NAME.unfinished         a shard, complete or partly written
    FIRST.unfinished.json   how the run was started, and which shards are complete
    FIRST.unfinished.parts/ parts of the next shards, the records of the current one in the order
                            of the text, and the lock of the run; in the system's temporary folder
                            if the shards are not on a local disk
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.generator.documents import Place
from albert_tf.generator.report import Report, WrongVocabularyError
from albert_tf.generator.workers import Part, Plan
from albert_tf.records.example_encoding import find_frames
from albert_tf.records.masking import derive_seeds
from albert_tf.storage import files

# The purpose of a seed, which is part of its hash, as in examples.py.
_SHUFFLING = 2
_RECORDS_AT_ONCE = 128


class ShardRun:
    """The shards of one run, in order, including those left by an earlier, killed run.

    Made by `open_run`.

    Attributes:
      folder: A local folder for parts.
    """

    def __init__(self, plan: Plan, settings: Mapping[str, Any], folder: str) -> None:
        self.folder = folder
        self._plan, self._paths = plan, plan.output_files
        self._settings = settings
        self._state_path = state_path(self._paths[0])
        self._whole = self._find_whole_shards()
        self._file: tf.io.gfile.GFile | None = None
        self._end, self._report = self.start, Report()
        self._since = time.monotonic()

    @property
    def num_whole(self) -> int:
        """Number of complete shards; the next one begins at `start`."""
        return len(self._whole)

    @property
    def start(self) -> Place:
        """Where the text of the first incomplete shard begins."""
        return self._whole[-1][0] if self._whole else Place()

    @property
    def report(self) -> Report:
        """The counts over all shards, those of earlier runs included."""
        return Report.total([*(report for _, report in self._whole), self._report])

    def append(self, part: Part) -> None:
        """Appends a part's records, and removes the part; parts come in text order."""
        # The first part of the next shard completes this one.
        if part.shard > self.num_whole:
            self._complete_shard()
            _check_records(self._whole[-1][1])
        if self._file is None:
            self._file = tf.io.gfile.GFile(os.path.join(self.folder, "records"), "wb")
            self._file.write(b"")  # Makes the file, even if no part has a record.
        with open(part.path, "rb") as file:
            shutil.copyfileobj(file, self._file)
        os.remove(part.path)
        self._report.merge(part.report)
        self._end = part.end

    def publish(self) -> None:
        """Gives the shards their final names."""
        if self._file:
            self._complete_shard()
        # No shard gets its name before all of them are complete, filled and unchanged.
        check_filled(self.report, len(self._paths))
        for path, (_, report) in zip(self._paths, self._whole, strict=True):
            if not _is_there(report, unfinished(path), path):
                raise FileNotFoundError(
                    f"`output_file`: {unfinished(path)} was removed or changed during the run: run "
                    "the same command again"
                )
        # A run that was stopped between these renames has done some of them.
        for path in self._paths:
            if files.exists(unfinished(path)):
                tf.io.gfile.rename(unfinished(path), path, overwrite=True)
        tf.io.gfile.remove(self._state_path)

    def save(self) -> None:
        """Records which shards are complete."""
        shards = [{"end": end, "report": report.to_json()} for end, report in self._whole]
        state = {"settings": self._settings, "shards": shards}
        files.replace(self._state_path, json.dumps(state, indent=1) + "\n")

    def remove(self, keep_whole: bool) -> None:
        """Removes incomplete shards or, if none is kept, all and the file that lists them."""
        if self._file:
            with contextlib.suppress(tf.errors.OpError):  # The disk may be full.
                self._file.close()
        keep = self.num_whole if keep_whole else 0
        leftover = [unfinished(path) for path in self._paths[keep:]]
        if not keep:
            leftover += [self._state_path, self._state_path + ".tmp"]
        for path in leftover:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(path)

    def _complete_shard(self) -> None:
        # Shuffle the records into the shard, and then record that it is complete.
        self._file.close()
        path = self._paths[self.num_whole]
        size = write_shard(self._plan, self.num_whole, self._file.name, unfinished(path))
        os.remove(self._file.name)
        self._report.seconds += time.monotonic() - self._since
        self._report.count_shard(path, size)
        # A kill before `save` costs this shard only: the next run makes it again.
        self._whole.append((self._end, self._report))
        self.save()
        self._file = None
        self._report, self._since = Report(), time.monotonic()

    def _find_whole_shards(self) -> list[tuple[Place, Report]]:
        """Returns where the text of each complete shard ends, and what was counted."""
        if not files.exists(self._state_path):
            return []
        try:
            state = json.loads(files.read_bytes(self._state_path))
            settings = state["settings"]
            whole = [(Place(*s["end"]), Report.from_json(s["report"])) for s in state["shards"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"`output_file`: {self._state_path}, the record of an unfinished run, is damaged "
                f"or from another version ({error}): remove it to start afresh"
            ) from None
        # Other settings would give the remaining shards other records.
        for name in sorted(settings.keys() | self._settings.keys()):
            then, now = settings.get(name), self._settings.get(name)
            if then != now:
                raise ValueError(
                    f"`output_file`: {self._state_path} belongs to an unfinished run with {name} "
                    f"{json.dumps(then)}, not {json.dumps(now)}: give the same flags and files to "
                    "finish it, or remove that file to start afresh"
                )
        # Only shards that are still there, with the same size, count as complete.
        all_whole = len(whole) == len(self._paths)
        for number, (path, (_, report)) in enumerate(zip(self._paths, whole, strict=False)):
            # Once all are complete, some may have their final names.
            if not _is_there(report, unfinished(path), *([path] if all_whole else [])):
                return whole[:number]
        return whole


def check_filled(report: Report, num_shards: int) -> None:
    """Refuses text that leaves some of the shards empty; the report is of all of them."""
    if not report.documents:
        raise ValueError("`input_file`: the files contain no text")
    if len(report.shards) < num_shards:
        raise ValueError(
            f"`input_file`: the text fills {len(report.shards)} of {num_shards} output files: its "
            f"{report.documents} documents are too few or too uneven: write fewer files"
        )
    _check_records(report)


def _check_records(report: Report) -> None:
    for path, shard in report.shards.items():
        if not shard["records"]:
            raise ValueError(
                f"`input_file`: the text gives no record for {path}: it has no tokens there, or "
                "only documents too short for two segments: give more text, or write fewer files"
            )


@contextlib.contextmanager
def open_run(plan: Plan, settings: Mapping[str, Any]) -> Iterator[ShardRun]:
    """Opens the shards of a plan, or resumes an unfinished run with the same settings.

    On a local disk, no other process can open them until the body ends. If the body raises a
    ValueError, which the same command would raise again, or if no shard is complete, nothing is
    left behind. Otherwise, or if only the share of [UNK] was too high, complete shards are kept for
    the next run.
    """
    with hold_parts_folder(plan.output_files) as folder:
        run = ShardRun(plan, settings, folder)
        try:
            run.save()
            yield run
        except BaseException as error:
            # After a WrongVocabularyError the user may just raise max_unknown_share.
            keep = not isinstance(error, ValueError) or isinstance(error, WrongVocabularyError)
            run.remove(keep_whole=keep)
            if run.num_whole and keep:
                text = "%d of %d shards are complete: the same command continues after them"
                logging.warning(text, run.num_whole, len(plan.output_files))
            raise


@contextlib.contextmanager
def hold_parts_folder(paths: Sequence[str]) -> Iterator[str]:
    """Yields a local folder for the parts of a run, and reserves its shards while the body runs.

    The shards' own folders are made. TensorFlow's errors become one that names the shards.
    """
    try:
        # A folder that can't be written to is reported now, not after hours of work.
        for folder in dict.fromkeys(map(os.path.dirname, paths)):
            tf.io.gfile.makedirs(folder or ".")
            files.try_to_write(os.path.join(folder, f"{os.path.basename(paths[0])}.write_test"))
        with _reserved(paths[0]) as folder:
            yield folder
    except tf.errors.OpError as error:
        reason = files.reason(error)
        raise OSError(f"`output_file`: can't write {','.join(paths)}: {reason}") from error


@contextlib.contextmanager
def _reserved(first_path: str) -> Iterator[str]:
    if files.is_remote(first_path):
        held = files.hold(*os.path.split(unfinished(first_path)))
        with held, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder
        return
    folder = f"{first_path}.unfinished.parts"
    tf.io.gfile.makedirs(folder)
    with files.hold(folder):
        try:
            yield folder
        finally:
            # The lock goes too: another run that is about to take it finds no folder.
            shutil.rmtree(folder, ignore_errors=True)


def write_shard(plan: Plan, shard: int, records: str, path: str) -> int:
    """Writes a shard, shuffled unless the plan keeps the order, and returns its size in bytes.

    `records` is a local TFRecord file with its records in the order of the text. Unshuffled, a
    reader with a small shuffle buffer, such as the release's, would see one region of the text
    after the other.

    Source: create_pretraining_data.py, create_training_instances.
    Differs: each shard is shuffled by itself.
    """
    size = os.path.getsize(records)
    with open(records, "rb") as file, tf.io.gfile.GFile(path, "wb") as output:
        if plan.settings.keep_order or not size:
            shutil.copyfileobj(file, output)
        else:
            for content in _shuffled(file.fileno(), plan, shard):
                output.write(content)
    return size


def record_order(plan: Plan, shard: int, count: int) -> np.ndarray:
    """Returns the shuffled order of a shard's `count` records, as their numbers in the text."""
    numbers = np.arange(count)
    if plan.settings.keep_order:
        return numbers
    # The order depends on seed, shard and numbers alone, not on the processes.
    keys = derive_seeds(plan.settings.random_seed, shard, numbers, _SHUFFLING)
    return np.argsort(keys, kind="stable")


def _shuffled(file: int, plan: Plan, shard: int) -> Iterator[bytes]:
    """Yields the framed records of an open file in their new order, some at a time."""
    # The file is mapped, not read, so that a shard of any size takes little memory.
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
        bounds = find_frames(content)
        order = record_order(plan, shard, len(bounds) - 1)
        for begin in range(0, len(order), _RECORDS_AT_ONCE):
            chosen = order[begin : begin + _RECORDS_AT_ONCE]
            spans = zip(bounds[chosen].tolist(), bounds[chosen + 1].tolist(), strict=True)
            yield b"".join(content[first:end] for first, end in spans)


def unfinished(path: str) -> str:
    """Returns the name of a shard until all are complete."""
    return f"{path}.unfinished"


def state_path(first_path: str) -> str:
    """Returns the file that a run keeps until all shards are complete."""
    return f"{first_path}.unfinished.json"


def _is_there(report: Report, *paths: str) -> bool:
    """Whether one of the paths is the shard that a report counts."""
    num_bytes = sum(shard["bytes"] for shard in report.shards.values())
    return any(files.exists(path) and files.size(path) == num_bytes for path in paths)
