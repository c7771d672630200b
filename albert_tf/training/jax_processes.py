"""JAX in several processes that train together: how they meet, and leave after an error."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading

import jax

from albert_tf import cluster

# JAX's messages when another process no longer answers.
_LOST = re.compile(r"Gloo|Connection|[Cc]oordination|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED")
# How they begin: where NumPy takes an array that was never computed, they are ValueErrors.
_JAXS = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): ")


def meet() -> None:
    """Connects the processes of TF_CONFIG, if it names more than one.

    If some don't start in time, ends this process with one line and exit code 1.

    Raises:
      ValueError: If TF_CONFIG is wrong, or the first process' address in use or out of reach.
    """
    addresses = cluster.addresses()
    if len(addresses) < 2:
        return
    cluster.log_others()
    # In both cases JAX would end the process with the stack of its C++ code.
    cluster.check_first_address()
    late = threading.Timer(cluster.WAIT_SECONDS, _give_up)
    late.daemon = True
    late.start()
    timeout = int(2 * cluster.WAIT_SECONDS)
    jax.distributed.initialize(
        addresses[0], len(addresses), cluster.index(), initialization_timeout=timeout
    )
    late.cancel()
    # JAX takes it as a notice, and would go on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _give_up() -> None:
    print(
        f"error: TF_CONFIG: not all other workers ({', '.join(cluster.others())}) have started "
        f"within {cluster.WAIT_SECONDS:.0f} s: start the same command on each, or correct its "
        "address",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


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
    is_jaxs = isinstance(error, jax.errors.JaxRuntimeError) or _JAXS.match(str(error))
    if is_jaxs and _LOST.search(str(error)):
        cause = str(error).partition("\n")[0]
        raise ConnectionError(
            f"another worker was lost ({cause}): see its log, and start the same command again "
            "on all workers"
        ) from error
