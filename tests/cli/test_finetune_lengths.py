"""Which lengths run_finetune.py pads to: they depend on the cost of compiling, and are shared."""

from types import SimpleNamespace

import numpy as np
import pytest

from albert_tf.cli import finetune
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.training import length_buckets

CPU = SimpleNamespace(static_shapes=False, on_cpu=True)
GPU = SimpleNamespace(static_shapes=True, on_cpu=False)
JAX_ON_CPU = SimpleNamespace(static_shapes=True, on_cpu=True)
ROWS = {
    "train": np.repeat([8, 16, 24, 31, 47, 60, 90], [900, 500, 300, 200, 100, 50, 10]),
    "dev": np.repeat([7, 20, 61], [30, 20, 2]),
    "test": np.repeat([9, 33, 93], [30, 20, 2]),
}


@pytest.fixture
def lengths(monkeypatch, tmp_path):
    """Returns a function: the price of a length, and settings -> the lengths of each split."""

    def rows(examples, *_):
        return SimpleNamespace(lengths=ROWS[examples])

    monkeypatch.setattr(finetune.feature_table, "load_or_make_features", rows)

    def choose(devices, price, names=tuple(ROWS), **changes):
        monkeypatch.setattr(length_buckets, "compile_price", lambda config, on_cpu: price)
        given = {"task_name": "mrpc", "do_train": "train" in names, "do_eval": True}
        given |= {"max_seq_length": 128, "output_dir": str(tmp_path), "train_step": 206}
        settings = FinetuningSettings.of(**given, **changes)  # 3.2 epochs.
        model = {"kind": SimpleNamespace(least_length=0), "options": SimpleNamespace(config=None)}
        task = SimpleNamespace(rows=list, settings={}, **model)
        splits = {}
        for name in names:
            splits[name] = finetune.make_split(settings, task, devices, name, name, splits)
        return {name: split.static_lengths for name, split in splits.items()}

    return choose


def test_without_xla_each_split_has_its_own(lengths):
    expected = {"train": (8, 16, 24, 31, 60, 90), "dev": (7, 20, 61), "test": (9, 33, 93)}
    assert lengths(CPU, 1e9) == expected
    assert lengths(CPU, 1e9, static_lengths=6) == expected


@pytest.mark.parametrize("devices", [GPU, JAX_ON_CPU])
@pytest.mark.parametrize("price, count", [(4e5, 1), (3e5, 2), (60_000, 3), (20_000, 4), (1.0, 6)])
def test_the_dearer_a_length_the_fewer(lengths, devices, price, count):
    """Padded to 1 length, training has 593,000 positions; to 2, 235,000; 3, 167,000; 4, 144,000.

    Training is 3.2 epochs. Padded to 1, 2 and 3 lengths, "dev" has 3,172, 1,122 and 732 positions.
    """
    assert len(lengths(devices, price, ["train"])["train"]) == count
    for price_of_dev, count_of_dev in ((2100, 1), (2000, 2), (380, 3)):
        assert len(lengths(devices, price_of_dev, ["dev"])["dev"]) == count_of_dev


def test_compiled_evaluations_share_their_programs(lengths):
    """They use the training's lengths where these add little padding."""
    found = lengths(JAX_ON_CPU, 4000)
    assert found["dev"] == found["test"] == (*found["train"], 128)
    assert found == lengths(CPU, 4000, jit_compile=True)
    # On a GPU, lengths are multiples of 8.
    on_gpu = lengths(GPU, 4000)
    assert on_gpu["train"] == (8, 16, 24, 32, 48, 96)
    assert on_gpu["dev"] == on_gpu["test"] == (*on_gpu["train"], 128)
    # Padding costs more than compiling: "test" pads to the lengths of "dev", or to its own.
    found = lengths(JAX_ON_CPU, 250)
    assert found["dev"] != found["train"]
    assert lengths(JAX_ON_CPU, 1.0) == lengths(CPU, 1.0)


def test_as_many_lengths_as_are_asked_for(lengths, monkeypatch):
    found = lengths(GPU, 1e9, static_lengths=3)
    assert len(found["train"]) == 3 and found["dev"] == (*found["train"], 128)
    assert set(lengths(GPU, 1e9, static_lengths=1).values()) == {(128,)}
    # An evaluation never has more lengths than the usual number.
    monkeypatch.setattr(length_buckets, "USUAL_COUNT", 2)
    assert len(lengths(CPU, 0.0, ["dev"], static_lengths=3)["dev"]) == 2
