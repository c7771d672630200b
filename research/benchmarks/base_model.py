"""The models' configs, and ALBERT-base v2, which most of the benchmarks measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# So that a clone need not be installed.
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

CONFIGS = ROOT / "configs"
CONFIG_FILE = CONFIGS / "albert_base_v2.json"


def hugging_face_config(config_file: Path = CONFIG_FILE, **options: Any) -> Any:
    """Returns a model's config as Hugging Face's AlbertConfig.

    Args:
      config_file: The config.
      **options: Arguments of AlbertConfig beyond those that our config has.
    """
    import transformers

    known = transformers.AlbertConfig().to_dict()
    config = json.loads(config_file.read_text())
    sizes = {name: value for name, value in config.items() if name in known}
    # The release's "gelu" is the tanh approximation.
    return transformers.AlbertConfig(**{**sizes, "hidden_act": "gelu_new", **options})
