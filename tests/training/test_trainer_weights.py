"""Trainer: where weights come from, and evaluation."""

import functools
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

from albert_tf.conversion import bundles, layouts
from albert_tf.records import input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import checkpoint
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.trainer import Trainer
from tests.kit import goldens, tiny, tolerances
from tests.kit import pretraining_runs as runs
from tests.training.toys import one_device


def adamw():
    return create_optimizer(0.1, 10, 0)


def trainer_of(config, directory: pathlib.Path, seed=0, make_optimizer=adamw) -> Trainer:
    directory.mkdir(exist_ok=True)
    task, settings = PretrainingTask(config), StepSettings(seed)
    return Trainer(task, one_device(), str(directory), make_optimizer, settings)


def save(trainer: Trainer) -> None:
    trainer.save(keep_max=1)
    trainer.wait_until_saved()


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def test_resume_beats_init_checkpoint_beats_fresh(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    config, theirs = goldens.config("base"), checkpoint.read(goldens.checkpoint("base"))
    trainer = trainer_of(config, tmp_path)
    initial = tiny.weights(trainer.model)
    assert trainer.initialise() is False
    assert "random initialisation: " in caplog.text
    assert_equal(tiny.weights(trainer.model), initial)

    assert trainer.initialise(goldens.checkpoint("base")) is False
    assert f"init_checkpoint: {goldens.checkpoint('base')}" in caplog.text
    assert_equal(tiny.weights(trainer.model), {name: theirs[name] for name in initial})
    assert trainer.step == 0
    assert not any(np.any(moment.numpy()) for moment in trainer.optimizer.adam_m)

    for moment in (*trainer.optimizer.adam_m, *trainer.optimizer.adam_v):
        moment.assign(np.random.default_rng(0).normal(size=moment.shape))
    trainer.optimizer.iterations.assign(7)
    trainer.model.weights[0].assign_add(np.ones(trainer.model.weights[0].shape))
    save(trainer)
    other = trainer_of(config, tmp_path, seed=1)
    assert other.initialise(goldens.checkpoint("base")) is True
    assert f"resume: step 7 of {tmp_path}/model.ckpt-7" in caplog.text
    found = {**tiny.weights(other.model), "global_step": other.step}
    for i, name in enumerate(initial):
        found[f"{name}/adam_m"] = other.optimizer.adam_m[i].numpy()
        found[f"{name}/adam_v"] = other.optimizer.adam_v[i].numpy()
    assert_equal(found, {**checkpoint.read(str(tmp_path)), "global_step": 7})


def test_a_checkpoint_without_moments_is_no_resume(tmp_path):
    """As after copying the release's checkpoint into output_dir."""
    source = goldens.checkpoint("base")
    for ending in (".index", ".data-00000-of-00001"):
        shutil.copy(source + ending, tmp_path / f"model.ckpt-3{ending}")
    line = 'model_checkpoint_path: "model.ckpt-3"\n'
    (tmp_path / "checkpoint").write_text(f"{line}all_{line.replace('path', 'paths', 1)}")
    trainer = trainer_of(goldens.config("base"), tmp_path)
    with pytest.raises(ValueError, match="lacks .* bert/.*adam_m: .*another `output_dir`, and"):
        trainer.initialise()


def test_a_restore_reads_its_checkpoint_once_and_compares_configs(tmp_path, monkeypatch):
    trainer = trainer_of(tiny.config(), tmp_path)
    save(trainer)
    (tmp_path / "albert_config.json").write_text(tiny.config().to_json())
    opened, read = [], checkpoint.read
    monkeypatch.setattr(checkpoint, "read", lambda path: opened.append(path) or read(path))
    monkeypatch.setattr(layouts, "find", lambda path: pytest.fail("it is a checkpoint of ours"))
    trainer.initialise()
    assert opened == [f"{tmp_path}/model.ckpt-0"]
    # Its config must be the model's.
    other = tiny.config(num_attention_heads=1)
    (tmp_path / "albert_config.json").write_text(other.to_json())
    with pytest.raises(ValueError, match="contradicts the model's .num_attention_heads 1 there"):
        trainer.initialise()


def test_what_an_optimizer_has_for_no_weight_is_restored(tmp_path):
    """Nadam's product of momenta, which Keras gives another name in each optimizer."""
    nadam = functools.partial(keras.optimizers.Nadam, 0.1)
    first, second = (trainer_of(tiny.config(), tmp_path, seed, nadam) for seed in (0, 1))
    first.optimizer._u_product.assign(0.25)
    save(first)
    assert second.initialise() is True
    assert float(second.optimizer._u_product.numpy()) == 0.25
    # Loading weights ignores it.
    assert set(bundles.read_weights(str(tmp_path))) == set(tiny.weights(first.model))


def test_nothing_goes_on_with_numbers_that_are_not_finite(tmp_path):
    trainer = trainer_of(tiny.config(), tmp_path)
    save(trainer)
    tensors = checkpoint.read(str(tmp_path))
    for step, (of, value) in enumerate([("", np.nan), ("/adam_m", -np.inf), ("/adam_v", np.nan)]):
        name = f"bert/pooler/dense/kernel{of}"
        damaged = {key: np.array(tensor) for key, tensor in tensors.items()}
        damaged[name][1, 2] = value
        checkpoint.save(str(tmp_path), step + 1, damaged, keep_max=1)
        with pytest.raises(ValueError, match=f"ckpt-{step + 1} has NaN or inf.* in {name}: "):
            trainer.initialise()


def test_a_digest_tells_weights_and_steps_apart(tmp_path):
    """It reveals workers that use files or directories of their own."""
    trainers = [trainer_of(tiny.config(), tmp_path, seed) for seed in (3, 3, 4)]
    first, same, other = (trainer.digest() for trainer in trainers)
    assert first == same != other
    trainers[0].optimizer.iterations.assign(1)
    assert trainers[0].digest() != first


def test_evaluation_is_a_plain_mean_over_the_set(tmp_path):
    """29 examples in batches of 12: the last one is filled up with 7 rows that don't count."""
    rows = runs.examples(29)
    path = str(runs.write_records(tmp_path / "a.tfrecord", rows))
    trainer = trainer_of(tiny.config(), tmp_path / "out")
    spec = pretraining_spec(runs.LENGTH, runs.PREDICTIONS)

    def input_fn(context):
        return input_pipeline.evaluation_dataset([path], [29], spec, 12, 100, context)

    results = trainer.evaluate(input_fn)

    features = {name: np.stack([row[name] for row in rows]).astype("int32") for name in rows[0]}
    outputs = trainer.model(features, training=False)
    weight = np.stack([row["masked_lm_weights"] for row in rows]).astype("float64")
    assert len(set(weight.sum(axis=1))) > 2
    pieces = scores(outputs["masked_lm_logits"], features["masked_lm_ids"])
    orders = scores(outputs["sentence_order_logits"], features["sentence_order_labels"])
    expected = {}
    for i, end in enumerate(("loss", "accuracy")):
        expected[f"masked_lm_{end}"] = np.sum(pieces[i] * weight) / np.sum(weight)
        expected[f"sentence_order_{end}"] = np.mean(orders[i])
    expected["loss"] = expected["masked_lm_loss"] + expected["sentence_order_loss"]
    assert results == pytest.approx(expected, abs=tolerances.LOSS)


def scores(logits, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits = np.asarray(logits, "float64")
    largest = logits.max(axis=-1, keepdims=True)
    log_z = largest[..., 0] + np.log(np.exp(logits - largest).sum(axis=-1))
    of_labels = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return log_z - of_labels, logits.argmax(axis=-1) == labels
