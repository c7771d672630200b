"""TensorFlow Serving's REST interface, which is also KServe's protocol 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_openai, rest_parsing
from albert_tf.serving.rest_models import Asked, Model, Models, json_response

_SIGNATURE = "serving_default"
_DTYPES = {"O": "DT_STRING", "f": "DT_FLOAT", "i": "DT_INT32"}
_AVAILABLE = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}


def routes(models: Models) -> list[Route]:
    """Returns the routes of models, of their versions, and of predictions."""

    async def status(request: Request) -> Response:
        model = models.find(**request.path_params)
        one = request.path_params.get("version")
        # A version is listed only once it has answered a first text, so it is available.
        states = [{"version": v, **_AVAILABLE} for v in ([one] if one else models[model.name])]
        return json_response({"model_version_status": states, "name": model.name, "ready": True})

    async def describe(request: Request) -> Response:
        model = models.find(**request.path_params)
        tensors = {"inputs": _described(model.inputs), "outputs": _described(model.outputs)}
        signature = {**tensors, "method_name": "tensorflow/serving/predict"}
        spec = {"name": model.name, "signature_name": "", "version": model.version}
        signatures = {"signature_def": {"signature_def": {_SIGNATURE: signature}}}
        return json_response({"model_spec": spec, "metadata": signatures})

    async def names(request: Request) -> Response:
        return json_response({"models": [*models], **rest_openai.listed(models)})

    found, predict = [Route("/v1/models", names)], models.answering(read)
    for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        # Route GET here, too, to refuse it: else it would ask for a model "NAME:predict".
        found.append(Route(f"{path}:predict", predict, methods=["GET", "POST"]))
        found += [Route(path, status), Route(f"{path}/metadata", describe)]
    return found


def refusal(message: str, status: int) -> tuple[Any, int]:
    """Returns an error in the form that its clients expect, and the status."""
    return {"error": message}, status


def instances(model: Model, row: list[Any]) -> dict[str, Any]:
    """Returns a body for a row of a model's texts."""
    names = model.predictor.names
    return {"instances": row if len(names) == 1 else [dict(zip(names, row, strict=True))]}


EXAMPLES = {"/v1/models/{name}:predict": instances}


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads `instances`, answered by `predictions` by row, or `inputs`, by `outputs` by name.

    `instances` has a text, or an object with the model's texts by name, for each row; `inputs` has
    for each name a list of all rows' texts, or is this list if the model takes one text. A single
    output is returned without its name.
    """
    model = models.find(**request.path_params)
    values, form = rest_parsing.read_object(body, models.settings, "instances", "inputs")
    if (signature := values.get("signature_name") or _SIGNATURE) != _SIGNATURE:
        wrong = f"Serving signature name: {ascii(signature)[:80]} not found in signature def"
        raise ValueError(f"{wrong}: there is only {_SIGNATURE!r}")
    given, write = values[form], predictions
    if form == "inputs":
        given, write = rest_parsing.rows_of(given, form, model.predictor, models.settings), _outputs
    rows = rest_parsing.read_instances(given, form, model.predictor, models.settings)
    return model, rows, write


def predictions(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes outputs by row, without padding."""
    rows = [each if len(each) > 1 else next(iter(each.values())) for each in found]
    return {"predictions": rows}


def _outputs(found: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [each[name] for each in found] for name in found[0]}
    return {"outputs": columns if len(columns) > 1 else next(iter(columns.values()))}


def _described(tensors: Mapping[str, rest_parsing.Tensor]) -> dict[str, Any]:
    # As in JSON of protocol buffers, 64-bit integers are strings; -1 is any size.
    return {
        name: {
            "dtype": _DTYPES[code],
            "tensor_shape": {"dim": [{"size": "-1", "name": ""}] * rank, "unknown_rank": False},
            "name": name,
        }
        for name, (code, rank) in tensors.items()
    }
