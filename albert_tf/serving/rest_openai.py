"""OpenAI's interface to embeddings: vectors of texts."""

from __future__ import annotations

import base64
import functools
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_parsing
from albert_tf.serving.rest_models import Asked, Model, Models, json_response


def listed(models: Models) -> dict[str, Any]:
    """Returns the list of models that its clients read at /v1/models."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": ""} for name in models]
    return {"object": "list", "data": data}


def routes(models: Models) -> list[Route]:
    """Returns the route of embeddings."""
    embed = models.answering(read)

    async def answer(request: Request) -> Response:
        try:
            return await embed(request)
        except HTTPException as error:  # Its clients only show errors of this form.
            message = {"message": error.detail, "type": "invalid_request_error"}
            return json_response({"error": message}, error.status_code, error.headers)

    return [Route("/v1/embeddings", answer, methods=["GET", "POST"])]


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads `input`, a text or a list of them, to a `model` that embeds."""
    values, _ = rest_parsing.read_object(body, models.settings, "input")
    model = models.find(str(values.get("model")))
    if not model.predictor.kind.vector:
        raise ValueError(f"{model.name} has no embeddings: only models of the task embed do")
    # An option that is null is not given.
    coding, size = values.get("encoding_format") or "float", values.get("dimensions")
    if coding not in ("float", "base64"):
        raise ValueError(f"encoding_format must be float or base64, got {ascii(coding)[:80]}")
    given = [values["input"]] if isinstance(values["input"], str) else values["input"]
    first = given[0] if isinstance(given, list) and given else None
    if type(first) is int or (isinstance(first, list) and first and type(first[0]) is int):
        raise ValueError(
            "input has token ids, but must have texts: have the client send them (in LangChain, "
            "OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
    rows = rest_parsing.read_instances(given, "input", model.predictor, models.settings)
    return model, rows, functools.partial(_write, model, coding, size)


def _write(model: Model, coding: str, size: Any, found: list[dict[str, Any]]) -> dict[str, Any]:
    kind, data = model.predictor.kind, []
    for index, each in enumerate(found):
        try:
            vector = kind.shortened(each[kind.vector], size)
        except ValueError as error:  # The model has answered: its vectors have another size.
            raise HTTPException(400, str(error)) from None
        is_coded = coding == "base64"
        shown = base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_coded else vector
        data.append({"object": "embedding", "index": index, "embedding": shown})
    # Models of the task fill_mask don't count pieces.
    tokens = sum(int(each.get("tokens", 0)) for each in found)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}
