"""albert-serve as other platforms ask it, with made-up models; their clients are in tests/peers."""

import base64
import gc
import json
import socket
import types

import numpy as np
import pytest

from albert_tf.cli import serve as serve_command
from albert_tf.serving import server
from albert_tf.serving.predict import Predictor
from tests import made_up_models as made_up

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving.rest_api import create_app  # noqa: E402

VERTEX = {"AIP_HEALTH_ROUTE": "/health/of/vertex", "AIP_PREDICT_ROUTE": "/v1/endpoints/7:predict"}
ANNA = made_up.ANNA


def embed(inputs):
    return [{"mean": np.array([len(text), 0.1], np.float32)} for (text,) in inputs]


@pytest.fixture(scope="module")
def client():
    embedder = types.SimpleNamespace(**{**vars(made_up.kind("text")), "embeds": True}), embed
    models = {
        "capitals": {"2": Predictor(*made_up.CAPITALS), "11": Predictor(*made_up.CAPITALS)},
        "endings": {"1": Predictor(*made_up.ENDINGS)},
        "embedder": {"1": Predictor(*embedder)},
        "score": {"1": Predictor(*made_up.SCORE)},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VERTEX.items():
            patch.setenv(name, value)
        app = create_app(models, made_up.settings_of(max_body_bytes=5000, max_instances=4))
    options = {"base_url": "http://localhost", "raise_server_exceptions": False}
    with testclient.TestClient(app, **options) as client:
        yield client


def post(client, path, content, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post(path, content=body, headers=headers)
    return answer.status_code, answer.json()


def texts(data, shape, name="text", **more):
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": data, **more}


def found(answer):
    return {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in answer}


# --- KServe


def test_kserve_1_and_openai_list_models(client):
    answer = client.get("/v1/models").json()
    assert answer["models"] == ["capitals", "endings", "embedder", "score"]
    assert [each["id"] for each in answer["data"]] == answer["models"]
    status = client.get("/v1/models/capitals").json()
    assert (status["name"], status["ready"]) == ("capitals", True)


def test_kserve_2_describes(client):
    for path in ("", "/health/live", "/health/ready", "/models/capitals/ready"):
        assert client.get(f"/v2{path}").status_code == 200
    assert client.get("/v2/models/capitals/versions/3/ready").status_code == 404
    assert client.get("/v2/models/endings").json() == {
        "name": "endings",
        "versions": ["1"],
        "platform": "albert_tf",
        "inputs": [
            {"name": "context", "datatype": "BYTES", "shape": [-1]},
            {"name": "endings", "datatype": "BYTES", "shape": [-1, -1]},
        ],
        "outputs": [
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, -1]},
            {"name": "choice", "datatype": "INT32", "shape": [-1]},
            {"name": "ending", "datatype": "BYTES", "shape": [-1]},
        ],
    }


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_kserve_2_answers(client, shape):
    data = ["Anna in Rome", "é"] if shape == [2] else [["Anna in Rome"], ["é"]]
    body = {"id": "7", "inputs": [texts(data, shape)]}
    status, answer = post(client, "/v2/models/capitals/versions/2/infer", body)
    assert (status, answer["id"], answer["model_version"]) == (200, "7", "2")
    assert found(answer["outputs"]) == {
        "entities": ("BYTES", [2, 2], ["Anna", "Rome", "", ""]),
        "probabilities": ("FP32", [2, 2], [0.5, 0.5, 0, 0]),
        "length": ("INT32", [2], [12, 1]),
    }
    body["outputs"] = [{"name": "length"}]
    _, answer = post(client, "/v2/models/capitals/infer", body)
    assert [*found(answer["outputs"])] == ["length"]


def in_binary(tensor):
    """Returns a tensor whose texts stand behind the JSON, and these."""
    words = [text.encode() for text in tensor.pop("data")]
    content = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return {**tensor, "parameters": {"binary_data_size": len(content)}}, content


