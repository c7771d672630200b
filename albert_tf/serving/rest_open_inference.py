"""The Open Inference Protocol: KServe's protocol 2, and Triton's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_bounds, rest_parsing
from albert_tf.serving.rest_models import Asked, Model, Models, json_response, readiness

_DATATYPES = {"O": "BYTES", "f": "FP32", "i": "INT32"}
# Triton's extension: the length of the JSON in the body. Texts follow, each after its length.
_LENGTH = "inference-header-content-length"


def routes(models: Models) -> list[Route]:
    """Returns the routes of health, descriptions, and answers."""

    async def model_ready(request: Request) -> Response:
        return json_response({"name": models.find(**request.path_params).name, "ready": True})

    async def describe(request: Request) -> Response:
        model = models.find(**request.path_params)
        about = {"name": model.name, "versions": [*models[model.name]], "platform": "albert_tf"}
        tensors = {"inputs": _described(model.inputs), "outputs": _described(model.outputs)}
        return json_response({**about, **tensors})

    about = {"name": "albert-serve", "version": "", "extensions": ["binary_tensor_data"]}
    found, infer = [Route("/v2/health/ready", readiness)], models.answering(read)
    for path, value in {"/v2": about, "/v2/health/live": {"live": True}}.items():
        found.append(Route(path, json_response(value), methods=["GET"]))
    # Without a version in its path, a request goes to the model's last version.
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        found.append(Route(f"{path}/infer", infer, methods=["GET", "POST"]))
        found += [Route(path, describe), Route(f"{path}/ready", model_ready)]
    return found


def _tensors(model: Model, row: list[Any]) -> dict[str, Any]:
    tensors = []
    for name, text in zip(model.inputs, row, strict=True):
        shape = [1, len(text)] if isinstance(text, list) else [1]
        tensor = {"name": name, "datatype": "BYTES", "shape": shape}
        tensors.append({**tensor, "data": text if isinstance(text, list) else [text]})
    return {"inputs": tensors}


EXAMPLES = {"/v2/models/{name}/infer": _tensors}


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads `inputs`, tensors of texts; the answer has the `outputs` that are asked for, or all."""
    model = models.find(**request.path_params)
    # JSON comes first, then the binary data of all inputs, in their order.
    length = request.headers.get(_LENGTH, str(len(body)))
    if not re.fullmatch("[0-9]{1,18}", length) or int(length) > len(body):
        raise ValueError(f"{_LENGTH} must be at most {len(body)}, got {length[:20]!r}")
    values, _ = rest_parsing.read_object(body[: int(length)], models.settings, "inputs")
    binary = memoryview(body)[int(length) :]
    columns: dict[str, Any] = {}
    tensors = values["inputs"]
    if not isinstance(tensors, list) or not 1 <= len(tensors) <= len(model.inputs):
        raise ValueError(f"inputs must have {' and '.join(model.inputs)}, each once, in a list")
    for place, tensor in enumerate(tensors):
        where = f"inputs[{place}]"
        try:
            name, shape, datatype = str(tensor["name"]), tensor["shape"], tensor["datatype"]
            # A tensor in JSON has `data`; a binary one has the size of its part of the body.
            in_binary = (tensor.get("parameters") or {}).get("binary_data_size")
            given = tensor["data"] if in_binary is None else binary[:in_binary]
            if in_binary is not None and ("data" in tensor or len(given) != in_binary):
                raise KeyError
        except (AttributeError, KeyError, TypeError):
            data = "data, or binary_data_size and as many bytes"
            raise ValueError(f"{where} must have name, shape, datatype, and {data}") from None
        if datatype != "BYTES":
            raise ValueError(f"{where} must have datatype BYTES, texts, not {str(datatype)[:20]!r}")
        if name not in model.inputs or name in columns:
            raise ValueError(f"inputs are {[*model.inputs]}, each once, {where} is {name[:80]!r}")
        # The shape is [B] or [B, 1], or [B, E] if there are several texts for each row. It bounds
        # how many texts are read.
        is_many = model.inputs[name].rank > 1
        count, width = rest_bounds.axes_of(shape, is_many, where, models.settings.max_instances)
        size = count * width
        if in_binary is None:
            texts = _flat(given, f"{where}.data", count, width)
        else:
            texts = _texts(given, size)
            binary = binary[in_binary:]
        if len(texts) != size:
            raise ValueError(f"{where} has {len(texts)} texts, but shape {shape}")
        starts = range(0, size, width)
        columns[name] = [texts[i : i + width] for i in starts] if is_many else texts
    if binary:
        raise ValueError(f"{len(binary)} bytes follow the binary data of inputs")
    by_row = rest_parsing.rows_of(columns, "inputs", model.predictor, models.settings)
    rows = rest_parsing.read_instances(by_row, "inputs", model.predictor, models.settings)
    # Answer with the requested outputs, in their order; by default with all.
    every = [*model.outputs]
    given = every if values.get("outputs") in (None, []) else values["outputs"]
    wanted = rest_parsing.a_list(given, "outputs", len(every))
    names = [str(each.get("name") if isinstance(each, dict) else each) for each in wanted]
    for name in names:
        if name not in model.outputs or names.count(name) > 1:
            raise ValueError(f"outputs are {', '.join(every)}, each once, not {name[:80]}")

    def write(found: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = []
        for name, column in rest_parsing.columns_of(found, names).items():
            about = {"name": name, "datatype": _DATATYPES[model.outputs[name].code]}
            # Values are a flat list, in row-major order, beside their shape.
            outputs.append({**about, "shape": [*column.shape], "data": column.ravel()})
        # A client that numbers its requests gets the number back.
        asked = {"id": values["id"]} if "id" in values else {}
        about = {"model_name": model.name, "model_version": model.version}
        return {**about, **asked, "outputs": outputs}

    return model, rows, write


def _flat(data: Any, where: str, count: int, width: int) -> list[Any]:
    """Returns the texts of a tensor in JSON: one list of all, or a list for each row."""
    texts = rest_parsing.a_list(data, where, count * width)
    if not isinstance(texts[0], list):
        return texts
    if not all(isinstance(row, list) and len(row) == width for row in texts):
        raise ValueError(f"{where} must have lists of {width}")
    return [text for row in texts for text in row]


def _texts(binary: memoryview, most: int) -> list[str]:
    """Returns the texts in binary data, where each follows its length in four bytes."""
    texts: list[str] = []
    start = 0
    while start < len(binary) and len(texts) <= most:
        end = start + 4 + int.from_bytes(binary[start : start + 4], "little")
        if len(binary) < end:
            raise ValueError("the binary data of inputs end within a text")
        # Bytes that are not UTF-8 become surrogates, which are refused later.
        texts.append(str(binary[start + 4 : end], "utf-8", "surrogateescape"))
        start = end
    return texts


def _described(tensors: Mapping[str, rest_parsing.Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": _DATATYPES[code], "shape": [-1] * rank}
        for name, (code, rank) in tensors.items()
    ]
