"""The web application of albert-serve: its protocols, health, metrics, and a page."""

from __future__ import annotations

import asyncio
import http
import importlib.resources
import os
import re
import time
import traceback
from collections.abc import Mapping
from typing import Any

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from albert_tf.serving import (
    rest_access,
    rest_description,
    rest_log,
    rest_one_model,
    rest_open_inference,
    rest_openai,
    rest_tei,
    rest_tensorflow,
)
from albert_tf.serving.predict import Predictor
from albert_tf.serving.rest_models import Metrics, Models, json_response, readiness
from albert_tf.serving.settings import ServerSettings

_PROTOCOLS = (rest_one_model, rest_tensorflow, rest_open_inference, rest_openai, rest_tei)
# Paths whose clients only show errors in a form other than TensorFlow Serving's.
_REFUSALS = {path: each.refusal for each in (rest_openai, rest_tei) for path in each.PATHS}
# The page asks this server, and loads nothing from elsewhere.
_PAGE = {"title": "albert-serve", "server": "v1/models"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# Host headers that DNS rebinding can't produce: IP addresses and localhost.
_OWN_HOST = re.compile(r"([\d.]*|\[[\da-f:.]*\]|localhost)(:\d*)?")
# Bytes of an oversized body that are still drained, so that the client sees the 413.
_REFUSED_BYTES = 64 << 20


def create_app(
    predictors: Mapping[str, Mapping[str, Predictor]], settings: ServerSettings
) -> Starlette:
    """Returns an application that answers with the models in its `state.models`.

    While its `state.is_ending` is set, it closes connections.

    Args:
      predictors: Models by name and version; the highest version is the default.
      settings: The server's.
    """
    metrics = Metrics()
    models = Models(predictors, settings, metrics)

    # Handlers are async, or they would run in a thread.
    async def refused(request: Request, error: HTTPException) -> Response:
        message = error.detail
        if message == http.HTTPStatus(error.status_code).phrase:  # Starlette's own error.
            message = f"Malformed request: {request.method} {request.url.path[:200]}"
        return _refusal(request.url.path, message, error.status_code, error.headers)

    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    async def describe(request: Request) -> Response:
        return json_response(rest_description.document(models, _PROTOCOLS))

    async def show_metrics(request: Request) -> Response:
        text = prometheus.generate_latest(metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    handlers: Any = {HTTPException: refused, ClientDisconnect: left}
    # All protocols share the models, and so their queues and batches. The first one's paths can be
    # configured, and come first in case they equal another protocol's.
    routes = [route for protocol in _PROTOCOLS for route in protocol.routes(models)]
    routes += [*_page(), Route("/healthz", json_response({"status": "alive"}), methods=["GET"])]
    routes += [Route("/readyz", readiness), Route("/metrics", show_metrics)]
    routes += [Route("/openapi.json", describe)]
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.models, app.state.is_ending = models, False
    # The observer also sees requests that no route answers.
    keys = rest_access.Keys(settings.api_key_file)
    app.add_middleware(_Observer, state=app.state, models=models, metrics=metrics, keys=keys)
    if settings.allowed_origins:  # Browsers send a preflight request without a key.
        shown = {"allow_headers": ["*"], "expose_headers": ["X-Request-Id"]}
        origins = settings.allowed_origins
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], **shown)
    return app


