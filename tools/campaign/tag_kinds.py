"""Files of words with tags."""

from __future__ import annotations

import functools
import json
import pathlib

from albert_tf.tasks import conll
from tools.campaign import mutators
from tools.campaign.kinds import Evidence, Kind
from tools.campaign.text_kinds import bad_text

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


def _judge_tags(evidence: Evidence) -> str | None:
    """Counts sentences, or words and cells, on its own."""
    if bad_text(evidence.result):
        return "an unpaired surrogate"
    lines = evidence.after.decode("utf-8-sig").split("\n")
    rows = [line.strip(" \t\r") for line in lines]
    if evidence.suffix.endswith("jsonl"):
        expected, found = sum(map(bool, rows)), len(evidence.result)
    else:
        expected, found = sum(map(bool, rows)), sum(len(each.words) for each in evidence.result)
        if len({len(row.replace("\t", " ").split()) for row in rows if row}) > 1:
            return "rows with a different number of cells"
    if expected != found:
        return f"{found} of {expected} read"
    return None if all(each.labels for each in evidence.result) else "a word without a tag"


KINDS = (
    *(
        Kind(
            f"tags, .{ending}",
            functools.partial(_make_tags, ending),
            ("train.*",),
            mutators.JSON if ending == "jsonl" else mutators.TEXT,
            functools.partial(_read_tags, ending),
            _judge_tags,
        )
        for ending in ("conll", "jsonl")
    ),
)
