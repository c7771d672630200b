"""The models' configs, and ALBERT-base v2, which most of the benchmarks measure."""

from __future__ import annotations

import json
from pathlib import Path

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
CONFIG_FILE = CONFIGS / "albert_base_v2.json"


def hugging_face_sizes() -> dict[str, float]:
    """Returns the sizes and dropout of the base model, under the names of Hugging Face."""
    config = json.loads(CONFIG_FILE.read_text())
    names = (
        "vocab_size embedding_size hidden_size num_hidden_layers num_attention_heads "
        "intermediate_size hidden_dropout_prob attention_probs_dropout_prob"
    )
    return {name: config[name] for name in names.split()}
