"""benchmarks/checkpoints.py, as small as it gets: it runs. Can't see: what a real disk takes."""

from __future__ import annotations

import importlib
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_a_line_for_each_model(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    main = importlib.import_module("checkpoints").main
    main(["--models", "tiny", "--rounds", "2", "--directory", str(tmp_path)])
    title, row = capsys.readouterr().out.splitlines()
    assert title.split() == ["MB", "copied", "written", "written", "/", "copied"]
    megabytes, copied, written, ratio = map(float, re.findall(r"[\d.]+", row))
    assert megabytes > 1 and copied < written and ratio > 1
    assert not list(tmp_path.iterdir())
