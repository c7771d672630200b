"""How a script starts and ends: its errors, what TensorFlow's C++ writes, where processes meet.

TensorFlow's output during a whole command is tested in test_wheel.py.
"""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
import tensorflow as tf
from absl import logging

from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import errors, tensorflow_logs, tf_config
from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings


class OurOwnError(Exception):
    pass


def of_tensorflow(name, text):
    return getattr(tf.errors, name)(None, None, text)


FLAGS = ["max_seq_length", "num_steps", "mode"]
OUT, LOWER = "memory ran out", "lower the batch size or --max_seq_length"
UNPRINTABLE = UnicodeEncodeError("utf-8", "x\udcff.txt", 1, 2, "why")
# An error, and the line that a script ends with.
ERRORS = [
    (ValueError("12 expected"), "12 expected"),
    (FileNotFoundError("no such file"), "no such file"),
    (OurOwnError("stopped"), "stopped"),
    (UNPRINTABLE, r"'x\udcff.txt' has a character that UTF-8 does not have (why)"),
    (of_tensorflow("PermissionDeniedError", "401 '{\n  x'\n\t of gs://b"), "401 '{ x' of gs://b"),
    (
        of_tensorflow("ResourceExhaustedError", "At:\nOOM\n\t [[a]]"),
        f"{OUT} (At: OOM [[a]]): {LOWER}",
    ),
    # JAX's JaxRuntimeError is a RuntimeError.
    (RuntimeError("X: Out of memory: 9.\nMore"), f"{OUT} (X: Out of memory: 9.): {LOWER}"),
    (MemoryError("bad_alloc"), f"{OUT} (bad_alloc): {LOWER}"),
    # Arguments that are flags get dashes.
    (ValueError("set `num_steps` to 3"), "set --num_steps to 3"),
    (ValueError("`num_steps=3`, `mode=a b`, `path`"), "--num_steps=3, --mode=a b, `path`"),
    (ValueError("`num_step` `$(num_steps)` num_steps"), "`num_step` `$(num_steps)` num_steps"),
    (ValueError("é \x1b[2Jw\n\udc80"), r"é \x1b[2Jw\n\udc80"),
    (KeyboardInterrupt(), "interrupted"),
]


@pytest.mark.parametrize(("error", "line"), ERRORS)
def test_an_error_is_one_line(error, line):
    with pytest.raises(SystemExit) as ended, errors.in_one_line(OurOwnError, flags=FLAGS):
        raise error
    assert ended.value.code == f"error: {line}"


def test_an_errors_traceback_is_for_those_who_ask(caplog):
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    with pytest.raises(SystemExit), errors.in_one_line():
        raise ValueError("a")
    logging.set_verbosity(before)
    assert "traceback of the error:" in caplog.text and "in_one_line" in caplog.text


@pytest.mark.parametrize(
    ("settings", "lower"),
    [
        (GeneratorSettings, "lower --num_processes or --block_megabytes"),
        (SentencePieceSettings, "lower --input_sentence_size"),
        (PretrainingSettings, LOWER),
    ],
)
def test_memory_that_ran_out_names_flags_that_the_script_has(settings, lower):
    with pytest.raises(SystemExit, match=lower), errors.in_one_line(flags=settings.names()):
        raise MemoryError


@pytest.mark.parametrize("error", [KeyError, RuntimeError, NotImplementedError])
def test_mistakes_of_the_program_are_raised(error):
    with pytest.raises(error), errors.in_one_line():
        raise error("x")


_TALKS = """
import logging, os, sys
from absl import app
from absl import logging as absl_logging
def main(_):
    from albert_tf.console import log
    log.begin()
    from tqdm import tqdm
    with tqdm(total=3, leave=False, ncols=50, nrows=9, disable=not log.on_terminal()) as bar:
        absl_logging.info("one")
        bar.update()
        logging.getLogger("others").warning("two %d\\x1b[2J\\x9b", 2)
app.run(main)
"""


