"""albert-serve as a process, with a made-up model: its end, and clients that would stop it."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from albert_tf.serving import entrance
from tests.model.test_backends import ROOT
from tests.serving.test_server import asked

# Without TensorFlow and Keras. A text is the time that it takes.
SLOW = """
import json, sys, time
sys.modules["tensorflow"] = sys.modules["keras"] = None
import numpy as np
from albert_tf.answers.classify import Classify
from albert_tf.serving import connection, predict, server
from albert_tf.serving.settings import ServerSettings

def slow(inputs):
    time.sleep(max(float(text) if text != "word" else 0 for text, in inputs))
    return [{"score": np.float32(len(text))} for text, in inputs]

connection._HEADER_SECONDS = connection._BODY_SECONDS = 1
predict.load_exported = lambda path: predict.Predictor(Classify(), slow)
server.main(ServerSettings.of(model=("slow",), port=0, **json.loads(sys.argv[1])))
"""
PREDICT = "/v1/models/slow:predict"


@contextlib.contextmanager
def serving(**values):
    """Yields a process with the model `slow`, and its port."""
    command = [sys.executable, "-c", SLOW, json.dumps(values)]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **more) as process:
        try:
            yield process, int(re.search(r":(\d+) has slow", process.stderr.readline())[1])
        finally:
            process.kill()


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=20)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_a_signal_ends_it_after_what_it_has_accepted():
    with serving() as (process, port):
        busy, idle, late = map(connect, [port] * 3)
        idle.request("GET", "/readyz")
        assert idle.getresponse().read() == b'{"status":"ready","ready":true}'
        busy.request("POST", PREDICT, asked("0.5"))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        # A connection that was open is answered, and told to end.
        while True:
            idle.request("GET", "/readyz")
            answer = idle.getresponse()
            answer.read()
            if answer.status == 503:
                break
            time.sleep(0.01)  # The pipe holds few lines of the log.
        assert answer.headers["connection"] == "close"
        # So is one that begins now: not all clients have seen yet that it ends.
        late.request("POST", PREDICT, asked("0.50"))
        for connection, score in (busy, b"3.0"), (late, b"4.0"):
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"predictions":[%s]}' % score)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["path"] == PREDICT


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(
    ("bounds", "status", "message"),
    [
        ({"timeout_seconds": 0.5}, 504, "no answer within 0.5 s: ask again later"),
        ({"shutdown_seconds": 1}, 503, "the server ends: ask again later"),
    ],
)
def test_what_takes_too_long_is_sent_elsewhere(bounds, status, message):
    with serving(**bounds) as (process, port):
        with contextlib.closing(connect(port)) as connection:
            connection.request("POST", PREDICT, asked("2.5"))
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            answer = connection.getresponse()
            assert (answer.status, json.load(answer)) == (status, {"error": message})
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0 and "Traceback" not in err


def number(port, name):
    """Returns what /metrics says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        samples = [line.split() for line in answer.read().decode().splitlines()]
    return sum(float(each[1]) for each in samples if each[0].partition("{")[0] == name)


@pytest.fixture(scope="module")
def port():
    with serving(max_batch_size=1, access_log=False) as (_, port):
        yield port


def test_who_has_left_is_not_answered(port):
    before = number(port, "albert_batch_size_count")
    gone = [connect(port) for _ in range(20)]
    for each in gone:
        each.request("POST", PREDICT, asked("0.5"))
    time.sleep(0.2)
    for each in gone:
        each.close()
    time.sleep(1)  # The first is being computed.
    assert number(port, "albert_queue") == 0
    assert number(port, "albert_batch_size_count") == before + 1


