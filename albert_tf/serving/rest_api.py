"""The web application of albert-serve: TensorFlow Serving's REST interface, metrics, and a page."""

from __future__ import annotations

import datetime
import functools
import importlib.resources
import json
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

# The page loads nothing from elsewhere.
_POLICY = "default-src 'unsafe-inline'; connect-src 'self'; img-src data:"
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

    # What Prometheus reads.
    registry = prometheus.CollectorRegistry()
    prometheus.ProcessCollector(registry=registry)
    more: dict[str, Any] = {"namespace": "albert", "registry": registry}
    requests = prometheus.Counter("requests", "Requests.", ["model", "status"], **more)
    errors = prometheus.Counter("errors", "Requests with an error.", ["model", "status"], **more)
    durations = prometheus.Histogram(
        "request_seconds", "From request to answer.", ["model"], buckets=_SECONDS, **more
    )
    sizes = prometheus.Histogram(
        "batch_size", "Rows in a batch.", ["model"], buckets=_SIZES, **more
    )
    queue = prometheus.Gauge("queue", "Rows that wait.", ["model", "version"], **more)

    # The models; their first answers, which may be slow, are made here.
    batchers, metadata = {}, {}
    for name, versions in predictors.items():
        for version, predictor in versions.items():
            batcher = Batcher(predictor, settings, sizes.labels(name).observe)
            queue.labels(name, version).set_function(functools.partial(len, batcher.queue))
            batchers[name, version] = batcher
            metadata[name, version] = rest_forms.metadata(name, version, predictor)

    def find(name: str, version: str | None) -> tuple[str, str]:
        versions = predictors.get(name, {})
        found = version or ["", *versions][-1]
        if found not in versions:
            what = f"version {found[:20]} of {name}" if versions else name[:80]
            there = ", ".join(versions or predictors)
            raise HTTPException(404, f"Servable not found for request: {what}, only {there}")
        return name, found

    # All paths.
    page = importlib.resources.files("albert_tf.serving").joinpath("page.html").read_text("utf-8")

    @app.get("/")
    async def show_page() -> Response:
        return Response(page, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")

    @app.get("/healthz")
    async def health() -> Response:
        return _json({"status": "alive"})

    @app.get("/readyz")
    async def readiness() -> Response:
        is_ending = app.state.is_ending
        return _json({"status": "ending"}, 503) if is_ending else _json({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        text = prometheus.generate_latest(registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"models": {name: [*versions] for name, versions in predictors.items()}})

    for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):

        @app.get(path)
        async def status(name: str, version: str | None = None) -> Response:
            _, found = find(name, version)
            return _json(rest_forms.status([found] if version else [*predictors[name]]))

        @app.get(f"{path}/metadata")
        async def describe(name: str, version: str | None = None) -> Response:
            return _json(metadata[find(name, version)])

        @app.post(f"{path}:predict")
        async def predict(request: Request, name: str, version: str | None = None) -> Response:
            name, version = find(name, version)
            body, most = bytearray(), settings.max_body_bytes
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(413, f"a request may have at most {most} bytes")
            try:
                rows, in_columns = rest_forms.read_request(
                    body, predictors[name][version], settings
                )
            except ValueError as error:
                raise HTTPException(400, str(error)) from None
            request.scope["instances"] = len(rows)
            outputs = await batchers[name, version](rows)
            if outputs is None:
                raise HTTPException(503, "too many texts wait: ask again later")
            return _json(rest_forms.answer(outputs, in_columns))

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

    def observed(inner: Any) -> Any:
        """Counts, times and logs each request."""

        async def run(scope: dict[str, Any], receive: Any, send: Any) -> None:
            start, status, size = time.perf_counter(), 500, 0

            async def observe(message: dict[str, Any]) -> None:
                nonlocal status, size
                if "status" in message:
                    status = message["status"]
                    if app.state.is_ending:
                        message["headers"] = [*message["headers"], (b"connection", b"close")]
                size += len(message.get("body", b""))
                await send(message)

            try:
                await inner(scope, receive, observe)
            finally:
                seconds = time.perf_counter() - start
                name = scope.get("path_params", {}).get("name")
                model = name if name in predictors else ""
                requests.labels(model, status).inc()
                errors.labels(model, status).inc(status >= 400)
                durations.labels(model).observe(seconds)
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
                if settings.access_log:
                    print(json.dumps(line), flush=True)

        return run

    app.add_middleware(observed)
    return app


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status, media_type="application/json")
