"""research/benchmarks/gpu.py: its lines lower for CUDA, its clock, and rows for what fails.

Can't see: what a GPU does with what was lowered.
"""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from tests.kit import jax_process

FOLDER = jax_process.ROOT / "research/benchmarks"
# JAX writes this after an error.
TRACEBACK = """gpu.measure('albert_tf',): Traceback (most recent call last):
  File "gpu.py", line 1, in measure
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: a | b
--------------------
For simplicity, JAX has removed its internal frames from the traceback.
"""
FAILURES = {
    TRACEBACK: "failed: jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: a / b",
    "": "failed: it wrote nothing",
    # A script's own error.
    "INFO: starts\nerror: no such file\n": "failed: error: no such file",
}


@pytest.fixture
def printed(monkeypatch, capsys):
    """Returns a function that runs gpu.py; it returns the rows, and the seconds that they took.

    Processes take `speed` times as long as expected; `answers` has each function's result or error.
    """
    monkeypatch.syspath_prepend(FOLDER)
    import gpu

    def run(*arguments, speed=1.0, answers=None, facts_take=20.0):
        now = [0.0]
        figures = {"seconds": 0.1, "ready": 9.0, "device": "NVIDIA H100", "bytes": 2**30}
        given = {"measure": figures, "compare": "losses differ by 0", "kernels": "all in one"}
        given["facts"] = "NVIDIA H100, JAX 1", [("length 64", "within 0"), ("length 63", "failed")]
        given |= answers or {}

        def in_process(function, *of, timeout, **_):
            name = function.removeprefix("gpu.")
            takes = facts_take
            if name != "facts":
                takes = speed * (gpu.EXPECTED.get(of[0]) or 75.0)
            now[0] += min(takes, timeout)
            if takes > timeout:
                raise subprocess.TimeoutExpired(function, timeout)
            if isinstance(given[name], BaseException):
                raise given[name]
            return given[name]

        monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(gpu, "in_process", in_process)
        gpu.main(arguments)
        lines = capsys.readouterr().out.splitlines()
        return [line.strip("| ").split(" | ") for line in lines if line], now[0]

    return run


def test_a_line_makes_the_steps_that_its_name_says(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("ALBERT_KERNELS", "")  # It is set below, and restored in the end.
    import gpu

    def ours(*_):
        made.append(os.environ["ALBERT_KERNELS"])
        return lambda count: None

    made = []
    theirs = SimpleNamespace(
        albert_tf_on_jax=ours, hugging_face=lambda *of, **_: lambda: made.append(of[2])
    )
    monkeypatch.setattr(gpu, "contestants", theirs)
    for name in (gpu.OURS, gpu.ATTENDS, gpu.PLAIN, gpu.COMPILED, gpu.EAGER):
        gpu.steps_of(name, "base_v2", gpu.Shape(2, 16, 3))[0](1)
    assert made == ["attention,elementwise", "attention", "off", True, False]


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.7, 3.5])
@pytest.mark.parametrize("facts_take", [20.0, 1000.0])
def test_it_ends_in_time_with_a_row_for_each_line(printed, speed, facts_take):
    every, _ = printed("--minutes=1000")
    rows, seconds = printed("--minutes=8", speed=speed, facts_take=facts_take)
    assert seconds <= 480
    names = [row[:3] for row in rows if len(row) > 2 and row[1] != "-"]
    assert names == [row[:3] for row in every if len(row) > 2 and row[1] != "-"]
    measured = [row[:3] for row in rows if len(row) > 3 and row[3][0].isdigit()]
    assert ["albert_tf", "base_v2", "64x512x77"] in measured or speed > 3
    assert any(re.search(r"left out: \d+ s left, some \d+ needed", row[-1]) for row in rows)
    hangs = [row for row in rows if row[0] == "both kernels"][0][-1]
    assert (hangs == "ended: it took more than 38 s") == (facts_take > 100)


def test_a_line_that_hangs_leaves_time_for_others(printed):
    rows, seconds = printed("--minutes=8", answers={"compare": "x"}, speed=3.2)
    assert any(row[-1] == "ended: it took more than 225 s" for row in rows) and seconds <= 480


@pytest.mark.parametrize(("text", "expected"), FAILURES.items())
def test_a_line_that_fails_is_a_row_with_its_cause(printed, text, expected):
    rows, _ = printed("--models", "base_v2", answers={"measure": SystemExit(text)})
    assert {row[-1] for row in rows if row[0] == "albert_tf"} == {expected}
    # So does any other error, also one in the facts.
    found = {"measure": KeyError("device"), "facts": IndexError("no line")}
    rows, _ = printed("--models", "base_v2", answers=found)
    assert "failed: KeyError: 'device'" in [row[-1] for row in rows]
    assert rows[2][-1] == "failed: IndexError: no line"
    assert "no device: confirmed" in [row[0] for row in rows]


def test_the_end_is_two_rows_of_readmes_table(printed):
    rows, _ = printed("--models", "base_v2", "--minutes=6")
    readme = (jax_process.ROOT / "README.md").read_text()
    assert "| on | what is known |\n| --- | --- |\n" in readme
    assert rows[-4:-2] == [["on", "what is known"], ["---", "---"]]
    (confirmed, facts), (not_confirmed, others) = rows[-2:]
    assert confirmed == "NVIDIA H100, JAX 1: confirmed"
    assert not_confirmed == "NVIDIA H100, JAX 1: not confirmed"
    assert "cuDNN's attention, length 64: within 0; " in facts
    assert "albert_tf, base_v2, 64x512x77: 327,680 tokens/s" in facts
    assert "cuDNN's attention, length 63: failed; " in others and "left out: " in others
    # Each row is in one of the two.
    assert len([*facts.split("; "), *others.split("; ")]) == len(rows) - 2 - 4


@pytest.mark.slow  # Some fifty processes, ten seconds each.
def test_each_line_of_ours_lowers_for_cuda(tmp_path):
    pytest.importorskip("jax")
    rng = np.random.default_rng(3)
    words = ("the", "of", "and", "in", "was")
    lines = [" ".join(rng.choice(words, 20)) + "." for _ in range(3000)]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" + "\n" * (i % 30 == 0) for i, line in enumerate(lines)))
    # As many pieces as the models have.
    pieces = sentencepiece_model_pb2.ModelProto()
    pieces.ParseFromString((jax_process.ROOT / "tests/golden/spm/en_small.model").read_bytes())
    for number in range(30_000 - len(pieces.pieces)):
        pieces.pieces.add(piece=f"unused{number}", score=-99.0)
    vocabulary = tmp_path / "30k.model"
    vocabulary.write_bytes(pieces.SerializeToString())
    arguments = ["--rehearse", "--steps=2", "--minutes=60", f"--input_file={text}"]
    run = subprocess.run(
        [sys.executable, "gpu.py", *arguments, f"--spm_model_file={vocabulary}"],
        cwd=FOLDER,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines()]
    table = [row for row in rows if len(row) == 8][2:]
    assert len(table) > 30
    kernels = "__cudnn$fmha, add_and_norm, biased_gelu"
    for name, model, size, *_, note in table:
        if name.startswith("Hugging Face"):
            assert note == "left out: not ours"
        elif name == "cuDNN's attention" and size.endswith(("63", "81")):
            assert "Unsupported sequence length" in note  # The library leaves them to XLA.
        elif model == "base_v2" and name == "albert_tf":
            assert note == f"lowers for CUDA with {kernels}"
        else:
            assert note.startswith("lowers for CUDA"), (name, model, size, note)
            assert ("with" in note) == (not name.startswith("run_") and "by XLA" not in name)
