"""The programs of docs/serving.md give test_vectors.json's outputs in other runtimes."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from albert_tf import export
from albert_tf.serving import other_formats, vectors
from tests.kit import tolerances
from tests.kit.node import PACKAGES, run_node
from tests.kit.served_tasks import make
from tests.model.test_backends import ROOT

TEXT = (ROOT / "docs" / "serving.md").read_text()


@pytest.fixture(scope="module")
def served(vocabulary):
    return make("labels", vocabulary)


@pytest.fixture(scope="module")
def exported(served, tmp_path_factory):
    folder, done = tmp_path_factory.mktemp("exports"), {}

    def make(file_format):
        if file_format.startswith("onnx"):
            pytest.importorskip("tf2onnx")
        if file_format not in done:
            done[file_format] = folder / file_format
            other_formats.save(served, done[file_format], file_format)
        return done[file_format]

    return make


def program_of(title, directory):
    """Returns the code block after a title in bold, with the directory of an export filled in."""
    (block,) = re.findall(rf"^\*\*{title}\*\*.*?^```\w*\n(.*?)^```", TEXT, re.M | re.S)
    assert "exported/sentiment" in block
    return block.replace("exported/sentiment", str(directory))


def run(*command):
    how = {"env": {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, "timeout": 300}
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def assert_vectors(said, directory):
    stored = json.loads((directory / vectors.FILE).read_text())
    pairs = [json.loads(f"[{line.replace('] [', '], [')}]") for line in said.splitlines()]
    assert [expected for _, expected in pairs] == [each["outputs"]["logits"] for each in stored]
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.OUTPUT)


@pytest.mark.peers
def test_node(exported, tmp_path):
    directory = exported("onnx")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "run.mjs").write_text(program_of("Node", directory))
    assert_vectors(run_node(tmp_path / "run.mjs"), directory)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("title", "package", "file_format"),
    [("LiteRT", "ai_edge_litert", "tflite"), ("OpenVINO", "openvino", "onnx")],
)
def test_python(exported, title, package, file_format):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-peers installs it")
    directory = exported(file_format)
    assert_vectors(run(sys.executable, "-c", program_of(title, directory)), directory)


@pytest.mark.slow
@pytest.mark.peers
def test_the_shell(served, tmp_path):
    export.save(served, tmp_path / "exported")
    command = program_of("saved_model_cli", tmp_path / "exported")
    said = run("bash", "-c", command.replace("python", sys.executable, 1))
    answer = served.answer_texts(text=np.array(["A warm film"], object))
    (found,) = re.findall(r"output key probabilities:\n\[\[(.*?)\]\]", said)
    expected = answer["probabilities"][0]
    tolerances.assert_close(np.array(found.split(), float), expected, tolerances.OUTPUT)
    assert f"output key label:\n[{answer['label'][0].numpy()!r}]" in said


def test_the_documented_installation_is_what_the_package_needs():
    """All its dependencies but TensorFlow, Keras, TensorBoard and tqdm; and onnxruntime.

    tools/docker installs all that a server needs.
    """
    command = re.search(r"^pip install '[^&]*", TEXT, re.M)
    # Python 3.10 has no tomllib.
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left_out = ("keras", "tensorboard", "tensorflow", "tqdm")
    needed = [each for each in project["dependencies"] if not each.startswith(left_out)]
    serve = project["optional-dependencies"]["serve"]
    runtime = [each for each in serve if each.startswith("onnxruntime")]
    assert sorted(re.findall(r"'(.*?)'", command[0])) == sorted(needed + runtime)
    lines = (ROOT / "tools/docker/requirements.txt").read_text().splitlines()
    assert sorted(lines[1:]) == sorted(needed + serve)
