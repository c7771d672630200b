"""How a script starts and ends: its errors, what TensorFlow's C++ writes, where processes meet.

What TensorFlow writes during a whole command is in test_wheel.py.
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


_LOWER = "lower the batch size or --max_seq_length"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("12 expected"), "error: 12 expected"),
        (FileNotFoundError("no such file"), "error: no such file"),
        (OurOwnError("stopped"), "error: stopped"),
        (
            UnicodeEncodeError("utf-8", "x\udcff.txt", 1, 2, "not allowed"),
            r"error: 'x\udcff.txt' has a character that UTF-8 does not have (not allowed)",
        ),
        (
            tf.errors.PermissionDeniedError(
                None, None, "HTTP 401 '{\n  x'\n\t when reading gs://b/a"
            ),
            "error: HTTP 401 '{ x' when reading gs://b/a",
        ),
        (
            tf.errors.ResourceExhaustedError(
                None, None, "Detected at:\nOOM when allocating on GPU:0\n\t [[a]]"
            ),
            f"error: memory ran out (Detected at: OOM when allocating on GPU:0 [[a]]): {_LOWER}",
        ),
        (
            # JAX's JaxRuntimeError is a RuntimeError.
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9.\nMore of it"),
            f"error: memory ran out (RESOURCE_EXHAUSTED: Out of memory allocating 9.): {_LOWER}",
        ),
        (
            MemoryError("Unable to allocate 7. TiB"),
            f"error: memory ran out (Unable to allocate 7. TiB): {_LOWER}",
        ),
    ],
)
def test_one_line_and_where_it_is_from_for_those_who_ask(error, line, caplog):
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    with (
        pytest.raises(SystemExit) as ended,
        errors.in_one_line(OurOwnError, flags=["max_seq_length"]),
    ):
        raise error
    logging.set_verbosity(before)
    assert ended.value.code == line
    assert "traceback of the error:" in caplog.text
    assert "in_one_line" in caplog.text


@pytest.mark.parametrize(
    ("settings", "lower"),
    [
        (GeneratorSettings, "--num_processes or --block_megabytes"),
        (SentencePieceSettings, "--input_sentence_size"),
        (PretrainingSettings, "the batch size or --max_seq_length"),
    ],
)
def test_memory_that_ran_out_names_flags_that_the_script_has(settings, lower):
    with pytest.raises(SystemExit) as ended, errors.in_one_line(flags=settings.names()):
        raise MemoryError("bad_alloc")
    assert ended.value.code == f"error: memory ran out (bad_alloc): lower {lower}"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("set `num_steps` to 3", "error: set --num_steps to 3"),
        (
            "set `num_steps=3`, `mode=a b` or `path`",
            "error: set --num_steps=3, --mode=a b or `path`",
        ),
        ("no `num_step` and `$(num_steps)` in num_steps", None),
    ],
)
def test_arguments_that_are_flags_get_their_dashes(message, line):
    with pytest.raises(SystemExit) as ended, errors.in_one_line(flags={"num_steps", "mode"}):
        raise ValueError(message)
    assert ended.value.code == (line or f"error: {message}")


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
    command = [sys.executable, "-c", _TALKS]
    subprocess.run(command, stderr=inside, check=True)
    written = os.read(terminal, 100_000).decode()
    # What is after the last carriage return of a line is what stays.
    lines = [line.rpartition("\r")[2] for line in written.split("\r\n")]
    assert re.fullmatch(r"\d\d:\d\d:\d\d one", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: two 2\\u001b\[2J\\u009b", lines[1])
    assert "33%" in written and not lines[2].strip()


def test_elsewhere_a_line_is_absls():
    command = [sys.executable, "-c", _TALKS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d+ \d+ <string>:\d+\] one$", done.stderr, re.M)


def test_control_characters_are_escaped():
    with pytest.raises(SystemExit) as ended, errors.in_one_line():
        raise ValueError("é \x1b[2Jw\n\udc80")
    assert ended.value.code == r"error: é \x1b[2Jw\n\udc80"


def test_ctrl_c_is_one_line():
    with pytest.raises(SystemExit, match="error: interrupted"), errors.in_one_line():
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [KeyError, RuntimeError, NotImplementedError])
def test_mistakes_of_the_program_are_raised(kind):
    with pytest.raises(kind), errors.in_one_line():
        raise kind("x")


def test_a_reader_that_has_gone_ends_the_process_quietly(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        with pytest.raises(SystemExit, match="^1$"):
            errors.print_to_reader("text")


# Of TensorFlow 2.21 and 2.20, each on a machine without a GPU.
NOTES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795347721.637399   29700 port.cc:153] oneDNN custom operations are on. You may see
2026-11-22 11:42:01.714995: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow
To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
"""
NO_DEVICE = (
    b"E0000 00:00:1795347939.406323    1693 cuda_platform.cc:52] failed call to cuInit: INTER\n"
)
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
    """Without AVX-512 TensorFlow would leave it off."""
    package = "import os, types; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])\n"
    package += "config = types.SimpleNamespace(list_physical_devices=lambda kind: [kind])\n"
    (tmp_path / "tensorflow.py").write_text(package)
    code = "from albert_tf.console import tensorflow_logs; tensorflow_logs.import_tensorflow()"
    unset = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**unset, **chosen, "PYTHONPATH": path},
    )
    assert done.stdout == f"{found}\n"


def test_a_backend_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")  # Keras takes its own default.
    tensorflow_logs.import_tensorflow()
    with pytest.raises(SystemExit, match="^error: Keras can't run on 'jaxx', .*: unset KERAS_BACK"):
        tensorflow_logs.import_tensorflow("jaxx")
    assert os.environ["KERAS_BACKEND"] == "jaxx"


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
