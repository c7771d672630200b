"""A server's models and metrics, and a request's way through a model to its answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import io
import json
import operator
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any

import numpy as np
import prometheus_client as prometheus
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from albert_tf.serving import rest_parsing
from albert_tf.serving.batching import Batcher
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# Bodies of up to so many bytes are read, and answers of up to so many values written, in the event
# loop: handing them to a thread would cost more.
_SMALL_BODY, _SMALL_ANSWER = 16_384, 1024
# Maximum texts to embed per request, as many as OpenAI's clients send.
_EMBEDDED = 2048
# Bytes of a large answer that are sent at once.
_PIECE = 65_536
_MEDIA_TYPE = "application/json"
# Outputs are arrays or NumPy's numbers.
_JSON = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
    default=operator.methodcaller("tolist"),
)


class Metrics:
    """The metrics that Prometheus reads at /metrics."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        more: dict[str, Any] = {"namespace": "albert", "registry": self.registry}
        of_answer = ["model", "status"]
        of_version = [*of_answer, "version"]
        self.requests = prometheus.Counter("requests", "Requests.", of_version, **more)
        self.errors = prometheus.Counter("errors", "Requests with an error.", of_answer, **more)
        self.durations = prometheus.Histogram(
            "request_seconds", "From request to answer.", ["model"], buckets=_SECONDS, **more
        )
        self.sizes = prometheus.Histogram(
            "batch_size", "Rows in a batch.", ["model"], buckets=_SIZES, **more
        )
        self.waits = prometheus.Histogram(
            "queue_seconds", "From a row to its batch.", ["model"], buckets=_SECONDS, **more
        )
        self.tokens = prometheus.Counter("tokens", "Pieces of embedded texts.", ["model"], **more)
        self.queue = prometheus.Gauge("queue", "Rows that wait.", ["model", "version"], **more)


@dataclasses.dataclass(frozen=True)
class Model:
    """A version of a model, with inputs and outputs by name, and its results for a first text.

    If it can run with several numbers of layers, `by_depth` has a model for each.
    """

    name: str
    version: str
    predictor: Predictor
    batcher: Batcher
    inputs: dict[str, rest_parsing.Tensor]
    outputs: dict[str, rest_parsing.Tensor]
    first: dict[str, Any]
    by_depth: Mapping[str, Model] = dataclasses.field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Returns what the page and clients are told of the model."""
        labels = getattr(self.predictor.kind, "labels", None) or ()
        return {**self.predictor.about._asdict(), "labels": labels}

    def of(self, request: Request) -> Model:
        """Returns the model for the `depth` in a request's query; without one, this model."""
        depth = request.query_params.get("depth")
        if depth is None:
            return self
        if depth not in self.by_depth:
            known = " or ".join(self.by_depth) or "left out"
            raise ValueError(f"depth must be {known} for {self.name}, got {ascii(depth)[:20]}")
        return self.by_depth[depth]


# A parsed request: the model, its rows of texts, and the function that formats the response.
Asked = tuple[Model, list[list[str]], Callable[[list[dict[str, Any]]], Any]]


@dataclasses.dataclass(frozen=True)
class Lines:
    """Values to write as JSON Lines, which has several media types."""

    values: list[Any]
    media_type: str


