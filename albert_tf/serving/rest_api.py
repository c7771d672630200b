"""The web application of albert-serve: TensorFlow Serving's REST interface, metrics, and a page."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.resources
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import prometheus_client as prometheus
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.exceptions import HTTPException as StarletteException
from starlette.requests import ClientDisconnect

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


def create_app(
    predictors: Mapping[str, Mapping[str, Predictor]], settings: ServerSettings
) -> FastAPI:
    """Returns an application; while its `state.is_ending`, clients are asked to go elsewhere.

    Args:
      predictors: Models by name and version; the last version is the default.
      settings: See there.
    """
    app = FastAPI(openapi_url=None)  # Its pages of documentation load scripts from elsewhere.
    app.state.is_ending = False
    metrics = _Metrics()
    models = _Models(predictors, settings, metrics)
    _add_page(app)
    _add_health(app, metrics)
    _add_models(app, models, settings)

    # Errors in TensorFlow Serving's shape. Of the last kind the server logs the traceback.
    def malformed(request: Request, error: StarletteException) -> Response:
        message = f"Malformed request: {request.method} {request.url.path[:200]}"
        return _json({"error": message}, error.status_code)

    handlers: dict[Any, Any] = {
        HTTPException: lambda _, error: _json({"error": error.detail}, error.status_code),
        StarletteException: malformed,
        ClientDisconnect: lambda *_: Response(status_code=499),
        Exception: lambda _, error: _json({"error": str(error)}, 500),
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(
        _Observer, state=app.state, models=models, metrics=metrics, log=settings.access_log
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

    def find(self, name: str, version: str | None) -> _Model:
        versions = self.get(name, {})
        found = version or ["", *versions][-1]
        if found not in versions:
            what = f"version {found[:20]} of {name}" if versions else name[:80]
            there = ", ".join(versions or self)
            raise HTTPException(404, f"Servable not found for request: {what}, only {there}")
        return versions[found]


def _add_page(app: FastAPI) -> None:
    """Adds the page that `format=web` writes, too; its page.json names this server."""
    answers = {"page.json": _json(_PAGE)}
    for file in importlib.resources.files("albert_tf.serving").joinpath("web").iterdir():
        name = "" if file.name == "index.html" else file.name
        answers[name] = Response(
            file.read_bytes(),
            headers={"Content-Security-Policy": _POLICY},
            media_type=_TYPES[os.path.splitext(file.name)[1]],
        )
    for name, answer in answers.items():
        app.add_route(f"/{name}", answer, methods=["GET"])  # It is an application itself.


def _add_health(app: FastAPI, metrics: _Metrics) -> None:
    @app.get("/healthz")
    async def health() -> Response:
        return _json({"status": "alive"})

    @app.get("/readyz")
    async def readiness() -> Response:
        is_ending = app.state.is_ending
        return _json({"status": "ending"}, 503) if is_ending else _json({"status": "ready"})

    @app.get("/metrics")
    async def show_metrics() -> Response:
        text = prometheus.generate_latest(metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)


def _add_models(app: FastAPI, models: _Models, settings: ServerSettings) -> None:
    @app.get("/v1/models")
    async def names() -> Response:
        return _json({"models": {name: [*versions] for name, versions in models.items()}})

    for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):

        @app.get(path)
        async def status(name: str, version: str | None = None) -> Response:
            models.find(name, version)
            return _json(rest_forms.status([version] if version else [*models[name]]))

        @app.get(f"{path}/metadata")
        async def describe(name: str, version: str | None = None) -> Response:
            return _json(models.find(name, version).metadata)

        @app.post(f"{path}:predict")
        async def predict(request: Request, name: str, version: str | None = None) -> Response:
            model = models.find(name, version)
            body, most = bytearray(), settings.max_body_bytes
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(413, f"a request may have at most {most} bytes")
            try:
                rows, in_columns = rest_forms.read_request(body, model.predictor, settings)
            except ValueError as error:
                raise HTTPException(400, str(error)) from None
            request.scope["instances"] = len(rows)
            outputs = await model.batcher(rows)
            if outputs is None:
                raise HTTPException(503, "too many texts wait: ask again later")
            return _json(rest_forms.answer(outputs, in_columns))


class _Observer:
    """Counts, times and logs each request."""

    def __init__(self, app: Any, state: Any, models: _Models, metrics: _Metrics, log: bool) -> None:
        self._app, self._state, self._models = app, state, models
        self._metrics, self._log = metrics, log

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        start, status, size = time.perf_counter(), 500, 0

        async def observe(message: dict[str, Any]) -> None:
            nonlocal status, size
            if "status" in message:
                status = message["status"]
                if self._state.is_ending:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, observe)
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
                print(json.dumps(line), flush=True)


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status, media_type="application/json")
