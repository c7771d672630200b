"""The OpenAPI 3.1 description of a server, from which tools generate clients."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request

from albert_tf.serving import (
    rest_one_model,
    rest_open_inference,
    rest_openai,
    rest_tei,
    rest_tensorflow,
)
from albert_tf.serving.rest_models import Asked, Model, Models, json_response
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


def _instances(model: Model, row: list[Any]) -> dict[str, Any]:
    names = model.predictor.names
    return {"instances": row if len(names) == 1 else [dict(zip(names, row, strict=True))]}


def _tensors(model: Model, row: list[Any]) -> dict[str, Any]:
    tensors = []
    for name, text in zip(model.inputs, row, strict=True):
        shape = [1, len(text)] if isinstance(text, list) else [1]
        tensor = {"name": name, "datatype": "BYTES", "shape": shape}
        tensors.append({**tensor, "data": text if isinstance(text, list) else [text]})
    return {"inputs": tensors}


def _embeddings(model: Model, row: list[Any]) -> dict[str, Any]:
    return {"model": model.name, "input": row}


def _refusal(message: str, status: int) -> tuple[Any, int]:
    return {"error": message}, status


class _Body(NamedTuple):
    """A path's parser of bodies, an example body for a row of texts, and the form of its errors."""

    read: Callable[[bytes | bytearray, Request, Models], Asked]
    example: Callable[[Model, list[Any]], dict[str, Any]]
    refusal: Callable[[str, int], tuple[Any, int]] = _refusal


_BODIES = {
    "/v1/models/{name}:predict": _Body(rest_tensorflow.read, _instances),
    "/v2/models/{name}/infer": _Body(rest_open_inference.read, _tensors),
    "/invocations": _Body(rest_one_model.read, _instances),
    "/v1/embeddings": _Body(rest_openai.read, _embeddings, rest_openai.refusal),
    "/embed": _Body(rest_tei.read, lambda model, row: {"inputs": row}, rest_tei.refusal),
    "/similarity": _Body(
        rest_tei.read,
        lambda model, row: {"inputs": {"source_sentence": row[0], "sentences": row}},
        rest_tei.refusal,
    ),
}


def document(models: Models) -> dict[str, Any]:
    """Returns the server's description: its models' paths, and schemas of actual answers."""
    paths: dict[str, Any] = {}
    for path, summary in _GETS.items():
        for name in models if "{name}" in path else [""]:
            ok = {"200": {"description": "JSON."}}
            operation = {"operationId": _id("get", path, name), "summary": summary}
            paths[path.replace("{name}", name)] = {"get": {**operation, "responses": ok}}
    for path, body in _BODIES.items():
        for model in _asked(path, models):
            operation = _operation(path, body, model, models)
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


def _operation(path: str, body: _Body, model: Model, models: Models) -> dict[str, Any]:
    """Describes a request by an example, and its response by the model's first answer."""
    example = body.example(model, _row(model, models.settings))
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    request = Request({**scope, "path_params": {"name": model.name}})
    _, rows, write = body.read(json.dumps(example).encode(), request, models)
    found = {name: _filled(value) for name, value in model.first.items()}
    answer = json.loads(json_response(write([found] * len(rows))).body)
    error, _ = body.refusal("What was expected, what came.", 400)
    operation: dict[str, Any] = {
        "operationId": _id("ask", path, model.name),
        "summary": (body.read.__doc__ or "").split("\n")[0],
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
