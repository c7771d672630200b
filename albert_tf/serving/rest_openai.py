"""OpenAI's interface to embeddings: the mean vectors of a pretrained model's texts."""

from __future__ import annotations

import base64
import functools
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_parsing
from albert_tf.serving.rest_models import Asked, Models, json_response


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
    if "mean" not in model.outputs:
        raise ValueError(f"{model.name} has no embeddings: only models of the task fill_mask do")
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
    return model, rows, functools.partial(_write, model.name, coding, size)


def _write(name: str, coding: str, size: Any, found: list[dict[str, Any]]) -> dict[str, Any]:
    data = []
    for index, each in enumerate(found):
        vector = each["mean"]
        if size not in (None, len(vector)):
            raise HTTPException(400, f"dimensions must be {len(vector)}, as all these vectors have")
        if coding == "base64":
            vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"prompt_tokens": 0, "total_tokens": 0}  # Pieces are not counted.
    return {"object": "list", "data": data, "model": name, "usage": usage}
