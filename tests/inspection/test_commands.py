"""Refusals of the commands that look inside models, mostly before a model is loaded."""

import pathlib
import shutil
import sys

import pytest

import albert_tf
from albert_tf.cli import commands as cli_commands
from albert_tf.cli import inspect as commands
from albert_tf.cli.inspect import attention, plan, similarity, sizes
from albert_tf.inspection import models
from tests.kit import pretraining_runs as runs
from tests.kit.files import refused
from tests.kit.tiny import run_main
from tests.peers import models as peer_models


@pytest.fixture(scope="module")
def folder(config, vocabulary, tmp_path_factory) -> pathlib.Path:
    """Input files and models, most of them unfit."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "day.txt").write_text("It was a long day.\n" * 40)
    (folder / "empty.txt").write_text("\n \n")
    runs.write_records(folder / "records", runs.examples(1))
    runs.write_records(folder / "compact", runs.compact_examples(1))
    runs.write_records(folder / "packed", runs.packed(runs.examples(2), 2))
    shutil.copy(vocabulary.path, folder / "spiece.model")
    (folder / "short.json").write_text(config.to_json())
    # Neither has heads, nor a vocabulary beside it.
    for name, each in (("bare", config), ("groups", peer_models.CONFIGS["groups2"])):
        (folder / name).mkdir()
        albert_tf.AlbertModel(each).save(folder / name / "model.keras")
    return folder


TWO = "STORED,bare/model.keras"
NO_VOCABULARY = "no vocabulary is beside bare/model.keras"
# A command, its settings in addition to DEFAULTS, and its message.
DEFAULTS = {"model": "STORED", "input_file": "day.txt", "output_dir": "out"}
PLAN = {"text_bytes": 1e9, "device": "h100", "devices": 8, "hours": 1}
REFUSED = [
    (similarity, {"output_dir": "full"}, "full already exists"),
    (similarity, {"max_seq_length": 20}, "--max_seq_length must be from 4 to 19"),
    (similarity, {"input_file": "empty.txt"}, "empty.txt: expected lines of text"),
    (similarity, {"input_file": "empty.txt,records"}, "some are records, some are not"),
    (similarity, {"input_file": "records"}, "set --max_seq_length=23"),
    (similarity, {"input_file": "compact"}, "record 0 has no masks"),
    (similarity, {"input_file": "packed"}, "record 0 packs several examples"),
    (similarity, {"model": "groups", "extra_layers": 1}, "--extra_layers applies the block"),
    (similarity, {"model": TWO}, NO_VOCABULARY),
    (attention, {"text": "word " * 20}, r"max_position_embeddings \(19\): shorten it"),
    (attention, {"model": TWO, "text": "a"}, "--model: expected 1 model, got 2"),
    (sizes, {}, "no model given: set --albert_config_file, or --markdown"),
    (sizes, {"albert_config_file": "none"}, "ALBERT config none does not exist"),
    (plan, {**PLAN, "device": "h200"}, "--device=h200: value should be one of <h100.a100"),
    (plan, {**PLAN, "hours": 0}, "--hours=0: 0.0 is not a number in .0, inf"),
    (plan, {**PLAN, "hours": 1e-9}, "no step of 8 .* 1e-09 --hours have .* --text_bytes"),
    (plan, {**PLAN, "text_bytes": 1}, "no step of 8 .* 20 passes over --text_bytes 0.01"),
    (plan, {**PLAN, "mfu": 40}, "--mfu=40: 40.0 is not a number in .0, 1"),
    (plan, {**PLAN, "albert_config_file": "none"}, "ALBERT config none does not exist"),
    (plan, {**PLAN, "albert_config_file": "short.json"}, "from 4 to 19 .* max_position_embeddings"),
]


@pytest.mark.parametrize(("command", "given", "message"), REFUSED)
def test_bad_input_is_one_line(command, given, message, stored, folder, monkeypatch):
    def load(*_):
        raise AssertionError("a model is loaded before all is checked")

    monkeypatch.chdir(folder)
    if command is not attention:  # The model itself refuses a text that is too long.
        monkeypatch.setattr(models, "load_encoder", load)
    (cls,) = (cls for each, cls in commands.COMMANDS.values() if each is command)
    values = {name: v for name, v in (DEFAULTS | given).items() if name in cls.names()}
    arguments = [f"--{name}={v}".replace("STORED", stored) for name, v in values.items()]
    with refused(message, folder):
        run_main(command, arguments)


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
