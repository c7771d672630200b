"""albert-serve with made-up models: hosts, paths, metrics, batches, and its start.

Its answers are tested in test_rest_protocols.py and test_rest_vectors.py; its process, in
test_connection.py; exported models, the page, load and the image, in tests/peers.
"""

import asyncio
import gc
import json
import os
import re
import socket

import numpy as np
import pytest

from albert_tf.cli import serve as serve_command
from albert_tf.console import settings
from albert_tf.serving import predict, server, versions
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings
from tests.kit import tiny
from tests.kit.made_up_models import CAPITALS, EMBEDDER, SCORE, capitals, settings_of
from tests.kit.served_tasks import assert_same_outputs

# Main's environment may be older than the lock.
pytest.importorskip("starlette")
testclient = pytest.importorskip("starlette.testclient")
prometheus = pytest.importorskip("prometheus_client.parser")

from albert_tf.serving.batching import Batcher  # noqa: E402
from albert_tf.serving.rest_api import create_app  # noqa: E402


@pytest.fixture(scope="module")
def client():
    app = create_app({"score": {"1": Predictor(*SCORE)}}, settings_of())
    with testclient.TestClient(app, "http://localhost") as client:
        yield client


PAIR = {"text_a": "a", "text_b": "bc"}


def ask(client, name, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = client.post(f"/v1/models/{name}:predict", content=body)
    return answer.status_code, answer.json()


def asked(text):
    return json.dumps({"instances": [text]}).encode()


def test_other_hosts_are_refused():
    def status(host, header, *allowed):
        app = create_app({}, settings_of(host=host, allowed_hosts=allowed))
        with testclient.TestClient(app) as client:
            return client.get("/healthz", headers={"Host": header}).status_code

    for header in ("localhost:80", "127.0.0.1", "[::1]:8501", ""):
        assert status("127.0.0.1", header) == 200
    for header in ("evil.example", "localhost.evil.example:80"):
        assert status("::1", header) == 400
    assert status("0.0.0.0", "albert.svc") == 200
    assert status("127.0.0.1", "albert.svc:80", "Albert.svc") == 200
    assert status("0.0.0.0", "evil.example", "albert.svc") == 400


def test_other_paths_and_methods(client):
    paths, posted = ("/v3", "/healthz/", "/info"), ("/v1/models/score:classify", "/embed")
    for answer in (*map(client.get, paths), *map(client.post, posted)):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"].startswith("Malformed request: ")
    answer = client.get("/v1/models/score:predict")
    assert (answer.status_code, answer.json()) == (405, {"error": "use POST"})
    for path in ("/", "/app.js", "/healthz", "/metrics", "/v1/models", "/v1/models/score/metadata"):
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


@pytest.mark.parametrize(
    "paths",
    [
        {"AIP_PREDICT_ROUTE": "predict"},
        {"AIP_HEALTH_ROUTE": "/"},
        {"AIP_HEALTH_ROUTE": "/a{b"},
        {"AIP_PREDICT_ROUTE": "/a", "AIP_HEALTH_ROUTE": "/a"},
    ],
)
def test_paths_that_can_not_be_asked_are_refused(paths, monkeypatch):
    for name, path in paths.items():
        monkeypatch.setenv(name, path)
    with pytest.raises(ValueError, match=[*paths][-1]):
        create_app({"one": {"1": Predictor(*SCORE)}}, settings_of())


def test_paths_that_are_asked_for_come_before_others(monkeypatch):
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/models/any")
    app = create_app({"one": {"1": Predictor(*SCORE)}}, settings_of())
    with testclient.TestClient(app, "http://localhost") as client:
        assert client.get("/v1/models/any").json()["ready"] is True


def test_metrics(client, capsys):
    ask(client, "score", {"instances": [PAIR]})
    ask(client, "score", b"")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["status"], each["instances"]) for each in lines] == [(200, 1), (400, 0)]
    assert [(each["event"], each["version"]) for each in lines] == [
        ("request", "1"),
        ("request", ""),
    ]
    assert lines[0]["path"] == "/v1/models/score:predict" and lines[0]["milliseconds"] > 0
    text = client.get("/metrics").text
    samples = [s for f in prometheus.text_string_to_metric_families(text) for s in f.samples]
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples}
    score, bad = ("model", "score"), ("status", "400")
    assert found["albert_errors_total", score, bad] >= 1
    good, of_one = ("status", "200"), ("version", "1")
    assert found["albert_requests_total", score, bad, ("version", "")] >= 1
    assert found["albert_requests_total", score, good, of_one] >= 1
    assert found["albert_queue_seconds_count", score] == found["albert_batch_size_sum", score]
    assert found["albert_request_seconds_count", score] >= 2
    assert found["albert_batch_size_sum", score] >= 1
    assert found["albert_queue", score, of_one] == 0
    assert found["albert_tokens_total", score] == 0  # Only embedding models count them.


