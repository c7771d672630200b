"""The interface of Hugging Face's text-embeddings-inference: vectors and similarities of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_openai, rest_parsing
from albert_tf.serving.rest_models import Asked, Model, Models, json_response

PATHS = ("/", "/embed", "/similarity", "/info")
EXAMPLES = {
    "/embed": lambda model, row: {"inputs": row},
    "/similarity": lambda model, row: {
        "inputs": {"source_sentence": row[0], "sentences": row},
    },
}
# Our HTTP status -> the status there, and the name of the error there.
_ERRORS = {400: (422, "Tokenizer"), 413: (413, "Validation"), 503: (429, "Overloaded")}


def routes(models: Models) -> list[Route]:
    """Returns the routes for vectors, which answer with status 404 if no model has vectors."""

    async def describe(request: Request) -> Response:
        return json_response(_described(_embedder(models), models))

    embed = models.answering(read)
    found = [Route(path, embed, methods=["POST"]) for path in PATHS[:-1]]
    return [*found, Route(PATHS[-1], describe, methods=["GET"])]


def _embedder(models: Models) -> Model:
    """Returns the first model that has vectors, since requests name none."""
    for model in map(models.find, models):
        if model.predictor.kind.vector:
            return model
    raise HTTPException(404)


def refusal(message: str, status: int) -> tuple[Any, int]:
    """Returns an error in the form that its clients expect, and the status."""
    status, name = _ERRORS.get(status, (status, "Backend"))
    return {"error": message, "error_type": name}, status


def _described(model: Model, models: Models) -> dict[str, Any]:
    kind, settings = model.predictor.kind, models.settings
    # A pretrained model has no `pooling` option: its vector is the mean.
    pooling = {"embedding": {"pooling": getattr(kind, "pooling", "mean")}}
    dtype, most = "int8" if model.predictor.depends_on_batch else "float32", kind.max_seq_length
    about = {"model_id": model.name, "model_dtype": dtype, "model_type": pooling, "version": ""}
    lengths = {"max_input_length": most, "max_batch_tokens": settings.max_batch_size * most}
    limits = {"max_client_batch_size": models.most_embedded, "auto_truncate": True}
    limits |= {"max_concurrent_requests": settings.max_queue}
    return {**about, **lengths, **limits, "tokenization_workers": settings.threads}


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads `inputs`, texts or ids, answered by vectors; at /similarity a text and others."""
    model = _embedder(models)
    values, _ = rest_parsing.read_object(body, models.settings, "inputs")
    kind, given, options = model.predictor.kind, values["inputs"], values
    if is_compared := request.url.path == "/similarity":
        options, sentences = values.get("parameters") or {}, None
        if isinstance(given, dict):
            given, sentences = given.get("source_sentence"), given.get("sentences")
        if not isinstance(sentences, list) or not sentences or not isinstance(options, dict):
            raise ValueError("inputs must have source_sentence, sentences; parameters be an object")
        given = [given, *sentences]
    flags = options.get("normalize"), options.get("truncate")
    if not {*map(type, flags)} <= {bool, type(None)}:
        raise ValueError("normalize and truncate must be true or false")
    if str(options.get("truncation_direction") or "right").lower() != "right":
        raise ValueError("truncation_direction must be right: long texts lose their end")
    name, size = options.get("prompt_name"), options.get("dimensions")
    before, most = kind.prompt(name and str(name)[:80]), kind.max_seq_length
    if isinstance(given, list) and len(given) > models.most_embedded:
        raise HTTPException(413, f"inputs must be at most {models.most_embedded}: send fewer")
    rows = rest_openai.read_embedded(given, "inputs", size, model, models)
    if before and not all(isinstance(text, str) for (text,) in rows):
        raise ValueError("prompt_name is for texts: ids must have the prompt's among them")

    def write(found: list[dict[str, Any]]) -> list[Any]:
        # A truncated text has as many pieces as the model reads. Not all models count them.
        if flags[1] is False and any(each.get("tokens", most) >= most for each in found):
            wrong = f"a text has the {most} pieces that the model reads, or more"
            raise HTTPException(413, f"{wrong}: send a shorter one, or truncate true")
        vectors = np.stack([kind.shortened(each[kind.vector], size) for each in found])
        if is_compared:
            alike = kind.compared(vectors[:1], vectors[1:])
            if not np.isfinite(alike).all():
                raise HTTPException(424, "a text has a vector of zeros: it is like no other")
            return alike.tolist()
        if flags[0] is not False:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return [*vectors]

    return model, [[f"{before}{text}"] for (text,) in rows] if before else rows, write
