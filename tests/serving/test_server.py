"""albert-serve with made-up models: its forms, bounds and errors.

test_connection.py has it as a process; tests/peers/test_albert_serve.py, exported models, the page,
load and the image.
"""

import asyncio
import gc
import gzip
import json
import os
import re
import socket
import zlib

import numpy as np
import pytest

from albert_tf.cli import serve as serve_command
from albert_tf.console import settings
from albert_tf.serving import server
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings
from tests import tiny
from tests.made_up_models import ANNA, CAPITALS, ENDINGS, SCORE, capitals, settings_of
from tests.served_tasks import assert_same_outputs

# Main's environment may be older than the lock.
pytest.importorskip("starlette")
testclient = pytest.importorskip("starlette.testclient")
prometheus = pytest.importorskip("prometheus_client.parser")

from albert_tf.serving.batching import Batcher  # noqa: E402
from albert_tf.serving.rest_api import create_app  # noqa: E402


@pytest.fixture(scope="module")
def client():
    models = {
        "capitals": {"2": Predictor(*CAPITALS), "11": Predictor(*CAPITALS)},
        "endings": {"1": Predictor(*ENDINGS)},
        "score": {"1": Predictor(*SCORE)},
        "two": {"2": Predictor(*SCORE), "11": Predictor(*ENDINGS)},
    }
    limits = {"max_body_bytes": 5000, "max_text_length": 300, "max_instances": 4}
    app = create_app(models, settings_of(**limits, max_batch_size=3))
    options = {"base_url": "http://localhost", "raise_server_exceptions": False}
    with testclient.TestClient(app, **options) as client:
        yield client


