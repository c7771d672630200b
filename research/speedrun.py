"""Pre-trains for some minutes on this machine, fine-tunes, and prints what that gave as a row.

    make speedrun MINUTES=15 [TEXT=my.txt] [ARGS='--recipe release']

Without TEXT it uses the State of the Union addresses, and the task is to tell the era of a passage.
With your own text, one sentence per line and an empty line between documents, there is no task; its
last twentieth is held out. All files go to one directory, among them speedrun.json with the row. If
it is killed, the same command continues.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from albert_tf.storage import checkpoint, eval_results, files
from examples import demo
from research.experiments import run

# The release's optimizer for small batches, with a schedule that a clock can end and the rate that
# the study `recipe` found best.
RECIPES: dict[str, dict[str, Any]] = {
    "fast": {"recipe": "fast"},
    "release": {
        "optimizer": "adamw",
        "learning_rate": 0.0005,
        "num_warmup_steps": 500,
        "schedule": "wsd",
    },
}
COLUMNS = ("date", "commit", "machine", "recipe", "minutes", "tokens", "held-out loss", "era")


def hold_out(text: pathlib.Path, directory: pathlib.Path) -> dict[str, str]:
    """Writes the documents of a text as train.txt and dev.txt; returns their paths."""
    documents = [d for d in text.read_text(encoding="utf-8").split("\n\n") if d.strip()]
    if len(documents) < 2:
        raise ValueError(f"{text}: expected two documents or more, with an empty line between them")
    cut = len(documents) - math.ceil(len(documents) / 20)
    paths = {}
    for name, part in (("train", documents[:cut]), ("dev", documents[cut:])):
        path = directory / f"{name}.txt"
        path.write_text("\n\n".join(part).rstrip("\n") + "\n", encoding="utf-8")
        paths[name] = str(path)
    return paths


def pretrain(
    directory: str, paths: dict[str, str], arguments: argparse.Namespace
) -> dict[str, float]:
    """Trains by the clock, evaluates on the held-out text; returns the loss and the tokens."""
    out = f"{directory}/model"
    shared = {
        "albert_config_file": demo.CONFIG,
        "output_dir": out,
        "max_seq_length": demo.MAX_SEQ_LENGTH,
        "max_predictions_per_seq": demo.MAX_PREDICTIONS,
        "backend": arguments.backend,
    }
    batch = arguments.train_batch_size
    demo.run(
        "run_pretraining.py",
        input_file=paths["train_records"],
        train_batch_size=batch,
        train_minutes=arguments.minutes,
        precision=arguments.precision,
        save_checkpoints_steps=1000,
        **RECIPES[arguments.recipe],
        **shared,
    )
    demo.run(
        "run_pretraining.py",
        input_file=paths["dev_records"],
        do_train=False,
        do_eval=True,
        max_eval_steps=1000,
        **shared,
    )
    steps = checkpoint.step_of(checkpoint.latest(out))
    loss = eval_results.read_last(out)["masked_lm_loss"]
    return {"loss": loss, "tokens": steps * batch * demo.MAX_SEQ_LENGTH}


def row(arguments: argparse.Namespace, directory: str) -> dict[str, str]:
    """Runs all, and returns the row's cells by column."""
    machine = f"{run.processor()}, {os.cpu_count()} cores"
    # 1. Records of the text, a part of which is held out.
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    text = arguments.text
    paths = hold_out(text, pathlib.Path(directory)) if text else demo.prepare_text(directory)
    paths = demo.prepare_records(directory, paths)
    # 2. Pre-training, and its loss on that part.
    found = pretrain(directory, paths, arguments)
    # 3. The task of the addresses, with three seeds.
    scores = []
    for seed in () if text else (1, 2, 3):
        start = {"init_checkpoint": f"{directory}/model", "random_seed": seed}
        scores.append(demo.fine_tune(directory, f"{directory}/text", f"era_{seed}", **start))
    of_task = "-"
    if scores:
        of_task = f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})"
    values = datetime.date.today(), run.commit(), machine, arguments.recipe, arguments.minutes
    of_run = f"{found['tokens']:,.0f}", f"{found['loss']:.3f}", of_task
    return dict(zip(COLUMNS, [*map(str, values), *of_run], strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the speedrun."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, required=True, help="of pre-training")
    parser.add_argument("--text", type=pathlib.Path, help="by default the addresses")
    parser.add_argument("--recipe", choices=RECIPES, default="fast")
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--output_dir", help="by default speedrun/RECIPE-MINUTES")
    given = parser.parse_args(arguments)
    directory = given.output_dir or f"speedrun/{given.recipe}-{given.minutes:g}"
    try:
        found = row(given, directory)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    files.replace(f"{directory}/speedrun.json", json.dumps(found, indent=1) + "\n")
    for cells in (COLUMNS, ["---"] * len(COLUMNS), found.values()):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
