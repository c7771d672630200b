"""run_pretraining.py --init_checkpoint, from each layout."""

from __future__ import annotations

import contextlib
import dataclasses
import re

import pytest

from albert_tf import conversion
from albert_tf.cli import pretrain
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests import goldens
from tests import pretraining_runs as runs


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return runs.write_records(tmp_path_factory.mktemp("records") / "a.tfrecord", runs.examples(13))


@pytest.fixture
def prepare(records, tmp_path, caplog):
    """Starts run_pretraining.py up to the first step; returns its Trainer."""
    caplog.set_level("INFO", logger="absl")

    def prepare(source, config, *arguments):
        (tmp_path / "albert_config.json").write_text(config.to_json())
        command = runs.command(tmp_path, input_file=records, init_checkpoint=source)
        with contextlib.ExitStack() as held:
            return pretrain.prepare(runs.parse([*command, *arguments]), held)[0]

    return prepare


def source_of(layout, golden, folder):
    base = goldens.FOLDER / "base"
    if layout == "tfhub":
        return golden / "tfhub"
    if layout == "tf1":
        return base / "model.ckpt-best"
    drop = ["cls/seq_relationship/"] if layout == "kerashub" else []
    convert(str(base), layout, str(folder / layout), drop=drop)
    return folder / layout


@pytest.mark.parametrize("layout", ["tf1", "tfhub", "huggingface", "keras", "kerashub"])
def test_each_layout_starts_a_run(layout, golden, tmp_path, prepare, caplog):
    source = source_of(layout, golden, tmp_path)
    trainer = prepare(source, goldens.config("base"))
    (report,) = set(re.findall(rf"init_checkpoint: {re.escape(str(source))} \((.*)\)", caplog.text))
    expected = checkpoint.read(goldens.checkpoint("base"))
    missing = [f"cls/seq_relationship/output_{kind}" for kind in ("weights", "bias")]
    if layout == "kerashub":
        assert re.fullmatch("30 variables loaded; missing: [^;]*relationship[^;]*", report)
    else:
        assert report == "32 variables loaded"
        missing = []
    for name, variable in conversion.named_weights(trainer.model).items():
        same = variable.numpy().tobytes() == expected[name].tobytes()
        assert same != (name in missing), name
    assert trainer.step == 0


@pytest.mark.parametrize("layout", ["tfhub", "huggingface"])
def test_groups_are_filled_from_group_0(layout, golden, tmp_path, prepare):
    config = dataclasses.replace(goldens.config("base"), num_hidden_groups=2)
    source = source_of(layout, golden, tmp_path)
    with pytest.raises(ValueError, match="does not fit the model: it lacks .*/group_1/"):
        prepare(source, config)
    trainer = prepare(source, config, "--init_from_group0")
    expected = checkpoint.read(goldens.checkpoint("base"))
    for name, variable in conversion.named_weights(trainer.model).items():
        if name.startswith("bert/"):
            value = expected[name.replace("group_1/", "group_0/")]
            assert variable.numpy().tobytes() == value.tobytes(), name


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
def test_a_deeper_model_starts_from_a_shallower_one(layout, golden, tmp_path, prepare, caplog):
    """As in the paper's appendix A.1."""
    base = goldens.config("base")
    source = source_of(layout, golden, tmp_path)
    trainer = prepare(source, dataclasses.replace(base, num_hidden_layers=7))
    expected = checkpoint.read(goldens.checkpoint("base"))
    for name, variable in conversion.named_weights(trainer.model).items():
        assert variable.numpy().tobytes() == expected[name].tobytes(), name
    assert f"differs: num_hidden_layers {base.num_hidden_layers} there, 7 here" in caplog.text
    apart = dataclasses.replace(base, num_hidden_layers=7, parameter_sharing="none")
    with pytest.raises(ValueError, match="parameter_sharing all there, none here"):
        prepare(source, apart)


def test_a_named_config_replaces_a_damaged_one(copy_of, prepare, caplog):
    source = copy_of("tf1")
    (source / "albert_config.json").write_text("{")
    prepare(source, goldens.config("base"))
    assert "not compared with the model's: " in caplog.text
