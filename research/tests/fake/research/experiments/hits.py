"""Stands for the project's: each of three documents, half right."""

import json
import pathlib
import sys

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
assert (pathlib.Path(flags["output_dir"]) / "eval_results.jsonl").exists()
found = {"metrics": {"eval_majority": 0.4}, "documents": {"eval_accuracy": [[5, 10]] * 3}}
pathlib.Path(flags["measures_file"]).write_text(json.dumps(found))
