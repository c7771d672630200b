"""Runs albert-serve's web application: models by name and version, a port, an orderly end."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.console import errors, tensorflow_logs
from albert_tf.serving import predict, rest_log
from albert_tf.serving.settings import ServerSettings
from albert_tf.storage import files

if TYPE_CHECKING:
    from starlette.applications import Starlette

# Time to go on answering after a signal, until load balancers have seen /readyz change.
_DRAIN_SECONDS = 2
# Longer than load balancers keep idle connections, which is a minute.
_KEEP_ALIVE_SECONDS = 75
# A longer header is refused.
_HEADER_BYTES = 16_384
# Bytes that are read at once, between other connections: a client may send each byte as a chunk of
# its own, of which each takes 15 microseconds.
_READ_BYTES = 16_384
# More get status 503. A process may often have 1,024 files open, of which each connection is one.
_MOST_CONNECTIONS = 1000


def find(models: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the directories that `model` gives, by name and version, the newest version last.

    Example:
      >>> find(["exported/sentiment", "mood=models/sentiment/3"])
      {'sentiment': {'1': 'exported/sentiment'}, 'mood': {'3': 'models/sentiment/3'}}
    """
    found: dict[str, dict[str, str]] = {}
    for given in models:
        # A directory may have "=" in its name as well.
        name, mark, path = given.partition("=")
        if not mark or os.path.dirname(name) or os.path.exists(given):
            name, path = "", given
        # A path that ends in a number is one version; a folder of numbers has several.
        parent, last = os.path.split(os.path.abspath(path))
        versions = {last: path} if last.isdecimal() else {}
        if not versions and os.path.isdir(path):
            numbers = sorted(filter(str.isdecimal, os.listdir(path)), key=int)
            versions = {number: os.path.join(path, number) for number in numbers}
        # Without a name of its own, a model has that of its folder, not its version's.
        name = name or (os.path.basename(parent) if last.isdecimal() else last)
        # Clients resolve names of dots alone as folders of a URL.
        if not re.fullmatch(r"\.*[\w-][\w.-]*", name) or name in found:
            raise ValueError(
                f"`model={given}`: {name!r} is another model's name, or not made of letters, "
                "digits, dots, hyphens and underscores, or of dots alone: give NAME=DIR"
            )
        found[name] = versions or {"1": path}
    return found


def run(settings: ServerSettings) -> None:
    """Serves the models until the process is to end."""
    with errors.of_extra("serve", "albert-serve"):
        from albert_tf.serving import rest_api, rest_one_model

    # The port is taken first, but clients are let in once the models are loaded.
    port = rest_one_model.default_port() if settings.port is None else settings.port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Take the port even while connections of an earlier server linger.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, port))
    except OSError as error:
        listener.close()
        where = f"{settings.host}, port {port}"
        raise OSError(f"can't listen at {where}: {error.strerror}") from None
    predictors: dict[str, dict[str, predict.Predictor]] = {}
    for name, versions in find(settings.model).items():
        for version, path in versions.items():
            # Only a SavedModel needs TensorFlow, which takes seconds to import.
            if files.is_file(os.path.join(path, "saved_model.pb")):
                if not importlib.util.find_spec("tensorflow"):
                    raise ValueError(f"{path} needs TensorFlow: export to ONNX, or install it")
                tensorflow_logs.import_tensorflow()
            predictors.setdefault(name, {})[version] = predict.load_exported(path)
            rest_log.write("loaded", model=name, version=version)
    app = rest_api.create_app(predictors, settings)
    # Loaded models live until exit. Freeze them: a collection would pause clients for 0.2 s.
    gc.collect()
    gc.freeze()
    host, port = listener.getsockname()[:2]
    models = {name: [*versions] for name, versions in predictors.items()}
    _serve(app, listener, settings.shutdown_seconds, f"http://{host}:{port}", models)


def _serve(
    app: Starlette, listener: socket.socket, seconds: int, address: str, models: dict
) -> None:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    drain_seconds = min(_DRAIN_SECONDS, seconds)

    # uvicorn has no hooks for being ready and for its end, so override both.
    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            rest_log.write("start", address=address, models=models)
            # For a person at a terminal, who may send the log elsewhere.
            print(f"albert-serve: {address} has {', '.join(models)}", file=sys.stderr, flush=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Sends clients elsewhere before it closes, so that no request is on its way then."""
            app.state.is_ending = True
            await asyncio.sleep(drain_seconds)
            await super().shutdown(sockets)
            rest_log.write("end")

    class Connection(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.max_size = _READ_BYTES
            super().connection_made(transport)

    config = uvicorn.Config(
        app,
        # The same wherever uvloop or httptools are installed.
        loop="asyncio",
        http=Connection,
        headers=[("X-Content-Type-Options", "nosniff")],
        log_config=None,
        log_level="error",  # Malformed requests would be warnings.
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=seconds - drain_seconds,
    )
    Server(config).run(sockets=[listener])


if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.serve()
