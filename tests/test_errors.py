from __future__ import annotations

import json
import os

import pytest
import tensorflow as tf
from absl import flags, logging

from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import errors
from albert_tf.generator import flags as generator_flags
from albert_tf.generator import sentencepiece


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
            tf.errors.DataLossError(None, None, "{{function_node a}} at:\nbad record [Op:Read]"),
            "error: bad record",
        ),
        (
            tf.errors.ResourceExhaustedError(
                None, None, "Detected at:\nOOM when allocating on GPU:0\n\t [[{{node a}}]]\nHint: x"
            ),
            f"error: memory ran out (OOM when allocating on GPU:0): {_LOWER}",
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
    ("define", "lower"),
    [
        (generator_flags.define_flags, "--num_processes or --block_megabytes"),
        (sentencepiece.define_flags, "--input_sentence_size"),
        (PretrainingSettings, "the batch size or --max_seq_length"),
    ],
)
def test_memory_that_ran_out_names_flags_that_the_script_has(define, lower):
    if hasattr(define, "names"):
        names = define.names()
    else:
        names = flags.FlagValues()
        define(names)
    with pytest.raises(SystemExit) as ended, errors.in_one_line(flags=names):
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


def test_control_characters_are_escaped():
    with pytest.raises(SystemExit) as ended, errors.in_one_line():
        raise ValueError("é \x1b[2Jw\n\udc80")
    assert ended.value.code == r"error: é \x1b[2Jw\n\udc80"


_SOCKET = """Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling \
/tensorflow.WorkerService/RecvBuf:
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference__train_steps_7]"""
_HEARTBEAT = """Collective ops is aborted by: Error reported from /job:worker/task:1: These \
tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events.
The error could be from a previous operation. Restart your program to reset."""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (_SOCKET, "Collective ops is aborted by: Socket closed"),
        (
            _HEARTBEAT,
            "Collective ops is aborted by: Error reported from /job:worker/task:1: These tasks are "
            "unhealthy (stopped sending heartbeats)",
        ),
    ],
)
def test_a_lost_worker_is_named(message, cause, monkeypatch):
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert errors.reason(tf.errors.UnavailableError(None, None, message)) == (
        f"worker 1 (b:2) was lost ({cause}): see its log, and start the same command again on all "
        "workers; they resume from the last checkpoint"
    )


@pytest.mark.parametrize("job", ["localhost", "worker"])
def test_a_device_in_a_message_is_no_lost_worker(job):
    place = f"/job:{job}/replica:0/task:12/device:CPU:0"
    full = f"OOM when allocating tensor with shape[3,5] on {place} by allocator cpu"
    error = tf.errors.ResourceExhaustedError(None, None, f"{full} [Op:Add]")
    assert errors.reason(error) == full

    device = f"_device_/job:{job}/replica:0/task:0/device:CPU:0"
    message = (
        f"{{{{function_node __wrapped__ReadFile{device}}}}} corrupted record at 9 [Op:ReadFile]"
    )
    assert errors.reason(tf.errors.DataLossError(None, None, message)) == ("corrupted record at 9")


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
