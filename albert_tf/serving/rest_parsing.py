"""Shared by all protocols: content encodings, JSON bodies, rows of texts, outputs as arrays."""

from __future__ import annotations

import base64
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from starlette.exceptions import HTTPException

from albert_tf.answers.rows import inner_ids
from albert_tf.answers.tag import Tag
from albert_tf.serving import rest_bounds
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings

# NumPy's type codes of arrays of texts.
_STRINGS = "OU"
# Content-Encoding -> zlib's number of its format.
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# As TensorFlow Serving's Base64Unescape: "." is another padding character, white space is skipped.
_BASE64, _SPACE = bytes.maketrans(b".", b"="), b" \t\n\v\f\r"


class Tensor(NamedTuple):
    """Type of a model's input or output: NumPy's type code (O for texts), and number of axes."""

    code: str
    rank: int


def unpacked(body: bytes | bytearray, coding: str, most: int) -> bytes | bytearray:
    """Decodes a body by its Content-Encoding; before and after, it may have `most` bytes."""
    if len(body) <= most and coding != "identity":
        if coding not in _PACKED:
            message = f"Content-Encoding must be gzip or deflate, not {coding[:80]!r}"
            raise HTTPException(415, message)
        # A small body may unpack to gigabytes: stop beyond the limit.
        unpacker = zlib.decompressobj(_PACKED[coding])
        try:
            body = unpacker.decompress(body, most + 1)
        except zlib.error as error:
            raise ValueError(f"the body is not {coding}: {error}") from None
        if len(body) <= most and (not unpacker.eof or unpacker.unused_data):
            raise ValueError(f"the body is not {coding}: it ends early, or something follows")
    if len(body) > most:
        raise HTTPException(413, f"a request may have at most {most} bytes")
    return body


def _number(given: str) -> float:
    """Reads a number of JSON. Python would also take NaN, Infinity and 1e999 (as Infinity)."""
    if not math.isfinite(value := float(given)):
        raise ValueError(f"{given[:20]} is no value of JSON")
    return value


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(members)) < len(members):
        raise ValueError(f"an object has a name twice: {ascii([*found])[:80]}")
    return found


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_number, object_pairs_hook=_object)


def read_json(content: bytes | bytearray, settings: ServerSettings, where: str = "the body") -> Any:
    """Parses JSON, whose size the settings limit."""
    rest_bounds.check_json(content, rest_bounds.most_values(settings.max_instances))
    try:
        # Accept only UTF-8: in other encodings, brackets and commas are not the bytes counted.
        return _DECODER.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"JSON Parse error in {where}: {str(error)[:200]}") from None


def form_of(values: Any, where: str, *forms: str) -> str:
    """Returns the one of `forms` that is a member of an object."""
    found = [*{*forms} & {*values}] if isinstance(values, dict) else []
    if len(found) != 1:
        either = "either " * (len(forms) > 1)
        raise ValueError(f"{where} must be an object with {either}{' or '.join(map(repr, forms))}")
    return found[0]


def read_object(
    body: bytes | bytearray, settings: ServerSettings, *forms: str
) -> tuple[dict[str, Any], str]:
    """Returns the JSON object in a body, and the one of `forms` that is a member of it."""
    values = read_json(body, settings)
    return values, form_of(values, "the body", *forms)


def read_instances(
    given: Any, where: str, predictor: Predictor, settings: ServerSettings, most: int = 0
) -> list[list[Any]]:
    """Returns rows of texts from a list with a text, or several by name or in order, for each row.

    An iterator in place of the list is read no further than to the first row beyond `most`, by
    default `max_instances`. A list of ids may stand for a text, if the model takes ids.
    """
    names, most = predictor.names, most or settings.max_instances
    rows: list[list[Any]] = []
    given = given if isinstance(given, Iterator) else a_list(given, where, most)
    for row in itertools.islice(given, most + 1):
        place = f"{where}[{len(rows)}]"
        # A model that takes one text accepts bare texts as well.
        is_bare = len(names) == 1 and not (isinstance(row, dict) and names[0] in row)
        fields = [row] if is_bare else _members(row, names, place)
        if predictor.takes_many:
            fields += a_list(fields.pop(), f"{place}.{names[-1]}", most)
        rows.append([_text(each, place, predictor, settings.max_text_length) for each in fields])
    if len({*map(len, a_list(rows, where, most))}) > 1:
        raise ValueError(f"all rows of {where} must have equally many {names[-1]}")
    if isinstance(predictor.kind, Tag):
        rest_bounds.check_words([text for (text,) in rows])
    return rows


