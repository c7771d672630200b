#!/bin/sh
# Once JAX is imported, some Ctrl-Cs do nothing: the program goes on.
#
# JAX adds a function of Python to gc.callbacks, and Python drops what such a function raises, the
# KeyboardInterrupt of a signal that comes just then as well: all that is seen is "Exception ignored
# in: <function _xla_gc_callback ...>" on standard error. Of 300 Ctrl-Cs in a loop that makes lists,
# 254 and 282 were lost, of 140 while TensorFlow and Keras set up a training, 6. TensorFlow 2.21
# imports JAX itself where it is installed, so that its programs are concerned, too. Those that must
# stop can listen in a thread, by signal.set_wakeup_fd. Seen with jax 0.10.2 on Python 3.11, x86-64
# (150 MB to download, 560 MB on the disk):
#
#   without jax: none of 300 is lost
#   with jax: some of 300 are lost
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
python3 -m pip install --quiet --target "$folder" 'jax==0.10.2' 'jaxlib==0.10.2' 'numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import os
import random
import signal
import sys
import threading
import time

name = sys.argv[1]
if name == "with":
    import jax  # noqa: F401

# A program in the background may have been started without this handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt():
    time.sleep(random.uniform(0.005, 0.02))
    os.kill(os.getpid(), signal.SIGINT)


def is_lost():
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        while thread.is_alive():
            found = [[number] for number in range(20_000)]
        # The signal has been sent, and these lines would be interrupted by it.
        for _ in range(1000):
            found.append([])
    except KeyboardInterrupt:
        thread.join()
        return False
    return True


lost = sum(is_lost() for _ in range(300))
print(f"{name} jax: {'some' if lost else 'none'} of 300 {'are' if lost else 'is'} lost")
END
run() { PYTHONPATH="$folder" python3 "$folder/run.py" "$1" 2>/dev/null; }
found=$(run without && run with)
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
