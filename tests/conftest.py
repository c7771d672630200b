"""Fixtures that more than one test file needs."""

from __future__ import annotations

import gc
import os
import pathlib

import pytest

# Tests run their programs for milliseconds: without optimising them, XLA compiles in half the time.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def pytest_collection_finish() -> None:
    """Has what was imported searched for garbage never again: TensorFlow is a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    """Folder of the numbers that the original release produced."""
    return pathlib.Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def spm_30k() -> pathlib.Path:
    """The release's English SentencePiece model, which isn't part of this repository."""
    path = os.environ.get("ALBERT_SPM_30K")
    if not path:
        pytest.skip("set ALBERT_SPM_30K to the release's 30k-clean.model to run this test")
    return pathlib.Path(path)


@pytest.fixture
def every_chain_fused(monkeypatch) -> None:
    """Has XLA compile chains of a test's few elements, too, as it does those of real sizes."""
    monkeypatch.setattr("albert_tf.model.fusion.WORTH_COMPILING", 0)