class Models(dict[str, dict[str, Model]]):
    """Models by name and version; the highest version is the default.

    Any thread may add or remove versions while others answer: each change is one assignment.

    Args:
      predictors: Predictors by name and version.
      settings: The server's.
      metrics: Where sizes of batches and waiting rows are counted.
    """

    def __init__(
        self,
        predictors: Mapping[str, Mapping[str, Predictor]],
        settings: ServerSettings,
        metrics: Metrics,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.most_embedded = max(_EMBEDDED, settings.max_instances)
        # One thread for all requests: two would keep the event loop waiting twice as long.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "large_requests")
        self._metrics = metrics
        for name, versions in predictors.items():
            self[name] = {}
            for version, predictor in versions.items():
                self.put(self.ask(name, version, predictor))

    def ask(self, name: str, version: str, predictor: Predictor) -> Model:
        """Returns a version that has answered once, because first answers may be slow."""
        observe = [
            of_model.labels(name).observe for of_model in (self._metrics.sizes, self._metrics.waits)
        ]

        def asked(predictor: Predictor, by_depth: Mapping[str, Model]) -> Model:
            # The first answer tells the outputs' names and types.
            tensors = rest_parsing.tensors(predictor)
            batcher = Batcher(predictor, self.settings, *observe)
            return Model(name, version, predictor, batcher, *tensors, by_depth)

        at_depths = {str(depth): predictor.at_depth(depth) for depth in predictor.depths}
        return asked(predictor, {depth: asked(each, {}) for depth, each in at_depths.items()})

    def put(self, model: Model) -> None:
        """Adds a version, or replaces the one with its number."""
        # The lengths are read whenever the metrics are requested.
        queues = [each.batcher.queue for each in (model, *model.by_depth.values())]
        waiting = self._metrics.queue.labels(model.name, model.version)
        waiting.set_function(lambda: sum(map(len, queues)))
        versions = {**self[model.name], model.version: model}
        self[model.name] = {each: versions[each] for each in sorted(versions, key=int)}

    def keep(self, name: str, versions: Collection[str]) -> list[str]:
        """Removes and returns a model's versions except `versions`, unless none would be left.

        Requests that already use one are still answered; after that, nothing refers to it.
        """
        kept = {v: model for v, model in self[name].items() if v in versions} or self[name]
        gone = [version for version in self[name] if version not in kept]
        self[name] = kept
        for version in gone:
            self._metrics.queue.remove(name, version)
        return gone

    def find(self, name: str, version: str | None = None) -> Model:
        """Returns a version of a model, by default the highest one."""
        versions = self.get(name, {})
        # For an unknown name, which has no versions, this is "": never a version.
        found = version or ["", *versions][-1]
        if found not in versions:
            what = f"version {found[:20]} of {name}" if versions else name[:80]
            there = ", ".join(versions or self)
            raise HTTPException(404, f"Servable not found for request: {what}, only {there}")
        return versions[found]

    def answering(
        self, read: Callable[[bytes | bytearray, Request, Models], Asked]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns an endpoint for requests that `read` parses."""

        def parse(body: bytes, coding: str, request: Request) -> Asked:
            content = rest_parsing.unpacked(body, coding, self.settings.max_body_bytes)
            return read(content, request, self)

        async def answer(request: Request) -> Response:
            if request.method != "POST":
                raise HTTPException(405, "use POST", {"Allow": "POST"})
            body = await request.body()
            coding = request.headers.get("content-encoding", "identity").lower()
            asked = body, coding, request
            # A few compressed bytes may unpack to many.
            is_small = len(body) <= _SMALL_BODY and coding == "identity"
            try:
                found = parse(*asked) if is_small else await self._in_thread(parse, *asked)
                model, rows, write = found
                model = model.of(request)
            except ValueError as error:
                raise HTTPException(400, str(error)) from None
            # For the log and the metrics.
            request.scope.update(model=model.name, version=model.version, instances=len(rows))
            # Rows wait in the model's queue, beside those of other clients.
            outputs = await _in_time(request, self._ask(model, rows), self.settings.timeout_seconds)
            self._metrics.tokens.labels(model.name).inc(rest_parsing.tokens(outputs))
            size = sum(getattr(each, "size", 1) for row in outputs for each in row.values())
            if size <= _SMALL_ANSWER:
                return json_response(write(outputs))
            return await self._in_thread(_written, write, outputs)

        return answer

    async def _ask(self, model: Model, rows: list[list[Any]]) -> list[dict[str, Any]]:
        found, most = list[dict[str, Any]](), self.settings.max_instances
        # Queue many rows part by part, so that other clients' rows get their turn.
        for start in range(0, len(rows), most):
            part = await model.batcher(rows[start : start + most])
            if part is None:
                raise HTTPException(503, "too many texts wait: ask again later")
            found += part
        return found

    async def _in_thread(self, function: Callable, *arguments: Any) -> Any:
        """Returns a function's result, while the event loop goes on."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)


async def _in_time(request: Request, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Awaits a coroutine, but cancels it after some seconds, or when the client leaves."""
    # After the body, the only message to receive is that the client has left.
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([answer, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if gone.done():
            raise ClientDisconnect
        raise HTTPException(504, f"no answer within {seconds:g} s: ask again later")
    finally:
        # Nobody waits any longer for whichever is still running.
        answer.cancel()
        gone.cancel()


async def readiness(request: Request) -> Response:
    """Says whether the server takes requests, or is about to end."""
    if request.app.state.is_ending:
        return json_response({"status": "ending", "ready": False}, 503)
    return json_response({"status": "ready", "ready": True})


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a value as compact JSON in UTF-8; unpaired surrogates stay escaped."""
    text = "".join(_parts(value)) if isinstance(value, Lines) else _JSON.encode(value)
    content = text.encode(errors="backslashreplace")
    return Response(content, status, headers, getattr(value, "media_type", _MEDIA_TYPE))


def _written(write: Callable[[Any], Any], outputs: list[dict[str, Any]]) -> Response:
    value, content = write(outputs), io.BytesIO()
    for part in _parts(value):
        content.write(part.encode(errors="backslashreplace"))
    headers = {"Content-Length": str(content.tell())}
    headers["Content-Type"] = getattr(value, "media_type", _MEDIA_TYPE)
    return StreamingResponse(_pieces(content.getbuffer()), headers=headers)


def _parts(value: Any) -> Iterator[str]:
    """Yields JSON in parts: other threads can run only between the calls of the encoder."""
    if isinstance(value, Lines):
        for each in value.values:
            yield from _parts(each)
            yield "\n"
    elif isinstance(value, (dict, list)):
        is_object = isinstance(value, dict)
        yield "{" if is_object else "["
        for place, each in enumerate(value):
            yield "," * (place > 0)
            yield f"{_JSON.encode(each)}:" if is_object else ""
            yield from _parts(value[each] if is_object else each)
        yield "}" if is_object else "]"
    elif isinstance(value, np.ndarray):
        # Encode many numbers or texts per call.
        yield "["
        for start in range(0, len(value), _SMALL_ANSWER):
            yield "," * (start > 0)
            yield _JSON.encode(value[start : start + _SMALL_ANSWER])[1:-1]
        yield "]"
    else:
        yield _JSON.encode(value)


async def _pieces(content: memoryview) -> AsyncIterator[memoryview]:
    """Yields an answer in pieces as its client reads it, so that no copy of the whole waits."""
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]
