"""The scripts in data/: what starts them, what they say of themselves, what their workers load."""

from __future__ import annotations

import pathlib
import runpy
import subprocess
import sys

import pytest
from absl import app, flags

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "doc", "names"),
    [
        ("create_pretraining_data", "Makes pre-training records", ("input_file", "dupe_factor")),
        ("train_sentencepiece", "Trains a SentencePiece vocab", ("input_file", "vocab_size")),
        ("prepare_sotu", "Writes the State of the Union", ("output_dir",)),
    ],
)
def test_help_tells_what_a_script_does_and_its_flags(monkeypatch, script, doc, names):
    started = []
    monkeypatch.setattr(app, "run", lambda *_, **__: started.append(sys.modules["__main__"]))
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    path = str(ROOT / "data" / f"{script}.py")
    monkeypatch.setattr(sys, "argv", [path])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(path, run_name="__main__")
    assert started[0].__doc__.startswith(doc)
    shown = flags.FLAGS.main_module_help()
    assert all(f"--{name}:" in shown for name in names)


def test_worker_processes_load_no_tensorflow():
    """They import the script that was started, and what the function is from."""
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"runpy.run_path({str(ROOT / 'data' / 'create_pretraining_data.py')!r})\n"
        "from albert_tf.generator import create, processes, workers\n"
        "sys.exit(bool({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
