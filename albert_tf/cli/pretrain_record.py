"""What a pre-training run began with: a command that resumes it with something else is warned."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from absl import flags, logging

from albert_tf.cli import checks
from albert_tf.storage import files
from albert_tf.storage.text_files import read_json_object

_RECORD_FILE = "pretraining.json"
# All that shapes the weights of a run, besides its model and its records.
RECORDED = (
    *("optimizer", "learning_rate", "num_train_steps", "num_warmup_steps", "start_warmup_step"),
    *("poly_power", "train_batch_size", "random_seed", "sentence_order_weight", "precision"),
    *("max_seq_length", "max_predictions_per_seq", "max_examples_per_row", "masking"),
    *("masked_lm_budget", "ngram", "favor_shorter_ngram", "do_whole_word_mask", "do_permutation"),
    "gradient_accumulation_steps",  # Dropout's masks.
    *("init_checkpoint", "init_from_group0"),
)
# Those that an evaluation depends on: its last step, and its loss.
_EVALUATIONS = ("num_train_steps", "sentence_order_weight")
# Where those are that a run was last resumed with, if they are others.
_CURRENT = "resumed_with"


def keep(values: flags.FlagValues, counts: Mapping[str, int], resumes: bool) -> None:
    """Writes what a run begins with; one that resumes keeps its record, and may be warned.

    What evaluations depend on is written again if it has changed.

    Args:
      values: The flags.
      counts: Number of records by file.
      resumes: Whether the run is in output_dir.
    """
    now = {name: getattr(values, name) for name in RECORDED}
    now["records"] = {os.path.basename(path): count for path, count in counts.items()}
    now["remote_records"] = sum(map(files.is_remote, counts))  # They have another order.
    path = os.path.join(values.output_dir, _RECORD_FILE)
    if not resumes or not files.is_file(path):
        files.replace(path, json.dumps(now, indent=1) + "\n")
        return
    before = read_json_object(path)
    if not values.init_checkpoint:  # To resume, it may be left out.
        now = {name: value for name, value in now.items() if not name.startswith("init_")}
    changed = [
        _difference(name, before[name], now[name])
        for name in now
        # As text: the order of records counts, too.
        if json.dumps(before.get(name, now[name])) != json.dumps(now[name])
    ]
    checks.warn_of_changes(values.output_dir, changed)
    current = {name: now[name] for name in _EVALUATIONS}
    if any(_current(before).get(name) != value for name, value in current.items()):
        files.replace(path, json.dumps({**before, _CURRENT: current}, indent=1) + "\n")


def _current(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, **record.get(_CURRENT, {})}


def _difference(name: str, before: Any, now: Any) -> str:
    if name != "records":
        return f"{name} {before}, not {now}"
    return "the records in another order" if before == now else "other records"


def follow(values: flags.FlagValues) -> None:
    """Gives an evaluation the values of the run in output_dir; warns if others were given."""
    path = os.path.join(values.output_dir, _RECORD_FILE)
    if not files.is_file(path):
        return
    run = _current(read_json_object(path))
    changed = []
    for name in _EVALUATIONS:
        recorded = run.get(name, values[name].value)
        if not values[name].present:
            values[name].value = recorded
        elif values[name].value != recorded:
            changed.append(f"--{name}={recorded}, not {values[name].value}")
    if changed:
        logging.warning(
            "%s: evaluating a run that was started with %s: give the same, or leave it out",
            values.output_dir,
            "; ".join(changed),
        )
