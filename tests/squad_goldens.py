"""What the release made of its small SQuAD files: windows, answers, scores."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from albert_tf.tasks.squad_text import SquadSpan


def settings(golden: pathlib.Path) -> dict[str, int]:
    stored = json.loads((golden / "features/squad_settings.json").read_text())
    return {name: stored[name] for name in ("max_seq_length", "doc_stride", "max_query_length")}


def rows(golden: pathlib.Path, version: str, split: str) -> list[dict]:
    path = golden / f"features/squad_{version}_{split}_features.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def windows(golden: pathlib.Path, version: str) -> list[SquadSpan]:
    """Returns what the stored windows of a dev set show of their paragraphs."""
    return [
        SquadSpan(
            example_index=row["example_index"],
            doc_offset=row["tokens"].index("[SEP]") + 1,
            char_starts=np.array(row["tok_start_to_orig_index"]),
            char_ends=np.array(row["tok_end_to_orig_index"]),
            is_max_context=np.array([best for _, best in row["token_is_max_context"]]),
        )
        for row in rows(golden, version, "dev")
    ]


def stored(golden: pathlib.Path, name: str) -> Any:
    """Returns one of the files of answers and scores."""
    return json.loads((golden / f"squad_eval/{name}.json").read_text())
