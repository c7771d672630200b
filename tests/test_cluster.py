"""Where the processes that train together meet."""

from __future__ import annotations

import json
import socket

import pytest

from albert_tf.console import tf_config


@pytest.fixture
def address(monkeypatch):
    """Returns a free address, and how to make this process one of the two that know it."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]

    def join(index: int) -> None:
        workers = [f"localhost:{port}", "localhost:1"]
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": workers}, "task": task}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return ("localhost", port), join


def test_the_first_listens(address):
    place, join = address
    join(0)
    tf_config.check_first_address()
    with (
        socket.create_server(place),
        pytest.raises(
            ValueError, match=f"TF_CONFIG: .*can't listen at localhost:{place[1]} .*in u"
        ),
    ):
        tf_config.check_first_address()


@pytest.mark.parametrize("first", ["a", "a:70000"])
def test_an_address_without_a_valid_port(first, monkeypatch):
    config = {"cluster": {"worker": [first, "b"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="must be host:port, not a"):
        tf_config.check_first_address()


def test_the_others_reach_it(address, monkeypatch):
    place, join = address
    join(1)
    with socket.create_server(place):
        tf_config.check_first_address()
    monkeypatch.setattr(tf_config, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(tf_config.time, "sleep", lambda seconds: None)
    with pytest.raises(ValueError, match=f"the first process can't be reached at .*:{place[1]} "):
        tf_config.check_first_address()
