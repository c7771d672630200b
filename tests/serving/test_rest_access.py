"""albert-serve's API keys, request ids, and pages of other origins.

Not tested here: browsers.
"""

import json
import re

import pytest

from albert_tf.serving.predict import Predictor
from tests.kit import made_up_models as made_up
from tests.kit.files import refused
from tests.kit.made_up_models import CAPITALS

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving import rest_access  # noqa: E402
from albert_tf.serving.rest_api import create_app  # noqa: E402

ASK, BODY = "/v1/models/capitals:predict", {"instances": ["Anna in Rome"]}
PAGE = "https://example.org"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def client(**settings):
    app = create_app({"capitals": {"1": Predictor(*CAPITALS)}}, made_up.settings_of(**settings))
    return testclient.TestClient(app, base_url="http://localhost")


@pytest.fixture
def keyed(tmp_path):
    (tmp_path / "keys").write_text("first-key\n\n  second key \n")
    return client(api_key_file=str(tmp_path / "keys"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first-key"}, 200),
        ({"Authorization": "bearer second key"}, 200),
        ({"X-Api-Key": "first-key"}, 200),
        ({"Authorization": "Bearer first-key\u00e9".encode("latin-1")}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer first"}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"X-Api-Key": ""}, 401),
    ],
)
def test_answers_need_a_key_of_the_file(keyed, headers, status):
    response = keyed.post(ASK, json=BODY, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "a key of this server" in response.json()["error"]
    assert keyed.get("/healthz").status_code == keyed.get("/v1/models/capitals").status_code == 200


def test_a_missing_key_is_an_error_as_openais_clients_read_it(keyed):
    response = keyed.post("/v1/embeddings", json={"input": "a"})
    assert response.status_code == 401
    assert "a key of this server" in response.json()["error"]["message"]


def test_a_file_without_a_key_is_refused(tmp_path):
    (tmp_path / "keys").write_text("\n \n")
    with refused("api_key_file.* has no key", exception=ValueError):
        rest_access.Keys(str(tmp_path / "keys"))


@pytest.mark.parametrize("given", ["job-7/a:b", "x" * 128, "x" * 129, "a b", "\u00e9", ""])
def test_a_request_has_an_id_in_the_answer_and_in_the_log(capsys, given):
    headers = {"X-Request-Id": given.encode("latin-1"), "traceparent": TRACE}
    with client() as asking:
        response = asking.post(ASK, json=BODY, headers=headers)
        other = asking.post(ASK, json=BODY)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = response.headers["X-Request-Id"]
    assert [line["request_id"] for line in lines] == [shown, other.headers["X-Request-Id"]]
    assert [line.get("traceparent") for line in lines] == [TRACE, None]
    if given in ("job-7/a:b", "x" * 128):
        assert shown == given
    else:
        assert re.fullmatch("[0-9a-f]{32}", shown) and shown != other.headers["X-Request-Id"]


@pytest.mark.parametrize("trace", [f"{TRACE}-more", TRACE.upper(), f" {TRACE}", "", "00-0-0-0"])
def test_what_is_no_id_or_trace_is_not_repeated(trace):
    found = rest_access.ids({b"x-request-id": b"\xe9", b"traceparent": trace.encode()})
    assert found.keys() == {"request_id"} and re.fullmatch("[0-9a-f]{32}", found["request_id"])


def test_pages_of_listed_origins_may_ask(tmp_path):
    (tmp_path / "keys").write_text("key")
    asking = client(allowed_origins=(PAGE,), api_key_file=str(tmp_path / "keys"))
    before = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    before |= {"Access-Control-Request-Headers": "authorization,content-type"}
    allowed = asking.options(ASK, headers=before)
    assert allowed.status_code == 200
    assert allowed.headers["Access-Control-Allow-Origin"] == PAGE
    headers = {"Origin": PAGE, "Authorization": "Bearer key"}
    answer = asking.post(ASK, json=BODY, headers=headers)
    assert answer.status_code == 200 and answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert asking.options(ASK, headers={**before, "Origin": "https://other.org"}).status_code == 400
    headers["Origin"] = "https://other.org"
    assert "Access-Control-Allow-Origin" not in asking.post(ASK, json=BODY, headers=headers).headers
    assert (
        "Access-Control-Allow-Origin" not in client().post(ASK, json=BODY, headers=headers).headers
    )


def test_answers_without_an_error_are_no_series_of_errors():
    asking = client()
    asking.post(ASK, json=BODY)
    asking.post(ASK, json={})
    found = [line for line in asking.get("/metrics").text.splitlines() if "errors_total{" in line]
    assert len(found) == 1 and 'status="400"' in found[0]
