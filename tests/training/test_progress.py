import io
import logging
import re
import sys

import pytest

from albert_tf.training import progress
from albert_tf.training.progress import ProgressBar, ProgressLog
from tests.kit import pretraining_runs as runs

STATS = {"loss": 9.0, "masked_lm_loss": 8.25, "sentence_order_loss": 0.75}
STATS |= {"learning_rate": 0.00176, "grad_norm": 1.5}


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        *((progress.format_duration, 0, "0 s"), (progress.format_duration, 6.2, "7 s")),
        (progress.format_duration, 59, "59 s"),
        (progress.format_duration, 59.5, "1 min 0 s"),
        (progress.format_duration, 306, "5 min 6 s"),
        (progress.format_duration, 3600 * 3 + 60 * 4 + 59, "3 h 4 min"),
        (progress.format_duration, 86400 * 2 + 3600 * 3, "2 d 3 h"),
        *((progress.four_digits, 0.15702, "0.1570"), (progress.four_digits, 88.1249, "88.12")),
        *((progress.four_digits, 10570.0, "10570"), (progress.four_digits, 7, "7")),
        (progress.four_digits, 1e-5, "1.000e-05"),
    ],
)
def test_numbers_in_words(write, value, text):
    assert write(value) == text


@pytest.fixture
def caplog(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    return caplog


def test_the_line_and_the_scalars_say_the_same(tmp_path, caplog):
    ProgressLog(str(tmp_path), 1000, 13, 17).report(11, STATS, 0.1)
    line = "step 11/1000 | loss 9.000 (masked_lm 8.250) | 130 examples/s | 1 min 39 s left"
    assert caplog.messages == [line]
    rates = {"examples_per_second": 130, "tokens_per_second": 2210}
    assert runs.scalars(tmp_path) == {11: pytest.approx({**STATS, **rates}, rel=1e-6)}
    # In TensorBoard, metrics of checkpoints are a run beside the training.
    for step, accuracy in ((5, 0.25), (10, 0.75)):
        progress.write_metrics(str(tmp_path), step, {"accuracy": accuracy})
    assert runs.scalars(tmp_path / "eval") == {5: {"accuracy": 0.25}, 10: {"accuracy": 0.75}}


def test_no_time_is_told_while_compilation_is_part_of_it(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ProgressLog(None, 7, 13, 17).report(7, STATS, 2.0)  # Without a directory only the line.
    assert "6.5 examples/s | 0 s left" in caplog.text and not list(tmp_path.iterdir())
    caplog.clear()
    ProgressLog(str(tmp_path), 1000, 13, 17).report(1, STATS, 61.5, compiled=True)
    assert caplog.messages[0].endswith(" (masked_lm 8.250) | compiled in 1 min 2 s")
    assert runs.scalars(tmp_path) == {1: pytest.approx(STATS)}


def test_the_time_left_is_of_the_later_half_of_the_loops(caplog, monkeypatch):
    """By the clock, so that evaluations count, but not compilation."""
    clock = iter([100.0, *(each for time in (110.0, 112.0, 118.0) for each in (time, time))])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = ProgressLog(None, 24, 13, 17)
    shown.report(1, {"loss": 1.0}, 99.0, compiled=True)
    for step, seconds in ((2, 1.0), (4, 0.5), (6, 0.25)):
        shown.report(step, {"loss": 1.0}, seconds)
    # 10 s a step; then the last loop, 1 s a step; then the last two, 2 s a step.
    lefts = [message.rpartition(" | ")[2] for message in caplog.messages[1:]]
    assert lefts == ["3 min 40 s left", "20 s left", "36 s left"]


def _advance():
    with ProgressBar(4_000_000, 1_000_000) as bar:
        bar.advance(2_000_000, 1_000)
        bar.advance(3_000_000, 1_000)


def test_on_a_terminal_records_have_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    _advance()
    shown = terminal.getvalue()
    assert re.search(r" 25%.*1.00M/4.00M", shown)
    assert re.search(r" 75%.*3.00M/4.00M .*[kMG]B/s, [\d,]+ tokens/s\]", shown)


@pytest.mark.parametrize("seconds", [0, 10])
def test_elsewhere_records_have_a_line_now_and_then(monkeypatch, caplog, seconds):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", seconds)
    _advance()
    assert not sys.stderr.getvalue()
    pattern = r"75 % of 4.00M, [\d.]+[kMG]?B/s, [\d,]+ tokens/s; 00:00 left"
    assert not seconds or not caplog.messages
    assert seconds or re.fullmatch(pattern, caplog.messages[-1])
