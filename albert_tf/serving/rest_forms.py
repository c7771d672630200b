"""The JSON of TensorFlow Serving's REST interface: requests, answers, descriptions of models."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings

_SIGNATURE = "serving_default"
# NumPy's kinds of arrays of texts.
_STRINGS = "OU"
_DTYPES = {"O": "DT_STRING", "f": "DT_FLOAT", "i": "DT_INT32"}
# Content-Encoding -> zlib's number of its format.
CODINGS = {"identity": 0, "gzip": 31, "x-gzip": 31, "deflate": 15}
# What absl's Base64Unescape, and with it TensorFlow Serving, takes beside "=", or skips.
_BASE64 = str.maketrans(".", "=", " \t\n\v\f\r")


def unpacked(body: bytes | bytearray, coding: str, most: int) -> bytes | bytearray:
    """Returns at most so many bytes of what a body is by its Content-Encoding."""
    if not CODINGS[coding]:
        return body
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        content = unpacker.decompress(body, most)
    except zlib.error as error:
        raise ValueError(f"the body is not {coding}: {error}") from None
    if len(content) < most and (not unpacker.eof or unpacker.unused_data):
        raise ValueError(f"the body is not {coding}: it ends early, or something follows")
    return content


def read_request(
    body: bytes | bytearray, predictor: Predictor, settings: ServerSettings
) -> tuple[list[list[str]], bool]:
    """Returns the rows of texts in a request to predict, and whether it has the columnar form.

    `instances` has a text, or an object with the model's texts by name, for each row; `inputs` has
    a list of all rows' texts by name, or of a model with one text only this list.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no value of JSON")

    try:
        values = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"JSON Parse error: {str(error)[:200]}") from None
    forms = {"instances", "inputs"} & {*values} if isinstance(values, dict) else ()
    if len(forms) != 1:
        raise ValueError("the body must be an object with either 'instances' or 'inputs'")
    (form,), names, most = forms, predictor.names, settings.max_instances
    if (signature := values.get("signature_name") or _SIGNATURE) != _SIGNATURE:
        wrong = f"Serving signature name: {ascii(signature)[:80]} not found in signature def"
        raise ValueError(f"{wrong}: there is only {_SIGNATURE!r}")
    given = values[form]
    if form == "inputs":  # Columns become rows.
        given = {names[0]: given} if len(names) == 1 and isinstance(given, list) else given
        columns = [_list(column, form) for column in _members(given, names, form)]
        if len({*map(len, columns)}) > 1:
            raise ValueError(f"the lists of {form} must have equally many elements")
        given = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    rows: list[list[str]] = []
    for row in _list(given, form, most):
        where = f"{form}[{len(rows)}]"
        is_bare = len(names) == 1 and not (isinstance(row, dict) and names[0] in row)
        fields = [row] if is_bare else _members(row, names, where)
        if predictor.takes_many:
            fields += _list(fields.pop(), f"{where}.{names[-1]}", most)
        rows.append([_text(each, where, settings.max_text_length) for each in fields])
    if len({*map(len, rows)}) > 1:
        raise ValueError(f"all rows of {form} must have equally many {names[-1]}")
    return rows, form == "inputs"


def _list(value: Any, where: str, most: int = sys.maxsize) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError(f"{where} must be a list of 1 to {most}, got {_shown(value)}")
    return value


def _members(value: Any, names: Sequence[str], where: str) -> list[Any]:
    if not isinstance(value, dict) or {*value} != {*names}:
        raise ValueError(f"{where} must have {' and '.join(names)}, got {_shown(value)}")
    return [value[name] for name in names]


def _text(value: Any, where: str, most: int) -> str:
    try:
        if isinstance(value, dict) and {*value} == {"b64"} and isinstance(value["b64"], str):
            coded = value["b64"].translate(_BASE64)
            coded += "=" * (-len(coded) % 4 if coded[-1:] != "=" else 0)
            value = base64.b64decode(coded, validate=True).decode()
        if not isinstance(value, str):
            raise TypeError(f"got {_shown(value)}")
        value.encode()  # Half a surrogate pair is no text.
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must be a text in UTF-8: {error}") from None
    if len(value) > most:
        raise ValueError(f"{where} must have at most {most} characters, got {len(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object of {ascii([*value])[:80]}" if isinstance(value, dict) else ascii(value)[:80]


def answer(found: Sequence[Mapping[str, Any]], in_columns: bool) -> dict[str, Any]:
    """Returns `predictions` by row, or `outputs` by name; bare values if there is one output."""
    columns = {name: _stacked([each[name] for each in found]).tolist() for name in found[0]}
    values: Any = columns if len(columns) > 1 else next(iter(columns.values()))
    if len(columns) > 1 and not in_columns:
        rows = zip(*columns.values(), strict=True)
        values = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"outputs" if in_columns else "predictions": values}


def _stacked(values: Sequence[Any]) -> np.ndarray:
    """Stacks what is found in a request's rows, filled up with "" and 0 to the longest of them."""
    is_text = np.asarray(values[0]).dtype.kind in _STRINGS
    arrays = [np.asarray(value, object if is_text else None) for value in values]
    longest = max(array.shape for array in arrays)
    whole = np.full((len(arrays), *longest), "" if is_text else 0, arrays[0].dtype)
    for i, array in enumerate(arrays):
        place: Any = (i, *map(slice, array.shape))
        whole[place] = array[()]  # The text itself, of an array without axes.
    return whole


def metadata(name: str, version: str, predictor: Predictor) -> dict[str, Any]:
    """Describes a model by its answer to a text, its first, which may be slow."""
    texts, many, ranks = predictor.names, predictor.takes_many, predictor.kind.text_ranks
    (found,) = predictor.outputs([["word"] * (len(texts) + many)])
    signature = {
        "inputs": {text: _tensor(text, "O", rank) for text, rank in ranks.items()},
        "outputs": {name: _output(name, np.asarray(value)) for name, value in found.items()},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": {_SIGNATURE: signature}}},
    }


def _output(name: str, value: np.ndarray) -> dict[str, Any]:
    kind = "O" if value.dtype.kind in _STRINGS else value.dtype.kind
    return _tensor(name, kind, 1 + value.ndim)


def _tensor(name: str, kind: str, rank: int) -> dict[str, Any]:
    shape = {"dim": [{"size": "-1", "name": ""}] * rank, "unknown_rank": False}
    return {"dtype": _DTYPES[kind], "tensor_shape": shape, "name": name}


def status(versions: Sequence[str]) -> dict[str, Any]:
    """Describes the versions of a model, all of which are loaded."""
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return {"model_version_status": [{"version": version, **state} for version in versions]}
