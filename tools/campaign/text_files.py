"""Files that users write: task data, and the generator's text."""

from __future__ import annotations

import csv
import functools
import gzip
import importlib.util
import io
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from albert_tf.generator import documents
from albert_tf.generator.documents import TextSettings
from albert_tf.storage import files
from albert_tf.tasks import conll, glue, race, squad_text, table
from tests.kit import goldens
from tools.campaign import mutators
from tools.campaign.file_types import Evidence, FileType

_GOLDEN = goldens.FOLDER.parent
_FEATURES = _GOLDEN / "features"
_COLUMNS = table.TableSettings(text_pair_column="pair")
_LABELS = ("no", "yes")
_ROWS = [("A text, of one.", "Its pair.", "yes"), ('It says "no".', "Another", "no")] * 3


def bad_text(value: Any) -> bool:
    """Whether a value contains text that UTF-8 can't encode."""
    return any("\ud800" <= character <= "\udfff" for character in str(value))


# --- GLUE -------------------------------------------------------------------------------------


def _make_glue(name: str, folder: pathlib.Path) -> None:
    source = _FEATURES / "glue_data" / glue.GLUE_TASKS[name].folder
    shutil.copytree(source, folder / source.name)


def _read_glue(name: str, folder: pathlib.Path) -> list[glue.TextExample]:
    return glue.read_glue(name, str(folder), "train")


def _judge_glue(name: str, evidence: Evidence) -> str | None:
    """Counts rows and cells independently: lines and tabs separate them, quoted or not.

    Empty lines are skipped, as in every table.
    """
    task = glue.GLUE_TASKS[name]
    rows = evidence.after.decode("utf-8-sig").removesuffix("\n").split("\n")
    headless = "train" in task.headless
    cells = [row.removesuffix("\r").split("\t") for row in rows if row.removesuffix("\r")]
    expected = 4 if headless else len(cells[0])
    if any("\r" in cell for row in cells for cell in row):
        return "a carriage return within a cell"
    body = cells if headless else cells[1:]
    wrong = sum(len(row) != expected for row in body)
    if wrong and not task.skips_short_rows:
        return f"{wrong} rows with a different number of cells"
    if len(evidence.result) != len(body) - wrong:
        return f"{len(evidence.result)} examples of {len(body)} rows"
    return "an unknown label" if any(e.label is None for e in evidence.result) else None


# --- tables -----------------------------------------------------------------------------------


def _make_table(ending: str, folder: pathlib.Path) -> None:
    names = ("text", "pair", "label")
    if ending == "parquet":
        _write_parquet(
            folder / "train.parquet", dict(zip(names, zip(*_ROWS, strict=True), strict=True))
        )
        return
    if ending == "jsonl":
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in _ROWS)
    elif ending == "tsv":
        text = "".join("\t".join(row) + "\n" for row in (names, *_ROWS))
    else:
        content = io.StringIO()
        csv.writer(content, lineterminator="\n").writerows((names, *_ROWS))
        text = content.getvalue()
    (folder / f"train.{ending}").write_text(text)


