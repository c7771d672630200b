"""Requests that albert-serve's protocols answer or refuse, for made-up models without vectors.

Clients of these protocols are in tests/peers.
"""

import contextlib
import gzip
import json
import re
import zlib

import numpy as np
import pytest

from albert_tf.answers.tag import Tag
from albert_tf.serving.predict import Predictor
from tests.kit import made_up_models as made_up
from tests.kit.made_up_models import ANNA, CAPITALS, ENDINGS, SCORE, post

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving import rest_bounds  # noqa: E402
from albert_tf.serving.rest_api import create_app  # noqa: E402

VERTEX = {"AIP_HEALTH_ROUTE": "/health/of/vertex", "AIP_PREDICT_ROUTE": "/v1/endpoints/7:predict"}


@pytest.fixture(scope="module")
def client():
    models = {
        "capitals": {"2": Predictor(*CAPITALS), "11": Predictor(*CAPITALS)},
        "endings": {"1": Predictor(*ENDINGS)},
        "score": {"1": Predictor(*SCORE)},
        "two": {"2": Predictor(*SCORE), "11": Predictor(*ENDINGS)},
    }
    limits = {"max_body_bytes": 5000, "max_text_length": 300, "max_instances": 4}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VERTEX.items():
            patch.setenv(name, value)
        app = create_app(models, made_up.settings_of(**limits))
    options = {"base_url": "http://localhost", "raise_server_exceptions": False}
    with testclient.TestClient(app, **options) as client:
        yield client


def texts(data, shape, name="text", **more):
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": data, **more}


CHOICE = {"context": "c", "endings": ["one", "three"]}
PAIR, SWAPPED = {"text_a": "a", "text_b": "bc"}, {"text_b": "", "text_a": ""}
PREDICT, ASK = "/v1/models/{}:predict", "/invocations"
INFER = "/v2/models/capitals/infer"
LENGTH = "inference_header_content_length"


ROME = {**ANNA, "length": 13}
NOBODY = {"entities": [], "probabilities": [], "length": 0}
LETTERS = "Aé " * 100
MANY = {"entities": ["Aé"] * 100, "probabilities": [0.5] * 100, "length": 300}
THREE = {"probabilities": [3, 5], "choice": 1, "ending": "three"}


@pytest.mark.parametrize(
    ("name", "asked", "answered"),
    [
        ("capitals", {"instances": ["Anna in Rome", ""]}, [ANNA, NOBODY]),
        ("capitals", {"instances": [{"text": "Anna in Rome"}]}, [ANNA]),
        ("capitals", {"instances": [{"b64": "QW5u\r\n YSBpbiBSb21lIA\t"}]}, [ROME]),
        ("capitals", {"instances": [{"b64": "QW5uYSBpbiBSb21lIA.="}]}, [ROME]),
        ("capitals", {"instances": [""]}, [NOBODY]),
        # An answer with so many values is written in parts, and sent in chunks.
        ("capitals", {"instances": [LETTERS] * 3 + ["Anna in Rome"]}, [*[MANY] * 3, ANNA]),
        (
            "capitals/versions/2",
            {"inputs": ["Anna in Rome"], "signature_name": "serving_default"},
            {name: [value] for name, value in ANNA.items()},
        ),
        ("score", {"instances": [PAIR, {**SWAPPED, **PAIR}]}, [5, 5]),
        ("score", {"inputs": {"text_b": ["bc"], "text_a": ["é"]}}, [5]),
        ("two", {"instances": [CHOICE]}, [THREE]),
        ("two/versions/2", {"instances": [PAIR]}, [5]),
        (
            "endings",
            {"inputs": {"context": ["c"] * 4, "endings": [["a"]] * 4}},
            {"probabilities": [[1]] * 4, "choice": [0] * 4, "ending": ["a"] * 4},
        ),
    ],
)
def test_tensorflow_serving_answers(client, name, asked, answered):
    form = "predictions" if "instances" in asked else "outputs"
    assert post(client, PREDICT.format(name), asked) == (200, {form: answered})