def _refusal(
    path: str, message: str, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns an error in the form that the clients of a path expect."""
    answer, status = _REFUSALS.get(path, rest_tensorflow.refusal)(message, status)
    return json_response(answer, status, headers)


def _page() -> list[Route]:
    """Returns routes of the page that `format=web` also writes; its page.json names this server."""
    answers = {"page.json": json_response(_PAGE)}
    for file in importlib.resources.files("albert_tf.serving").joinpath("web").iterdir():
        name = "" if file.name == "index.html" else file.name
        answers[name] = Response(
            file.read_bytes(),
            headers={"Content-Security-Policy": _POLICY},
            media_type=_TYPES[os.path.splitext(file.name)[1]],
        )
    # A Response is itself an ASGI application.
    return [Route(f"/{name}", answer, methods=["GET"]) for name, answer in answers.items()]


async def _read_body(receive: Any, most: int) -> bytes | None:
    """Reads a body to its end, and keeps at most one byte more than `most`.

    Many clients send a whole body before they read that it is refused. Returns None if the client
    leaves.
    """
    body, read, is_whole = bytearray(), 0, False
    while not is_whole and read < most + _REFUSED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part, is_whole = message.get("body", b""), not message.get("more_body")
        read += len(part)
        # One byte beyond `most` tells the endpoint that the body is too large.
        body += part[: most + 1 - len(body)]
    return bytes(body)


class _Observer:
    """Counts, times and logs requests; refuses unknown hosts and keys, and all left at shutdown."""

    def __init__(
        self, app: Any, state: Any, models: Models, metrics: Metrics, keys: rest_access.Keys
    ) -> None:
        self._app, self._state, self._models, self._metrics = app, state, models, metrics
        self._keys = keys
        self._settings = settings = models.settings
        # A server for this machine alone answers to its own name; other servers to any name,
        # unless `allowed_hosts` lists some.
        local = settings.host in ("localhost", "::1") or settings.host.startswith("127.")
        self._hosts = {*map(str.lower, settings.allowed_hosts)} or {settings.host if local else "*"}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # The status stays 0 until the answer begins: a handler may fail before that.
        start, status, size = time.perf_counter(), 0, 0
        headers = dict(scope["headers"])
        ids = rest_access.ids(headers)
        # The body is read here, and handed on as one message.
        unread: list[dict[str, Any]] = []

        async def take() -> dict[str, Any]:
            return unread.pop() if unread else await receive()

        async def observe(message: dict[str, Any]) -> None:
            nonlocal status, size
            if "status" in message:
                status = message["status"]
                added = [(b"x-request-id", ids["request_id"].encode())]
                # The client's next request then opens a new connection, to another server.
                if self._state.is_ending:
                    added.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *added]
            size += len(message.get("body", b""))
            await send(message)

        # Accept only the server's own names: another site could rebind its name to this address.
        app, host = self._app, headers.get(b"host", b"").decode("latin-1").lower()
        if not {"*", host.partition(":")[0]} & self._hosts and not _OWN_HOST.fullmatch(host):
            message = f"no host {host[:80]!r} here: add it to `allowed_hosts`"
            app = json_response({"error": message}, 400)
        elif not self._keys.allow(scope["method"], headers):
            message = "expected a key of this server, as `Authorization: Bearer KEY`"
            app = _refusal(scope["path"], message, 401, {"WWW-Authenticate": "Bearer"})
        try:
            body = await _read_body(receive, self._settings.max_body_bytes)
            if body is None:
                status = 499
                return
            unread.append({"type": "http.request", "body": body})
            await app(scope, take, observe)
        except asyncio.CancelledError:  # The server's time to shut down is over.
            ending = json_response({"error": "the server ends: ask again later"}, 503)
            await ending(scope, take, observe)
        except Exception as error:
            rest_log.write("error", traceback=traceback.format_exc(), **ids)
            # uvicorn ends the connection if an answer has begun.
            if not status:
                await json_response({"error": str(error)}, 500)(scope, take, observe)
        finally:
            # Count under the model that answered. Names that clients make up don't become labels.
            seconds = time.perf_counter() - start
            name = scope.get("model", scope.get("path_params", {}).get("name"))
            model = name if name in self._models else ""
            version = scope.get("version", "")
            self._metrics.requests.labels(model, status, version).inc()
            if status >= 400:
                self._metrics.errors.labels(model, status).inc()
            self._metrics.durations.labels(model).observe(seconds)
            if self._settings.access_log:
                rest_log.write(
                    "request",
                    client=scope["client"][0] if scope.get("client") else "",
                    method=scope["method"],
                    path=scope["path"][:200],
                    status=status,
                    milliseconds=round(1000 * seconds, 3),
                    bytes=size,
                    model=model,
                    version=version,
                    instances=scope.get("instances", 0),
                    **ids,
                )
