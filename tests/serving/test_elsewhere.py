"""SavedModels in TensorFlow Serving.

ALBERT_MODEL_SERVER names a tensorflow_model_server, which is not installed with this project.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request

import pytest
import tensorflow as tf

from albert_tf import export
from albert_tf.records.input_files import untuned
from albert_tf.serving import predict, saved_model
from tests.kit.served_tasks import TASKS, assert_alike, make

# Time limit for the server to load a model.
SECONDS = 180


def decoded(value):
    return [decoded(each) for each in value] if isinstance(value, list) else value.decode()


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def model_server(binary, folder):
    """Starts the server and yields its address, once it has loaded all models."""
    line = "config {{ name: '{}' base_path: '{}' model_platform: 'tensorflow' }}\n"
    config = "".join(line.format(task, folder / task) for task in TASKS)
    (folder / "models.config").write_text(f"model_config_list {{\n{config}}}\n")
    port = free_port()
    command = [binary, f"--rest_api_port={port}", f"--port={free_port()}"]
    command.append(f"--model_config_file={folder / 'models.config'}")
    with open(folder / "log.txt", "w") as log, subprocess.Popen(command, stderr=log) as process:
        address = f"http://localhost:{port}/v1/models"
        try:
            for task in TASKS:
                wait_for(f"{address}/{task}", process, folder / "log.txt")
            yield address
        finally:
            process.terminate()


def wait_for(address, process, log):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        not_yet = contextlib.suppress(urllib.error.URLError, ConnectionError)
        with not_yet, urllib.request.urlopen(address) as answer:
            status = json.load(answer)["model_version_status"]
            if status[0]["state"] == "AVAILABLE":
                assert status[0]["version"] == "1"
                return
        time.sleep(0.5)
    pytest.fail(f"{address} is not served:\n{log.read_text()[-3000:]}")


def test_tensorflow_serving_answers_alike(vocabulary, tmp_path):
    binary = os.environ.get("ALBERT_MODEL_SERVER")
    if not binary:
        pytest.skip("set ALBERT_MODEL_SERVER to a tensorflow_model_server to run this test")
    served = {task: make(task, vocabulary) for task in TASKS}
    for task, model in served.items():
        export.save(model, tmp_path / task / "1")
    with model_server(binary, tmp_path) as address:
        for task, model in served.items():

            def signature(task=task, **inputs):
                texts = {name: decoded(value.numpy().tolist()) for name, value in inputs.items()}
                body = json.dumps({"inputs": texts}).encode()
                with urllib.request.urlopen(f"{address}/{task}:predict", body) as answer:
                    outputs = json.load(answer)["outputs"]
                return {name: tf.constant(value) for name, value in outputs.items()}

            elsewhere = types.SimpleNamespace(signatures={"serving_default": signature})
            found = predict.Predictor(model.kind, predict.Signature(model.kind, elsewhere))
            lines = TASKS[task][1].splitlines()
            assert_alike(found(lines), predict.from_model(model)(lines))


@pytest.mark.peers
@pytest.mark.parametrize("task", ["classify", "choose"])
def test_warm_up_requests_are_answered(vocabulary, tmp_path, task):
    log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    model = make(task, vocabulary)
    export.save(model, tmp_path / "1")
    assert saved_model.hint(str(tmp_path / "1")) is None
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    lengths = []
    for record in untuned(tf.data.TFRecordDataset(str(tmp_path / "1" / saved_model.REQUESTS_FILE))):
        request = log.PredictionLog.FromString(record.numpy()).predict_log.request
        signature = loaded.signatures[request.model_spec.signature_name]
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        answers = signature(**{name: tf.constant(value) for name, value in inputs.items()})
        assert len(answers["probabilities"]) == 1
        # The long request fills a sequence.
        lengths.append(len(model.tokenizer(inputs[model.kind.text_names[0]]).ids[0]))
    assert lengths[0] == 1
    assert lengths[1] >= model.kind.max_seq_length


def test_a_hint_names_what_tensorflow_serving_lacks(tmp_path, monkeypatch):
    assert f"{tmp_path}/sentiment/1" in saved_model.hint(f"{tmp_path}/sentiment")
    assert f"{tmp_path}/v1/1" in saved_model.hint(f"{tmp_path}/v1/")
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    saved_model.write_warm_up(None, str(tmp_path))
    assert not any(tmp_path.iterdir())
    assert "pip install 'albert_tf[serving]'" in saved_model.hint(f"{tmp_path}/007")
