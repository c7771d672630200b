"""A user's own table (.csv, .tsv, .jsonl, .parquet) -> examples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.answers.classify import LABEL_SEPARATOR
from albert_tf.console.settings import Settings, setting
from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import (
    JSON_LINES,
    class_of,
    csv_rows,
    finite_number,
    json_lines,
    listed_values,
    named_cells,
    tab_rows,
)
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample

FORMATS = (".csv", ".tsv", *JSON_LINES, parquet_files.ENDING)
# Columns of weights, which only Preprocessor.dataset reads.
WEIGHTS = ("sample_weight", "sample_weights")
# Spellings of 0 and 1 in multi-hot labels.
_BITS = {"0": False, "1": True, "false": False, "true": True}
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
# Spellings of an empty cell; labels that mean none: empty, SNLI's, Hugging Face's, the losses'.
_NULL, _NONE = ("", "null", "nan", "<na>"), ("null", "-", "-1", "-100")
# Other usual separators of labels (spaces between numbers), and the words in a label (as 1.5).
_SEPARATORS, _WORD = re.compile(r"[,;/#]|(?<=\d) +(?=\d)"), re.compile(r"\d+(?:\.\d+)+|[^\W_]+")
# Maximum number of labels that the log names.
_SHOWN = 10


def text_rows(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line numbers, and the wanted cells by column as text."""
    for number, record in table_records(path, wanted):
        yield number, _texts(record, wanted, f"{path}:{number}")


def _texts(
    record: Mapping[str, Any], wanted: Sequence[str], where: str, labels: Sequence[str] = ()
) -> dict[str, str]:
    row = {name: _text(record.get(name), f"{where}: column {name!r}") for name in wanted}
    # A label may be empty: `_Labels.read` decides what that means.
    missing = [n for n in wanted if not row[n]] + [n for n in labels if n not in record]
    if missing:
        raise ValueError(f"{where}: expected a value for {', '.join(map(repr, missing))}, got none")
    return row


