"""Runs of create_pretraining_data.py on the golden text."""

import json
import pathlib
from typing import Any

from albert_tf.cli import create_pretraining_data
from albert_tf.generator.settings import GeneratorSettings
from tests.kit.tiny import parse

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
TEXT = GOLDEN / "pretrain_data" / "text.txt"
MODEL = GOLDEN / "spm" / "en_small.model"


def flags(folder: pathlib.Path, **changes: Any) -> list[str]:
    """Returns a command line that writes out.tfrecord; a change to None leaves its flag out."""
    given = {"input_file": TEXT, "output_file": folder / "out.tfrecord", "spm_model_file": MODEL}
    given |= {"max_seq_length": 128, "dupe_factor": 1, "num_processes": 1, **changes}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def make(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    create_pretraining_data.main(parse(GeneratorSettings, *flags(folder, **changes)))
    return changes.get("output_file", folder / "out.tfrecord")


def report(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the report of the run there, without the values that vary from run to run."""
    found = json.loads(next(folder.glob("*.report.json")).read_text())
    for name in ("seconds", "peak_memory_bytes"):
        assert found.pop(name) > 0
    del found["shares"]["output_tokens_per_second"]
    return found | {"shards": list(found["shards"].values())}
