"""Clients that would stall a server: endless headers, unread requests, half bodies, no farewell.

    python research/benchmarks/abuse.py PORT PATH BODY

All come at once, from an address of their own. Where the server ends a connection, its client
begins another until it has sent what it is to send.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

_PART = 65_536
# Linux takes all of 127.0.0.0/8 for itself; elsewhere they come from where others come.
_ADDRESS = ("127.0.0.2", 0) if sys.platform == "linux" else None


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=_ADDRESS)


async def send(port: int, head: bytes, more: bytes, size: int) -> None:
    """Sends a head and then the same again and again, `size` bytes in all."""
    while size > 0:
        _, writer = await connect(port)
        try:
            writer.write(head)
            while size > 0 and not writer.is_closing():
                part = more * (_PART // len(more))
                size -= len(part)
                writer.write(part)
                await writer.drain()
        except OSError:
            continue
        finally:
            writer.transport.abort()


async def leave(port: int, request: bytes, count: int, seconds: float) -> None:
    """Sends a request on each of so many connections, one after the other, and leaves later."""
    connections = []
    for _ in range(count):
        connections.append(await connect(port))
        connections[-1][1].write(request)
    await asyncio.sleep(seconds)
    for _, writer in connections:
        writer.transport.abort()


async def main() -> None:
    """Does all at once."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("path", help="Takes a POST.")
    parser.add_argument("body", help="What it takes there.")
    parser.add_argument("--header_bytes", type=int, default=60_000_000)
    parser.add_argument("--pipelined_bytes", type=int, default=5_000_000)
    parser.add_argument("--half_bodies", type=int, default=2000)
    parser.add_argument("--vanishing", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="Time of half bodies.")
    args = parser.parse_args()
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    post = (
        f"POST {args.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(args.body)}\r\n\r\n"
    )
    whole = (post + args.body).encode()
    await asyncio.gather(
        send(args.port, get + b"X: ", b"x", args.header_bytes),
        send(args.port, get, b"Y: y\r\n", args.header_bytes),
        send(args.port, b"", get + b"\r\n", args.pipelined_bytes),
        send(args.port, b"", whole, args.pipelined_bytes),
        leave(args.port, whole[:-2], args.half_bodies, args.seconds),
        leave(args.port, whole, args.vanishing, 0.1),
    )


if __name__ == "__main__":
    asyncio.run(main())
