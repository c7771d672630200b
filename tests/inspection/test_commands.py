"""What the commands that look inside models have in common."""

import sys

import numpy as np
import pytest

import albert_tf
from albert_tf.cli import commands as cli_commands
from albert_tf.cli import inspect as commands
from albert_tf.inspection import models
from tests.tiny import run_main


def refuse(*_):
    raise AssertionError("a model is loaded before all is checked")


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (commands.similarity, ["--input_file=text.txt"]),
        (commands.agreement, []),
        (commands.probes, ["--task=neighbours", "--input_file=text.txt"]),
    ],
)
def test_a_later_models_vocabulary_is_checked_before_the_first_is_loaded(
    command, given, stored, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load_encoder", refuse)
    monkeypatch.setattr(models, "load_masked_lm", refuse)
    (tmp_path / "text.txt").write_text("It was a long day.\n" * 40)
    (tmp_path / "other").mkdir()
    albert_tf.AlbertModel(config).save(tmp_path / "other" / "model.keras")
    with pytest.raises(SystemExit, match="no vocabulary is beside other/model.keras"):
        run_main(command, [f"--model={stored},other/model.keras", "--output_dir=out", *given])


def test_too_few_labels_are_found_before_a_model_is_loaded(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load_encoder", refuse)
    # Of 20 rows four are held out, with this seed the only one of the other label.
    seed = next(i for i in range(99) if 19 in np.random.default_rng(i).permutation(20)[:4])
    path = tmp_path / "table.tsv"
    path.write_text("text\tlabel\n" + "a long day\tearly\n" * 19 + "a day\tlate\n")
    given = ["--task=table", f"--input_file={path}", f"--output_dir={tmp_path / 'out'}"]
    with pytest.raises(SystemExit, match="too few labels, or groups"):
        run_main(commands.probes, [f"--model={stored}", f"--seed={seed}", *given])


def test_a_command_is_named_first(monkeypatch):
    monkeypatch.setattr("sys.argv", ["albert-inspect"])
    with pytest.raises(SystemExit, match="(?s)COMMAND --help.*similarity .*sizes +Prints what a m"):
        cli_commands.inspect()
    started = []
    monkeypatch.setattr(cli_commands.settings, "run_script", lambda *given: started.append(given))
    monkeypatch.setattr("sys.argv", ["albert-inspect", "attention", "--text=a"])
    cli_commands.inspect()
    assert started[0][1] is commands.attention
    assert sys.argv == ["albert-inspect attention", "--text=a"]