def _write_parquet(path: pathlib.Path, columns: dict[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)


def _read_table(ending: str, folder: pathlib.Path) -> list[glue.TextExample]:
    return table.read_texts(str(folder / f"train.{ending}"), _COLUMNS, _LABELS)


def _judge_table(ending: str, evidence: Evidence) -> str | None:
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    if ending == "tsv":
        cells = [row.split(b"\t") for row in evidence.after.splitlines() if row]
        if len({len(row) for row in cells}) != 1:
            return "rows with a different number of cells"
        if len(evidence.result) != len(cells) - 1:
            return f"{len(evidence.result)} examples of {len(cells) - 1} rows"
    if ending == "jsonl":
        rows = [row for row in evidence.after.decode("utf-8-sig").split("\n") if row.strip()]
        if len(evidence.result) != len(rows):
            return f"{len(evidence.result)} examples of {len(rows)} rows"
    return None if all(e.label in (0, 1) for e in evidence.result) else "an unknown label"


# --- SQuAD, RACE ------------------------------------------------------------------------------


def _make_squad(name: str, folder: pathlib.Path) -> None:
    if name != "questions":
        shutil.copy(_FEATURES / f"{name}_train.json", folder / "train.json")
        return
    context = "A cat sat on a mat, and a dog saw it."
    answers = {"text": ["cat", "A cat"], "answer_start": [2, 0]}
    row = {"question": "Who sat?", "context": context, "answers": answers}
    lines = [json.dumps({"id": str(number), **row}) + "\n" for number in range(4)]
    (folder / "train.jsonl").write_text("".join(lines))


def _read_squad(name: str, folder: pathlib.Path) -> list[squad_text.SquadExample]:
    del name
    (path,) = folder.iterdir()
    return squad_text.read_squad(str(path))


def _judge_squad(name: str, evidence: Evidence) -> str | None:
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    if name == "questions":
        lines = evidence.after.decode("utf-8-sig").split("\n")
        count = len([json.loads(line) for line in lines if line.strip()])
    else:
        articles = json.loads(evidence.after)["data"]
        count = sum(len(p["qas"]) for article in articles for p in article["paragraphs"])
    if count != len(evidence.result):
        return f"{len(evidence.result)} examples of {count} questions"
    outside = any(
        answer.start < 0 or answer.start + len(answer.text) > len(example.paragraph)
        for example in evidence.result
        for answer in example.answers
    )
    return "an answer outside its paragraph" if outside else None


def _make_race(folder: pathlib.Path) -> None:
    for level in race.LEVELS:
        place = f"RACE/train/{level}"
        shutil.copytree(_FEATURES / "race_data" / place, folder / place)


def _read_race(folder: pathlib.Path) -> list[race.ChoiceExample]:
    return race.read_race(str(folder), "train", preprocess=str)


def _judge_race(evidence: Evidence) -> str | None:
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    for example in evidence.result:
        if len(example.endings) != 4 or example.label not in range(4):
            return f"{len(example.endings)} endings, label {example.label!r}"
    return None


# --- words with tags ----------------------------------------------------------------------------

_TAGS = ("O", "B-PER", "I-PER")
_TAGGED = [[("Anna", "B-PER"), ("Smith", "I-PER"), ("met", "O")], [("\u00fcber", "O")]] * 3


def _make_tags(ending: str, folder: pathlib.Path) -> None:
    if ending == "jsonl":
        columns = (zip(*each, strict=True) for each in _TAGGED)
        rows = ({"tokens": words, "labels": tags} for words, tags in columns)
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = "\n".join("".join(f"{word} NN {tag}\n" for word, tag in each) for each in _TAGGED)
    (folder / f"train.{ending}").write_text(text, encoding="utf-8")


def _read_tags(ending: str, folder: pathlib.Path) -> list[conll.TokenExample]:
    return conll.read_sentences(str(folder / f"train.{ending}"), _TAGS)


def _judge_tags(ending: str, evidence: Evidence) -> str | None:
    """Counts sentences, or words and cells, independently of the reader."""
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    lines = evidence.after.decode("utf-8-sig").split("\n")
    rows = [line.strip(" \t\r") for line in lines]
    if ending == "jsonl":
        expected, found = sum(map(bool, rows)), len(evidence.result)
    else:
        expected, found = sum(map(bool, rows)), sum(len(each.words) for each in evidence.result)
        if len({len(row.replace("\t", " ").split()) for row in rows if row}) > 1:
            return "rows with a different number of cells"
    if expected != found:
        return f"{found} of {expected} read"
    return None if all(each.labels for each in evidence.result) else "a word without a tag"


# --- the generator's text -----------------------------------------------------------------------

# It ends with a blank line, so that twice the text has twice the documents.
_TEXT = (
    "One sentence here.\nAnother, with 1,990 words.\n\nA second document.\nIt ends: ünï.\n\n" * 4
)
_JSONL = "".join(json.dumps({"id": i, "text": _TEXT[:90]}) + "\n" for i in range(4))


_FORMATS = {"text.jsonl": "jsonl", "text.parquet": "parquet"}


def _make_text(name: str, folder: pathlib.Path) -> None:
    if name == "text.parquet":
        _write_parquet(folder / name, {"text": [_TEXT[:90]] * 4})
        return
    content = (_JSONL if name == "text.jsonl" else _TEXT).encode()
    compressed = gzip.compress(content, mtime=0)
    (folder / name).write_bytes(compressed if name.endswith(".gz") else content)


def _read_text(name: str, folder: pathlib.Path) -> list[list[str]]:
    settings = TextSettings(input_file="", input_format=_FORMATS.get(name, "lines"))
    found = files.list_files(str(folder / "*"))
    return [document.sentences for document in documents.read_documents(found, settings)]


def _judge_text(name: str, evidence: Evidence) -> str | None:
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    if name.endswith(".gz") and evidence.result != evidence.expected:
        alike = evidence.result == evidence.expected * 2
        return None if alike else "different text despite checksums"
    return None


# --- all of them --------------------------------------------------------------------------------


def _each(
    title: str,
    damage: Mapping[str, tuple[mutators.Mutator, ...]],
    make: Callable[[str, pathlib.Path], None],
    read: Callable[[str, pathlib.Path], Any],
    judge: Callable[[str, Evidence], str | None],
    targets: str = "train.*",
) -> Iterator[FileType]:
    """Yields a type for each name in `damage`; the functions' first argument is the name."""
    for name, how in damage.items():
        made, reader, judged = (functools.partial(each, name) for each in (make, read, judge))
        yield FileType(f"{title}{name}", made, how, reader, judged, targets)


_GLUE = dict.fromkeys(("cola", "mrpc", "qqp", "sts-b", "rte"), mutators.TABLE)
_TABLES = {"csv": mutators.TABLE, "tsv": mutators.TABLE, "jsonl": mutators.JSON}
_TEXTS = {"text.txt": mutators.TEXT, "text.txt.gz": mutators.BINARY, "text.jsonl": mutators.JSON}
if importlib.util.find_spec("pyarrow"):
    # Pages of .parquet have no checksums: a value is provably wrong only if it is no text or label.
    _TABLES["parquet"] = _TEXTS["text.parquet"] = mutators.BINARY
_TAG_FILES = {"conll": mutators.TEXT, "jsonl": mutators.JSON}
_QUESTIONS = dict.fromkeys(("squad_v1", "squad_v2", "questions"), mutators.JSON)
FILE_TYPES = (
    *_each("GLUE, ", _GLUE, _make_glue, _read_glue, _judge_glue),
    *_each("table, .", _TABLES, _make_table, _read_table, _judge_table),
    *_each("", _QUESTIONS, _make_squad, _read_squad, _judge_squad),
    FileType("RACE", _make_race, mutators.JSON, _read_race, _judge_race, "all.txt"),
    *_each("generator's ", _TEXTS, _make_text, _read_text, _judge_text, "text.*"),
    *_each("tags, .", _TAG_FILES, _make_tags, _read_tags, _judge_tags),
)