def test_on_a_terminal_a_line_has_the_time_and_stands_above_the_bar():
    terminal, inside = os.openpty()
    subprocess.run([sys.executable, "-c", _TALKS], stderr=inside, check=True)
    written = os.read(terminal, 100_000).decode()
    # A terminal keeps only the text after the last carriage return of a line.
    lines = [line.rpartition("\r")[2] for line in written.split("\r\n")]
    assert re.fullmatch(r"\d\d:\d\d:\d\d one", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: two 2\\u001b\[2J\\u009b", lines[1])
    assert "33%" in written and not lines[2].strip()


def test_elsewhere_a_line_is_absls():
    command = [sys.executable, "-c", _TALKS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d+ \d+ <string>:\d+\] one$", done.stderr, re.M)


def test_a_reader_that_has_gone_ends_the_process_quietly(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        with pytest.raises(SystemExit, match="^1$"):
            errors.print_to_reader("text")


# TensorFlow 2.21 and 2.20 wrote these notes, each on a machine without a GPU.
NOTES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795347721.637399   29700 port.cc:153] oneDNN custom operations are on. You may see
2026-11-22 11:42:01.714995: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow
To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
"""
NO_DEVICE = b"E0000 00:00:1795347939.406323 1693 cuda_platform.cc:52] failed call to cuInit: X\n"
OTHERS = b"""\
W0000 00:00:1795347939.406323    1693 gpu_device.cc:2342] Cannot dlopen some GPU libraries.
E0000 00:00:1795347939.406323    1693 cuda_dnn.cc:8310] No place
DeprecationWarning: it is INFO that I0000 is
Traceback (most recent call last):
"""


@pytest.mark.parametrize("has_gpu", [False, True])
def test_notes_are_left_out_and_nothing_else(monkeypatch, has_gpu):
    monkeypatch.setattr(tensorflow_logs, "_has_gpu", lambda: has_gpu)
    first, second = NOTES.splitlines(keepends=True)[:2], NOTES.splitlines(keepends=True)[2:]
    written = b"".join([*first, OTHERS, NO_DEVICE, *second, b"half a line"])
    kept = NO_DEVICE if has_gpu else b""
    assert tensorflow_logs.without_notes(written) == OTHERS + kept + b"half a line"


def test_what_is_held_back_comes_even_after_an_error(capfd):
    with pytest.raises(ImportError), tensorflow_logs.filtered_stderr():
        os.write(2, NOTES + OTHERS)
        assert capfd.readouterr().err == ""
        raise ImportError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == OTHERS.decode() + "after\n"


def test_a_tensorflow_that_is_imported_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    settings = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    for name in settings:
        monkeypatch.delenv(name, raising=False)
    tensorflow_logs.import_tensorflow()
    assert not set(settings) & set(os.environ)


@pytest.mark.parametrize(("chosen", "found"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_onednn_is_on_unless_the_user_says_otherwise(tmp_path, chosen, found):
    """On a CPU without AVX-512, TensorFlow would leave it off."""
    (tmp_path / "tensorflow.py").write_text(
        "import os, types; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [kind])\n"
    )
    code = "from albert_tf.console import tensorflow_logs; tensorflow_logs.import_tensorflow()"
    env = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    env |= {**chosen, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=env)
    assert done.stdout.decode() == f"{found}\n"


def test_a_backend_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")  # Keras takes its own default.
    tensorflow_logs.import_tensorflow()
    with pytest.raises(SystemExit, match="^error: Keras can't run on 'jaxx', .*: unset KERAS_BACK"):
        tensorflow_logs.import_tensorflow("jaxx")
    assert os.environ["KERAS_BACKEND"] == "jaxx"


@pytest.fixture
def address(monkeypatch):
    """Returns a free address, and a function that makes this process one of its two workers."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]

    def join(index: int) -> None:
        cluster = {"worker": [f"localhost:{port}", "localhost:1"]}
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return ("localhost", port), join


def test_the_first_listens(address):
    place, join = address
    join(0)
    tf_config.check_first_address()
    in_use = f"TF_CONFIG: .*can't listen at localhost:{place[1]} .*in u"
    with socket.create_server(place), pytest.raises(ValueError, match=in_use):
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