def rows_of(given: Any, where: str, predictor: Predictor, settings: ServerSettings) -> list[Any]:
    """Turns one row, a list of rows, or lists by name into what `read_instances` reads."""
    names, most = predictor.names, settings.max_instances
    if isinstance(given, str) or isinstance(given, dict) and isinstance(given.get(names[0]), str):
        return [given]
    if isinstance(given, list):
        return a_list(given, where, most)
    columns = [a_list(column, where, most) for column in _members(given, names, where)]
    if len({*map(len, columns)}) > 1:
        raise ValueError(f"the lists of {where} must have equally many elements")
    # Return rows, so that all limits are checked in one place.
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def a_list(value: Any, where: str, most: int) -> list[Any]:
    """Returns a value, which must be a list of 1 to `most` elements."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError(f"{where} must be a list of 1 to {most}, got {shown(value)}")
    return value


def _members(value: Any, names: Sequence[str], where: str) -> list[Any]:
    if isinstance(value, list) and len(value) == len(names) > 1:
        return [*value]
    if not isinstance(value, dict) or {*value} != {*names}:
        raise ValueError(f"{where} must have {' and '.join(names)}, got {shown(value)}")
    return [value[name] for name in names]


def _text(value: Any, where: str, predictor: Predictor, most: int) -> str | Sequence[int]:
    try:
        if isinstance(value, list) and predictor.tokenizer:
            return inner_ids(predictor.tokenizer, value, predictor.kind.max_seq_length)
        if isinstance(value, dict) and {*value} == {"b64"} and isinstance(value["b64"], str):
            coded = value["b64"].encode("ascii").translate(_BASE64, _SPACE)
            # The padding may be left out.
            coded += b"=" * (-len(coded) % 4 if coded[-1:] != b"=" else 0)
            value = base64.b64decode(coded, validate=True).decode()
        if not isinstance(value, str):
            raise TypeError(f"got {shown(value)}")
        value.encode()  # Refuses unpaired surrogates.
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must be a text in UTF-8: {error}") from None
    if len(value) > most:
        raise ValueError(f"{where} must have at most {most} characters, got {len(value)}")
    return value


def shown(value: Any) -> str:
    """Describes a value that is refused."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object of {ascii([*value])[:80]}" if isinstance(value, dict) else ascii(value)[:80]


def columns_of(found: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns outputs of all rows by name, padded with "" and 0 to the longest."""
    # Rows differ in their first axis only, so the largest shape has room for all.
    shapes = {n: (len(found), *max(np.shape(each[n]) for each in found)) for n in names}
    rest_bounds.check_answer(sum(map(math.prod, shapes.values())))
    columns = {}
    for name, shape in shapes.items():
        dtype = np.asarray(found[0][name]).dtype
        is_text = dtype.kind in _STRINGS
        columns[name] = whole = np.full(shape, "" if is_text else 0, object if is_text else dtype)
        for i, each in enumerate(found):
            place: Any = (i, *map(slice, np.shape(each[name])))
            whole[place] = each[name]
    return columns


def tokens(found: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of pieces in all rows; only models of the task embed count them."""
    return sum(int(each.get("tokens", 0)) for each in found)


def tensors(predictor: Predictor) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Returns a model's inputs, its outputs, and the first answer that tells them (may be slow)."""
    (found,) = predictor.outputs([["word"] * (len(predictor.names) + predictor.takes_many)])
    inputs = {name: Tensor("O", rank) for name, rank in predictor.kind.text_ranks.items()}
    arrays = {name: np.asarray(value) for name, value in found.items()}
    codes = {name: "O" if a.dtype.kind in _STRINGS else a.dtype.kind for name, a in arrays.items()}
    outputs = {name: Tensor(codes[name], 1 + array.ndim) for name, array in arrays.items()}
    return inputs, outputs, found
