"""The web application of albert-serve: TensorFlow Serving's REST interface, metrics, and a page."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import http
import importlib.resources
import json
import os
import re
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import rest_forms
from albert_tf.serving.batching import Batcher
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings

# The page asks this server, and loads nothing from elsewhere.
_PAGE = {"title": "albert-serve", "server": "v1/models"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# What no page elsewhere can call itself.
_OWN_HOST = re.compile(r"([\d.]*|\[[\da-f:.]*\]|localhost)(:\d*)?")
# What is read of a body beyond its bound.
_REFUSED_BYTES = 64 << 20


def create_app(
    predictors: Mapping[str, Mapping[str, Predictor]], settings: ServerSettings
) -> Starlette:
    """Returns an application; while its `state.is_ending`, clients are asked to go elsewhere.

    Args:
      predictors: Models by name and version; the last version is the default.
      settings: See there.
    """
    metrics = _Metrics()
    models = _Models(predictors, settings, metrics)

    # Errors in TensorFlow Serving's shape. What is not async would run in a thread.
    async def refused(request: Request, error: HTTPException) -> Response:
        message = error.detail
        if message == http.HTTPStatus(error.status_code).phrase:  # Starlette's.
            message = f"Malformed request: {request.method} {request.url.path[:200]}"
        return _json({"error": message}, error.status_code, error.headers)

    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    async def failed(request: Request, error: Exception) -> Response:
        return _json({"error": str(error)}, 500)  # The server logs the traceback.

    handlers: Any = {HTTPException: refused, ClientDisconnect: left, Exception: failed}
    routes = [*_page(), *_health(metrics), *_models(models, settings)]
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.is_ending = False
    app.add_middleware(
        _Observer, state=app.state, models=models, metrics=metrics, settings=settings
    )
    return app


class _Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        more: dict[str, Any] = {"namespace": "albert", "registry": self.registry}
        of_answer = ["model", "status"]
        self.requests = prometheus.Counter("requests", "Requests.", of_answer, **more)
        self.errors = prometheus.Counter("errors", "Requests with an error.", of_answer, **more)
        self.durations = prometheus.Histogram(
            "request_seconds", "From request to answer.", ["model"], buckets=_SECONDS, **more
        )
        self.sizes = prometheus.Histogram(
            "batch_size", "Rows in a batch.", ["model"], buckets=_SIZES, **more
        )
        self.queue = prometheus.Gauge("queue", "Rows that wait.", ["model", "version"], **more)


@dataclasses.dataclass(frozen=True)
class _Model:
    predictor: Predictor
    batcher: Batcher
    metadata: dict[str, Any]


class _Models(dict[str, dict[str, _Model]]):
    """Models by name and version; their first answers, which may be slow, are made here."""

    def __init__(
        self,
        predictors: Mapping[str, Mapping[str, Predictor]],
        settings: ServerSettings,
        metrics: _Metrics,
    ) -> None:
        super().__init__()
        for name, versions in predictors.items():
            self[name] = {}
            for version, predictor in versions.items():
                batcher = Batcher(predictor, settings, metrics.sizes.labels(name).observe)
                waiting = functools.partial(len, batcher.queue)
                metrics.queue.labels(name, version).set_function(waiting)
                metadata = rest_forms.metadata(name, version, predictor)
                self[name][version] = _Model(predictor, batcher, metadata)

    def find(self, name: str, version: str | None = None) -> _Model:
        versions = self.get(name, {})
        found = version or ["", *versions][-1]
        if found not in versions:
            what = f"version {found[:20]} of {name}" if versions else name[:80]
            there = ", ".join(versions or self)
            raise HTTPException(404, f"Servable not found for request: {what}, only {there}")
        return versions[found]


def _page() -> list[Route]:
    """Returns the page that `format=web` writes, too; its page.json names this server."""
    answers = {"page.json": _json(_PAGE)}
    for file in importlib.resources.files("albert_tf.serving").joinpath("web").iterdir():
        name = "" if file.name == "index.html" else file.name
        answers[name] = Response(
            file.read_bytes(),
            headers={"Content-Security-Policy": _POLICY},
            media_type=_TYPES[os.path.splitext(file.name)[1]],
        )
    # A response is an application itself.
    return [Route(f"/{name}", answer, methods=["GET"]) for name, answer in answers.items()]


def _health(metrics: _Metrics) -> list[Route]:
    async def health(request: Request) -> Response:
        return _json({"status": "alive"})

    async def readiness(request: Request) -> Response:
        is_ending = request.app.state.is_ending
        return _json({"status": "ending"}, 503) if is_ending else _json({"status": "ready"})

    async def show_metrics(request: Request) -> Response:
        text = prometheus.generate_latest(metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    endpoints = {"/healthz": health, "/readyz": readiness, "/metrics": show_metrics}
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]


def _models(models: _Models, settings: ServerSettings) -> list[Route]:
    async def names(request: Request) -> Response:
        return _json({"models": {name: [*versions] for name, versions in models.items()}})

    async def status(request: Request) -> Response:
        models.find(**request.path_params)
        version = request.path_params.get("version")
        versions = [version] if version else [*models[request.path_params["name"]]]
        return _json(rest_forms.status(versions))

    async def describe(request: Request) -> Response:
        return _json(models.find(**request.path_params).metadata)

    async def predict(request: Request) -> Response:
        if request.method != "POST":
            raise HTTPException(405, "use POST", {"Allow": "POST"})
        model = models.find(**request.path_params)
        body, most = await request.body(), settings.max_body_bytes
        too_large = HTTPException(413, f"a request may have at most {most} bytes")
        if len(body) > most:
            raise too_large
        coding = request.headers.get("content-encoding", "identity").lower()
        if coding not in rest_forms.CODINGS:
            raise HTTPException(
                415, f"Content-Encoding must be gzip or deflate, not {coding[:80]!r}"
            )
        try:
            content = rest_forms.unpacked(body, coding, most + 1)
            if len(content) > most:
                raise too_large
            rows, in_columns = rest_forms.read_request(content, model.predictor, settings)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        request.scope["instances"] = len(rows)
        outputs = await _in_time(request, model.batcher(rows), settings.timeout_seconds)
        if outputs is None:
            raise HTTPException(503, "too many texts wait: ask again later")
        return _json(rest_forms.answer(outputs, in_columns))

    routes = [Route("/v1/models", names)]
    for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        # GET as well: it would ask for the status of a model of that name.
        routes.append(Route(f"{path}:predict", predict, methods=["GET", "POST"]))
        routes += [Route(path, status), Route(f"{path}/metadata", describe)]
    return routes


async def _in_time(request: Request, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Returns what a coroutine does, or cancels it: after some time, or when its client leaves."""
    # After the body the next message is that the client has left.
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([answer, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if gone.done():
            raise ClientDisconnect
        raise HTTPException(504, f"no answer within {seconds:g} s: ask again later")
    finally:
        answer.cancel()
        gone.cancel()


async def _read_body(receive: Any, most: int) -> bytes | None:
    """Reads a body to its end, of which one byte more than the bound is kept.

    Many clients send all of it before they read that it is refused. None if the client leaves.
    """
    body, read, is_whole = bytearray(), 0, False
    while not is_whole and read < most + _REFUSED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part, is_whole = message.get("body", b""), not message.get("more_body")
        read += len(part)
        body += part[: most + 1 - len(body)]
    return bytes(body)


class _Observer:
    """Counts, times and logs each request; answers those to other hosts, or at the very end."""

    def __init__(
        self, app: Any, state: Any, models: _Models, metrics: _Metrics, settings: ServerSettings
    ) -> None:
        self._app, self._state, self._models = app, state, models
        self._metrics, self._log = metrics, settings.access_log
        self._most = settings.max_body_bytes
        local = settings.host in ("localhost", "::1") or settings.host.startswith("127.")
        self._hosts = {*map(str.lower, settings.allowed_hosts)} or {settings.host if local else "*"}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, size = time.perf_counter(), 500, 0
        unread: list[dict[str, Any]] = []

        async def take() -> dict[str, Any]:
            return unread.pop() if unread else await receive()

        async def observe(message: dict[str, Any]) -> None:
            nonlocal status, size
            if "status" in message:
                status = message["status"]
                if self._state.is_ending:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            size += len(message.get("body", b""))
            await send(message)

        app, host = self._app, dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
        if not {"*", host.partition(":")[0]} & self._hosts and not _OWN_HOST.fullmatch(host):
            app = _json({"error": f"no host {host[:80]!r} here: add it to `allowed_hosts`"}, 400)
        try:
            body = await _read_body(receive, self._most)
            if body is None:
                status = 499
                return
            unread.append({"type": "http.request", "body": body})
            await app(scope, take, observe)
        except asyncio.CancelledError:  # There is no time left, says the server.
            await _json({"error": "the server ends: ask again later"}, 503)(scope, take, observe)
        finally:
            seconds = time.perf_counter() - start
            name = scope.get("path_params", {}).get("name")
            model = name if name in self._models else ""
            self._metrics.requests.labels(model, status).inc()
            self._metrics.errors.labels(model, status).inc(status >= 400)
            self._metrics.durations.labels(model).observe(seconds)
            line = {
                "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                "client": scope["client"][0] if scope.get("client") else "",
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "milliseconds": round(1000 * seconds, 3),
                "bytes": size,
                "model": model,
                "instances": scope.get("instances", 0),
            }
            if self._log:
                with contextlib.suppress(OSError):  # A full disk, or nobody reads on.
                    print(json.dumps(line), flush=True)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status, headers, media_type="application/json")
