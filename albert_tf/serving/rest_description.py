"""The OpenAPI 3.1 description of a server, from which tools generate clients."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from starlette.requests import Request

from albert_tf.serving import rest_tensorflow
from albert_tf.serving.rest_models import Model, Models, json_response
from albert_tf.serving.settings import ServerSettings

# Requests without a body.
_GETS = {
    "/v1/models": "The models, with what their pages say of them.",
    "/v1/models/{name}": "The versions of a model.",
    "/v1/models/{name}/metadata": "The inputs and outputs of a model.",
    "/v2/models/{name}": "The inputs and outputs of a model, in the Open Inference Protocol.",
    "/healthz": "Whether the process lives.",
    "/readyz": "Whether the server takes requests.",
}
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _row(model: Model, settings: ServerSettings) -> list[Any]:
    """Returns an example row of a model's texts, within the limits; the last may be a list."""
    names, many = model.predictor.names, model.predictor.takes_many
    made_up = [f"A {name.replace('_', ' ')}." for name in names]
    texts = next(iter(model.predictor.about.examples), made_up)
    row = [text[: settings.max_text_length] for text in texts]
    # The examples of a model with vectors may be pairs to compare, but a row has one text.
    alone, most = len(names) - many, settings.max_instances
    return [*row[:alone], *([row[alone:][:most]] if many else [])]


def document(models: Models, protocols: Sequence[ModuleType]) -> dict[str, Any]:
    """Returns the server's description: its models' paths, and schemas of actual answers.

    Args:
      models: The server's.
      protocols: Modules with `read`, which parses bodies, and `EXAMPLES`: for each path that is
        described, a function of a model and a row of its texts that returns a body.
    """
    paths: dict[str, Any] = {}
    for path, summary in _GETS.items():
        for name in models if "{name}" in path else [""]:
            ok = {"200": {"description": "JSON."}}
            operation = {"operationId": _id("get", path, name), "summary": summary}
            paths[path.replace("{name}", name)] = {"get": {**operation, "responses": ok}}
    for protocol, path in [(each, path) for each in protocols for path in each.EXAMPLES]:
        for model in _asked(path, models):
            operation = _operation(path, protocol, model, models)
            paths[path.replace("{name}", model.name)] = {"post": operation}
    about = {"info": {"title": "albert-serve", "version": "1"}, "paths": paths}
    if not models.settings.api_key_file:
        return {"openapi": "3.1.0", **about}
    schemes = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    return {"openapi": "3.1.0", **about, "components": schemes, "security": [{"key": []}]}


def _asked(path: str, models: Models) -> Iterator[Model]:
    """Yields the models at a path; for a path without a name, the first that can answer."""
    found = map(models.find, models)
    if "{name}" in path:
        yield from found
    elif path == "/invocations":
        yield next(found)
    else:
        yield from [model for model in found if model.predictor.kind.vector][:1]


def _operation(path: str, protocol: ModuleType, model: Model, models: Models) -> dict[str, Any]:
    """Describes a request by an example, and its response by the model's first answer."""
    example = protocol.EXAMPLES[path](model, _row(model, models.settings))
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    request = Request({**scope, "path_params": {"name": model.name}})
    _, rows, write = protocol.read(json.dumps(example).encode(), request, models)
    found = {name: _filled(value) for name, value in model.first.items()}
    answer = json.loads(json_response(write([found] * len(rows))).body)
    refusal = getattr(protocol, "refusal", rest_tensorflow.refusal)
    error, _ = refusal("What was expected, what came.", 400)
    operation: dict[str, Any] = {
        "operationId": _id("ask", path, model.name),
        "summary": (protocol.read.__doc__ or "").split("\n")[0],
        "description": model.predictor.about.description,
        "requestBody": {"required": True, "content": _json(example, example=example)},
        "responses": {
            "200": {"description": "The answer.", "content": _json(answer)},
            "default": {"description": "An error.", "content": _json(error)},
        },
    }
    if model.by_depth:
        depths = {"enum": [*model.by_depth]}
        operation["parameters"] = [{"name": "depth", "in": "query", "schema": depths}]
    return operation


def _filled(value: Any) -> np.ndarray:
    """Returns an output; if it is empty, returns one element of its type instead."""
    array = np.asarray(value)
    if array.size:
        return array
    filler = "" if array.dtype.kind in "OU" else 0
    return np.full(np.maximum(array.shape, 1), filler, array.dtype)


def _id(verb: str, path: str, name: str) -> str:
    words = re.findall(r"\w+", f"{verb} {path.replace('{name}', name)}")
    return "_".join(words)


def _json(value: Any, **more: Any) -> dict[str, Any]:
    return {"application/json": {"schema": _schema(value), **more}}


def _schema(value: Any) -> dict[str, Any]:
    """Returns the schema of an example value."""
    if isinstance(value, dict):
        members = {name: _schema(each) for name, each in value.items()}
        return {"type": "object", "properties": members, "required": [*members]}
    if isinstance(value, list):
        kinds = [each for each, _ in itertools.groupby(map(_schema, value))] or [{}]
        return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
    return {"type": _TYPES[type(value)]}