def test_a_request_chooses_a_depth():
    """By a parameter of its URL, as in every protocol."""
    by_depth = {n: lambda rows, n=n: [{"score": np.float32(n)} for _ in rows] for n in (6, 4)}
    deep = Predictor(SCORE[0], by_depth[6], by_depth=by_depth)
    app = create_app(
        {"deep": {"1": deep}, "score": {"1": Predictor(*SCORE)}}, made_up.settings_of()
    )
    rows = {"instances": [PAIR, PAIR]}
    with testclient.TestClient(app, base_url="http://localhost") as client:
        for path in (PREDICT.format("deep"), ASK):
            for depth, expected in (("", 6), ("?depth=4", 4), ("?depth=6", 6)):
                found = {"predictions": [expected] * 2}
                assert post(client, path + depth, rows)[1].items() >= found.items()
        wrong = {"deep?depth=5": "6 or 4 for deep, got '5'", "score?depth=1": "left out for score"}
        # Rows that wait for any depth are counted in the model's queue.
        queue = app.state.models["deep"]["1"].by_depth["4"].batcher.queue
        queue["somebody"] = (0.0, ["a"])
        assert 'albert_queue{model="deep",version="1"} 1.0' in client.get("/metrics").text
        del queue["somebody"]
        for path, message in wrong.items():
            name, _, depth = path.partition("?")
            status, answer = post(client, f"{PREDICT.format(name)}?{depth}", rows)
            assert status == 400 and message in answer["error"]


