"""docs/from_other_libraries.md: its code runs, its flags are ours, and its names are there.

tests/peers/test_their_code.py runs what needs the other libraries.
"""

import re

import numpy as np
import pytest

import albert_tf
from albert_tf.cli.finetune_settings import FinetuningSettings
from tests.kit import other_libraries, tiny


@pytest.fixture(scope="module")
def places(golden, tmp_path_factory):
    return other_libraries.small_models(tmp_path_factory.mktemp("models"), golden)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras always warns.
@pytest.mark.parametrize("name", ["fine_tune", "fill_mask", "tf_albert", "garden"])
def test_our_code_runs(name, places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = dict(other_libraries.DATA)
    exec(other_libraries.program(name, "ours", places), names)
    assert np.isfinite(np.asarray(names.get("logits", names.get("best")))).all()
    if name == "fine_tune":
        again = albert_tf.AlbertForSequenceClassification.from_weights("mine")
        inputs = albert_tf.Preprocessor.from_weights("mine")("A warm and funny film")
        np.testing.assert_array_equal(again(inputs), names["logits"])


@pytest.mark.parametrize("heading", other_libraries.WITH_FLAGS)
def test_our_flags_are_read(heading):
    cells = [row[1] for row in other_libraries.rows(heading)]
    flags = [flag for cell in cells for flag in re.findall("`(--[^`]+)`", cell)]
    assert len(flags) > 9
    for flag in flags:
        if not flag.startswith("--flagfile"):
            given = "" if "task_name" in flag else "--task_name=classification"
            more = ["--output_dir=out", "--do_train", *filter(None, [given])]
            tiny.parse(FinetuningSettings, flag, *(each for each in more if each != flag))


def test_the_releases_command_is_read():
    (flags,) = re.findall(r"\nalbert-finetune \\\n(.*?)```", other_libraries.TEXT, re.DOTALL)
    flags = flags.replace("\\\n", "").split()
    assert tiny.parse(FinetuningSettings, *flags).warmup_step == 1000


def test_our_names_are_there():
    assert {*re.findall(r"albert_tf\s*\.(\w+)", other_libraries.TEXT)} <= {*dir(albert_tf)}
