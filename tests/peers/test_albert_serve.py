"""albert-serve with exported models: the SavedModels' answers, the page, load, the image.

Not tested here: Docker itself; the steps of its Dockerfile run without it.
"""

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from albert_tf.serving import other_formats, predict
from tests.kit.node import show_page
from tests.kit.served_tasks import LONG, TASKS, assert_same_outputs, make

pytestmark = pytest.mark.peers

ROOT = pathlib.Path(__file__).parents[2]
INPUTS = {
    "classify": [{"text_a": "a cat", "text_b": "a dog"}, {"text_a": LONG, "text_b": ""}],
    "tag": ["The Cat sat", LONG, ""],
    "choose": [{"context": "a story", "endings": ["one", "two"]}],
    "answer_v1": [{"question": "where?", "context": LONG}, {"question": "", "context": ""}],
    "answer_v2": [{"question": "who?", "context": "The Cat sat"}],
    "fill_mask": ["the [MASK] of [MASK].", "no gap"],
    "embed": ["The Cat sat", ""],
}


# The last label is too long for a line on a phone, and has no space.
LABELS = ("bad", "fair", "good_" * 30)
# Each row: the page's address and the texts to type, then the marks and bars that it shows.
PAGES = [
    ({"model": "labels", "text": "a"}, None, 0, 3),
    ({"model": "labels", "text": "a"}, ["the <b>cat</b>"], 0, 3),
    ({"model": "classify"}, ["a cat", "a dog"], 0, 2),
    ({"model": "tag"}, ["The Cat \U0001f408 sat " + "on" * 100], None, None),
    ({"model": "answer_v1", "context": "The Cat sat."}, ["who?"], 1, None),
    ({"model": "answer_v2", "context": "The Cat sat."}, ["who?"], None, None),
    ({"model": "choose"}, ["a story", "one\ntwo\nthree"], 0, 3),
    ({"model": "fill_mask"}, ["the [MASK] of [MASK].", ""], 2, 4),
    ({"model": "fill_mask"}, ["the [MASK] of [MASK].", "a cat"], 2, 5),
]


@pytest.fixture(scope="module")
def benchmark():
    """research/benchmarks/server.py as a module."""
    sys.path.insert(0, str(ROOT / "research/benchmarks"))
    yield importlib.import_module("server")
    sys.path.pop(0)


@pytest.fixture(scope="module")
def models(vocabulary, tmp_path_factory):
    """Exports a model of each task; returns the folder and what answers in the graph."""
    for package in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("models")
    served = {name: make(name, vocabulary) for name in (*TASKS, "labels")}
    for name, each in served.items():
        other_formats.save(each, str(folder / name), "onnx")
    return folder, {name: predict.from_model(each) for name, each in served.items()}


@pytest.fixture(scope="module")
def address(models, benchmark):
    folder, port = models[0], benchmark.free_port()
    first, *others = map(str, sorted(folder.iterdir()))
    with benchmark.serve(first, port, *(f"--model={other}" for other in others)):
        yield f"http://127.0.0.1:{port}"