def ask(client, name, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = client.post(f"/v1/models/{name}:predict", content=body)
    return answer.status_code, answer.json()


ROME = {**ANNA, "length": 13}
NOBODY = {"entities": ["", ""], "probabilities": [0, 0], "length": 0}
PAIR, SWAPPED = {"text_a": "a", "text_b": "bc"}, {"text_b": "", "text_a": ""}
CHOICE = {"context": "c", "endings": ["one", "three"]}


@pytest.mark.parametrize(
    ("name", "asked", "answered"),
    [
        ("capitals", {"instances": ["Anna in Rome", ""]}, {"predictions": [ANNA, NOBODY]}),
        ("capitals", {"instances": [{"text": "Anna in Rome"}]}, {"predictions": [ANNA]}),
        (
            "capitals",
            {"instances": [{"b64": "QW5u\r\n YSBpbiBSb21lIA\t"}]},
            {"predictions": [ROME]},
        ),
        ("capitals", {"instances": [{"b64": "QW5uYSBpbiBSb21lIA.="}]}, {"predictions": [ROME]}),
        (
            "capitals",
            {"instances": [""]},
            {"predictions": [{**NOBODY, "entities": [], "probabilities": []}]},
        ),
        (
            "capitals/versions/2",
            {"inputs": ["Anna in Rome"], "signature_name": "serving_default"},
            {"outputs": {name: [value] for name, value in ANNA.items()}},
        ),
        ("score", {"instances": [PAIR, {**SWAPPED, **PAIR}]}, {"predictions": [5, 5]}),
        ("score", {"inputs": {"text_b": ["bc"], "text_a": ["é"]}}, {"outputs": [5]}),
        (
            "two",
            {"instances": [CHOICE]},
            {"predictions": [{"probabilities": [3, 5], "choice": 1, "ending": "three"}]},
        ),
        ("two/versions/2", {"instances": [PAIR]}, {"predictions": [5]}),
        (
            "endings",
            {"instances": [CHOICE]},
            {"predictions": [{"probabilities": [3, 5], "choice": 1, "ending": "three"}]},
        ),
        (
            "endings",
            {"inputs": {"context": ["c"] * 4, "endings": [["a"]] * 4}},
            {"outputs": {"probabilities": [[1]] * 4, "choice": [0] * 4, "ending": ["a"] * 4}},
        ),
    ],
)
def test_forms(client, name, asked, answered):
    assert ask(client, name, asked) == (200, answered)


def test_status_and_metadata(client):
    status = client.get("/v1/models/capitals").json()["model_version_status"]
    assert [(each["version"], each["state"]) for each in status] == [
        ("2", "AVAILABLE"),
        ("11", "AVAILABLE"),
    ]
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


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("capitals", b"hello", 400, "JSON Parse error"),
        ("capitals", b'{"instances": ["\xff"]}', 400, "JSON Parse error"),
        ("capitals", b'{"instances": [NaN]}', 400, "NaN is no value"),
        ("capitals", b'{"instances": [1e999]}', 400, r"instances\[0\] must be a text .* inf"),
        ("capitals", b"[" * 4000, 400, "JSON Parse error"),
        ("capitals", b'{"instances": [' + b"9" * 4500 + b"]}", 400, "JSON Parse error"),
        ("capitals", b'["a"]', 400, "either 'instances' or 'inputs'"),
        ("capitals", {"instances": ["a"], "inputs": ["a"]}, 400, "either"),
        ("capitals", {"instances": []}, 400, "instances must be a list of 1 to 4, got a list of 0"),
        ("capitals", {"instances": ["a"] * 5}, 400, "list of 5"),
        ("capitals", {"instances": "a"}, 400, "got 'a'"),
        ("capitals", {"instances": ["a", None]}, 400, r"instances\[1\] must be a text"),
        ("capitals", {"instances": [["a"]]}, 400, "got a list of 1"),
        ("capitals", {"instances": [{"txt": "a"}]}, 400, r"an object of \['txt'\]"),
        ("capitals", {"instances": [{"b64": "/w=="}]}, 400, "must be a text in UTF-8"),
        ("capitals", {"instances": [{"b64": "QQ="}]}, 400, "must be a text in UTF-8: .*padding"),
        ("capitals", {"instances": [{"b64": 1}]}, 400, "an object of"),
        ("capitals", {"instances": ["a\ud800"]}, 400, "surrogates"),
        ("capitals", {"instances": ["a" * 301]}, 400, "at most 300 characters, got 301"),
        ("capitals", {"instances": ["a"], "signature_name": "features"}, 400, "not found in sig"),
        ("capitals", {"instances": ["a" * 5000]}, 413, "at most 5000 bytes"),
        ("capitals", {"instances": ["bad"]}, 500, "this text is bad"),
        ("score", {"instances": ["a"]}, 400, r"instances\[0\] must have text_a and text_b"),
        ("score", {"inputs": {"text_a": ["a"], "text_b": []}}, 400, "list of 0"),
        ("score", {"inputs": {"text_a": ["a"], "text_b": ["b"] * 2}}, 400, "equally many"),
        ("endings", {"instances": [{**CHOICE, "endings": []}]}, 400, r"\[0\].endings must be a"),
        ("endings", {"instances": [CHOICE, {**CHOICE, "endings": ["a"]}]}, 400, "many endings"),
        ("nothing", {"instances": ["a"]}, 404, "Servable not found .* only capitals, endings"),
        ("capitals/versions/3", {"instances": ["a"]}, 404, "version 3 of capitals, only 2, 11"),
    ],
)
def test_wrong_requests(client, name, content, status, message):
    found, answer = ask(client, name, content)
    assert found == status
    assert list(answer) == ["error"] and re.search(message, answer["error"])


def asked(text):
    return json.dumps({"instances": [text]}).encode()


