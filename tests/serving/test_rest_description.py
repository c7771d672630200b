"""/openapi.json: each request that it describes is answered as it says."""

import types

import pytest

from albert_tf.serving.exported_files import About
from albert_tf.serving.predict import Predictor
from tests.kit import made_up_models as made_up

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving import rest_api, rest_description  # noqa: E402

MODELS = {
    "capitals": made_up.CAPITALS,
    "endings": made_up.ENDINGS,
    "score": made_up.SCORE,
    "embedder": made_up.EMBEDDER,
}
TEXTS = {"score": ("one", "two"), "endings": ("a", "b", "c"), "embedder": ("one", "to compare")}


def client_of(models, **settings):
    """Returns a client of a server whose models, except capitals, have example texts."""
    found = {
        name: {"1": Predictor(*MODELS[name], about=About(f"{name}!", (TEXTS[name],) * 2))}
        if name in TEXTS
        else {"1": Predictor(*MODELS[name])}
        for name in models
    }
    return testclient.TestClient(
        rest_api.create_app(found, made_up.settings_of(**settings)), "http://host"
    )


def described(client):
    """Returns what the document says of each request with a body, by its path."""
    paths = client.get("/openapi.json").json()["paths"]
    return {path: methods["post"] for path, methods in paths.items() if "post" in methods}


def content_of(part):
    return part["content"]["application/json"]


def test_each_example_is_answered_as_described():
    client = client_of(MODELS, host="0.0.0.0")
    found = described(client)
    named = {f"/v1/models/{name}:predict" for name in MODELS}
    named |= {f"/v2/models/{name}/infer" for name in MODELS}
    assert found.keys() == named | {"/invocations", "/v1/embeddings", "/embed", "/similarity"}
    for path, operation in found.items():
        answer = client.post(path, json=content_of(operation["requestBody"])["example"])
        assert answer.status_code == 200, (path, answer.text)
        schema = content_of(operation["responses"]["200"])["schema"]
        assert rest_description._schema(answer.json()) == schema, path
        wrong = client.post(path, content=b"[")
        assert wrong.status_code >= 400
        schema = content_of(operation["responses"]["default"])["schema"]
        assert rest_description._schema(wrong.json()) == schema, path
    names = [each["operationId"] for each in found.values()]
    assert len({*names}) == len(names) and "ask_v1_models_score_predict" in names
    assert found["/v1/models/score:predict"]["description"] == "score!"
    paths = client.get("/openapi.json").json()["paths"]
    for path in paths.keys() - found.keys():
        assert client.get(path).status_code == 200, path


def test_no_protocol_is_left_out():
    """Except for paths of versions, and "/", which is /embed."""
    routes = client_of(MODELS).app.routes
    asked = {each.path for each in routes if "POST" in (getattr(each, "methods", None) or ())}
    found = {path for protocol in rest_api._PROTOCOLS for path in protocol.EXAMPLES}
    assert {path for path in asked if "versions" not in path} - {"/"} == found


def test_examples_are_those_of_the_models():
    found = described(client_of(MODELS, host="0.0.0.0"))
    asked = {path: content_of(each["requestBody"])["example"] for path, each in found.items()}
    row = {"context": "a", "endings": ["b", "c"]}
    assert asked["/v1/models/endings:predict"] == {"instances": [row]}
    assert asked["/v1/models/score:predict"] == {"instances": [{"text_a": "one", "text_b": "two"}]}
    assert asked["/v1/embeddings"]["input"] == ["one"]
    assert asked["/v1/models/capitals:predict"] == {"instances": ["A text."]}
    answer = content_of(found["/v1/models/endings:predict"]["responses"]["200"])["schema"]
    rows = answer["properties"]["predictions"]
    assert answer["required"] == ["predictions"]
    assert rows["items"]["required"] == ["probabilities", "choice", "ending"]
    shapes = [each["shape"] for each in asked["/v2/models/endings/infer"]["inputs"]]
    assert shapes == [[1], [1, 2]]


def test_examples_keep_the_servers_bounds():
    bounds = {"max_text_length": 1, "max_instances": 1}
    found = described(client_of(MODELS, host="0.0.0.0", **bounds))
    asked = {path: content_of(each["requestBody"])["example"] for path, each in found.items()}
    row = {"context": "a", "endings": ["b"]}
    assert asked["/v1/models/endings:predict"] == {"instances": [row]}
    assert asked["/v1/models/capitals:predict"] == {"instances": ["A"]}


def test_what_a_server_lacks_is_not_described(tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    client = client_of(["score"], host="0.0.0.0", api_key_file=str(tmp_path / "keys"))
    document = client.get("/openapi.json").json()
    assert not {"/v1/embeddings", "/embed", "/similarity"} & document["paths"].keys()
    assert document["security"] == [{"key": []}] and document["components"]["securitySchemes"]
    assert "security" not in client_of(["score"], host="0.0.0.0").get("/openapi.json").json()


def test_the_list_of_models_says_what_pages_show():
    (listed,) = client_of(["score"], host="0.0.0.0").get("/v1/models").json()["data"]
    assert listed["description"] == "score!" and listed["examples"] == [["one", "two"]] * 2
    assert listed["labels"] == []


def test_labels_and_depths_are_told():
    kind, find = made_up.CAPITALS
    kind = types.SimpleNamespace(**{**vars(kind), "labels": ("good", "bad")})
    about = About("It reads names.")
    model = Predictor(kind, find, by_depth={2: find, 4: find}, about=about)
    app = rest_api.create_app({"names": {"1": model}}, made_up.settings_of(host="0.0.0.0"))
    client = testclient.TestClient(app, "http://host")
    (listed,) = client.get("/v1/models").json()["data"]
    assert listed["labels"] == ["good", "bad"] and model.at_depth(2).about == about
    (depth,) = described(client)["/v1/models/names:predict"]["parameters"]
    assert (depth["name"], depth["in"], depth["schema"]) == ("depth", "query", {"enum": ["2", "4"]})
