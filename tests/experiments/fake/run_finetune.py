"""Stands for a script of the project: the higher the rate, the better."""

import pathlib
import sys
import time

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
directory = pathlib.Path(flags["output_dir"])
directory.mkdir(parents=True, exist_ok=True)
accuracy = 0.5 + 10 * float(flags["learning_rate"]) + int(flags["random_seed"]) / 100
results = f"eval_accuracy = {accuracy}\nglobal_step = 3\ntime = {time.time()}\n"
(directory / "eval_results.txt").write_text(results + "=" * 50 + "\n")
(directory / "best_trial.txt").write_text(f"3:3:{accuracy}")