def ask(address, name, body):
    request = f"{address}/v1/models/{name}:predict", json.dumps(body).encode()
    with urllib.request.urlopen(*request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_the_saved_models(models, address, task):
    predictor = models[1][task]
    rows = [[each] if isinstance(each, str) else [*each.values()] for each in INPUTS[task]]
    if task == "choose":
        rows = [[context, *endings] for context, endings in rows]
    expected = predictor.outputs(rows)
    names = {"inputs": INPUTS[task]}
    if len(predictor.names) > 1:
        names = {"inputs": {n: [each[n] for each in INPUTS[task]] for n in predictor.names}}
    found = ask(address, task, names)["outputs"]
    predictions = ask(address, task, {"instances": INPUTS[task]})["predictions"]
    by_row = [{name: values[i] for name, values in found.items()} for i in range(len(rows))]
    assert predictions == by_row
    for row, right in zip(predictions, expected, strict=True):
        dtypes = {name: np.asarray(value).dtype for name, value in right.items()}
        arrays = {
            n: np.array(v, object if dtypes[n].kind in "OU" else dtypes[n]) for n, v in row.items()
        }
        # In JSON, all empty arrays are the same empty list, whatever their shape.
        for n, value in arrays.items():
            if not value.size:
                arrays[n] = value.reshape(np.shape(right[n]))
        assert_same_outputs([arrays], [right])


def test_openais_client(models, address, vocabulary):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    assert {*TASKS, "labels"} == {each.id for each in client.models.list()}
    texts = ["no gap", "The Cat sat"]
    for name in ("fill_mask", "embed"):
        found = client.embeddings.create(model=name, input=texts).data
        expected = models[1][name].embed(texts)
        np.testing.assert_allclose([each.embedding for each in found], expected, atol=1e-5)
    short = client.embeddings.create(model="embed", input=texts, dimensions=3)
    expected = models[1]["embed"].embed(texts, dimensions=3)
    np.testing.assert_allclose([each.embedding for each in short.data], expected, atol=1e-5)
    assert short.usage.total_tokens == sum(
        int(each["tokens"]) for each in models[1]["embed"].outputs([[text] for text in texts])
    )
    tokenizer, before = vocabulary.tokenizer, models[1]["embed"].kind.prefix
    ids = [[tokenizer.cls_id, *tokenizer.encode(before + text), tokenizer.sep_id] for text in texts]
    again = client.embeddings.create(model="embed", input=ids, dimensions=3)
    np.testing.assert_allclose([each.embedding for each in again.data], expected, atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="labels has no embeddings"):
        client.embeddings.create(model="labels", input=texts)


def test_hugging_faces_client_of_text_embeddings_inference(models, address):
    hub, predictor = pytest.importorskip("huggingface_hub"), models[1]["embed"]
    client, texts = hub.InferenceClient(base_url=address), ["no gap", "The Cat sat", LONG]
    found = client.feature_extraction(texts, truncate=True, prompt_name="query", dimensions=3)
    np.testing.assert_allclose(found, predictor.embed(texts, dimensions=3), atol=1e-5)
    found = client.sentence_similarity("a dog", texts, model=f"{address}/similarity")
    expected = [each["similarity"] for each in predictor([["a dog", text] for text in texts])]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(hub.errors.HfHubHTTPError, match="413"):
        client.feature_extraction(texts, truncate=False)


@pytest.mark.parametrize("in_binary", [True, False])
def test_tritons_client(models, address, in_binary):
    """The Open Inference Protocol, which is KServe's protocol 2."""
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(address.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("choose")
    inputs = []
    rows = {"context": ["a story", "é"], "endings": [["one", "two"], ["", "x"]]}
    for tensor in client.get_model_metadata("choose")["inputs"]:
        values = np.array(rows[tensor["name"]], object)
        assert len(tensor["shape"]) == values.ndim
        inputs.append(triton.InferInput(tensor["name"], [*values.shape], tensor["datatype"]))
        inputs[-1].set_data_from_numpy(values, binary_data=in_binary)
    found = client.infer("choose", inputs).as_numpy("probabilities")
    asked = [[a, *b] for a, b in zip(*rows.values(), strict=True)]
    expected = [each["probabilities"] for each in models[1]["choose"].outputs(asked)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(triton.InferenceServerException, match="inputs must have text"):
        client.infer("labels", inputs)


def test_the_description_is_valid_and_true(address):
    """For each task the example is answered as its schema says."""
    validator = pytest.importorskip("openapi_spec_validator")
    jsonschema = pytest.importorskip("jsonschema")
    with urllib.request.urlopen(f"{address}/openapi.json") as file:
        document = json.load(file)
    validator.validate(document)
    asked = {path: each["post"] for path, each in document["paths"].items() if "post" in each}
    assert len(asked) == 2 * (len(TASKS) + 1) + len(("invocations", "embeddings", "embed", "alike"))
    for path, operation in asked.items():
        content = operation["requestBody"]["content"]["application/json"]
        jsonschema.validate(content["example"], content["schema"])
        given = json.dumps(content["example"]).encode()
        with urllib.request.urlopen(f"{address}{path}", given) as answer:
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(json.load(answer), schema)


def test_mlflows_client(models, benchmark):
    client = pytest.importorskip("mlflow.pyfunc.scoring_server.client")
    pandas, port = pytest.importorskip("pandas"), benchmark.free_port()
    texts = ["a", "The Cat sat"]
    with benchmark.serve(str(models[0] / "labels"), port):
        server = client.ScoringServerClient("127.0.0.1", port)
        server.ping()
        found = server.invoke(pandas.DataFrame({"text": texts})).get_predictions()
    expected = [each["label"] for each in models[1]["labels"](texts)]
    assert found["label"].tolist() == expected


@pytest.mark.parametrize("place", ["model.data", "more/a.data", "../data", "/data", "link", "data"])
def test_data_of_an_onnx_file_lie_beside_it(models, tmp_path, monkeypatch, place):
    onnx = pytest.importorskip("onnx")
    directory = tmp_path / "model"
    shutil.copytree(models[0] / "labels", directory)
    (directory / "more").mkdir()
    (directory / "link").symlink_to(tmp_path / "data")
    # The largest tensor moves to a file; another directory and the current one have it, too.
    model = onnx.load(directory / "model.onnx")
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    for path in (directory / "model.data", directory / "more/model.data", tmp_path / "data"):
        path.write_bytes(tensor.raw_data)
    place = f"{tmp_path}{place}" if place[0] == "/" else place
    onnx.external_data_helper.set_external_data(tensor, place)
    tensor.ClearField("raw_data")
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path)
    if "model.data" in place:
        assert predict.load_exported(directory)(["a"])[0]["probabilities"]
    else:
        with pytest.raises(ValueError, match="model.onnx can't be loaded"):
            predict.load_exported(directory)


def test_the_page_shows_each_task(models, address):
    questions = [{"at": at, "texts": texts} for at, texts, _, _ in PAGES]
    answers = show_page(f"{address}/", *questions)
    for shown, (at, _, marks, bars) in zip(answers, PAGES, strict=True):
        assert marks is None or len(shown["marks"]) == marks, (at, shown)
        assert bars is None or len(shown["shares"]) == bars, (at, shown)
        assert re.search(r"\d ms\.$", shown["status"]), (at, shown)


# After a refused connection, asyncio on Python 3.11.2 leaves the socket to garbage collection.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_nothing_is_lost_or_wrong_on_a_restart_under_load(models, benchmark):
    load = benchmark.measure(str(models[0] / "labels"), clients=8, seconds=6.0, restart=True)
    assert (load.wrong, load.lost) == (0, 0)
    assert len(load.seconds) > 100 and load.refused > 0


def test_the_steps_of_the_image(models, benchmark, tmp_path):
    """Follows tools/docker/Dockerfile in a folder: copies, runs its commands, and starts it."""
    text = (ROOT / "tools/docker/Dockerfile").read_text().replace("\\\n", "")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    places = {"/source": str(tmp_path / "source"), "/opt/albert": str(tmp_path / "albert")}

    def moved(line):
        return re.sub("|".join(places), lambda found: places[found[0]], line)

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    for step, line in steps:
        if step == "COPY" and not line.startswith("--from"):
            *sources, target = moved(line).split()
            for source in sources:
                copied = pathlib.Path(target, "" if target.endswith("/") else ".")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, copied, dirs_exist_ok=True)
                else:
                    copied.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, copied)
        elif step == "RUN":
            subprocess.run(moved(line), shell=True, env=environment, check=True, timeout=400)
    python = tmp_path / "albert/bin/python"
    packages = {path.name for path in python.parents[1].glob("lib/python*/site-packages/*")}
    assert "albert_tf" in packages and not packages & {"tensorflow", "keras", "pip"}
    (entry,) = (json.loads(line) for step, line in steps if step == "ENTRYPOINT")
    (health,) = (line for step, line in steps if step == "HEALTHCHECK")
    shutil.copytree(models[0] / "labels", tmp_path / "labels")
    port = benchmark.free_port()
    flags = [*entry[1:], f"--model={tmp_path / 'labels'}", f"--port={port}"]
    command, where = [python.parent / entry[0], *flags], {"cwd": tmp_path, "env": environment}
    with subprocess.Popen(command, **where) as process:
        try:
            benchmark.wait_until_ready(process, port)
            code = json.loads(health[health.index("[") :])[2].replace("8501", str(port))
            subprocess.run([python, "-c", code], env=environment, check=True, timeout=30)
            found = ask(f"http://127.0.0.1:{port}", "labels", {"instances": ["a"]})
            (answer,) = found["predictions"]
            expected = models[1]["labels"].outputs([["a"]])[0]["probabilities"]
            np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
        finally:
            process.terminate()
    assert process.returncode == 0
