"""Stands for a script of the project: cheap, resumable, and as strict about its directory."""

import json
import os
import pathlib
import sys
import time

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
directory = pathlib.Path(flags["output_dir"])
directory.mkdir(parents=True, exist_ok=True)
state_file = directory / "state.json"
steps = int(flags["num_train_steps"])
state = {"step": 0, "loss": 6.0}
if state_file.exists():
    state = json.loads(state_file.read_text())
if flags.get("do_train") == "false":
    assert state["step"] == steps, state
    metrics = {"masked_lm_loss": state["loss"]}
    record = {"step": steps, "key_metric": "masked_lm_loss", "metrics": metrics, "is_best": True}
    (directory / "eval_results.txt").write_text(f"masked_lm_loss = {state['loss']}\n")
    (directory / "eval_results.jsonl").write_text(json.dumps(record) + "\n")
    sys.exit()

if float(flags["learning_rate"]) > 1:
    sys.exit("error: step 1 is not finite (loss nan): lower --learning_rate")
claim = directory / "at_work"
try:
    # Two at once would spoil each other's work.
    os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    other = pathlib.Path(f"/proc/{claim.read_text() or 0}/cmdline")
    if (
        other.exists() and other.read_bytes()
    ):  # That of a killed process that nobody awaits is empty.
        sys.exit("error: two runs in one directory")
claim.write_text(str(os.getpid()))
config = json.loads(pathlib.Path(flags["albert_config_file"]).read_text())
journal = pathlib.Path(os.environ.get("JOURNAL", os.devnull))
while state["step"] < steps:
    time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
    dropout = config.get("hidden_dropout_prob", 0)
    state["step"] += 1
    # With much dropout another rate is the best.
    best_rate = 2e-3 if dropout > 0.15 else 1e-3
    too_far = abs(float(flags["learning_rate"]) / best_rate - 1)
    gain = 0.02 - 0.05 * dropout - 0.01 * too_far
    state["loss"] -= gain / (state["step"] + int(flags["random_seed"]))
    part = directory / "state.part"
    part.write_text(json.dumps(state))
    part.replace(state_file)
    with open(journal, "a") as file:
        file.write(".")
claim.unlink()
