"""Benchmarks, as small as they get: they run. Can't see: what a real model, disk or GPU takes."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CONTESTANTS = {"albert_tf": ("jax",), "Hugging Face": ("torch", "transformers")}


@pytest.mark.peers
@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_contestant_makes_steps(name):
    missing = [package for package in CONTESTANTS[name] if not importlib.util.find_spec(package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    arguments = ["--models", "tiny", "--shapes", "2x16x3", "--steps", "1", "--only", name]
    run = subprocess.run(
        [sys.executable, "gpu.py", *arguments],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rates = re.findall(rf"\| {name}.* \| tiny \| 2x16x3 \| ([\d,]+) \|", run.stdout)
    assert len(rates) == 2
    assert all(int(rate.replace(",", "")) > 0 for rate in rates)


@pytest.mark.peers
def test_a_row_of_the_serving_table():
    for package in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    run = subprocess.run(
        [sys.executable, "serving_table.py", "--models=era", "--runs=1", "--only=Python without"],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    row = r"load_exported.* \| (.*) s \| (.*) ms \| (.*) MB \| (.*) \+ (.*) MB \|"
    (found,) = re.findall(row, run.stdout)
    assert all(float(number) > 0 for number in found)
