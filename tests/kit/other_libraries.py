"""The content of docs/from_other_libraries.md: programs, theirs and ours, and tables."""

import json
import pathlib
import re
from collections.abc import Mapping

import numpy as np

import albert_tf
from albert_tf.conversion.convert import convert
from tests.kit import tiny

TEXT = pathlib.Path(__file__).parents[2].joinpath("docs/from_other_libraries.md").read_text()
_BLOCKS = re.findall("```python\n(.*?)```", TEXT, re.DOTALL)
NAMES = ("fine_tune", "fill_mask", "tf_albert", "kerashub", "garden")
WITH_FLAGS = ("run_glue.py and run_classification.py", "TrainingArguments", "The Model Garden")
# The variables that the page's programs leave for their reader to define.
DATA = {
    "texts": ["the earth was void", "and God said", "light", "darkness was upon the face"] * 5,
    "labels": [0, 1, 1, 0] * 5,
    "ids": np.array([[2, 7, 8, 3]]),
    "mask": np.ones((1, 4), np.int32),
    "segments": np.zeros((1, 4), np.int32),
}


def program(name: str, side: str, places: Mapping[str, str]) -> str:
    """Returns a program in which the models that it names are replaced by those at `places`."""
    code = _BLOCKS[2 * NAMES.index(name) + (side == "ours")]
    for stated, place in places.items():
        code = code.replace(json.dumps(stated), json.dumps(place))
    return code


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the rows of a section's tables."""
    (body,) = re.findall(rf"^##+ {heading}\n(.*?)(?:^##|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    found = re.findall(r"^\| (.*) \|$", body, re.MULTILINE)
    return [row.split(" | ") for row in found if not row.startswith("---")]


def small_models(folder: pathlib.Path, golden: pathlib.Path) -> dict[str, str]:
    """Writes a small model in each layout; returns: name in the page's programs -> its path."""
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=512)
    (folder / "config.json").write_text(config.to_json())
    albert_tf.AlbertForPreTraining(config).save(folder / "model.keras")
    spm = {"spm_model_file": str(golden / "spm" / "en_small.model")}
    for layout, drop in {"huggingface": [], "kerashub": ["cls/"]}.items():
        convert(str(folder / "model.keras"), layout, str(folder / layout), drop=drop, **spm)
    theirs, preset = str(folder / "huggingface"), str(folder / "kerashub")
    places = dict.fromkeys(("hf://albert/albert-base-v2", "albert/albert-base-v2"), theirs)
    places |= dict.fromkeys(("albert_base_keras", "albert_base_en_uncased"), preset)
    return {**places, "albert_base_v1": str(folder / "config.json")}
