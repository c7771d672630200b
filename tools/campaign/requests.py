"""Requests to albert-serve: generated bodies of all protocols, and tables as clients write them.

The server is a process with made-up models. A defect is a status that is neither an answer nor a
refusal, an answer that is no JSON or lacks a row, or another client that waits meanwhile.
"""

from __future__ import annotations

import csv
import gzip
import http.client
import io
import json
import pathlib
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import hypothesis

from albert_tf.cli import serve
from albert_tf.serving import predict
from albert_tf.serving.settings import ServerSettings
from tests.serving import test_generated_bodies as bodies
from tools.campaign import outcomes, processes
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

SUBJECTS = (*(f"requests, {protocol}" for protocol in bodies.PROTOCOLS), "requests, CSV tables")
_CODINGS = ("identity", "gzip")
_REFUSALS = (400, 404, 406, 413, 415)
# Refusals on the paths of text-embeddings-inference.
_REFUSALS_OF = dict.fromkeys(("/", "/embed", "/similarity"), (413, 422, 424))
# Other clients must be answered by then, even if many programs share one processor.
_MOST_SECONDS = 2.0
# Seconds for each protocol; a short campaign must reach all of them.
_SECONDS = 5.0
# Bodies between two looks at the clock.
_EXAMPLES = 20
_CELLS = ("a", "Anna in Rome", "two\nlines", 'a "word"', "one, two", " ", "é", "")


def run(tally: Tally, seed: int, folder: pathlib.Path, is_over: Callable[[], bool]) -> None:
    """Sends requests to a server until the time is over, for a part of it by each protocol."""
    folder.mkdir(parents=True)
    program = Program("albert-serve", _serve, _nothing, lambda *_: [], lambda _: {})
    server = Running(program, [], folder / "server.log")
    server.wait_until(lambda: _port(server) is not None)
    waits, ended = [0.0], threading.Event()
    watching = threading.Thread(target=_watch, args=(_port(server), waits, ended))
    watching.start()
    try:
        for subject in SUBJECTS:
            _ask_all(tally, subject, random.Random(f"{seed} {subject}"), server, waits, is_over)
    finally:
        ended.set()
        watching.join()
        server.signal(15)
        server.end()


def _nothing(folder: pathlib.Path) -> None:
    """The server needs no files."""


def _serve(arguments: list[str]) -> None:
    predict.load_exported = lambda name, depth: predict.Predictor(*bodies.MODELS[name])
    models = tuple(f"{name}={name}" for name in bodies.MODELS)
    serve.main(ServerSettings.of(model=models, port=0, access_log=False))


def _port(server: Running) -> int | None:
    found = re.search(r":(\d+) has ", server.log)
    return int(found[1]) if found else None


def _watch(port: int | None, waits: list[float], ended: threading.Event) -> None:
    """Keeps the longest time that another client has waited since the last request."""
    while not ended.wait(0.02):
        start = time.monotonic()
        _ask(port, "/healthz", None, {})
        waits[0] = max(waits[0], time.monotonic() - start)


def _ask(
    port: int | None, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, processes.TIMEOUT_SECONDS)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _ask_all(
    tally: Tally,
    subject: str,
    rng: random.Random,
    server: Running,
    waits: list[float],
    is_over: Callable[[], bool],
) -> None:
    """Sends requests of one protocol for some seconds, or until the time is over."""
    end = time.monotonic() + _SECONDS

    def attempt(path: str, kind: str, body: bytes, rows: int | None = None) -> None:
        headers = {"content-type": kind, "content-encoding": rng.choice(_CODINGS)}
        sent = gzip.compress(body, 1) if headers["content-encoding"] == "gzip" else body
        waits[0] = 0.0
        try:
            outcome = _judge(path, *_ask(_port(server), path, sent, headers), rows)
        except OSError as error:
            outcome = Outcome(outcomes.CRASH, f"no answer: {error!r}")
        if waits[0] > _MOST_SECONDS:
            outcome = Outcome(outcomes.HANG, f"another client waited {waits[0]:.1f} s")
        tally.add(subject, outcome, f"{path} {body[:200]!r} of {len(body)} bytes")

    protocol = subject.removeprefix("requests, ")
    if protocol not in bodies.PROTOCOLS:
        while not is_over() and time.monotonic() < end:
            attempt("/invocations", *_table(rng))
        return
    strategies = hypothesis.strategies
    given = [strategies.tuples(*map(_just, each)) for each in bodies.PROTOCOLS[protocol]]

    @hypothesis.settings(
        max_examples=_EXAMPLES, deadline=None, database=None, phases=[hypothesis.Phase.generate]
    )
    @hypothesis.given(strategies.one_of(given))
    def generate(request: tuple[str, str, str]) -> None:
        path, kind, body = request
        attempt(path, kind, body.encode())

    while not is_over() and time.monotonic() < end:
        hypothesis.seed(rng.getrandbits(32))(generate)()


def _just(value: Any) -> Any:
    strategies = hypothesis.strategies
    return strategies.just(value) if isinstance(value, str) else value


def _table(rng: random.Random) -> tuple[str, bytes, int]:
    """Returns the media type, a table of texts with or without a heading, and its rows."""
    rows = rng.randrange(1, 20)
    end = rng.choice(("\n", "\r\n"))
    header = rng.choice(("present", "absent", ""))
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
    if header != "absent":
        writer.writerow(["text"])
    for _ in range(rows):
        writer.writerow([f"{rng.choice(_CELLS)}{rng.randrange(1000)}"])
        file.write(rng.choice(("", "", end)))
    bom = rng.choice(("", "\ufeff"))
    kind = f"text/csv; header={header}" if header else "Text/CSV; charset=UTF-8"
    return kind, (bom + file.getvalue()).encode(), rows


def _judge(path: str, status: int, content: bytes, rows: int | None) -> Outcome:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    if status != 200:
        refusals = _REFUSALS_OF.get(path, _REFUSALS)
        what = outcomes.REFUSED if status in refusals else outcomes.WRONG
        outcome = Outcome(what, f"status {status}: {content[:200]!r}")
        return outcome if rows is None else outcome.of_intact()
    try:
        answer = json.loads(content, parse_constant=refuse)
    except ValueError as error:
        return Outcome(outcomes.WRONG, f"the answer is no JSON: {error}")
    if rows is not None and len(answer["predictions"]) != rows:
        return Outcome(outcomes.WRONG, f"{len(answer['predictions'])} answers to {rows} rows")
    return Outcome(outcomes.ACCEPTED)