@pytest.mark.parametrize(
    ("coding", "content", "status", "message"),
    [
        ("GZIP", gzip.compress(asked("Anna in Rome"), mtime=0), 200, ""),
        ("deflate", zlib.compress(asked("Anna in Rome")), 200, ""),
        ("identity", asked("Anna in Rome"), 200, ""),
        ("gzip", gzip.compress(asked("a" * 5000), mtime=0), 413, "at most 5000 bytes"),
        ("gzip", gzip.compress(b"0" * 50_000_000, mtime=0)[:4000], 413, "at most 5000 bytes"),
        ("gzip", asked("a"), 400, "not gzip"),
        ("gzip", gzip.compress(asked("a"), mtime=0)[:-9], 400, "ends early"),
        ("gzip", gzip.compress(b"", mtime=0) * 20, 400, "something follows"),
        ("deflate", gzip.compress(asked("a"), mtime=0), 400, "not deflate"),
        ("br", asked("a"), 415, "gzip or deflate, not 'br'"),
    ],
)
def test_packed_requests(client, coding, content, status, message):
    headers = {"Content-Encoding": coding}
    answer = client.post("/v1/models/capitals:predict", content=content, headers=headers)
    assert answer.status_code == status
    assert message in answer.json()["error"] if message else answer.json()["predictions"] == [ANNA]


def test_other_hosts_are_refused():
    def status(host, header, *allowed):
        app = create_app({}, settings_of(host=host, allowed_hosts=allowed))
        with testclient.TestClient(app) as client:
            return client.get("/healthz", headers={"Host": header}).status_code

    assert {status("127.0.0.1", h) for h in ("localhost:80", "127.0.0.1", "[::1]:8501", "")} == {
        200
    }
    assert {status("::1", host) for host in ("evil.example", "localhost.evil.example:80")} == {400}
    assert status("0.0.0.0", "albert.svc") == 200
    assert status("127.0.0.1", "albert.svc:80", "Albert.svc") == 200
    assert status("0.0.0.0", "evil.example", "albert.svc") == 400


def test_other_paths_and_methods(client):
    paths = "/v3", "/v1/models/capitals:classify", "/healthz/"
    for answer in (client.get(paths[0]), client.post(paths[1]), client.get(paths[2])):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"].startswith("Malformed request: ")
    answer = client.get("/v1/models/capitals:predict")
    assert (answer.status_code, answer.json()) == (405, {"error": "use POST"})
    for path in ("/", "/app.js", "/healthz", "/metrics", "/v1/models", "/v1/models/two/metadata"):
        assert client.head(path).status_code == 200
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").status_code == 200
    page = client.get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and not re.search("unsafe|http|\\*", policy)
    assert client.get(f"/{client.get('/page.json').json()['server']}").json()["models"]
    for file, kind in {"style.css": "text/css", "app.js": "text/javascript"}.items():
        assert f'"{file}"' in page.text
        assert client.get(f"/{file}").headers["content-type"].startswith(kind)


def test_metrics(client, capsys):
    ask(client, "score", {"instances": [PAIR]})
    ask(client, "score", b"")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["status"], each["instances"]) for each in lines] == [(200, 1), (400, 0)]
    assert lines[0]["path"] == "/v1/models/score:predict" and lines[0]["milliseconds"] > 0
    text = client.get("/metrics").text
    samples = [s for f in prometheus.text_string_to_metric_families(text) for s in f.samples]
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples}
    score, bad = ("model", "score"), ("status", "400")
    assert found["albert_errors_total", score, bad] >= 1
    assert found["albert_requests_total", score, bad] >= 1
    assert found["albert_request_seconds_count", score] >= 2
    assert found["albert_batch_size_sum", score] >= 1
    assert found["albert_queue", score, ("version", "1")] == 0


def answers(rows, depends_on_batch=False, **bounds):
    """Returns the answers to requests of rows that come at the same time, and batches' sizes."""
    sizes = []
    predictor = Predictor(*CAPITALS, depends_on_batch)
    batcher = Batcher(predictor, settings_of(**bounds), sizes.append)

    async def ask_all():
        return await asyncio.gather(*map(batcher, rows), return_exceptions=True)

    return asyncio.run(ask_all()), sizes


def test_batches_answer_as_one_does():
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(["Anna", "x", "yy"], n)) for n in rng.integers(0, 40, 50)]
    requests = [[[text] for text in texts[i : i + 1 + i % 3]] for i in range(47)]
    found, sizes = answers(requests, max_batch_size=8)
    for each, request in zip(found, requests, strict=True):
        assert_same_outputs(each, capitals(request))
    assert max(sizes) <= 8 and sum(sizes) == sum(map(len, requests)) and len(sizes) < len(requests)


