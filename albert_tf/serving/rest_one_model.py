"""The protocols of platforms that ask one model at a fixed path: SageMaker, MLflow, Vertex AI."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from albert_tf.serving import rest_bounds, rest_parsing, rest_tensorflow
from albert_tf.serving.predict import Predictor
from albert_tf.serving.rest_models import Asked, Lines, Models, readiness
from albert_tf.serving.settings import ServerSettings

# MLflow's names of a data frame in JSON: column by column, and row by row.
_SPLIT, _RECORDS = "dataframe_split", "dataframe_records"
# Members of a request that have its rows.
_MEMBERS = ("instances", "inputs", _SPLIT, _RECORDS)
# Media types. `curl -d` sends JSON under a type of its own.
_JSON, _OF_CURL = "application/json", "application/x-www-form-urlencoded"
_LINES = re.compile(r"(application|text)/(x-)?(jsonl|jsonlines|json-lines|ndjson)")
_CSV = re.compile(r"(application|text)/(x-)?csv")
# The weight (q) of a media type in Accept.
_WEIGHT = re.compile(r"[01](\.\d{0,3})?|\.\d{1,3}")
EXAMPLES = {"/invocations": rest_tensorflow.instances}


def default_port() -> int:
    """Returns the port that Vertex AI asks for, or else TensorFlow Serving's."""
    given = os.environ.get("AIP_HTTP_PORT", "8501")
    if not given.isdecimal() or int(given) > 65535:
        raise ValueError(f"AIP_HTTP_PORT in the environment must be a port, got {given[:20]!r}")
    return int(given)


def routes(models: Models) -> list[Route]:
    """Returns /ping and /invocations, and the paths that Vertex AI's variables name."""
    invoke = models.answering(read)
    asked, health = _path("AIP_PREDICT_ROUTE", "/invocations"), _path("AIP_HEALTH_ROUTE", "/ping")
    if asked == health:
        raise ValueError("AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE must be two paths")
    found = [Route(path, invoke, methods=["GET", "POST"]) for path in (asked, "/invocations")]
    return [*found, *(Route(path, readiness) for path in (health, "/ping", "/health"))]


def _path(variable: str, default: str) -> str:
    path = os.environ.get(variable, default)
    # The page is at "/".
    if not re.fullmatch(r"/[^\s{}?#]+", path):
        wanted = f"must be a path like {default}, got {path[:80]!r}"
        raise ValueError(f"{variable} in the environment {wanted}")
    return path


def read(body: bytes | bytearray, request: Request, models: Models) -> Asked:
    """Reads rows of CSV, of JSON Lines, or of JSON with `instances`, `inputs` or a data frame.

    The answer has `predictions`, an object for each row, or is a line for each.
    """
    model, settings = models.find(next(iter(models))), models.settings
    write = _writer(", ".join(request.headers.getlist("accept")) or "*/*")
    given = request.headers.get("content-type") or _JSON
    kind, parameters = _media_type(given)
    header = parameters.get("header", "")
    is_utf_8 = parameters.get("charset", "utf-8") in ("utf-8", "utf8", "us-ascii")
    if is_utf_8 and _CSV.fullmatch(kind) and header in ("", "present", "absent"):
        rows = _csv_rows(body, model.predictor, header, settings)
    elif is_utf_8 and _LINES.fullmatch(kind):
        lines = enumerate(io.BytesIO(body), 1)
        parts = ((f"line {number}", line) for number, line in lines if line.strip())
        rows = _json_rows(parts, model.predictor, settings, is_lines=True)
    elif is_utf_8 and kind in (_JSON, _OF_CURL):
        rows = _json_rows([("the body", body)], model.predictor, settings)
    else:
        known = f"{_JSON}, application/jsonlines, application/x-ndjson or text/csv"
        detail = f"{known}, in UTF-8, header=present or absent, not {given[:80]!r}"
        raise HTTPException(415, f"Content-Type must be {detail}")
    return model, rest_parsing.read_instances(rows, "rows", model.predictor, settings), write


def _media_type(given: str) -> tuple[str, dict[str, str]]:
    """Returns a media type and its parameters, in linear time."""
    kind, *parameters = given.lower().split(";")
    pairs = (each.partition("=") for each in parameters)
    return kind.strip(), {name.strip(): value.strip(' \t"') for name, _, value in pairs}


