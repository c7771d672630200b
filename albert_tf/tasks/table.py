"""A user's own table: texts, or questions with choices, from .csv, .tsv, .jsonl or .parquet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from albert_tf.tasks import table_files
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.table_files import LABEL_SEPARATOR
from albert_tf.text_files import finite_number, json_member


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Which columns of a table (or keys of its JSON objects) hold what.

    Attributes:
      text: The text; with choices, the context.
      text_pair: The second text; with choices, a question that is put before each of them. None
        if there is none.
      label: The class, a regression's number, or the right choice: its column or its index from 0.
      choices: The choices, one column each; empty if the task has none.
    """

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    choices: tuple[str, ...] = ()

    def names(self, labelled: bool) -> list[str]:
        """Returns all columns required in a file."""
        pair = [self.text_pair] if self.text_pair else []
        return [self.text, *pair, *self.choices, *([self.label] if labelled else [])]


def find_labels(path: str, columns: TableColumns, several: bool = False) -> tuple[str, ...]:
    """Returns the classes of a training file, sorted as numbers if all are, else by name.

    Args:
      path: See read_texts.
      columns: See read_texts.
      several: See read_texts.

    Raises:
      ValueError: If there are fewer than two, or one has a tab or a line end, which files of
        predictions could not hold; see also read_texts.
    """
    names = columns.names(labelled=True)
    labels: set[str] = set()
    for number, row in table_files.text_rows(path, names, _of_several(columns, several)):
        cell = row[columns.label]
        if any(each in cell for each in "\t\r\n"):
            raise ValueError(
                f"{path}:{number}: expected a label without tabs and line ends, which separate "
                f"cells and rows of predictions.tsv, got {cell!r}"
            )
        labels.update(_parts(cell) if several else [cell])
    if len(labels) < 2:
        found = f"only one label: {labels.pop()!r}" if labels else "no label"
        raise ValueError(
            f"{path}: expected several labels in column {columns.label!r}, got {found}"
        )
    numbers = all(label.isascii() and label.isdigit() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def read_texts(
    path: str,
    columns: TableColumns,
    labels: Sequence[str],
    labelled: bool = True,
    several: bool = False,
) -> list[TextExample]:
    """Reads texts, or pairs of them, to be classified or scored.

    Args:
      path: Path of a .csv file (cells in quotes if they hold commas, quotes or line ends), a .tsv
        file (a tab always separates cells, quotes are text) or a .jsonl or .json file (one object
        per line), all in UTF-8, or of a .parquet file. The first line of a .csv or .tsv file names
        the columns.
      columns: The columns of texts and labels.
      labels: The classes in the order of their ids; empty for a regression.
      labelled: Whether the file has labels; if not, all are None.
      several: Whether a text may have any number of labels, joined by LABEL_SEPARATOR.

    Raises:
      OSError: If there is no such file.
      ValueError: If it has another format, lacks a column, a text or any row, or has an unknown
        label, or for a regression one that isn't a number. The message names file and line, or row.
    """
    label = _labels if several else _label
    return [
        TextExample(
            guid=str(number),
            text_a=row[columns.text],
            text_b=row[columns.text_pair] if columns.text_pair else None,
            label=label(row[columns.label], labels, path, number) if labelled else None,
        )
        for number, row in table_files.text_rows(
            path, columns.names(labelled), _of_several(columns, several)
        )
    ]


def read_questions(path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the location of each row, its context, and its question as in SQuAD's JSON.

    The columns, as in Hugging Face's data sets, are `id`, `question`, `context` and, unless the
    file is only to be predicted, `answers`: an object of two lists, `text` and `answer_start`,
    which are empty if there is no answer. All rows have them, or none: null is unknown.

    Args:
      path: Path of a .jsonl or .parquet file.

    Raises:
      OSError: If there is no such file.
      ValueError: See read_texts.
    """
    first = None
    for number, row in table_files.records(path, ("id", "question", "context"), ("answers",)):
        where = f"{path}:{number}"
        answers = None if row.get("answers") is None else _answers(row["answers"], where)
        is_labelled = answers is not None or row.get("is_impossible") is True
        first = is_labelled if first is None else first
        if is_labelled != first:
            raise ValueError(
                f"{where}: the question {'has' if is_labelled else 'lacks'} answers, unlike the "
                "first: label all questions or none (empty lists mean no answer)"
            )
        question = {"is_impossible": answers == [], **row, "answers": answers or []}
        yield where, json_member(row, "context", where, str), question


def _answers(columns: Any, where: str) -> list[dict[str, Any]]:
    """Turns an object of lists into a list of objects."""
    texts, starts = (json_member(columns, name, where, list) for name in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise ValueError(
            f"{where}: expected as many answer_start as text, got {len(starts)} and {len(texts)}"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def read_choices(path: str, columns: TableColumns, labelled: bool = True) -> list[ChoiceExample]:
    """Reads questions with choices; see read_texts."""
    return [
        ChoiceExample(
            guid=str(number),
            context=row[columns.text],
            endings=tuple(_ending(row, columns, choice) for choice in columns.choices),
            label=_choice(row[columns.label], columns.choices, path, number) if labelled else None,
        )
        for number, row in table_files.text_rows(path, columns.names(labelled))
    ]


def _label(text: str, labels: Sequence[str], path: str, line: int) -> int | float:
    if labels:
        if text not in labels:
            raise ValueError(
                f"{path}:{line}: label {text!r} is not one of those trained on: {', '.join(labels)}"
            )
        return labels.index(text)
    return finite_number(text, f"{path}:{line}")


def _labels(text: str, labels: Sequence[str], path: str, line: int) -> tuple[int, ...]:
    found = {_label(part, labels, path, line) for part in _parts(text)}
    return tuple(sorted(int(label) for label in found))


def _parts(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(LABEL_SEPARATOR) if part.strip()]


def _of_several(columns: TableColumns, several: bool) -> tuple[str, ...]:
    """Returns the columns whose cells may hold several labels, or none."""
    return (columns.label,) if several else ()


def _choice(text: str, choices: Sequence[str], path: str, line: int) -> int:
    numbers = [str(number) for number in range(len(choices))]
    if text in choices and text in numbers and choices.index(text) != numbers.index(text):
        raise ValueError(
            f"{path}:{line}: label {text!r} could mean the column of that name or the choice of "
            "that number: rename the columns"
        )
    names = [*choices, *numbers]
    if text not in names:
        raise ValueError(
            f"{path}:{line}: label {text!r} must be a column of choices ({', '.join(choices)}) or "
            f"a number from 0 to {len(choices) - 1}"
        )
    return names.index(text) % len(choices)


def _ending(row: dict[str, str], columns: TableColumns, choice: str) -> str:
    return f"{row[columns.text_pair]} {row[choice]}" if columns.text_pair else row[choice]
