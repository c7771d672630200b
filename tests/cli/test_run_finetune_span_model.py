"""run_finetune.py --span_model_dir: squad_v2's model as one that Hugging Face has."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests import finetune_runs as runs
from tests import tiny, tolerances
from tests.tiny import randomise

KERNEL = "cls/squad/output_weights"
NO_TRAINING = {"from_scratch": None, "albert_config_file": None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """Two updates, an evaluation, a span model; its folder is not to be written to."""
    folder = tmp_path_factory.mktemp("span")
    flags = {"train_step": 2, "do_train": True, "do_eval": True, "span_model_dir": folder / "span"}
    runs.main(runs.command("squad_v2", folder, warmup_step=None, **flags))
    return folder


def test_encoder_and_start_are_unchanged(trained):
    before = checkpoint.read(str(trained / "out" / "model.ckpt-best"))
    after = checkpoint.read(str(trained / "span"))
    heads = {KERNEL, "cls/squad/output_bias", "global_step"}
    assert heads < set(after)
    for name in set(after) - heads:
        assert name.startswith("bert/") and not name.startswith("bert/pooler/")
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    config = albert_tf.load_config(trained / "span")
    model = albert_tf.AlbertForQuestionAnsweringV2(config)
    albert_tf.load_weights(model, trained / "out" / "model.ckpt-best")
    span = albert_tf.AlbertForQuestionAnswering(config)
    albert_tf.load_weights(span, trained / "span")
    inputs = {"input_ids": np.random.default_rng(0).integers(5, 6000, (2, 31), np.int32)}
    hidden = model.albert(inputs)["sequence_output"]
    expected = model.span(hidden, np.zeros((2, 31), np.int32))
    actual = span(inputs)["start_logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.SUBLAYER)


def test_what_is_lost_is_said(trained, tmp_path):
    note = json.loads((trained / "span" / "run.json").read_text())["note"]
    found = re.search(
        r'Lost are the score of "no answer" .* The likeliest end is the squad_v2 model\'s in '
        r"[\d.]+% of (\d+) windows of evaluation data\. On 21 answerable questions, always "
        r"answered: exact_match [\d.]+ -> [\d.]+, f1 [\d.]+ -> [\d.]+\.$",
        note,
    )
    assert found and int(found[1]) > 27
    convert(str(trained / "span"), "huggingface", str(tmp_path / "there"))
    card = (tmp_path / "there" / "README.md").read_text()
    assert note in card and "pipeline_tag: question-answering\n" in card
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert config["architectures"] == ["AlbertForQuestionAnswering"]
    tensors = load_file(tmp_path / "there" / "model.safetensors")
    kernel = checkpoint.read(str(trained / "span"))[KERNEL]
    np.testing.assert_array_equal(tensors["qa_outputs.weight"], kernel)
    assert (tmp_path / "there" / "spiece.model").exists()


def test_a_finished_run_keeps_its_span_model_and_makes_it_again(trained, tmp_path, caplog):
    """To the bit; it is refused in the place of another checkpoint's."""
    changes = {"output_dir": trained / "out", **NO_TRAINING}
    command = runs.command("squad_v2", trained, **changes)
    before = {path: path.stat().st_mtime_ns for path in (trained / "span").rglob("*")}
    with caplog.at_level("INFO", logger="absl"):
        runs.main([*command, f"--span_model_dir={trained / 'span'}"])
    assert f"{trained}/span already contains the export of {trained}/out/model" in caplog.text
    runs.main([*command, f"--span_model_dir={tmp_path / 'again'}"])
    kernels = (
        checkpoint.read(str(path))[KERNEL] for path in (trained / "span", tmp_path / "again")
    )
    np.testing.assert_array_equal(*kernels)
    config = (trained / "out" / "albert_config.json").read_bytes()
    (tmp_path / "albert_config.json").write_bytes(config)
    command = runs.command("squad_v2", tmp_path, init_checkpoint=tmp_path, **NO_TRAINING)
    other = checkpoint.read(str(trained / "out" / "model.ckpt-best"))
    start = other.pop("start_logits/dense/kernel")
    for changed in ({**other, "start_logits/dense/kernel": start + 1}, other):
        checkpoint.write(str(tmp_path / "model.ckpt-best"), changed)
        with pytest.raises(SystemExit, match="/span already exists: give a new"):
            runs.main([*command, f"--span_model_dir={trained / 'span'}"])
    assert {path: path.stat().st_mtime_ns for path in (trained / "span").rglob("*")} == before


def test_an_end_that_is_nearly_linear_is_found_again(tmp_path, caplog):
    """A small step from a large bias: there tanh and normalisation are straight."""
    config = albert_tf.AlbertConfig.from_json_file(runs.write_config(tmp_path))
    model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config))
    named = tiny.weights(model)
    width, small = config.hidden_size, 1e-3
    first = np.zeros((2 * width, width), np.float32)
    direction = np.array([1, -1, 2, -0.5, -2.5, 1], np.float32)
    first[:width, 0] = small * direction
    second = np.zeros((width, 1), np.float32)
    second[0] = 2 / small
    named |= {"end_logits/dense_0/kernel": first, "end_logits/dense_1/kernel": second}
    named |= {"end_logits/dense_0/bias": np.array([0, 1, -1, 1, -1, 0], np.float32)}
    # All directions of the hidden states count alike, so that the ridge turns nothing.
    named |= {n: np.ones_like(value) for n, value in named.items() if n.endswith("gamma")}
    checkpoint.write(str(tmp_path / "model.ckpt-best"), named)
    changes = {"init_checkpoint": tmp_path / "model.ckpt-best", "from_scratch": None}
    same = runs.GOLDEN / "features/squad_v2_dev.json"  # By default the file to predict.
    changes |= {"train_file": None, "eval_file": same, "span_model_dir": tmp_path / "span"}
    with caplog.at_level("INFO", logger="absl"):
        runs.main(runs.command("squad_v2", tmp_path, **changes))
    share = re.search(r"model's in ([\d.]+)% of the windows it was fitted on\.", caplog.text)
    assert float(share[1]) > 95  # The ridge decides where two ends are almost as likely.
    # Normalised hidden states say nothing about the map's mean.
    found = checkpoint.read(str(tmp_path / "span"))[KERNEL][1]
    found = found - found.mean()
    assert found @ direction > 0.99 * np.linalg.norm(found) * np.linalg.norm(direction)