def test_numbers_that_depend_on_a_batch_get_none():
    assert answers([[["a"], ["b"]], [["c"]]], depends_on_batch=True)[1] == [1, 1, 1]


def test_texts_wait_for_others():
    for wait, expected in ((0.0, [1, 3]), (60_000.0, [2, 2])):
        sizes = []
        bounds = settings_of(max_wait_ms=wait, max_batch_size=2 + (not wait))
        batcher = Batcher(Predictor(*CAPITALS), bounds, sizes.append)

        async def ask_later(batcher=batcher):
            first = asyncio.ensure_future(batcher([["a"]]))
            await asyncio.sleep(0.05)  # Without a wait it is read alone.
            await asyncio.gather(first, *(batcher([["b"]]) for _ in range(3)))

        asyncio.run(ask_later())
        assert sizes == expected


def test_one_bad_text_harms_no_other():
    (good, bad, last), _ = answers([[["Anna"]], [["bad"]], [["Bob"]]], max_wait_ms=5.0)
    assert good[0]["entities"].tolist() == ["Anna"] and last[0]["entities"].tolist() == ["Bob"]
    assert isinstance(bad, ValueError)


def test_a_full_queue_refuses():
    found, _ = answers([[["a"]] * 3, [["b"]] * 3], max_queue=5)
    assert found[0] is not None and found[1] is None


def test_a_request_for_more_than_a_queue_holds_is_to_come_again():
    app = create_app({"score": {"1": Predictor(*SCORE)}}, settings_of(max_queue=1))
    with testclient.TestClient(app, "http://localhost") as client:
        status, answer = ask(client, "score", {"instances": [PAIR] * 2})
    assert (status, answer) == (503, {"error": "too many texts wait: ask again later"})


def test_models_are_found(tmp_path):
    for number in ("2", "10", "9"):
        tiny.write(tmp_path / "mood" / number / "model.onnx", b"")
    tiny.write(tmp_path / "one" / "model.onnx", b"")
    mood, one = str(tmp_path / "mood"), str(tmp_path / "one")
    found = server.find([mood, f"x={one}", one, f"y={mood}/9/"])
    assert {name: list(versions) for name, versions in found.items()} == {
        "mood": ["2", "9", "10"],
        "x": ["1"],
        "one": ["1"],
        "y": ["9"],
    }
    assert found["mood"]["10"] == os.path.join(mood, "10") and found["x"]["1"] == one
    equals = str(tmp_path / "lr=3e-5" / "export")
    tiny.write(tmp_path / "lr=3e-5" / "export" / "model.onnx", b"")
    assert server.find([f"x={equals}", equals]) == {"x": {"1": equals}, "export": {"1": equals}}
    for wrong in ([one, f"{one}/"], [f"a b={one}"], [f"..={one}"]):
        with pytest.raises(ValueError, match="give NAME=DIR"):
            server.find(wrong)


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as error:
        port = taken.getsockname()[1]
        serve_command.main(settings_of(port=port))
    message = f"error: can't listen at 127.0.0.1, port {port}: Address already in use"
    assert str(error.value) == message


def test_no_collection_looks_through_what_is_loaded(monkeypatch):
    """It would hold up all clients."""
    frozen = []

    def serve(app, listener, *_):
        listener.close()
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "_serve", serve)
    monkeypatch.setattr(server.predict, "load_exported", lambda path: Predictor(*SCORE))
    gc.unfreeze()  # Of what others have frozen.
    serve_command.main(settings_of(port=0))
    gc.unfreeze()
    assert frozen[0] > 10_000


def test_the_flag_for_models_is_repeated():
    argv = ["albert-serve", "--model=a,b", "--model=c=d"]
    assert settings.parse(ServerSettings, argv).model == ("a,b", "c=d")
