"""Requests for embeddings that albert-serve answers or refuses, in OpenAI's form and in TEI's.

Clients of both are in tests/peers.
"""

import base64
import re

import numpy as np
import pytest

from albert_tf.serving.predict import Predictor
from tests.kit import made_up_models as made_up
from tests.kit.made_up_models import CAPITALS, EMBEDDER, SCORE, post

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving import rest_bounds  # noqa: E402
from albert_tf.serving.rest_api import create_app  # noqa: E402

EMBED = "/v1/embeddings"
TENTH = float(np.float32(0.1))


@pytest.fixture(scope="module")
def client():
    given = {"score": SCORE, "capitals": CAPITALS, "embedder": EMBEDDER}
    models = {name: {"1": Predictor(*each)} for name, each in given.items()}
    limits = {"max_body_bytes": 5000, "max_text_length": 300, "max_instances": 4}
    app = create_app(models, made_up.settings_of(**limits))
    with testclient.TestClient(app, "http://localhost") as client:
        yield client


def test_embeddings(client):
    asked = {"model": "embedder", "input": ["four", [2, 7, 3]]}
    status, answer = post(client, EMBED, asked)
    assert status == 200 and answer["model"] == "embedder"
    rows = [[4, TENTH], [1, TENTH]]
    assert answer["usage"] == {"prompt_tokens": 6 + 3, "total_tokens": 9}
    assert 'albert_tokens_total{model="embedder"} 9.0' in client.get("/metrics").text
    assert [each["embedding"] for each in answer["data"]] == rows
    assert [each["index"] for each in answer["data"]] == [0, 1]
    given = {"dimensions": 2, "encoding_format": None}
    assert post(client, EMBED, {**asked, **given}) == (200, answer)
    body = {**asked, "input": "four", "encoding_format": "base64"}
    (one,) = post(client, EMBED, body)[1]["data"]
    assert np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() == rows[0]


@pytest.mark.parametrize(
    ("body", "vectors"),
    [
        ({"inputs": "four", "normalize": False}, [[4, TENTH]]),
        ({"inputs": ["a", [2, 3, 7, 3]], "normalize": False}, [[1, TENTH], [2, TENTH]]),
        ({"inputs": [2, 7, 3], "normalize": False, "truncate": None}, [[1, TENTH]]),
        ({"inputs": "a", "prompt_name": "query", "normalize": False}, [[7, TENTH]]),
        ({"inputs": "a", "prompt_name": "document", "dimensions": 1}, [[1]]),
        ({"inputs": ["a" * 13], "truncate": False, "dimensions": 1, "normalize": False}, [[13]]),
        ({"inputs": "a" * 300, "truncate": True, "truncation_direction": "Right"}, [[1, 0.000333]]),
        ({"inputs": ["a", ""], "normalize": None}, [[0.995037, 0.099504], [0, 0]]),
    ],
)
def test_text_embeddings_inference_embeds(client, body, vectors):
    for path in ("/", "/embed"):
        np.testing.assert_allclose(post(client, path, body)[1], vectors, atol=1e-6)


def test_text_embeddings_inference_compares(client):
    inputs = {"source_sentence": "a", "sentences": ["b", "four", [2, 7, 3]]}
    assert post(client, "/similarity", {"inputs": inputs})[1] == pytest.approx([1, 0.997213, 1])
    inputs["sentences"].pop()
    body = {"inputs": inputs, "parameters": {"prompt_name": "query", "truncate": True}}
    found = post(client, "/similarity", body)[1]
    assert found == pytest.approx([1, 0.9999908], abs=1e-7) and found[1] < 1


def test_text_embeddings_inference_describes(client):
    found = client.get("/info").json()
    assert found["model_id"] == "embedder" and found["max_input_length"] == 16
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (found["max_client_batch_size"], found["model_dtype"]) == (2048, "float32")


