"""Stands in for every script that a study runs, by the name under which it is started.

Each takes a moment. `folder` makes a clone of nothing but such scripts.
"""

import json
import os
import pathlib
import sys
import tempfile
import time


def folder(names: list[str]) -> tempfile.TemporaryDirectory:
    """Returns a temporary directory in which scripts of these names lie."""
    made = tempfile.TemporaryDirectory()
    for name in names:
        path = pathlib.Path(made.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(pathlib.Path(__file__).resolve())
    return made


def write(path: str, found: object) -> None:
    pathlib.Path(path).write_text(json.dumps(found))


def write_results(
    directory: pathlib.Path, step: int, metric: str, value: float, **more: float
) -> None:
    """Writes an evaluation as the scripts do."""
    metrics = {metric: value, **more}
    record = {"step": step, "key_metric": metric, "metrics": metrics, "is_best": True}
    (directory / "eval_results.txt").write_text(f"{metric} = {value}\n")
    (directory / "eval_results.jsonl").write_text(json.dumps(record) + "\n")


def corpus(flags: dict[str, str]) -> None:
    """Three pieces in two words."""
    if "words_file" in flags:
        write(flags["words_file"], {"pieces": 3, "words": 2})


def hits(flags: dict[str, str]) -> None:
    """Three documents, half of each right."""
    assert pathlib.Path(flags["output_dir"], "eval_results.jsonl").exists()
    found = {"metrics": {"eval_majority": 0.4}, "documents": {"eval_accuracy": [[5, 10]] * 3}}
    write(flags["measures_file"], found)


def measure(flags: dict[str, str]) -> None:
    """Three documents, one worse than the others whatever the model."""
    loss = json.loads(pathlib.Path(flags["output_dir"], "state.json").read_text())["loss"]
    sums = [[10 * loss, 10], [20 * loss + 20, 20], [30 * loss, 30]]
    found = {"metrics": {"probe_accuracy": 0.5}, "documents": {"masked_lm_loss": sums}}
    write(flags["measures_file"], found)


def unigram(flags: dict[str, str]) -> None:
    """A loss that every cell is well below."""
    write(flags["output"], {"unigram_loss": 7.0})


def run_finetune(flags: dict[str, str]) -> None:
    """The higher the rate, the better."""
    directory = pathlib.Path(flags["output_dir"])
    directory.mkdir(parents=True, exist_ok=True)
    accuracy = 0.5 + 10 * float(flags["learning_rate"]) + int(flags["random_seed"]) / 100
    write_results(directory, 3, "eval_accuracy", accuracy, time=time.time())


def run_pretraining(flags: dict[str, str]) -> None:
    """Cheap, resumable, and as strict about its directory as the project's own."""
    directory = pathlib.Path(flags["output_dir"])
    directory.mkdir(parents=True, exist_ok=True)
    state_file, steps = directory / "state.json", int(flags["num_train_steps"])
    state = {"step": 0, "loss": 6.0}
    if state_file.exists():
        state = json.loads(state_file.read_text())
    if flags.get("do_train") == "false":
        assert state["step"] == steps, state
        write_results(directory, steps, "masked_lm_loss", state["loss"])
        return
    if float(flags["learning_rate"]) > 1:
        sys.exit("error: step 1 is not finite (loss nan): lower --learning_rate")
    claim = claim_directory(directory)
    config = json.loads(pathlib.Path(flags["albert_config_file"]).read_text())
    dropout = config.get("hidden_dropout_prob", 0)
    # With much dropout another rate is best.
    too_far = abs(float(flags["learning_rate"]) / (2e-3 if dropout > 0.15 else 1e-3) - 1)
    gain = 0.02 - 0.05 * dropout - 0.01 * too_far
    while state["step"] < steps:
        time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
        state["step"] += 1
        state["loss"] -= gain / (state["step"] + int(flags["random_seed"]))
        part = directory / "state.part"
        part.write_text(json.dumps(state))
        part.replace(state_file)
        with open(os.environ.get("JOURNAL", os.devnull), "a") as journal:
            journal.write(".")
    claim.unlink()


def claim_directory(directory: pathlib.Path) -> pathlib.Path:
    """Claims the directory: two runs at once would spoil each other's work."""
    claim = directory / "at_work"
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        other = pathlib.Path(f"/proc/{claim.read_text() or 0}/cmdline")
        # The command line of a zombie process is empty.
        if other.exists() and other.read_bytes():
            sys.exit("error: two runs in one directory")
    claim.write_text(str(os.getpid()))
    return claim


def main() -> None:
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
    name = pathlib.Path(sys.argv[0]).stem
    # The other scripts do nothing, since nothing reads their files.
    scripts = (corpus, hits, measure, unigram, run_finetune, run_pretraining)
    for script in scripts:
        if script.__name__ == name:
            script(flags)


if __name__ == "__main__":
    main()
