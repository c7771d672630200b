"""Fixtures that more than one test file needs."""

from __future__ import annotations

import gc
import os
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from albert_tf.text.tokenization import Tokenizer
    from albert_tf.text.vocabulary import Vocabulary
    from tests.kit.museum import Museum

# Tests run programs for only milliseconds: without optimisation, XLA compiles in half the time.
# Use only flags that every version of XLA knows: an unknown one ends the process.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
# Set before importing NumPy: two threads waiting for each other take four times as long as one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# As in the scripts, because tests compare the scripts' numbers with those of this process.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Cache programs for all processes: XLA compiles them for longer than they run. Workers of
# pytest-xdist inherit the directory of the process that started them.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
# Keep the garbage collector away from what tests import: TensorFlow alone is a million objects.
gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects slow tests, unless a marker expression or a file is given."""
    if config.option.markexpr or any(".py" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """Saves time in this process; those that tests start run as a user's do."""
    gc.freeze()
    gc.enable()
    if "tensorflow" in sys.modules:
        # For a test's few elements, more threads cost more time than they save.
        sys.modules["tensorflow"].config.threading.set_intra_op_parallelism_threads(1)
        # Each operation stores Python's stack for error messages, and pytest's is deep: reuse one.
        tf_stack = sys.modules["tensorflow.python.util.tf_stack"]
        stack = tf_stack.extract_stack()
        tf_stack.extract_stack = lambda stacklevel=1: stack
        # Optimising a graph takes longer than its few runs here. Processes that tests start do it.
        options = {"disable_meta_optimizer": True}
        sys.modules["tensorflow"].config.optimizer.set_experimental_options(options)


def pytest_sessionfinish() -> None:
    """Ends the server of JAX processes and waits for it, so that its time counts as the tests'."""
    if "tests.kit.jax_process" in sys.modules:
        sys.modules["tests.kit.jax_process"].close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Makes random weights and dropout the same each time, also of fixtures that a test sets up."""
    import numpy as np

    # Keras takes its seeds from `random`. Its set_random_seed would discard TensorFlow's resources.
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    return pathlib.Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def vocabulary(golden: pathlib.Path) -> Vocabulary:
    from albert_tf.text.vocabulary import Vocabulary

    return Vocabulary.read(str(golden / "spm" / "en_small.model"), is_word_piece=False)


@pytest.fixture(scope="session")
def tokenizer(golden: pathlib.Path) -> Tokenizer:
    from albert_tf.text.tokenization import Tokenizer

    return Tokenizer(golden / "spm" / "en_small.model")


@pytest.fixture(scope="session")
def spm_30k() -> pathlib.Path:
    """The release's English SentencePiece model, which isn't part of this repository."""
    path = os.environ.get("ALBERT_SPM_30K")
    if not path:
        pytest.skip("set ALBERT_SPM_30K to the release's 30k-clean.model to run this test")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def museum(tmp_path_factory) -> Iterator[Museum]:
    """Runs and files that all tests share: museum("mrpc") is the folder of one."""
    from tests.kit.museum import Museum

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # All workers share this folder.
        folder = folder.parent
    museum = Museum(folder / "museum")
    yield museum
    museum.check()


@pytest.fixture
def eager() -> Iterator[None]:
    """Runs steps eagerly, without tracing graphs: for tests of files, messages and classes."""
    from tests.training.toys import eagerly

    with eagerly():
        yield


@pytest.fixture
def every_chain_fused(monkeypatch) -> None:
    """Makes XLA compile chains of operations even on a test's few elements, as on real sizes."""
    monkeypatch.setattr("albert_tf.model.fusion.WORTH_COMPILING", 0)


@pytest.fixture(autouse=True)
def _no_silent_end(monkeypatch) -> None:
    """A signal that a test raises must not end pytest itself, with exit code 0 and no report."""

    def refuse(code: int) -> None:
        raise AssertionError(f"StopSignals would have ended the process with exit code {code}")

    monkeypatch.setattr("albert_tf.training.stop_signals._exit", refuse)
