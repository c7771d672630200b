"""TF_CONFIG: the addresses of the processes that train together."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

from absl import logging

# How long processes wait for each other.
WAIT_SECONDS = 300.0


def hosts() -> dict[str, list[str]]:
    """Returns TF_CONFIG's hosts by job; none if it isn't set or names no cluster."""
    text = os.environ.get("TF_CONFIG") or "{}"
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        # Any mistake in the JSON or its types leads to the one message below.
        config = json.loads(text)
        cluster = config.get("cluster", {})
        if not cluster or _is_complete(cluster, config["task"]):
            return cluster
    raise ValueError(
        'TF_CONFIG must be {"cluster": {"worker": ["host:port", ...]}, "task": {"type": '
        f'"worker", "index": 0}}}} where task names this process, not {text}'
    )


def _is_complete(cluster: dict, task: dict) -> bool:
    listed = all(
        isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)
        for hosts in cluster.values()
    )
    job = task["type"]
    return listed and job in ("chief", "worker") and int(task["index"]) in range(len(cluster[job]))


def addresses() -> list[str]:
    """Returns the host:port of each process that trains, the chief's first; see `hosts`."""
    jobs = hosts()
    return [*jobs.get("chief", []), *jobs.get("worker", [])]


def num_workers() -> int:
    """Returns how many processes train together; 0 if TF_CONFIG names none."""
    return len(addresses())


def index() -> int:
    """Returns the index of this process among the addresses."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return int(task["index"]) + (has_chief() and task["type"] == "worker")


def check_first_address() -> None:
    """Checks that the first process can listen at its address, and that the others reach it.

    The others wait for it: processes start one after the other.
    """
    address = addresses()[0]
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 65536):
        raise ValueError(f"TF_CONFIG: the first process' address must be host:port, not {address}")
    # The first process can find out by itself whether its port is free.
    if index() == 0:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", int(port)))
            except OSError as error:
                raise ValueError(
                    f"TF_CONFIG: this process can't listen at {address} ({error}): stop what does, "
                    "or give another port"
                ) from None
        return
    # The first process may start later.
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"TF_CONFIG: the first process can't be reached at {address} ({error}): start "
                    "it, or correct its address"
                ) from None
        time.sleep(1)


def others() -> list[str]:
    """Returns the addresses of the other processes."""
    return [address for place, address in enumerate(addresses()) if place != index()]


def log_others() -> None:
    """Logs whom this process waits for: until all have started, it logs nothing else."""
    logging.info("connecting with the other workers: %s", ", ".join(others()))


def has_chief() -> bool:
    """Returns whether TF_CONFIG names a chief."""
    return bool(hosts().get("chief"))


def describe_task(job: str, index: int) -> str:
    """Returns a worker's name with its address, if known: "worker 1 (10.0.0.2:2222)"."""
    addresses = hosts().get(job, [])
    return f"{job} {index} ({addresses[index]})" if index < len(addresses) else f"{job} {index}"
