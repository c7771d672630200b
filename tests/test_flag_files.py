from __future__ import annotations

import pathlib
import runpy

import pytest
from absl import app, flags

from albert_tf import scripts

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ("run_pretraining", "run_finetune", "data/create_pretraining_data")
SCRIPTS += ("data/train_sentencepiece", "data/prepare_sotu")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("given", ["--flagfile={0}", "-flagfile {0}", "--flagfile={1}"])
def test_a_flag_file_that_is_no_text_is_one_line(tmp_path, monkeypatch, script, given):
    bad, naming = tmp_path / "bad.flags", tmp_path / "naming.flags"
    bad.write_bytes(b"# M\xfcller's\n--helpshort\n")
    naming.write_text(f"--flagfile={bad}\n")
    parsers = []
    monkeypatch.setattr(app, "run", lambda main, flags_parser: parsers.append(flags_parser))
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    runpy.run_path(str(ROOT / f"{script}.py"), run_name="__main__")
    argv = [script, *given.format(bad, naming).split(), "--unknown"]
    with pytest.raises(SystemExit) as ended:
        parsers[0](argv)
    named = naming if "{1}" in given else bad
    assert ended.value.code == (
        f"error: --flagfile {named}, or a flag file that it names, is not utf-8 text (invalid "
        "start byte): save it as utf-8"
    )


def test_what_the_parser_returns_is_returned():
    assert scripts.flag_file_in_one_line(len)(["a", "--flagfile"]) == 2
