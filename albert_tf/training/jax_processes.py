"""JAX in several processes that train together: how they meet, and leave after an error."""

from __future__ import annotations

import atexit
import os
import re
import signal

import jax

from albert_tf import cluster

# JAX's messages when another process no longer answers.
_LOST = re.compile(r"Gloo|Connection|[Cc]oordination|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED")


def meet() -> None:
    """Connects the processes of TF_CONFIG, if it names more than one.

    Raises:
      ValueError: If TF_CONFIG is wrong, or the first process' address in use or out of reach.
    """
    addresses = cluster.addresses()
    if len(addresses) < 2:
        return
    # JAX would end the process with the stack of its C++ code.
    cluster.check_first_address()
    cluster.log_others()
    jax.distributed.initialize(addresses[0], len(addresses), cluster.index())
    # JAX takes it as a notice, and would go on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(error: BaseException) -> None:
    """Has this process end at once after an error, whose message still appears.

    JAX would wait for five minutes until all processes end, and then abort them with the stack of
    its C++ code. So it may still end the others, if it notices before their step fails.

    Raises:
      ConnectionError: In place of an error that says that another process was lost.
    """
    if jax.process_count() == 1:
        return
    atexit.register(os._exit, 1)  # What was registered last is called first.
    if isinstance(error, jax.errors.JaxRuntimeError) and _LOST.search(str(error)):
        cause = str(error).partition("\n")[0]
        raise ConnectionError(
            f"another worker was lost ({cause}): see its log, and start the same command again "
            "on all workers"
        ) from error
