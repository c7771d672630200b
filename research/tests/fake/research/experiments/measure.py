"""Stands for the project's: three documents, one worse than the others whatever the model."""

import json
import pathlib
import sys

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
loss = json.loads((pathlib.Path(flags["output_dir"]) / "state.json").read_text())["loss"]
sums = [[10 * loss, 10], [20 * loss + 20, 20], [30 * loss, 30]]
found = {"metrics": {"probe_accuracy": 0.5}, "documents": {"masked_lm_loss": sums}}
pathlib.Path(flags["measures_file"]).write_text(json.dumps(found))
