"""OpenAI's interface to embeddings: vectors of texts."""

from __future__ import annotations

import base64
import functools
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from albert_tf.serving import rest_bounds, rest_parsing
from albert_tf.serving.rest_models import Asked, Model, Models

PATHS = ("/v1/embeddings",)
EXAMPLES = {PATHS[0]: lambda model, row: {"model": model.name, "input": row}}


def listed(models: Models) -> dict[str, Any]:
    """Returns the list of models at /v1/models, with what is known of each."""
    same = {"object": "model", "created": 0, "owned_by": ""}
    data = [{"id": name, **same, **models.find(name).about()} for name in models]
    return {"object": "list", "data": data}


def routes(models: Models) -> list[Route]:
    """Returns the route of embeddings."""
    return [Route(PATHS[0], models.answering(read), methods=["GET", "POST"])]


def refusal(message: str, status: int) -> tuple[Any, int]:
    """Returns an error in the form that OpenAI's clients expect, and the status."""
    return {"error": {"message": message, "type": "invalid_request_error"}}, status


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads `input`, a text or its ids, or a list of them, to a `model` that embeds."""
    values, _ = rest_parsing.read_object(body, models.settings, "input")
    model = models.find(str(values.get("model")))
    if not model.predictor.kind.vector:
        raise ValueError(f"{model.name} has no embeddings: only models of the task embed do")
    # An option that is null counts as not given.
    coding, size = values.get("encoding_format") or "float", values.get("dimensions")
    if coding not in ("float", "base64"):
        raise ValueError(f"encoding_format must be float or base64, got {ascii(coding)[:80]}")
    rows = read_embedded(values["input"], "input", size, model, models)
    return model, rows, functools.partial(_write, model, coding, size)


def read_embedded(given: Any, where: str, size: Any, model: Model, models: Models) -> list[Any]:
    """Returns rows of one or many texts, or ids, to embed in `size` dimensions (None: all)."""
    is_one = isinstance(given, str) or isinstance(given, list) and type([*given, ""][0]) is int
    predictor, most = model.predictor, models.most_embedded
    given = [given] if is_one else given
    rows = rest_parsing.read_instances(given, where, predictor, models.settings, most)
    # All vectors are as long as the first answer's.
    vector = predictor.kind.shortened(model.first[predictor.kind.vector], size)
    rest_bounds.check_answer(len(rows) * len(vector))
    return rows


def _write(model: Model, coding: str, size: Any, found: list[dict[str, Any]]) -> dict[str, Any]:
    kind, data = model.predictor.kind, []
    for index, each in enumerate(found):
        vector = kind.shortened(each[kind.vector], size)
        is_coded = coding == "base64"
        shown = base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_coded else vector
        data.append({"object": "embedding", "index": index, "embedding": shown})
    tokens = rest_parsing.tokens(found)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}