def test_status_and_metadata(client):
    status = client.get("/v1/models/capitals").json()
    states = [(each["version"], each["state"]) for each in status["model_version_status"]]
    assert states == [("2", "AVAILABLE"), ("11", "AVAILABLE")]
    assert (status["name"], status["ready"]) == ("capitals", True)  # KServe's.
    (one,) = client.get("/v1/models/capitals/versions/2").json()["model_version_status"]
    assert one["version"] == "2" and one["status"]["error_code"] == "OK"
    metadata = client.get("/v1/models/endings/metadata").json()
    assert metadata["model_spec"] == {"name": "endings", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    tensors = {**signature["inputs"], **signature["outputs"]}
    found = {n: (t["dtype"], len(t["tensor_shape"]["dim"])) for n, t in tensors.items()}
    assert found == {
        "context": ("DT_STRING", 1),
        "endings": ("DT_STRING", 2),
        "probabilities": ("DT_FLOAT", 2),
        "choice": ("DT_INT32", 1),
        "ending": ("DT_STRING", 1),
    }
    # For clients of KServe, then of OpenAI.
    answer = client.get("/v1/models").json()
    assert answer["models"] == ["capitals", "endings", "score", "two"]
    assert [each["id"] for each in answer["data"]] == answer["models"]


def found(answer):
    return {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in answer}


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
    outputs = {
        "entities": ("BYTES", [2, 2], ["Anna", "Rome", "", ""]),
        "probabilities": ("FP32", [2, 2], [0.5, 0.5, 0, 0]),
        "length": ("INT32", [2], [12, 1]),
    }
    assert found(answer["outputs"]) == outputs
    # Only the outputs that were asked for, in that order.
    names = ["length", "entities"]
    body["outputs"] = [{"name": name} for name in names]
    _, answer = post(client, INFER, body)
    assert [*found(answer["outputs"]).items()] == [(name, outputs[name]) for name in names]


def in_binary(tensor):
    """Returns a tensor whose texts follow the JSON in binary form, and the bytes of the texts."""
    words = [text.encode() for text in tensor.pop("data")]
    content = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return {**tensor, "parameters": {"binary_data_size": len(content)}}, content


@pytest.mark.parametrize("binary", [(), (0,), (1,), (0, 1)], ids=str)
def test_kserve_2_answers_rows_of_many_texts(client, binary):
    inputs, content = [texts(["x", "yy", "zzzé", "u"], [2, 2], "endings")], b""
    inputs.append(texts(["a", "b"], [2], "context"))
    for place in binary:
        inputs[place], part = in_binary(inputs[place])
        content += part
    body = json.dumps({"inputs": inputs}).encode()
    _, answer = post(client, "/v2/models/endings/infer", body + content, **{LENGTH: str(len(body))})
    assert found(answer["outputs"])["ending"] == ("BYTES", [2], ["yy", "zzzé"])


@pytest.mark.parametrize("path", [ASK, VERTEX["AIP_PREDICT_ROUTE"]])
@pytest.mark.parametrize(
    "body",
    [
        {"instances": ["Anna in Rome"], "parameters": {}},
        {"inputs": ["Anna in Rome"]},
        {"inputs": {"text": ["Anna in Rome"]}},
        {"inputs": "Anna in Rome"},
        {"inputs": {"text": "Anna in Rome"}},
        {"inputs": [{"text": "Anna in Rome"}]},
        {"dataframe_split": {"index": [0], "columns": ["text"], "data": [["Anna in Rome"]]}},
        {"dataframe_records": [{"text": "Anna in Rome"}]},
    ],
)
def test_one_model_answers(client, path, body):
    assert post(client, path, body) == (200, {"predictions": [ANNA]})


@contextlib.contextmanager
def asking(model):
    """Yields a function that asks a server of only this model: it returns status, type and text."""
    app = create_app({"one": {"1": Predictor(*model)}}, made_up.settings_of())

    def ask(content, kind, **headers):
        answer = client.post(ASK, content=content, headers={"Content-Type": kind, **headers})
        return answer.status_code, answer.headers["content-type"], answer.text

    with testclient.TestClient(app, "http://localhost") as client:
        yield ask


@pytest.mark.parametrize(
    ("model", "kind", "body", "output", "answers"),
    [
        (CAPITALS, "", b'text\r\n"Anna in Rome"\r\n"A, i\nn Rome"\r\n\r\n', "length", [12, 11]),
        (CAPITALS, "", b'\xef\xbb\xbf"text"\n\nab\n""\n\n \nabc', "length", [2, 0, 1, 3]),
        (CAPITALS, "", b"ab\r\ra\r", "length", [2, 1]),
        (CAPITALS, "", b'ab\n"c\rd"\n', "length", [2, 3]),
        (CAPITALS, "", b"a\r\r\nbcd\r\r\n", "length", [1, 3]),
        # Unless `header` says so, a line is a heading only if it has known names.
        (CAPITALS, "", b"review\nab\n", "length", [6, 2]),
        (CAPITALS, ";header=Present", b"review\nab\n", "length", [2]),
        (CAPITALS, ' ; Header="absent"', b"text\nab\n", "length", [4, 2]),
        (ENDINGS, "", b"c,one,three\nd,xx,y\n", "ending", ["three", "xx"]),
        (ENDINGS, "", b"context,endings\nc,one,three\nd,xx,y\n", "ending", ["three", "xx"]),
        (ENDINGS, "", b"endings,Context,endings\none,long,e\n", "ending", ["one"]),
        (SCORE, "", b"text_a,text_b\na,bc\n", None, [5]),
        (SCORE, "", b"text_b, text_a\na,bc\n", None, [4]),
        (SCORE, ";header=absent", b"text_b,text_a\na,bc\n", None, [18, 5]),
        (SCORE, "lines", b'\xef\xbb\xbf{"text_b":"bc","text_a":"a"}\n\n["a",""]\r\n', None, [5, 1]),
        (SCORE, "lines", b'{"inputs":[["a","bc"],["","b"]]}\n["",""]', None, [5, 2, 0]),
        (SCORE, "lines", '{"inputs":{"text_a":["\u2028"],"text_b":["b"]}}'.encode(), None, [3]),
    ],
)
def test_one_model_answers_as_many_rows(model, kind, body, output, answers):
    types = ["text/csv", "application/CSV"]
    if kind == "lines":
        kind, types = "", ["application/jsonlines", "application/x-ndjson", "text/JSONL"]
    for each in types:
        with asking(model) as ask:
            status, _, answer = ask(body, f"{each}{kind}")
        rows = json.loads(answer)["predictions"]
        assert (status, [row[output] if output else row for row in rows]) == (200, answers)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("", "application/json"),
        ("text/html, application/*;q=0.8", "application/json"),
        ("application/json;q=0.1, Application/JSONLines", "application/jsonlines"),
        ("text/csv, application/x-ndjson; q=0.5, */*;q=0.4", "application/x-ndjson"),
        ("application/json;q=.1, application/x-ndjson;q=0.5", "application/x-ndjson"),
        ("*/*, application/json;q=0, application/jsonlines;q=.1", "application/jsonlines"),
    ],
)
def test_one_model_answers_in_the_type_that_is_accepted(accept, kind):
    body = json.dumps({"instances": ["Anna in Rome", "é"] * 128})
    with asking(CAPITALS) as ask:
        status, found, answer = ask(body, "application/json", Accept=accept)
    values = [json.loads(line) for line in answer.splitlines()]
    assert (status, found) == (200, kind)
    rows = values[0]["predictions"] if kind == "application/json" else values
    assert rows == [ANNA, {**NOBODY, "length": 1}] * 128