def _writer(accept: str) -> Callable[[list[dict[str, Any]]], Any]:
    """Returns the function that writes answers in the type that Accept prefers."""
    given = {name: more.get("q", "1") for name, more in map(_media_type, accept.split(","))}
    weights = {name: float(q) if _WEIGHT.fullmatch(q) else 1.0 for name, q in given.items()}
    # Among equal weights, the first wins. A wildcard doesn't include JSON if it is refused (q=0).
    for name in sorted(filter(weights.get, weights), key=weights.__getitem__, reverse=True):
        if name in ("*/*", "application/*", _JSON) and weights.get(_JSON, 1):
            return rest_tensorflow.predictions
        if _LINES.fullmatch(name):
            return lambda found: Lines(rest_tensorflow.predictions(found)["predictions"], name)
    raise HTTPException(406, f"answers are {_JSON} or application/jsonlines, not {accept[:80]!r}")


def _json_rows(
    parts: Iterable[tuple[str, bytes | bytearray]],
    predictor: Predictor,
    settings: ServerSettings,
    is_lines: bool = False,
) -> Iterator[Any]:
    """Yields the rows of requests in JSON; with `is_lines`, a line may also be a row itself."""
    for where, content in parts:
        # CR is white space in JSON, but a line has only one value: hint at the CR if reading fails.
        if is_lines and b"\r" in content.strip():
            where += " (lines must end in LF, not in CR)"
        values = rest_parsing.read_json(content, settings, where)
        if is_lines and not (isinstance(values, dict) and {*_MEMBERS} & {*values}):
            yield values
            continue
        form = rest_parsing.form_of(values, where, *_MEMBERS)
        if form == _SPLIT:
            yield from _records(values[form])
        elif form == "inputs":
            yield from rest_parsing.rows_of(values[form], form, predictor, settings)
        else:
            yield from rest_parsing.a_list(values[form], form, settings.max_instances)


def _records(frame: Any) -> Iterator[dict[str, Any]]:
    try:
        columns, rows = frame["columns"], frame["data"]
        if len({*columns}) < len(columns):
            raise ValueError
        yield from (dict(zip(columns, row, strict=True)) for row in rows)
    except (KeyError, TypeError, ValueError):
        wanted = "must have columns, each once, and rows of as many data"
        raise ValueError(f"{_SPLIT} {wanted}") from None


def _csv_rows(
    body: bytes | bytearray, predictor: Predictor, header: str, settings: ServerSettings
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a CSV table of the model's texts."""
    # A model's last text may be a list, which takes any number of cells.
    names, many = predictor.names, predictor.names[-1] if predictor.takes_many else ""
    most = rest_bounds.most_values(settings.max_instances)
    text = io.TextIOWrapper(io.BytesIO(body), "utf-8-sig", newline="")
    columns: list[str] = []
    line, commas, ends = "", 0, set()

    def bounded() -> Iterator[str]:
        nonlocal line, commas
        for line in text:
            commas += line.count(",")
            if commas > most:
                raise ValueError(f"a row must have at most {most} cells")
            yield line

    lines = csv.reader(bounded(), strict=True)
    try:
        for cells in lines:
            commas = 0
            # After a row that ends in CR, some writers leave a blank line of CR and LF.
            if cells or line == "\r":
                ends.add(line[-1:])
            # Some writers leave a lone CR in an unquoted text, where a row would end.
            if {"\r", "\n"} <= ends:
                raise ValueError("some rows end in CR and others in LF: quote all texts")
            # A blank line is not a row; an empty text must be quoted.
            if not cells:
                continue
            if not columns:
                columns = _heading(cells, names, many, header)
                if columns:
                    continue
                columns = [*names]
            if many and columns[-1] == many:
                columns += [many] * (len(cells) - len(columns))
            if len(cells) != len(columns):
                raise ValueError(f"must have {' and '.join(names)}, got {len(cells)} cells")
            pairs = [*zip(columns, cells, strict=True)]
            lists = {many: [cell for name, cell in pairs if name == many]} if many else {}
            yield {**dict(pairs), **lists}
    except (csv.Error, ValueError) as error:
        raise ValueError(f"line {lines.line_num} of the CSV in UTF-8: {error}") from None


def _heading(cells: list[str], names: Sequence[str], many: str, header: str) -> list[str]:
    """Returns the names of the columns if the first row has them, else none.

    It has them if `header` is present, or if a cell is one of the names and `header` isn't absent.
    """
    found = [cell.strip().lower() for cell in cells]
    if header == "absent" or header != "present" and not {*found} & {*names}:
        return []
    # A model that takes one text accepts a column of any name.
    if len(found) == len(names) == 1:
        return [*names]
    if {*found} != {*names} or any(found.count(name) > 1 for name in names if name != many):
        wanted = f"the heading must have {' and '.join(names)}, each once, got {cells!s:.80}"
        raise ValueError(f"{wanted}: if it is a row, say `text/csv; header=absent`")
    return found
