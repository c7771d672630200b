"""What TensorFlow's C++ writes while it is imported; all of a command's is in test_wheel.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from albert_tf.console import quiet

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
    monkeypatch.setattr(quiet, "_has_gpu", lambda: has_gpu)
    first, second = NOTES.splitlines(keepends=True)[:2], NOTES.splitlines(keepends=True)[2:]
    written = b"".join([*first, OTHERS, NO_DEVICE, *second, b"half a line"])
    kept = NO_DEVICE if has_gpu else b""
    assert quiet.without_notes(written) == OTHERS + kept + b"half a line"


def test_what_is_held_back_comes_even_after_an_error(capfd):
    with pytest.raises(ImportError), quiet.filtered_stderr():
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
    quiet.import_tensorflow()
    assert not set(settings) & set(os.environ)


@pytest.mark.parametrize(("chosen", "found"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_onednn_is_on_unless_the_user_says_otherwise(tmp_path, chosen, found):
    """Without AVX-512 TensorFlow would leave it off."""
    package = "import os, types; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])\n"
    package += "config = types.SimpleNamespace(list_physical_devices=lambda kind: [kind])\n"
    (tmp_path / "tensorflow.py").write_text(package)
    code = "from albert_tf import quiet; quiet.import_tensorflow()"
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
    monkeypatch.setenv("KERAS_BACKEND", "tensorflou")
    with pytest.raises(SystemExit, match="^error: KERAS_BACKEND is 'tensorflou', but .*: unset it"):
        quiet.import_tensorflow()
    monkeypatch.setenv("KERAS_BACKEND", "")  # Keras takes its own default.
    quiet.import_tensorflow()