def test_requests_are_counted_for_the_model_that_answers(client):
    def counted():
        lines = client.get("/metrics").text.splitlines()
        name = 'albert_requests_total{model="capitals",status="200",version="11"}'
        return sum(float(line.split()[1]) for line in lines if line.startswith(name))

    before = counted()
    post(client, ASK, {"instances": ["a"]})
    assert counted() == before + 1


def test_a_server_that_ends_is_not_ready(client):
    client.app.state.is_ending = True
    try:
        paths = ("/readyz", "/ping", "/v2/health/ready", VERTEX["AIP_HEALTH_ROUTE"])
        assert [client.get(path).status_code for path in paths] == [503] * 4
    finally:
        client.app.state.is_ending = False
    assert [client.get(path).status_code for path in paths] == [200] * 4


def of_one(text):
    return {"instances": [text]}


def tensor_of(*given, **more):
    return {"inputs": [texts(*given)], **more}


BODIES = {
    PREDICT.format("capitals"): [
        (b"hello", "JSON"),
        (b'{"instances": ["\xff"]}', "JSON"),
        (b'{"instances": [NaN]}', "NaN"),
        (b'{"instances": ["a"], "parameters": [-1e999]}', "-1e999"),
        (b'{"instances": ["a"], "instances": ["b"]}', "instances.*twice|twice.*instances"),
        (b"[" * 4000, "JSON"),
        (b'{"instances": [' + b"9" * 4500 + b"]}", "JSON"),
        (b'["a"]', "'instances' or 'inputs'"),
        ({"instances": ["a"], "inputs": ["a"]}, "'instances' or 'inputs'"),
        ({"instances": []}, "1 to 4.* 0"),
        ({"instances": ["a"] * 5}, "1 to 4.* 5"),
        ({"instances": "a"}, "'a'"),
        ({"instances": ["a", None]}, "instances\\[1\\]"),
        (of_one({"txt": "a"}), "txt"),
        (b'{"instances": ["\\"[", ' + b"[" * 40 + b"]" * 40 + b"]}", "nested.* 32"),
        (b'{"instances": [' + b"[], " * 1200 + b"[]]}", "1032 values"),
        (of_one({"b64": "/w=="}), "UTF-8"),
        (of_one({"b64": "QQ="}), "padding"),
        (of_one({"b64": 1}), "b64"),
        (of_one({"b64": "é"}), "UTF-8.*ascii"),
        (of_one("a\ud800"), "surrogates"),
        (of_one("a" * 301), "300 characters.* 301"),
        ({**of_one("a"), "signature_name": "features"}, "features"),
    ],
    PREDICT.format("score"): [
        (of_one("a"), "instances\\[0\\].*text_a and text_b"),
        ({"inputs": {"text_a": ["a"], "text_b": []}}, "list of 0"),
        ({"inputs": {"text_a": ["a"], "text_b": ["b"] * 2}}, "equally many"),
    ],
    PREDICT.format("endings"): [
        ({"instances": [{**CHOICE, "endings": []}]}, "\\[0\\].endings"),
        ({"instances": [{**CHOICE, "endings": ["a"] * 5}]}, "endings.* 4.* 5"),
        ({"instances": [CHOICE, {**CHOICE, "endings": ["a"]}]}, "equally many endings"),
    ],
    INFER: [
        (of_one("a"), "'inputs'"),
        ({"inputs": ["a"]}, "inputs\\[0\\].*shape"),
        (tensor_of("a", []), "shape.* \\[\\]"),
        (tensor_of([1], [1]), "inputs\\[0\\].* UTF-8"),
        (tensor_of(["a"], [1.0]), "shape"),
        (tensor_of(["a"], [1, 1, 1]), "shape"),
        (tensor_of(["a"] * 5, [5]), "shape.* 4"),
        (tensor_of([["a", "b"], "c"], [3]), "inputs\\[0\\].data"),
        (tensor_of(["a"], [1], outputs=["length"] * 4), "outputs.* 3.* 4"),
        (tensor_of(["a"], [2]), "inputs\\[0\\].*shape \\[2\\]"),
        (tensor_of([], [0]), "shape.* \\[0\\]"),
        (tensor_of(["a"], [1], "x"), "'x'"),
        (tensor_of(["a"], [1], []), "inputs are .*\\[\\]"),
        (tensor_of(["a", "b"], [1, 2]), "shape.*\\[1, 2\\]"),
        ({"inputs": [texts(["a"], [1])] * 2}, "inputs must have text"),
        (b'{"id": 1e999, "inputs": []}', "1e999"),
        ({"inputs": [{**texts([1], [1]), "datatype": "INT32"}]}, "INT32"),
        (tensor_of(["a"], [1], outputs=[{"name": "x"}]), "outputs.* x"),
        (tensor_of(["a"], [1], outputs=[{"name": []}]), "outputs are .*\\[\\]"),
        (tensor_of(["a"], [1], outputs=5), "outputs.* got 5"),
        (tensor_of(["a"], [1], outputs={}), "outputs.* 1 to 3"),
        (tensor_of(["a"], [1], outputs=["length"] * 2), "each once, not length"),
        ({"inputs": [texts(["a"], [1], parameters={"binary_data_size": "9"})]}, "\\[0\\].*shape"),
    ],
    ASK: [
        ({"instances": ["a"], "inputs": ["a"]}, "instances"),
        ({"dataframe_split": {"columns": ["text"], "data": [["a", "b"]]}}, "dataframe_split"),
        ({"dataframe_split": []}, "dataframe_split"),
        ({"dataframe_split": {"columns": ["text"] * 2, "data": [["a", "b"]]}}, "columns.*once"),
        ({"dataframe_records": [{"txt": "a"}]}, "rows\\[0\\].*txt"),
    ],
    "/v2/models/endings/infer": [
        ({"inputs": [texts(["a"], [1], "context")] * 2}, "once.*inputs\\[1\\].*context"),
        (tensor_of(["a"], [1], "endings"), "shape.*\\[1\\]"),
    ],
}
REFUSED = [(path, body, 400, noun, {}) for path, rows in BODIES.items() for body, noun in rows]
CSV, LINES = {"content_type": "text/csv"}, {"content_type": "application/jsonlines"}
REFUSED += [
    (ASK, b"a,b", 400, "line 1.*text", CSV),
    (ASK, b"\xff", 400, "UTF-8", CSV),
    (ASK, b"a," * 1100, 400, "1032 cells", CSV),
    (ASK, b'"\n",' * 1100, 400, "1032 cells", CSV),
    (ASK, b"text\n\n", 400, "rows.* 0", CSV),
    (ASK, b"a\n" * 5, 400, "rows.*list of 5", CSV),
    (ASK, b'a\n"the rest\nb\n', 400, "line 3.*end of data", CSV),
    (ASK, b'a\n"b" c\n', 400, "line 2", CSV),
    (ASK, b"a\rb\nc\n", 400, "line 2.*CR", CSV),
    (ASK, b"a\n\rb\n", 400, "line 2.*CR", CSV),
    (ASK, b"id,text\n1,a\n", 400, "heading.*id.*header=absent", CSV),
    (ASK, b"text,text\na,b\n", 400, "heading", CSV),
    (ASK, b"a", 415, "header", {"content_type": "text/csv; header=yes"}),
    (ASK, b"a", 415, "UTF-8.*latin-1", {"content_type": "text/csv; charset=latin-1"}),
    (ASK, b'"a"\n{"text": "b"', 400, "line 2", LINES),
    (ASK, b'"a"\n\n"b" "c"\n', 400, "line 3", LINES),
    (ASK, b'"a"\n"b"\r"c"\r', 400, "line 2.*in LF, not in CR", LINES),
    (ASK, b'"a"\n' * 5, 400, "rows.*list of 5", LINES),
    (ASK, b'{"instances": "ab"}\n', 400, "instances.*'ab'", LINES),
    (ASK, of_one("a"), 415, "jsonlines.*text/csv, .*'text/plain'", {"content_type": "text/plain"}),
    (ASK, of_one("a"), 406, "jsonlines, not 'text/csv'", {"accept": "text/csv"}),
    (ASK, of_one("a"), 406, "q=0", {"accept": "application/json;q=0"}),
    (PREDICT.format("capitals"), of_one("a" * 5000), 413, "5000 bytes", {}),
    (PREDICT.format("capitals"), of_one("bad"), 500, "this text is bad", {}),
    (PREDICT.format("nothing"), of_one("a"), 404, "nothing, only capitals, endings", {}),
    (PREDICT.format("capitals/versions/3"), of_one("a"), 404, "3 of capitals, only 2, 11", {}),
]


