"""The models' configs, and ALBERT-base v2, which most of the benchmarks measure."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Lets the benchmarks run from a clone that is not installed.
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


def with_noise(model: Any, stddev: float) -> Any:
    """Adds noise to all weights of a new model: converters would leave out biases of 0."""
    import numpy as np

    noise = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign_add(noise.normal(0, stddev, weight.shape))
    return model


def export(served: Any, folder: str, formats: Sequence[str]) -> None:
    """Writes a model in some formats, each into a folder named after the format."""
    from albert_tf import export as exports
    from albert_tf.serving import other_formats

    for name in formats:
        directory = str(Path(folder, name))
        if name == "saved_model":
            exports.save(served, directory)
        else:
            other_formats.save(served, directory, name)