@pytest.mark.parametrize("is_binary", [False, True])
def test_kserve_2_answers_rows_of_many_texts(client, is_binary):
    inputs = [
        texts(["x", "yy", "zzzé", "u"], [2, 2], "endings"),
        texts(["a", "b"], [2], "context"),
    ]
    content = b""
    if is_binary:
        inputs, parts = zip(*map(in_binary, inputs), strict=True)
        content = b"".join(parts)
    body = json.dumps({"inputs": inputs}).encode()
    length = {"inference_header_content_length": str(len(body))}
    _, answer = post(client, "/v2/models/endings/infer", body + content, **length)
    assert found(answer["outputs"])["ending"] == ("BYTES", [2], ["yy", "zzzé"])


def test_kserve_2_refuses_binary_texts_that_end_early(client):
    tensor, content = in_binary(texts(["Anna in Rome", "é"], [2]))
    body = json.dumps({"inputs": [tensor]}).encode()
    length = {"inference_header_content_length": str(len(body))}
    status, answer = post(client, "/v2/models/capitals/infer", body + content, **length)
    assert status == 200 and found(answer["outputs"])["length"][2] == [12, 1]
    status, answer = post(client, "/v2/models/capitals/infer", body + content[:-1], **length)
    assert status == 400 and "end within a text" in answer["error"]
    length = {"inference_header_content_length": "9999"}
    assert post(client, "/v2/models/capitals/infer", body, **length)[0] == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"instances": ["a"]}, "an object with 'inputs'"),
        ({"inputs": [{"name": "text"}]}, r"inputs[0] must have name, shape, datatype and data"),
        ({"inputs": ["a"]}, "must have name, shape"),
        ({"inputs": [texts("a", [])]}, "has 1 texts, but shape []"),
        ({"inputs": [texts([1], [1])]}, "must be a text"),
        ({"inputs": [texts(["a"], ["a"])]}, "must have name, shape"),
        ({"inputs": [texts(["a"], [1.0])]}, "must have name, shape"),
        ({"inputs": [texts(["a"], [2])]}, "inputs[0] has 1 texts, but shape [2]"),
        ({"inputs": [texts([], [0])]}, "has 0 texts"),
        ({"inputs": [texts(["a"], [1], "x")]}, "inputs must have text, got an object of ['x']"),
        ({"inputs": [texts(["a"], [1], [])]}, "inputs must have text, got an object of ['[]']"),
        ({"inputs": [{**texts([1], [1]), "datatype": "INT32"}]}, "not 'INT32'"),
        ({"inputs": [texts(["a"], [1])], "outputs": [{"name": "x"}]}, "outputs are entities, "),
        ({"inputs": [texts(["a"], [1])], "outputs": [{"name": []}]}, "outputs are entities, "),
        ({"inputs": [texts(["a"], [1])], "outputs": 5}, "outputs must be a list"),
        ({"inputs": [texts(["a"], [1], parameters={"binary_data_size": "9"})]}, "must have name"),
    ],
)
def test_kserve_2_refuses(client, body, message):
    status, answer = post(client, "/v2/models/capitals/infer", body)
    assert status == 400 and message in answer["error"]


def test_a_server_that_ends_is_not_ready(client):
    client.app.state.is_ending = True
    try:
        paths = ("/readyz", "/ping", "/v2/health/ready", VERTEX["AIP_HEALTH_ROUTE"])
        assert [client.get(path).status_code for path in paths] == [503] * 4
    finally:
        client.app.state.is_ending = False
    assert [client.get(path).status_code for path in paths] == [200] * 4


# --- SageMaker, MLflow, Vertex AI


@pytest.mark.parametrize("path", ["/invocations", VERTEX["AIP_PREDICT_ROUTE"]])
@pytest.mark.parametrize(
    "body",
    [
        {"instances": ["Anna in Rome"], "parameters": {}},
        {"inputs": ["Anna in Rome"]},
        {"inputs": {"text": ["Anna in Rome"]}},
        {"dataframe_split": {"index": [0], "columns": ["text"], "data": [["Anna in Rome"]]}},
        {"dataframe_records": [{"text": "Anna in Rome"}]},
    ],
)
def test_one_model_answers(client, path, body):
    assert post(client, path, body) == (200, {"predictions": [ANNA]})