def packed(body, coding, status, noun):
    return PREDICT.format("capitals"), body, status, noun, {"content_encoding": coding}


ONE = json.dumps(of_one("a")).encode()
TENSOR, CONTENT = in_binary(texts(["Anna in Rome", "é"], [2]))
JSON = json.dumps({"inputs": [TENSOR]}).encode()
REFUSED += [
    (INFER, JSON + CONTENT[:-1], 400, "as many bytes", {LENGTH: str(len(JSON))}),
    (INFER, JSON + b"\x0d" + CONTENT[1:], 400, "end within a text", {LENGTH: str(len(JSON))}),
    (INFER, JSON + CONTENT + b"a", 400, "1 bytes follow", {LENGTH: str(len(JSON))}),
    (INFER, JSON, 400, "content-length .*'9999'", {LENGTH: "9999"}),
    (INFER, JSON, 400, "content-length must", {LENGTH: "9" * 5000}),
    (INFER, JSON + CONTENT[:-1] + b"\xff", 400, "\\[1\\].*UTF-8", {LENGTH: str(len(JSON))}),
    packed(gzip.compress(b"0" * 5001, mtime=0), "gzip", 413, "5000 bytes"),
    packed(gzip.compress(b"0" * 50_000_000, mtime=0)[:4000], "gzip", 413, "5000 bytes"),
    packed(ONE, "gzip", 400, "not gzip"),
    packed(gzip.compress(ONE, mtime=0)[:-9], "gzip", 400, "ends early"),
    packed(gzip.compress(b"", mtime=0) * 20, "gzip", 400, "follows"),
    packed(gzip.compress(ONE, mtime=0), "deflate", 400, "not deflate"),
    packed(ONE, "br", 415, "gzip or deflate.*'br'"),
]


