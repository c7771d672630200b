"""Stands for a script of the project: the higher the rate, the better."""

import json
import pathlib
import sys
import time

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
directory = pathlib.Path(flags["output_dir"])
directory.mkdir(parents=True, exist_ok=True)
accuracy = 0.5 + 10 * float(flags["learning_rate"]) + int(flags["random_seed"]) / 100
metrics = {"eval_accuracy": accuracy, "time": time.time()}
record = {"step": 3, "key_metric": "eval_accuracy", "metrics": metrics, "is_best": True}
(directory / "eval_results.txt").write_text(f"eval_accuracy = {accuracy}\n")
(directory / "eval_results.jsonl").write_text(json.dumps(record) + "\n")
