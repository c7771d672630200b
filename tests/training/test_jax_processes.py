"""Two processes on JAX of which one is lost or never starts: the other says so, in one line.

Can't see: several machines, GPUs, TPUs. Runs are in cli/test_run_pretraining_jax.py.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from albert_tf.console import errors, tf_config
from tests import jax_process, two_workers

pytest.importorskip("jax")


# --- in processes ---------------------------------------------------------------------------


def meet_twice(lost: str) -> None:
    """The one that is lost comes to the first meeting only."""
    from albert_tf.training import jax_devices

    with errors.in_one_line(), jax_devices.connect() as devices:
        devices.wait_for_all()
        if tf_config.index() == int(lost):
            os.kill(os.getpid(), signal.SIGKILL)
        devices.wait_for_all()


def wait_for_nobody(seconds: str) -> None:
    tf_config.WAIT_SECONDS = float(seconds)
    meet_twice("-1")


# --- tests ----------------------------------------------------------------------------------


def error_line(written: str) -> str:
    assert "Traceback" not in written
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    return line


def test_a_worker_lost_where_all_meet():
    # The last: without the first JAX itself may end the others.
    first, last = (
        jax_process.start(meet_twice, 1, **environment)
        for environment in two_workers.environments()
    )
    jax_process.finish(last, -signal.SIGKILL)
    line = error_line(jax_process.finish(first, 1))
    assert line.startswith("error: another worker was lost (")
    assert line.endswith("): see its log, and start the same command again on all workers")


def test_those_that_never_start_are_named():
    environment = two_workers.environments()[0]
    other = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][1]
    written = jax_process.finish(jax_process.start(wait_for_nobody, 2, **environment), 1)
    assert error_line(written) == (
        f"error: TF_CONFIG: not all other workers ({other}) have started within 2 s: start the "
        "same command on each, or correct its address"
    )