@pytest.mark.parametrize(
    ("head", "more"),
    [
        ("", ""),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: ", ""),
        (f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[", ""),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: ", "x"),
        ("", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ],
)
def test_who_is_silent_or_sends_without_end_is_left(port, head, more):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        try:
            client.sendall((head + more * 10_000_000)[:10_000_000].encode())
            while found := client.recv(65_536):
                pass
        except ConnectionError:
            found = b""
        except TimeoutError:  # After ten seconds; the bounds are one.
            found = None
    assert found == b""


def test_a_slow_body_is_awaited(port):
    with contextlib.closing(connect(port)) as connection:
        connection.putrequest("POST", PREDICT)
        connection.putheader("Content-Length", len(asked("0")))
        connection.endheaders()
        for part in asked("0")[:5], asked("0")[5:9], asked("0")[9:]:
            time.sleep(0.6)  # The bound is one second.
            connection.send(part)
        assert connection.getresponse().status == 200


def test_a_refusal_is_heard_by_who_reads_after_it_has_sent(port):
    address = f"http://127.0.0.1:{port}"
    for path, status in (PREDICT, 413), ("/v3", 404):
        with pytest.raises(urllib.error.HTTPError, match=str(status)) as error:
            urllib.request.urlopen(address + path, b"0" * 10_000_000, timeout=20)
        with error.value as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
def test_a_lack_of_descriptors_is_logged_in_few_lines():
    import resource

    with serving() as (process, port):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (40, 40))
        with contextlib.ExitStack() as open_ones:
            for _ in range(60):
                open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            time.sleep(0.5)
        with contextlib.closing(connect(port)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert 1 <= err.count("Too many open files") <= 5


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let fewer wait")
def test_many_connections_may_wait():
    """More than are accepted at a time."""
    with serving() as (process, port), contextlib.ExitStack() as open_ones:
        process.send_signal(signal.SIGSTOP)
        clients = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            for _ in range(300)
        ]
        process.send_signal(signal.SIGCONT)
        clients[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert clients[-1].recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one local address")
def test_an_address_does_not_wait_for_all_connections_of_another():
    begun = []

    class Place(asyncio.Protocol):
        def connection_made(self, transport):
            begun.append(transport.get_extra_info("peername")[0])
            transport.close()

    async def let_in(listener):
        loop = asyncio.get_running_loop()
        served = entrance.Entrance(listener, Place)
        while len(begun) < 201:
            await asyncio.sleep(0.001)
        loop.call_later(0.01, served.close)
        await served.wait_closed()

    with contextlib.ExitStack() as open_ones:
        listener = open_ones.enter_context(socket.create_server(("127.0.0.1", 0), backlog=300))
        for host in ["127.0.0.2"] * 200 + ["127.0.0.1"]:
            client = socket.create_connection(listener.getsockname(), source_address=(host, 0))
            open_ones.enter_context(client)
        asyncio.run(let_in(listener))
    assert begun.index("127.0.0.1") < 32 and begun.count("127.0.0.2") == 200


def test_a_client_that_left_before_it_was_accepted_delays_nobody(monkeypatch, capsys):
    """On Linux there is none; elsewhere accepting it fails."""
    accept, begun = asyncio.SelectorEventLoop.sock_accept, []

    async def sock_accept(loop, listener):
        found = await accept(loop, listener)
        if found[1] == left:
            found[0].close()
            raise ConnectionAbortedError
        return found

    class Place(asyncio.Protocol):
        def connection_made(self, transport):
            begun.append(transport.get_extra_info("peername"))
            transport.close()

    async def let_in(listener):
        served = entrance.Entrance(listener, Place)
        while not begun:
            await asyncio.sleep(0.001)
        served.close()
        await served.wait_closed()

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", sock_accept)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as open_ones:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        left, other = (open_ones.enter_context(each).getsockname() for each in clients)
        start = time.monotonic()
        asyncio.run(let_in(listener))
    assert begun == [other] and time.monotonic() - start < 1
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name == "nt", reason="its clients need many descriptors")
def test_no_client_stops_it_for_others(port):
    before, seconds = number(port, "process_resident_memory_bytes"), []
    command = [
        sys.executable,
        "research/benchmarks/abuse.py",
        str(port),
        PREDICT,
        asked("0").decode(),
    ]
    command += ["--header_bytes=30000000", "--pipelined_bytes=1000000", "--seconds=1"]
    with subprocess.Popen([*command, "--half_bodies=300", "--vanishing=100"], cwd=ROOT) as abuse:
        while abuse.poll() is None:
            start = time.perf_counter()
            with contextlib.closing(connect(port)) as connection:
                connection.request("GET", "/healthz")
                assert connection.getresponse().read() == b'{"status":"alive"}'
            seconds.append(time.perf_counter() - start)
    assert abuse.returncode == 0 and max(seconds) < 2
    assert number(port, "process_resident_memory_bytes") < before + 50e6