def answers(rows, depends_on_batch=False, model=CAPITALS, **bounds):
    """Returns the answers to simultaneous requests, each a list of rows, and the batches' sizes."""
    sizes, waits = [], []
    predictor = Predictor(*model[:2], depends_on_batch)
    batcher = Batcher(predictor, settings_of(**bounds), sizes.append, waits.append)

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


def test_ids_and_texts_are_read_apart():
    assert answers([[["a"], [[5]], ["b"]]], model=EMBEDDER)[1] == [1, 2]


def test_texts_wait_for_others():
    for wait, expected in ((0.0, [1, 3]), (60_000.0, [2, 2])):
        sizes, waits = [], []
        bounds = settings_of(max_wait_ms=wait, max_batch_size=2 + (not wait))
        batcher = Batcher(Predictor(*CAPITALS), bounds, sizes.append, waits.append)

        async def ask_later(batcher=batcher):
            first = asyncio.ensure_future(batcher([["a"]]))
            await asyncio.sleep(0.05)  # Without a wait it is read alone.
            await asyncio.gather(first, *(batcher([["b"]]) for _ in range(3)))

        asyncio.run(ask_later())
        assert sizes == expected
        # The first one of two waits for the second.
        assert [seconds >= 0.05 for seconds in waits] == [wait > 0, False, False, False]


def test_one_bad_text_harms_no_other():
    (good, bad, last), _ = answers([[["Anna"]], [["bad"]], [["Bob"]]], max_wait_ms=5.0)
    assert good[0]["entities"].tolist() == ["Anna"] and last[0]["entities"].tolist() == ["Bob"]
    assert isinstance(bad, ValueError)


def test_a_full_queue_refuses():
    found, _ = answers([[["a"]] * 3, [["b"]] * 3], max_queue=5)
    assert found[0] is not None and found[1] is None
    models = {"score": {"1": Predictor(*SCORE)}, "embed": {"1": Predictor(*EMBEDDER)}}
    app = create_app(models, settings_of(max_queue=1))
    with testclient.TestClient(app, "http://localhost") as client:
        status, answer = ask(client, "score", {"instances": [PAIR] * 2})
        theirs = client.post("/embed", json={"inputs": ["a", "b"]})
    assert (status, answer) == (503, {"error": "too many texts wait: ask again later"})
    assert (theirs.status_code, theirs.json()) == (429, {**answer, "error_type": "Overloaded"})


def test_models_are_found(tmp_path):
    for number in ("2", "10", "9"):
        tiny.write(tmp_path / "mood" / number / "model.onnx", b"")
    tiny.write(tmp_path / "one" / "model.onnx", b"")
    mood, one = str(tmp_path / "mood"), str(tmp_path / "one")
    paths = versions.find([mood, f"x={one}", one, f"y={mood}/9/"])
    found = {name: versions.versions(path) for name, path in paths.items()}
    numbers = {name: list(versions) for name, versions in found.items()}
    assert numbers == {"mood": ["2", "9", "10"], "x": ["1"], "one": ["1"], "y": ["9"]}
    assert found["mood"]["10"] == os.path.join(mood, "10") and found["x"]["1"] == one
    equals = str(tmp_path / "lr=3e-5" / "export")
    tiny.write(tmp_path / "lr=3e-5" / "export" / "model.onnx", b"")
    assert versions.find([f"x={equals}", equals]) == {"x": equals, "export": equals}
    assert versions.versions(equals) == {"1": equals}
    for wrong in ([one, f"{one}/"], [f"a b={one}"], [f"..={one}"]):
        with pytest.raises(ValueError, match="give NAME=DIR"):
            versions.find(wrong)


@pytest.fixture
def start(monkeypatch):
    ports = []

    def serve(app, listener, *_):
        ports.append(listener.getsockname()[1])
        # A garbage collection that scanned all loaded objects would hold up all clients.
        assert gc.get_freeze_count() > 10_000
        listener.close()

    def begin(**options):
        gc.unfreeze()  # Other tests may have frozen objects.
        serve_command.main(settings_of(**options))
        gc.unfreeze()
        return ports[-1]

    monkeypatch.setattr(server, "_serve", serve)
    monkeypatch.setattr(predict, "load_exported", lambda path, depth: Predictor(*SCORE))
    return begin


@pytest.mark.slow
def test_vertex_names_the_port(start, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AIP_HTTP_PORT", str(port))
    assert start() == port != start(port=0)  # A flag takes precedence.
    for wrong in ("80a", "65536"):
        monkeypatch.setenv("AIP_HTTP_PORT", wrong)
        with pytest.raises(SystemExit, match="AIP_HTTP_PORT"):
            start()


def test_a_port_that_is_taken_is_named(start):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as error:
        port = taken.getsockname()[1]
        start(port=port)
    message = f"error: can't listen at 127.0.0.1, port {port}: Address already in use"
    assert str(error.value) == message


def test_the_flag_for_models_is_repeated():
    argv = ["albert-serve", "--model=a,b", "--model=c=d"]
    assert settings.parse(ServerSettings, argv).model == ("a,b", "c=d")