@pytest.mark.parametrize(("path", "body", "status", "noun", "headers"), REFUSED)
def test_what_is_refused(client, path, body, status, noun, headers):
    found, answer = post(client, path, body, **headers)
    assert (found, [*answer]) == (status, ["error"])
    assert re.search(noun, answer["error"])


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("GZIP", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
def test_packed_requests(client, coding, pack):
    body = pack(json.dumps(of_one("Anna in Rome")).encode())
    path, headers = PREDICT.format("capitals"), {"content_encoding": coding}
    assert post(client, path, body, **headers) == (200, {"predictions": [ANNA]})


@pytest.mark.parametrize("text", ["!" * 7, "b " * 7])
def test_words_to_tag_are_bounded(monkeypatch, text):
    monkeypatch.setattr(rest_bounds, "_WORDS", 6)
    tagger = Predictor(Tag(labels=("A", "B")), CAPITALS[1])
    app = create_app({"tags": {"1": tagger}}, made_up.settings_of())
    with testclient.TestClient(app, "http://localhost") as client:
        found = [post(client, ASK, {"instances": [each, ""]})[0] for each in (text, text[1:6])]
    assert found == [400, 200]


def test_a_padded_answer_is_bounded(monkeypatch, client):
    monkeypatch.setattr(rest_bounds, "_ANSWER_VALUES", 17)
    body = tensor_of(["Anna in Rome", "A", "B"], [3])
    # Two outputs of 3 x 2 values, and one of 3.
    assert post(client, INFER, body)[0] == 200
    body["inputs"][0]["data"][0] += " Rome"
    status, answer = post(client, INFER, body)
    assert (status, answer["error"].count("21")) == (400, 1)
