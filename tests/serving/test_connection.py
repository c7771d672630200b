"""albert-serve as a process, with a made-up model: how it ends, and clients that could block it."""

import concurrent.futures
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

from tests.model.test_backends import ROOT
from tests.serving.test_server import asked

# A server without TensorFlow and Keras; a text is the number of seconds that its answer takes.
SLOW = """
import json, sys, time
sys.modules["tensorflow"] = sys.modules["keras"] = None
import numpy as np
from albert_tf.answers.classify import Classify
from albert_tf.cli import serve
from albert_tf.serving import predict, server
from albert_tf.serving.settings import ServerSettings

def slow(inputs):
    time.sleep(max(float(text) if text != "word" else 0 for text, in inputs))
    return [{"score": np.float32(len(text))} for text, in inputs]

predict.load_exported = lambda path, depth: predict.Predictor(Classify(), slow)
values = json.loads(sys.argv[1])
server._MOST_CONNECTIONS = values.pop("most", 1000)
serve.main(ServerSettings.of(model=("slow",), port=0, **values))
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
        # An open connection is still answered, and told to close.
        while True:
            idle.request("GET", "/readyz")
            answer = idle.getresponse()
            answer.read()
            if answer.status == 503:
                break
            time.sleep(0.01)  # The pipe holds few lines of the log.
        assert answer.headers["connection"] == "close"
        # New connections are answered, too: not all clients know yet that the server is ending.
        late.request("POST", PREDICT, asked("0.50"))
        for connection, score in (busy, b"3.0"), (late, b"4.0"):
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"predictions":[%s]}' % score)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
    last, end = map(json.loads, out.splitlines()[-2:])
    assert (last["event"], last["path"], end["event"]) == ("request", PREDICT, "end")


def test_the_log_has_events_and_errors():
    with serving(access_log=False) as (process, port):
        loaded, start = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (loaded["event"], loaded["model"], loaded["version"]) == ("loaded", "slow", "1")
        address, models = f"http://127.0.0.1:{port}", {"slow": ["1"]}
        assert (start["event"], start["address"], start["models"]) == ("start", address, models)
        with contextlib.closing(connect(port)) as connection:
            connection.request("POST", PREDICT, asked("no number"), {"X-Request-Id": "a-1"})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["X-Request-Id"]) == (500, "a-1")
            message = "could not convert string to float: 'no number'"
            assert json.load(answer) == {"error": message}
        error = json.loads(process.stdout.readline())
        assert (error["event"], error["request_id"]) == ("error", "a-1")
        assert error["time"] and error["traceback"].endswith(f"ValueError: {message}\n")


@pytest.mark.slow
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


def test_a_header_without_end_is_refused(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000_000)
        found = b""
        with contextlib.suppress(ConnectionError):
            found = client.recv(65_536)
    assert not found or found.startswith(b"HTTP/1.1 400 ")


def test_a_refusal_is_heard_by_who_reads_after_it_has_sent(port):
    address = f"http://127.0.0.1:{port}"
    for path, status in (PREDICT, 413), ("/v3", 404):
        with pytest.raises(urllib.error.HTTPError, match=str(status)) as error:
            urllib.request.urlopen(address + path, b"0" * 10_000_000, timeout=20)
        with error.value as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_there_are_only_so_many_connections():
    with serving(most=5) as (_, port), contextlib.ExitStack() as open_ones:
        for status in [200] * 4 + [503]:
            connection = open_ones.enter_context(contextlib.closing(connect(port)))
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            assert answer.status == status
            answer.read()


@pytest.mark.slow
def test_a_body_in_parts_of_a_byte_leaves_time_to_others():
    head = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    count = 0
    with serving() as (_, port), socket.create_connection(("127.0.0.1", port)) as sender:
        other = connect(port)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            sent = pool.submit(sender.sendall, head + b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n")
            answer = pool.submit(sender.recv, 4096)
            while not answer.done():
                other.request("GET", "/healthz")
                count += other.getresponse().read() != b""
        other.close()
        assert sent.result() is None and b" 400 " in answer.result()
    # The body takes 70 reads, not 5, and another client is answered after each of them.
    assert count > 30