def test_many_texts_are_embedded_a_part_at_a_time():
    limits = {"max_instances": 30, "max_queue": 30, "max_batch_size": 4}
    app = create_app({"e": {"1": Predictor(*EMBEDDER)}}, made_up.settings_of(**limits))
    with testclient.TestClient(app, "http://localhost") as client:
        many = ["a" * (i % 9) for i in range(2048)]
        _, answer = post(client, EMBED, {"model": "e", "input": many})
        assert [each["embedding"][0] for each in answer["data"]] == [*map(len, many)]
        status, answer = post(client, EMBED, {"model": "e", "input": ["a", *many]})
        assert status == 400 and "1 to 2048, got a list of 2049" in answer["error"]["message"]
        status, answer = post(client, "/embed", {"inputs": ["a", *many]})
        assert (status, answer["error_type"]) == (413, "Validation")


def test_a_text_that_can_not_be_read_fails_alone(client, monkeypatch):
    encode = made_up.PIECES.encode

    def read(text, most):
        if text == "odd":
            raise ValueError("an odd text")
        return encode(text, most)

    monkeypatch.setattr(made_up.PIECES, "encode", read)
    asked = {"inputs": ["four", "odd"], "normalize": False, "dimensions": 1}
    assert post(client, "/embed", asked) == (200, [[4], [3]])


# Lists without [CLS] or [SEP], with a non-id, with an unknown id, too long, or nested too deep.
IDS = [[3, 5], [2], [2, 5], [2, "a", 3], [2, 10, 3], [2, True, 3], [2, *[5] * 15, 3], [[[2, 3]]]]
OPTIONS = [
    ({"inputs": []}, "list of 1 to 2048"),
    ({"inputs": None}, "list"),
    ({"inputs": [2, 7]}, "token ids"),
    ({"inputs": [2, 3], "prompt_name": "query"}, "prompt_name is for texts"),
    ({"prompt_name": "passage"}, "query or document"),
    ({"prompt_name": 0}, "query or document"),
    ({"dimensions": 0}, "dimensions must be from 1 to 2"),
    ({"normalize": 1}, "true or false"),
    ({"truncate": "no"}, "true or false"),
    ({"truncation_direction": "left"}, "right"),
]
SIMILAR = {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}
WRONG = ["a", ["a"], {**SIMILAR["inputs"], "sentences": []}, {"source_sentence": "a"}]
OPENAIS = [
    ({"model": "score"}, 400, "score has no"),
    ({"dimensions": 3}, 400, "dimensions must be from 1 to 2"),
    *(({"input": ids}, 400, "token ids.* 0 to 9.* 16, .*texts") for ids in IDS),
    ({"encoding_format": "int8"}, 400, "encoding_format"),
    ({"model": "gpt"}, 404, "gpt, only score"),
    ({"model": "\ud83d"}, 404, "\ud83d, only score"),
]
TEIS = [
    ("/similarity", SIMILAR, 424, "vector of zeros"),
    ("/embed", {"inputs": "a" * 14, "truncate": False}, 413, "16 pieces.*truncate"),
    ("/embed", {"inputs": "a" * 5000}, 413, "5000 bytes"),
    *(("/embed", {"inputs": "a", **each}, 422, noun) for each, noun in OPTIONS),
    *(("/similarity", {"inputs": each}, 422, "source_sentence, s") for each in WRONG),
    ("/similarity", {**SIMILAR, "parameters": "a"}, 422, "parameters"),
]


@pytest.mark.parametrize(("changes", "status", "noun"), OPENAIS)
def test_openais_client_shows_what_is_refused(client, changes, status, noun):
    found, answer = post(client, EMBED, {"model": "embedder", "input": "a", **changes})
    assert (found, [*answer]) == (status, ["error"])
    assert answer["error"]["type"] == "invalid_request_error"
    assert re.search(noun, answer["error"]["message"])


@pytest.mark.parametrize(("path", "body", "status", "noun"), TEIS)
def test_text_embeddings_inference_refuses(client, path, body, status, noun):
    found, answer = post(client, path, body)
    assert (found, [*answer]) == (status, ["error", "error_type"])
    assert re.search(noun, answer["error"])


def test_vectors_of_an_answer_are_bounded(monkeypatch, client):
    monkeypatch.setattr(rest_bounds, "_ANSWER_VALUES", 17)
    # Each vector has two numbers.
    assert [post(client, "/embed", {"inputs": ["a"] * n})[0] for n in (8, 9)] == [200, 422]
