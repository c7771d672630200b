import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent


def _need(package: str) -> None:
    # Found, not imported: torch and TensorFlow can't both be loaded in one process.
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-peers installs it and runs this")


class Worker:
    """A process that runs Hugging Face's libraries."""

    def __init__(self, log: pathlib.Path) -> None:
        self._log, self._stderr = log, log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "hugging_face_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        )

    def __call__(self, do: str, **arguments):
        self._process.stdin.write(json.dumps({"do": do, **arguments}, default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()[-3000:]
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._stderr.close()


@pytest.fixture(scope="session")
def hugging_face(tmp_path_factory):
    _need("torch")
    _need("transformers")
    worker = Worker(tmp_path_factory.mktemp("worker") / "log.txt")
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def keras_hub():
    _need("keras_hub")
    import keras_hub

    return keras_hub
