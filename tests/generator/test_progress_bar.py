"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import re
import sys

import pytest

from albert_tf.generator import progress_bar


def _advance():
    with progress_bar.ProgressBar(4_000_000, 1_000_000) as bar:
        bar.advance(2_000_000, 1_000)
        bar.advance(3_000_000, 1_000)


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    _advance()
    shown = terminal.getvalue()
    assert re.search(r" 25%.*1.00M/4.00M", shown)
    assert re.search(r" 75%.*3.00M/4.00M .*[kMG]B/s, [\d,]+ tokens/s\]", shown)


@pytest.mark.parametrize("seconds", [0, 10])
def test_elsewhere_there_is_a_line_now_and_then(monkeypatch, caplog, seconds):
    caplog.set_level("INFO", logger="absl")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", seconds)
    _advance()
    assert not sys.stderr.getvalue()
    if seconds:
        assert not caplog.messages
    else:
        pattern = r"75 % of 4.00M, [\d.]+[kMG]?B/s, [\d,]+ tokens/s; 00:00 left"
        assert re.fullmatch(pattern, caplog.messages[-1])
