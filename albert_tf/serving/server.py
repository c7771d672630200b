"""Runs albert-serve's web application: its port, models, their updates, and orderly shutdown."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

from albert_tf.console import errors
from albert_tf.serving import rest_log, versions
from albert_tf.serving.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

# Time to go on answering after a signal, until load balancers have seen /readyz change.
_DRAIN_SECONDS = 2
# Longer than load balancers keep idle connections, which is a minute.
_KEEP_ALIVE_SECONDS = 75
# A longer header is refused.
_HEADER_BYTES = 16_384
# Maximum bytes to read before other connections have their turn: a client may send each byte as a
# chunk of its own, which takes 15 microseconds.
_READ_BYTES = 16_384
# More get status 503. Each connection is an open file, often limited to 1,024 per process.
_MOST_CONNECTIONS = 1000


def run(settings: ServerSettings) -> None:
    """Serves the models until the process is told to end."""
    with errors.of_extra("serve", "albert-serve"):
        from albert_tf.serving import rest_api, rest_one_model

    # Take the port first, but accept clients only once the models are loaded.
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
    paths = versions.find(settings.model)
    app = rest_api.create_app({name: {} for name in paths}, settings)
    app.state.follower = versions.Follower(app.state.models, paths)
    app.state.follower.look()
    _serve(app, listener, settings)


def _serve(app: Starlette, listener: socket.socket, settings: ServerSettings) -> None:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    drain_seconds = min(_DRAIN_SECONDS, settings.shutdown_seconds)

    # uvicorn has no hooks for readiness and shutdown, so override these methods.
    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self.following = asyncio.create_task(app.state.follower.follow(settings.poll_seconds))
            host, port = listener.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            models = {name: [*found] for name, found in app.state.models.items()}
            rest_log.write("start", address=address, models=models)
            # For a person at a terminal, since the log on standard output may be redirected.
            print(f"albert-serve: {address} has {', '.join(models)}", file=sys.stderr, flush=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Sends clients elsewhere before it closes, so that no request arrives too late."""
            app.state.is_ending = True
            self.following.cancel()
            await asyncio.sleep(drain_seconds)
            await super().shutdown(sockets)
            rest_log.write("end")

    class Connection(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.max_size = _READ_BYTES
            super().connection_made(transport)

    config = uvicorn.Config(
        app,
        # Behave the same whether or not uvloop or httptools are installed.
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
        timeout_graceful_shutdown=settings.shutdown_seconds - drain_seconds,
    )
    Server(config).run(sockets=[listener])


if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.serve()
