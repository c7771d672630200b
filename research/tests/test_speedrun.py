"""The speedrun: its commands, its row, and what it holds out of a text.

A function replaces the scripts. Can't see: whether the minutes are kept (Deadline's tests).
"""

import json
import pathlib

import pytest

from albert_tf.storage import checkpoint, eval_results
from examples import demo
from research import speedrun
from tests.kit import tiny


@pytest.fixture
def commands(monkeypatch):
    """Replaces scripts by a function that only writes what is read later; returns their flags."""
    found = []

    def run(script, outputs=(), **flags):
        found.append({"script": script, **flags})
        out = pathlib.Path(str(flags.get("output_dir", "")))
        if script == "run_pretraining.py" and "train_minutes" in flags:
            out.mkdir(parents=True)
            checkpoint.save(str(out), 70, tiny.weights(tiny_model()), 1)
        elif script in ("run_pretraining.py", "run_finetune.py"):
            out.mkdir(parents=True, exist_ok=True)
            accuracy = 0.5 + 0.1 * flags.get("random_seed", 0)
            metrics = {"masked_lm_loss": 5.25, "eval_accuracy": accuracy}
            line = {"step": 70, "key_metric": "loss", "is_best": True, "metrics": metrics}
            (out / eval_results.RECORD_FILE).write_text(json.dumps(line) + "\n")
        return 0.0

    monkeypatch.setattr(demo, "run", run)
    return found


def tiny_model():
    from albert_tf.model.albert import AlbertModel

    return AlbertModel(tiny.config())


@pytest.mark.parametrize("recipe", speedrun.RECIPES)
def test_a_row_has_the_loss_and_three_seeds(recipe, commands, tmp_path, capsys):
    given = ["--minutes=2", f"--recipe={recipe}", f"--output_dir={tmp_path}/run"]
    speedrun.main([*given, "--train_batch_size=8"])
    row = json.loads((tmp_path / "run" / "speedrun.json").read_text())
    # 70 steps of 8 rows of 64.
    assert (row["tokens"], row["held-out loss"]) == ("35,840", "5.250")
    assert row["era"] == "0.700 (0.600 to 0.800)" and row["recipe"] == recipe
    assert capsys.readouterr().out.splitlines()[-1] == f"| {' | '.join(row.values())} |"
    training = next(flags for flags in commands if "train_minutes" in flags)
    assert training["train_minutes"] == 2 and training["train_batch_size"] == 8
    assert training.items() >= speedrun.RECIPES[recipe].items()


def test_a_text_of_ones_own_has_a_held_out_part_and_no_task(commands, tmp_path):
    text = tmp_path / "mine.txt"
    documents = [f"Document {i}.\nIts end." for i in range(41)]
    text.write_text("\n\n".join(documents) + "\n")
    speedrun.main(["--minutes=1", f"--text={text}", f"--output_dir={tmp_path}/run"])
    parts = [(tmp_path / "run" / f"{name}.txt").read_text() for name in ("train", "dev")]
    assert parts[0] == "\n\n".join(documents[:38]) + "\n"
    assert parts[1] == "\n\n".join(documents[38:]) + "\n"
    assert not any(flags["script"] == "run_finetune.py" for flags in commands)
    text.write_text("One document.\n")
    with pytest.raises(SystemExit, match="expected two documents or more"):
        speedrun.main(["--minutes=1", f"--text={text}", f"--output_dir={tmp_path}/other"])
