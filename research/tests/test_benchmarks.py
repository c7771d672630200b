"""Benchmarks, as small as they get: they run. Can't see: what a real model, disk or GPU takes."""

import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.answers.classify import Classify
from tests.kit.served_tasks import store

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "research/benchmarks"))  # They are no package.
faster = importlib.import_module("faster")
eight_bits = importlib.import_module("eight_bits")
# By name: the packages that it needs, and how many ways it has to make a step.
CONTESTANTS = {"albert_tf": (("jax",), 3), "Hugging Face": (("torch", "transformers"), 2)}


@pytest.mark.peers
@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_makes_steps(name):
    packages, ways = CONTESTANTS[name]
    missing = [package for package in packages if not importlib.util.find_spec(package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    arguments = ["--models", "tiny", "--shapes", "2x16x3", "--steps", "1", "--only", name]
    run = subprocess.run(
        [sys.executable, "gpu.py", *arguments],
        cwd=ROOT / "research/benchmarks",
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rates = re.findall(rf"\| {name}.* \| tiny \| 2x16x3 \| ([\d,]+) \|", run.stdout)
    assert len(rates) == ways
    assert all(int(rate.replace(",", "")) > 0 for rate in rates)


@pytest.mark.peers
def test_a_row_of_the_serving_table():
    for package in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    run = subprocess.run(
        [sys.executable, "serving_table.py", "--models=era", "--runs=1", "--only=Python without"],
        cwd=ROOT / "research/benchmarks",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    row = r"load_exported.* \| (.*) s \| (.*) ms \| (.*) MB \| (.*) \+ (.*) MB \|"
    (found,) = re.findall(row, run.stdout)
    assert all(float(number) > 0 for number in found)


def test_scores_are_compared_with_those_of_all_layers(capsys):
    """Paired by seed: the differences of two layers are -1 and -3. One seed has no interval."""
    sst, cola = faster.TASKS[:2]
    scores = {
        faster.Run(task, seed, depth, is_taught): {"onnx": score, "onnx_int8": score - below}
        for task, below in ((sst, 1), (cola, 3))
        for seed, rows in enumerate(((80.0, 79.0, 79.5), (82.0, 79.0, 81.5)))
        for (depth, is_taught), score in zip(((4, False), (2, False), (2, True)), rows, strict=True)
    }
    faster.report(scores, 4)
    header, _, *rows, _, interval = capsys.readouterr().out.splitlines()
    assert header == "| layers | sst-2, onnx | sst-2, onnx_int8 | cola, onnx | cola, onnx_int8 |"
    assert rows[0].startswith("| 4 | 80.0 82.0 (+0.0) | 79.0 81.0 (-1.0) | 80.0 82.0 (+0.0) | 77.0")
    assert rows[1].startswith("| 2 | 79.0 79.0 (-2.0) | 78.0 78.0 (-3.0) |")
    assert rows[2].endswith("| 79.5 81.5 (-0.5) | 76.5 78.5 (-3.5) |")
    assert len(rows) == 3 and interval.endswith("median 12.7, at most 12.7.")
    faster.report({run: score for run, score in scores.items() if run.seed == 0}, 4)
    assert "| 2, a teacher | 79.5 (-0.5) | 78.5 (-1.5) |" in capsys.readouterr().out


def test_a_large_training_set_is_sampled(tmp_path, monkeypatch):
    data = ROOT / "tests/golden/features/glue_data"
    (task,) = (each for each in faster.TASKS if each.name == "mrpc")
    monkeypatch.setattr(faster, "TASKS", (task,))
    monkeypatch.setattr(faster, "_MOST_EXAMPLES", 3)
    faster.sample(data, tmp_path)
    found, whole = ((p / "MRPC/train.tsv").read_text().splitlines() for p in (tmp_path, data))
    assert found[0] == whole[0] and len(set(found[1:])) == 3 and set(found) < set(whole)
    assert (tmp_path / "MRPC/dev.tsv").read_text() == (data / "MRPC/dev.tsv").read_text()


@pytest.mark.peers
def test_ways_of_8_bits_are_scored(tmp_path, vocabulary, capsys):
    pytest.importorskip("onnx_ir")
    prefix = store(tmp_path, Classify(labels=("no", "yes"), max_seq_length=64), vocabulary)
    (tmp_path / "dev.tsv").write_text("text\tlabel\na cat\tno\na dog\tyes\n")
    eight_bits.main(["--model", prefix, "--eval_file", str(tmp_path / "dev.tsv")])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| | eval_accuracy | points lost | ms a text | MB |"
    assert len(rows) == len(eight_bits.FORMATS) + len(eight_bits.OTHERS)
    assert rows[0].startswith("| onnx | ") and rows[0].split(" | ")[2] == "0.0"
    assert all(float(each.strip("| ").split(" | ")[-1]) > 0 for each in rows)
