"""The protocols of platforms that ask one model at a fixed path: SageMaker, MLflow, Vertex AI."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from albert_tf.serving import rest_bounds, rest_parsing, rest_tensorflow
from albert_tf.serving.predict import Predictor
from albert_tf.serving.rest_models import Asked, Models, readiness

# MLflow's names of a data frame in JSON: column by column, and row by row.
_SPLIT, _RECORDS = "dataframe_split", "dataframe_records"


def default_port() -> int:
    """Returns the port that Vertex AI asks for, or else TensorFlow Serving's."""
    given = os.environ.get("AIP_HTTP_PORT", "8501")
    if not given.isdecimal() or int(given) > 65535:
        raise ValueError(f"AIP_HTTP_PORT in the environment must be a port, got {given[:20]!r}")
    return int(given)


def routes(models: Models) -> list[Route]:
    """Returns /ping and /invocations, and the paths that Vertex AI's variables name."""
    invoke = models.answering(read)
    asked = {"/invocations", os.environ.get("AIP_PREDICT_ROUTE", "/invocations")}
    found = [Route(path, invoke, methods=["GET", "POST"]) for path in sorted(asked)]
    health = {"/ping", "/health", os.environ.get("AIP_HEALTH_ROUTE", "/ping")}
    return [*found, *(Route(path, readiness) for path in sorted(health))]


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads rows of text/csv, or JSON of `instances`, `inputs` or a data frame.

    The answer has `predictions`, an object for each row.
    """
    model = models.first()
    if request.headers.get("content-type", "").startswith("text/csv"):
        rest_bounds.check_csv(body, rest_bounds.most_values(models.settings.max_instances))
        form = "rows"
        given: Any = _csv_rows(body, model.predictor)
    else:
        forms = ("instances", "inputs", _SPLIT, _RECORDS)
        values, form = rest_parsing.read_object(body, models.settings, *forms)
        given = _records(values[form]) if form == _SPLIT else values[form]
    reader = rest_parsing.read_columns if form == "inputs" else rest_parsing.read_instances
    return model, reader(given, form, model.predictor, models.settings), rest_tensorflow.predictions


def _records(frame: Any) -> list[dict[str, Any]]:
    try:
        return [dict(zip(frame["columns"], row, strict=True)) for row in frame["data"]]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{_SPLIT} must have columns, and rows of as many data") from None


def _csv_rows(body: bytes | bytearray, predictor: Predictor) -> Iterator[dict[str, Any]]:
    """Yields the rows of a CSV table of the model's texts, with or without their names above."""
    names = predictor.names
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(body), "utf-8", newline=""))
    try:
        for place, line in enumerate(lines):
            if not place and line == [*names]:
                continue
            fields: list[Any] = line or [""]  # An empty line is an empty text.
            if predictor.takes_many:
                # The last text is a list: it takes all cells that are left.
                fields = [*line[: len(names) - 1], line[len(names) - 1 :]]
            if len(fields) != len(names):
                wanted = " and ".join(names)
                raise ValueError(f"line {1 + place} must have {wanted}, got {len(line)} fields")
            yield dict(zip(names, fields, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no CSV in UTF-8: {error}") from None