def table_records(
    path: str, wanted: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers (for .parquet, row numbers), and cells by column, in JSON's types.

    Args:
      path: Path of a table in one of FORMATS.
      wanted: Columns that a .csv, .tsv or .parquet file must have; in JSON they are not checked.
      optional: Further columns to read from a .parquet file if it has them.
    """
    files.check_file(path)
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise ValueError(f"{path}: expected a file name that ends in {', '.join(FORMATS)}")
    # Each reader yields line numbers and cells by column.
    if ending in JSON_LINES:
        rows = json_lines(path)
    elif ending == parquet_files.ENDING:
        rows = _parquet_rows(path, wanted, optional)
    else:
        cells = csv_rows(path) if ending == ".csv" else tab_rows(path)
        rows = named_cells(cells, path, wanted)
    number = 0
    for number, record in rows:
        yield number, record
    if not number:
        raise ValueError(f"{path} has no examples")


def _parquet_rows(
    path: str, wanted: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    with parquet_files.ParquetFile(path) as file:
        columns = [*wanted, *(name for name in optional if name in file.columns)]
        yield from file.rows(columns or optional[:1])


def _text(value: Any, where: str) -> str:
    if isinstance(value, (list, dict)):
        raise ValueError(f"{where}: expected text or a number, got {json.dumps(value)[:60]}")
    if isinstance(value, str):
        return value.strip()
    # A missing value is null if pandas wrote it, or else NaN, which is unequal to itself.
    return "" if value is None or value != value else json.dumps(value)


# Group heading of --help.
COLUMNS = "Columns of a table"
_column = functools.partial(setting, group=COLUMNS)
_rare_column = functools.partial(_column, rare=True)  # Error messages and docs/ name these.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """The columns of a table (or the keys of JSON objects) that texts and labels are read from.

    Example:
        >>> TableSettings(text_column="review").columns(labelled=True)
        ['review', 'label']
    """

    text_column: str = _column(
        "text",
        "Column of the text or, with choices, of their context; for token_classification, of words "
        "(by default the first), by name or by number from 1, like label_column.",
    )
    text_pair_column: str | None = _column(
        None,
        "Column of the second text or, with choices, of a question that precedes each of them. By "
        "default there is none.",
    )
    label_column: str = _column(
        "label",
        "Column of the labels; for multilabel, the labels of a text are in a list, or between "
        "label_separator, or the list has 0 or 1 for each class.",
    )
    label_columns: tuple[str, ...] = _rare_column(
        (),
        "For multilabel and classification, a column of 0 or 1 for each class, in this order, "
        "instead of label_column.",
    )
    label_separator: str | None = _rare_column(
        None,
        "For multilabel, what is between the labels in a cell. By default |, and labels that seem "
        "to be several are an error.",
    )
    label_names: tuple[str, ...] = _column(
        (),
        "Names of the classes, or tags, separated by commas, where labels are their numbers from "
        "0, or 0 or 1 for each. By default those that a .parquet file has for them.",
    )
    ignored_label: tuple[str, ...] = _rare_column(
        (),
        "Labels, separated by commas, whose rows are left out, such as -1, or null for empty "
        "cells, too. By default labels that mean none are an error.",
    )
    choice_columns: tuple[str, ...] = _column((), "Columns of the choices, separated by commas.")
    negative_columns: tuple[str, ...] = _rare_column(
        (),
        "For embedding without scores, columns, separated by commas, of texts that text_column "
        "must not find. Only train_file needs them.",
    )

    def columns(self, labelled: bool) -> list[str]:
        """Returns the columns that a file of texts, or pairs of texts, must have."""
        pair = [self.text_pair_column] if self.text_pair_column else []
        labels = self.label_columns or (self.label_column,)
        return [self.text_column, *pair, *(labels if labelled else ())]


def has_labels(path: str, settings: TableSettings) -> bool:
    """Whether a table has the column of labels, according to its first row."""
    label = settings.label_column
    rows = table_records(path, settings.columns(labelled=False), (label,))
    return label in next(rows)[1]


def stored_class_names(path: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the class names of the ids in each column; only .parquet files can store them."""
    if not path.lower().endswith(parquet_files.ENDING):
        return {}
    with parquet_files.ParquetFile(path) as file:
        return file.class_names


def _class_names(path: str, settings: TableSettings) -> tuple[str, ...]:
    """Returns the names of the classes if the file's labels are ids; () if unknown."""
    files.check_file(path)
    names = settings.label_names or settings.label_columns
    if settings.label_columns and not 1 < len(settings.label_columns) == len(names):
        raise ValueError(
            "`label_columns` must be at least two, and as many as `label_names`, if any, got "
            f"{', '.join(settings.label_columns)}"
        )
    return names or stored_class_names(path).get(settings.label_column, ())


def find_labels(path: str, settings: TableSettings, several: bool = False) -> tuple[str, ...]:
    """Returns the classes of a training file, sorted as numbers if all are numbers, else by name.

    If the settings or the file name the classes, their order is kept. The classes of multi-hot
    labels are positions. The arguments are those of read_texts; labels are named as by class_of.
    """
    if named := _class_names(path, settings):
        return named
    _, given = _Labels(path, settings, several).read(settings.columns(labelled=False))
    # Multi-hot labels have no names: their classes are called by their positions.
    if several and multi_hot(given, f"{path}:") is not None:
        return tuple(map(str, range(len(next(iter(given.values()))))))
    # Names or ids: 1 and 1.0 are the same class.
    rows = {class_of(part): number for number, parts in given.items() for part in parts}
    if len(rows) < 2:
        found = f"only one label: {next(iter(rows))!r}" if rows else "no label"
        raise ValueError(
            f"{path}: expected several labels in column {settings.label_column!r}, got {found}"
        )
    if several and not settings.label_separator:
        apart = (parts for parts in given.values() if len(parts) > 1)
        _check_apart(rows, {*map(class_of, itertools.chain(*apart))}, path)
    # Sort numbers as numbers, so that class 10 comes after class 9.
    numbers = all(label.isascii() and label.isdigit() for label in rows)
    return tuple(sorted(rows, key=lambda label: (int(label) if numbers else 0, label)))


def read_texts(
    path: str,
    settings: TableSettings,
    labels: Sequence[str],
    labelled: bool = True,
    several: bool = False,
) -> list[TextExample]:
    """Reads texts, or pairs of them, to be classified or scored.

    Args:
      path: A .csv file (quotes around cells with commas, quotes or line ends), a .tsv file (a tab
        always separates cells, quotes are text), a .jsonl or .json file (an object per line) or a
        .parquet file. Text is UTF-8; the first line of a .csv or .tsv file names the columns.
      settings: The columns of texts and labels.
      labels: The classes in the order of their ids; empty for a regression.
      labelled: Whether the file has labels; if not, all are None.
      several: Whether a text may have any number of labels: in a list, between separators, or
        multi-hot.
    """
    reader = _Labels(path, settings, several, labels)
    texts, targets = reader.examples(settings.columns(labelled=False), labelled)
    # There may be neither a second text nor a label.
    pair = settings.text_pair_column or ""
    return [
        TextExample(str(number), row[settings.text_column], row.get(pair), targets.get(number))
        for number, row in texts.items()
    ]


@dataclasses.dataclass(frozen=True)
class _Labels:
    """Reads and interprets the labels of a file, for all tasks."""

    path: str
    settings: TableSettings
    several: bool = False
    known: Sequence[str] | None = None  # The classes: empty for a regression, None if unknown.

    @property
    def columns(self) -> Sequence[str]:
        return self.settings.label_columns or (self.settings.label_column,)

    def examples(self, columns: Sequence[str], labelled: bool) -> tuple[dict[int, dict], dict]:
        """Returns the texts' cells, and the targets: class ids, tuples of them, or numbers."""
        if not labelled:
            return dict(text_rows(self.path, columns)), {}
        texts, given = self.read(columns)
        return texts, self._targets(given)

    def read(self, columns: Sequence[str]) -> tuple[dict[int, dict], dict[int, list[str]]]:
        """Returns the texts' cells and the labels as written, for the rows that are not ignored."""
        # Refuse `label_columns` for regressions and choices, and several names in `label_column`.
        is_one = self.settings.choice_columns or (self.known is not None and not self.known)
        if self.settings.label_columns if is_one else self.several and "," in self.columns[0]:
            raise ValueError(
                "`label_column` names one column; for classification and multilabel, "
                "`label_columns` may name one of 0 or 1 for each class"
            )
        texts, given = {}, {}
        for number, record in table_records(self.path, [*columns, *self.columns], WEIGHTS):
            where = f"{self.path}:{number}"
            if weights := [name for name in WEIGHTS if name in record]:
                raise ValueError(
                    f"{where}: the weights in column {weights[0]!r} would be ignored: rename or "
                    "remove it, or read the table by Preprocessor.dataset"
                )
            texts[number] = _texts(record, columns, where, self.columns)
            given[number] = self._cells(record, f"{where}: column {', '.join(self.columns)!r}")

        # Leave out rows with an ignored label; any other label that means none is an error.
        ignored = {*map(_spelt, self.settings.ignored_label)}
        kept = {n: x for n, x in given.items() if ignored.isdisjoint(map(_spelt, x))}
        counts = Counter(x for parts in kept.values() for x in {*map(_spelt, parts)})
        for label in [x for x in _NONE if x in counts and self._means_none(x, counts)]:
            number = next(n for n, parts in kept.items() if label in map(_spelt, parts))
            raise ValueError(
                f"{self.path}:{number}: {label!r} in column {', '.join(self.columns)!r} means no "
                f"label, and {counts[label]} of {len(given)} rows have it: `ignored_label={label}` "
                "leaves them out (a class of that name would be one of `label_names`)"
            )
        if not kept:
            raise ValueError(f"{self.path}: all {len(given)} rows have an `ignored_label`")
        return {n: texts[n] for n in kept}, kept

    def _cells(self, record: Mapping[str, Any], where: str) -> list[str]:
        """Returns a row's labels as written or, with `label_columns`, the cell of each column."""
        values = [record[name] for name in self.columns]
        if self.several and not self.settings.label_columns:
            (value,) = values
            parts = listed_values(value.strip(), where) if isinstance(value, str) else value
            if not isinstance(parts, list):
                parts = _text(value, where).split(self.settings.label_separator or LABEL_SEPARATOR)
            values = [part for part in parts if _text(part, where)]
        parts = [_text(value, where) for value in values]
        # These would split a name into two cells, rows or labels in predictions.tsv.
        wrong = {"\t", "\r", "\n", *(LABEL_SEPARATOR * self.several)}
        for part in parts:
            if wrong & {*part}:
                raise ValueError(
                    f"{where}: expected a label without tabs, line ends and, of several, "
                    f"{LABEL_SEPARATOR}, got {part!r}"
                )
        return parts

    def _means_none(self, label: str, labels: Collection[str]) -> bool:
        known = _BITS if self.settings.label_columns else self.known
        if known is not None:
            return label not in map(class_of, known) and not (not known and label[1:].isdigit())
        if self.several or label in ("null", "-"):
            return self.several or label == "null" or "+" not in labels
        # It is part of a scale if there are other negative numbers, or its opposite is the maximum.
        numbers = [float(x) for x in {*labels} - {*_NONE} if _NUMBER.fullmatch(x)]
        return min(numbers, default=0) >= 0 and max(numbers, default=0) != -int(label)

    def _targets(self, given: Mapping[int, list[str]]) -> dict[int, Any]:
        labels, how = self.known or (), "any number each" if self.several else "one each"
        names: Sequence[str] = _class_names(self.path, self.settings) if labels else ()
        if (found := self._positions(given, len(names or labels))) is not None:
            # Positions refer to the file's classes, whose order may differ.
            how, names = "0 or 1 for each class", names or labels
            if {*map(class_of, names)} != {*map(class_of, labels)}:
                raise ValueError(
                    f"{self.path}: expected 0 or 1 for each of the classes trained on, "
                    f"{', '.join(labels)}, got them for {', '.join(names)}"
                )
            given = {n: [names[int(i)] for i in row] for n, row in found.items()}
        elif names:
            given = self._named(given, names)
        # A label is now the name of a class, or a number. If a text repeats it, it counts once.
        known, ids = {class_of(name): i for i, name in enumerate(labels)}, {}
        for number, row in given.items():
            ids[number] = sorted({_label(part, known, f"{self.path}:{number}") for part in row})
        self._log([*itertools.chain(*ids.values())], labels, how)
        return {n: tuple(row) if self.several else row[0] for n, row in ids.items()}

    def _positions(self, given: Mapping[int, list[str]], count: int) -> dict[int, list[str]] | None:
        """Returns the positions of the 1s in each row; None if labels are names, ids or numbers."""
        if not self.settings.label_columns:
            return multi_hot(given, f"{self.path}:", count) if self.several else None
        found = {}
        for number, parts in given.items():
            bits = [_BITS.get(class_of(part)) for part in parts]
            found[number] = [str(i) for i, bit in enumerate(bits) if bit]
            if None in bits or not (self.several or len(found[number]) == 1):
                raise ValueError(
                    f"{self.path}:{number}: expected 0 or 1 in each of `label_columns`, for "
                    f"classification a single 1, got {', '.join(parts)[:60]!r}"
                )
        return found

    def _named(self, given: Mapping[int, list[str]], names: Sequence[str]) -> dict[int, list[str]]:
        """Returns the labels as names, given ids or names."""
        ids = {str(i): class_of(name) for i, name in enumerate(names)}
        found = {class_of(part) for parts in given.values() for part in parts}
        # Names may be numbers: unless the file itself declares ids, all rows together decide.
        unlike = [x for x in found & ids.keys() & {*ids.values()} if ids[x] != x]
        if unlike and self.settings.label_names:
            are_names = found <= {*ids.values()}
            if are_names == (found <= ids.keys()):
                raise ValueError(
                    f"{self.path}: the label {min(unlike)!r} could be a name, or the number of "
                    "another one, in `label_names` or `choice_columns`: name them otherwise"
                )
            ids = {} if are_names else ids
        return {n: [ids.get(class_of(x), x) for x in parts] for n, parts in given.items()}

    def _log(self, ids: Sequence[Any], names: Sequence[str], how: str) -> None:
        """Logs one line that shows how the file was understood."""
        found = Counter(ids).most_common()
        counts = [f"{names[i][:40] if names else i} {count}" for i, count in found[:_SHOWN]]
        more = f" and {len(found) - _SHOWN} others" if len(found) > _SHOWN else ""
        columns = self.settings.columns(labelled=False), self.columns[:_SHOWN], counts
        text = f"%s: texts in %s, labels in %s, {how}: %s%s"
        logging.info(text, self.path, *map(", ".join, columns), more)


def _spelt(label: str) -> str:
    return "null" if label.lower() in _NULL else class_of(label)


def _check_apart(labels: Mapping[str, int], apart: Collection[str], path: str) -> None:
    """Checks that no label is several labels in one; `labels` maps each to the number of a row.

    Labels in `apart` are separated from others in a row, such as sql-server in sql|sql-server.
    """
    words = {tuple(_WORD.findall(label)) for label in labels}
    split = {x: {class_of(y.strip()) for y in _SEPARATORS.split(x) if y.strip()} for x in labels}
    uses = Counter(itertools.chain(*(split[label] for label in labels.keys() - apart)))
    for label, number in labels.items():
        # At usual separators, one part that is a label, or also part of another one, is enough.
        parts = split[label]
        is_joined = len(parts) > 1 and any(part in labels or uses[part] > 1 for part in parts)
        # At any other character, it must begin with one label and end with another.
        own = () if label in apart else tuple(_WORD.findall(label))
        first = next((i for i in range(1, len(own)) if own[:i] in words), len(own))
        if is_joined or any(own[i:] in words for i in range(first, len(own))):
            raise ValueError(
                f"{path}:{number}: the label {label!r} seems to be several labels in one: "
                f"`label_separator` says what is between them ({LABEL_SEPARATOR} if it is one)"
            )


def multi_hot(
    labels: Mapping[int, Sequence[str]], where: str, num_classes: int = 0
) -> dict[int, list[str]] | None:
    """Returns the positions of the 1s in multi-hot labels, or None if labels are names or ids.

    All texts together decide, because ids are neither repeated within a text nor written as 1.0 or
    true.

    Args:
      labels: The labels of each text, by its number.
      where: Precedes the number of a text in messages.
      num_classes: The number of classes; 0 if unknown.
    """
    spelt = {number: [*map(class_of, parts)] for number, parts in labels.items()}
    # A text that repeats a number can't hold ids: it, or else the first text, sets the width.
    repeating = (
        n
        for n, x in spelt.items()
        if all(part in _BITS or _NUMBER.fullmatch(part) for part in x) and len({*x}) < len(x)
    )
    first = next(repeating, None)
    width = num_classes or len(spelt[next(iter(spelt)) if first is None else first])
    # All other texts must have that width and be made of 0 and 1.
    others = [n for n, x in spelt.items() if len(x) != width or not _BITS.keys() >= {*x}]
    if first is not None and others:
        raise ValueError(
            f"{where}{others[0]}: expected 0 or 1 for each of {width} labels, as in "
            f"{where}{first}, which has a number twice; got {'|'.join(labels[others[0]])!r}"
        )
    if others or width < 2:
        return None
    # If all rows are like [0, 1], they could be either.
    if first is None and {*itertools.chain(*labels.values())} <= {"0", "1"}:
        raise ValueError(
            f"{where}{next(iter(labels))}: 0 and 1, as in all rows, could be two ids, or say which "
            "labels a text has: write the names of labels, or 0.0 and 1.0 for each"
        )
    return {n: [str(i) for i, part in enumerate(x) if _BITS[part]] for n, x in spelt.items()}


def read_choices(path: str, settings: TableSettings, labelled: bool = True) -> list[ChoiceExample]:
    """Reads questions with choices; a label names the right choice's column or its index from 0."""
    question, choices = settings.text_pair_column, settings.choice_columns
    columns = [*settings.columns(labelled=False), *choices]
    # A choice is named by its column.
    settings = dataclasses.replace(settings, label_names=choices)
    texts, labels = _Labels(path, settings, known=choices).examples(columns, labelled)
    examples = []
    for number, row in texts.items():
        before = f"{row[question]} " if question else ""
        endings = tuple(f"{before}{row[choice]}" for choice in choices)
        text = row[settings.text_column]
        examples.append(ChoiceExample(str(number), text, endings, labels.get(number)))
    return examples


def _label(text: str, ids: Mapping[str, int], where: str) -> int | float:
    if not ids:
        return finite_number(text, where)
    if class_of(text) not in ids:
        raise ValueError(
            f"{where}: label {text!r} is none of the classes or choices: {', '.join(ids)}"
        )
    return ids[class_of(text)]
