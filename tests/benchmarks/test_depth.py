"""benchmarks/depth.py, as small as it gets: tracing is timed. Can't see: what XLA compiles."""

from __future__ import annotations

import importlib
import pathlib

import pytest

from albert_tf.model import encoder
from tests import pretraining_runs as runs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("form", ["loop", "unrolled"])
def test_a_trace_takes_time(monkeypatch, tmp_path, form):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    depth, base_model = map(importlib.import_module, ("depth", "base_model"))
    config = runs.write_config(tmp_path / "tiny.json", max_position_embeddings=128)
    monkeypatch.setattr(base_model, "CONFIG_FILE", config)
    for name in ("unroll", "loop"):
        monkeypatch.setattr(encoder, name, getattr(encoder, name))
    step, seconds = depth._make_step(2, form, recompute=False, jit_compile=False)
    # It is printed in tenths.
    assert seconds > 0.05
    assert step().numpy().size