def test_csv(client):
    csv = b'text\r\n"Anna in Rome"\r\n"Anna, i\nn Rome"\r\n\r\n'
    _, answer = post(client, "/invocations", csv, content_type="text/csv; charset=utf-8")
    assert [each["length"] for each in answer["predictions"]] == [12, 14, 0]
    for wrong, message in ((b"a,b", "rows[0] must have text, got 2 fields"), (b"\xff", "UTF-8")):
        status, answer = post(client, "/invocations", wrong, content_type="text/csv")
        assert status == 400 and message in answer["error"]


def test_csv_of_many_texts():
    app = create_app({"endings": {"1": Predictor(*made_up.ENDINGS)}}, made_up.settings_of())
    with testclient.TestClient(app, "http://localhost") as client:
        _, answer = post(client, "/invocations", b"c,one,three\nd,xx,y\n", content_type="text/csv")
    assert [each["ending"] for each in answer["predictions"]] == ["three", "xx"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"instances": ["a"], "inputs": ["a"]},
        {"dataframe_split": {"columns": ["text"], "data": [["a", "b"]]}},
        {"dataframe_split": []},
        {"dataframe_records": [{"txt": "a"}]},
    ],
)
def test_one_model_refuses(client, body):
    status, answer = post(client, "/invocations", body)
    assert status == 400 and [*answer] == ["error"]


def test_vertex_names_the_port(monkeypatch):
    bound = []
    monkeypatch.setattr(server, "_serve", lambda app, listener, *_: bound.append(listener))
    monkeypatch.setattr(server.predict, "load_exported", lambda path: Predictor(*made_up.SCORE))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AIP_HTTP_PORT", str(port))
    serve_command.main(made_up.settings_of())
    serve_command.main(made_up.settings_of(port=0))  # A flag is more.
    found = [listener.getsockname()[1] for listener in bound]
    for listener in bound:
        listener.close()
    gc.unfreeze()
    assert found[0] == port != found[1]
    for wrong in ("80a", "65536"):
        monkeypatch.setenv("AIP_HTTP_PORT", wrong)
        with pytest.raises(SystemExit, match="AIP_HTTP_PORT in the environment must be a port"):
            serve_command.main(made_up.settings_of())


def test_requests_are_counted_for_the_model_that_answers(client):
    def counted():
        lines = client.get("/metrics").text.splitlines()
        name = 'albert_requests_total{model="capitals",status="200"}'
        return sum(float(line.split()[1]) for line in lines if line.startswith(name))

    before = counted()
    post(client, "/invocations", {"instances": ["a"]})
    assert counted() == before + 1


# --- OpenAI


def test_embeddings(client):
    asked = {"model": "embedder", "input": ["four", "a"]}
    status, answer = post(client, "/v1/embeddings", asked)
    assert status == 200 and answer["model"] == "embedder"
    rows = [[4, float(np.float32(0.1))], [1, float(np.float32(0.1))]]
    assert [each["embedding"] for each in answer["data"]] == rows
    assert [each["index"] for each in answer["data"]] == [0, 1]
    body = {**asked, "input": "four", "encoding_format": "base64"}
    (one,) = post(client, "/v1/embeddings", body)[1]["data"]
    assert np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() == rows[0]


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"model": "score"}, 400, "score has no embeddings"),
        ({"model": "gpt"}, 404, "gpt, only capitals"),
        ({"model": "\ud83d"}, 404, "\ud83d, only capitals"),
        ({"input": [1, 2]}, 400, "input[0] must be a text"),
        ({"dimensions": 1}, 400, "leave dimensions out"),
        ({"encoding_format": "int8"}, 400, "float or base64, got 'int8'"),
    ],
)
def test_embeddings_are_refused_in_their_clients_form(client, more, status, message):
    body = {"model": "embedder", "input": "a", **more}
    found, answer = post(client, "/v1/embeddings", body)
    assert found == status and message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
