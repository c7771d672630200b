"""RACE: reading-comprehension exams with four options per question."""

from __future__ import annotations

import dataclasses
import os
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, parse_json

LEVELS = ("middle", "high")
LETTERS = ("A", "B", "C", "D")


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A question on a passage."""

    guid: str  # Its id: the passage's id, and the number of the question.
    context: str  # Raw text of the passage.
    endings: tuple[str, ...]  # The question combined with each option.
    label: int | None  # Index of the right ending, from 0; None if unknown.
    level: str = ""  # Level of the exam.


def read_race(
    data_dir: str | os.PathLike[str],
    split: str,
    levels: Sequence[str] = LEVELS,
    *,
    preprocess: Callable[[str], str],
) -> list[ChoiceExample]:
    """Reads a split.

    Args:
      data_dir: The folder that holds RACE/<split>/<level>/, which has an all.txt with one passage
        per line, as in the release, or one file per passage, as RACE is published.
      split: "train", "dev" or "test".
      levels: Which of "middle" and "high".
      preprocess: The tokenizer's normalisation. Questions and options are normalised before they
        are joined, so that a full-width blank can be filled too, and spaces around an option go.

    Source: race_utils.py, RaceProcessor.
    Differs: the release reads all.txt only.
    """
    # The ids of passages name predictions, so each may occur only once in a level.
    examples: list[ChoiceExample] = []
    for level in levels:
        folder = os.path.join(data_dir, "RACE", split, level)
        places: dict[str, str] = {}
        for where, content in _passages(folder):
            passage = parse_json(content, where)
            name = str(json_member(passage, "id", where, str, int))
            if name in places:
                raise ValueError(f"{where}: passage {name} occurs twice, first in {places[name]}")
            places[name] = where
            examples += _examples(passage, level, where, preprocess)
    if not examples:
        raise ValueError(f"{data_dir} has no examples in RACE/{split} of {' or '.join(levels)}")
    return examples


def _passages(folder: str) -> Iterator[tuple[str, bytes]]:
    """Yields the location and the JSON of each passage."""
    # The release's layout, or else RACE's own.
    path = os.path.join(folder, "all.txt")
    if files.is_file(path):
        for number, line in enumerate(files.read_bytes(path).splitlines(), start=1):
            if line.strip():
                yield f"{path}:{number}", line
        return
    # Sort by number: file systems list files in any order.
    paths = sorted(files.find(folder, "*.txt"), key=lambda path: (len(path), path))
    if not paths:
        raise FileNotFoundError(
            f"{folder} has no all.txt and no other .txt file: set `data_dir` to the folder that "
            "contains RACE"
        )
    for path in paths:
        yield path, files.read_bytes(path)


def _examples(
    passage: dict[str, Any], level: str, where: str, preprocess: Callable[[str], str]
) -> Iterator[ChoiceExample]:
    # A passage has lists of equal length, with an entry for each question.
    article = json_member(passage, "article", where, str)
    names = ("questions", "options", "answers")
    columns = [json_member(passage, name, where, list) for name in names]
    if len({len(column) for column in columns}) != 1:
        counts = ", ".join(str(len(column)) for column in columns)
        raise ValueError(
            f"{where}: expected equally many questions, options and answers, got {counts}"
        )
    for number, (question, options, answer) in enumerate(zip(*columns, strict=True), start=1):
        # None marks options of another form; like any value that is no string, it is refused.
        are_options = isinstance(options, list) and len(options) == len(LETTERS)
        texts = [question, *options] if are_options else [None]
        if answer not in LETTERS or not all(isinstance(text, str) for text in texts):
            got = ", ".join(map(reprlib.repr, (question, options, answer)))
            raise ValueError(
                f"{where}: question {number}: expected a string, {len(LETTERS)} options and an "
                f"answer from A to D, got {got}"
            )
        yield ChoiceExample(
            guid=f"{passage['id']}-{number}",
            context=article,
            endings=tuple(_ending(preprocess(question), preprocess(option)) for option in options),
            label=LETTERS.index(answer),
            level=level,
        )


def _ending(question: str, option: str) -> str:
    return question.replace("_", option) if "_" in question else f"{question} {option}"
