"""The release's windows of its small SQuAD files."""

from __future__ import annotations

import json
import pathlib

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
