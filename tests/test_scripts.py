"""The six absl scripts: what starts them, what --help shows, what a wrong command line says."""

from __future__ import annotations

import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from absl import app, flags

from albert_tf.cli.extend_vocabulary import ExtensionSettings
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import settings
from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings
from research.experiments import sotu

ROOT = pathlib.Path(__file__).parents[1]
# File -> its settings class, how its --help begins, and the headings.
SCRIPTS = {
    "run_pretraining": (
        PretrainingSettings,
        "Pre-trains ALBERT",
        ["Model and output", "Records", "Training", "Evaluation", "Masking", "Speed and memory"]
        + ["TPU"],
    ),
    "run_finetune": (
        FinetuningSettings,
        "Fine-tunes ALBERT",
        ["Task and data", "Columns of a table", "Model and output", "Features", "Training"]
        + ["Loss", "Evaluation and prediction", "Export", "SQuAD", "Speed and memory", "TPU"],
    ),
    "data/create_pretraining_data": (
        GeneratorSettings,
        "Makes pre-training records",
        ["Text", "Vocabulary", "Examples", "Masking", "Output", "Processes and memory"],
    ),
    "data/train_sentencepiece": (SentencePieceSettings, "Trains a SentencePiece vocabulary")
    + (["Text", "Vocabulary"],),
    "data/extend_vocabulary": (
        ExtensionSettings,
        "Adds the pieces of a domain",
        ["Text", "Model and output", "Vocabulary", "What lies beside the weights"],
    ),
    "data/prepare_sotu": (sotu.SotuSettings, "Writes the State of the Union", ["Output"]),
}


@pytest.fixture
def start(monkeypatch):
    """Starts a script as Python does; returns the parser of its command line."""

    def start_script(script):
        parsers = []
        monkeypatch.setattr(app, "run", lambda main, flags_parser: parsers.append(flags_parser))
        # The process's flags are the test runner's; a script starts with absl's own flags alone.
        values = flags.FlagValues()
        monkeypatch.setattr(flags, "FLAGS", values)
        monkeypatch.setattr(app, "FLAGS", values)
        monkeypatch.setattr(app, "define_help_flags", lambda: None)
        monkeypatch.setattr(sys, "path", list(sys.path))
        path = str(ROOT / f"{script}.py")
        monkeypatch.setattr(sys, "argv", [path])
        runpy.run_path(path, run_name="__main__")
        return parsers[0]

    return start_script


@pytest.mark.parametrize("option", ["--help", "--helpshort", "-?"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_what_a_script_does_and_its_own_flags_in_groups(start, capsys, script, option):
    _, doc, headings = SCRIPTS[script]
    parse = start(script)
    with pytest.raises(SystemExit) as ended:
        parse([script, option])
    assert ended.value.code == 1  # As absl's.
    shown = capsys.readouterr().out
    assert shown.startswith(doc)
    assert re.findall(r"^(\w[\w ]*):$", shown, flags=re.MULTILINE) == headings
    names = re.findall(r"^  --(?:\[no\])?(\w+):", shown, flags=re.MULTILINE)
    rare = {field.name for field in SCRIPTS[script][0].flags() if field.metadata["rare"]}
    assert sorted(names) == sorted({*SCRIPTS[script][0].names()} - rare)
    assert len(names) <= 58


def test_absls_own_help_lists_the_flags_by_heading(tmp_path):
    """In a separate process: absl's --helpfull shows FLAGS, which here are the test runner's."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import dataclasses\n"
        "from albert_tf.console.settings import Settings, run_script, setting\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Rows(Settings):\n"
        "    rows: int = setting(7, 'Number of rows.', group='Rows')\n"
        "    lines: int = setting(3, 'Number of lines.', group='Rows', rare=True)\n"
        "run_script(Rows, lambda settings: print(settings.rows), 'Counts rows.')\n"
    )

    def run(*arguments):
        done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, shown, _ = run("--helpfull")
    assert code == 1 and shown.startswith("Counts rows.")
    assert "\n  --rows: Number of rows.\n" in shown and "\nabsl.logging:\n" in shown
    assert "\nRows:\n  --lines: Number of lines.\n" in shown
    code, shown, _ = run("--help")
    assert code == 1 and "\nRows:\n  --rows: Number of rows.\n" in shown
    assert "absl" not in shown and "lines" not in shown
    assert run("--rows=11")[:2] == (0, "11\n")
    wrong = "error: flag --rows=x: invalid literal for int() with base 10: 'x'"
    assert run("--rows=x") == (1, "", f"{wrong} (--help lists the flags)\n")


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_help_is_a_sentence_and_a_bare_command_says_what_must_be_given(start, script):
    """tests/console/test_settings.py tests other errors in command lines."""
    values = flags.FlagValues()
    settings.define_flags(SCRIPTS[script][0], values)
    for name in values:
        text = values[name].help.rpartition(">: ")[2]  # absl puts an enum's values before it.
        assert re.fullmatch(r"[A-Za-z].{10,}\.", text), name
    lines = r"error: --\w+ must be given(; --\w+ must be given)* \(--help lists the flags\)"
    with pytest.raises(SystemExit) as ended:
        start(script)([script])
    assert re.fullmatch(lines, ended.value.code)


GONE = ("gone", "ERROR:: Unable to open flagfile: .*gone.flags")
BAD = ("bad", "a file that --flagfile names is not utf-8 text ")


@pytest.mark.parametrize(("name", "message"), [GONE, BAD])
def test_a_flag_file_that_is_not_there_or_no_text_is_one_line(tmp_path, start, name, message):
    (tmp_path / "bad.flags").write_bytes(b"# M\xfcller's\n--helpshort\n")
    with pytest.raises(SystemExit, match=f"^error: {message}") as ended:
        start("run_finetune")(["run_finetune", f"--flagfile={tmp_path}/{name}.flags", "--unknown"])
    assert "\n" not in ended.value.code


def test_worker_processes_load_no_tensorflow():
    """They import the script that was started, and the module of the function that they run."""
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"runpy.run_path({str(ROOT / 'data' / 'create_pretraining_data.py')!r})\n"
        "from albert_tf.generator import create, workers\n"
        "sys.exit(bool({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
