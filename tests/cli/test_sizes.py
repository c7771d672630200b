"""python -m albert_tf.sizes: what it prints."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from albert_tf import costs
from albert_tf.cli import sizes, sizes_flags
from albert_tf.config import AlbertConfig
from albert_tf.costs import Shape
from albert_tf.tasks import step_time
from tests import tiny
from tests.tiny import parse


def printed(capsys, **given) -> str:
    sizes.main(parse(sizes_flags.define_flags, **given))
    return capsys.readouterr().out


def value(text: str, name: str) -> float:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name} "))
    return float(line.split()[-1].replace(",", ""))


def test_a_run_of_albert_base(capsys):
    text = printed(
        capsys,
        albert_config_file="albert_base_v2",
        train_batch_size=100,
        max_seq_length=360,
        num_train_steps=1000,
        tokens_per_second=5000,
        watts=250,
    )
    assert value(text, "total without heads") == 11_683_584
    assert value(text, "parameters") == 11_683_584 + 128_688 + 1_538
    assert value(text, "optimizer's moments") == 2 * value(text, "weights")
    assert value(text, "tokens") == 36_000_000
    assert value(text, "hours") == 2
    assert value(text, "kWh") == 0.5


def test_the_table_of_parameters(capsys):
    lines = printed(capsys, markdown=True).splitlines()
    assert "| ALBERT xxlarge | 12 | 4096 | 128 | 235M | 222.6M |" in lines
    assert "| BERT base | 12 | 768 | 768 | 108M | 109.1M |" in lines
    assert len(lines) == 8
    assert "\n".join(lines) in (pathlib.Path(__file__).parents[2] / "README.md").read_text()


def test_speed_is_predicted_from_small_models(capsys, monkeypatch):
    """On a machine of known rates, which takes 10 % longer for the model itself."""
    machine = costs.Machine(3e11, 2e9)

    def measure(sizes):
        times = [machine.step_seconds(*size) for size in sizes]
        return [*times[:-1], 1.1 * times[-1]]

    monkeypatch.setattr(step_time, "measure", measure)
    text = printed(
        capsys,
        albert_config_file="bert_base",
        train_batch_size=8,
        max_seq_length=128,
        calibrate=True,
        measure=True,
    )
    config = AlbertConfig.from_json_file("bert_base")
    speed = 8 * 128 / machine.step_seconds(config, Shape(8, 128))
    assert f"at {speed:,.0f} tokens/s, predicted:" in text
    assert f"at {speed / 1.1:,.0f} tokens/s, measured:" in text
    assert re.search(r"predicted / measured +1\.10\n", text)


def test_rows_may_be_longer_than_those_of_the_small_models(capsys, monkeypatch, tmp_path):
    """Which are given as many positions."""

    def measure(sizes):
        assert all(shape.seq <= config.max_position_embeddings for config, shape in sizes)
        return [costs.Machine(3e11, 2e9).step_seconds(*size) for size in sizes]

    monkeypatch.setattr(step_time, "measure", measure)
    path = tmp_path / "long.json"
    base = AlbertConfig.from_json_file("albert_base_v2")
    path.write_text(dataclasses.replace(base, max_position_embeddings=1024).to_json())
    text = printed(capsys, albert_config_file=str(path), max_seq_length=1024, calibrate=True)
    assert "tokens/s, predicted:" in text


def test_steps_are_measured():
    config = tiny.config(num_hidden_layers=1)
    seconds = step_time.measure([(config, Shape(2, 23, 5)), (config, Shape(3, 11, 5))], turns=1)
    assert len(seconds) == 2 and all(0 < each < 10 for each in seconds)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no model given: set --albert_config_file, or --markdown"),
        ({"albert_config_file": "none"}, "ALBERT config none does not exist, nor is it the name"),
        (
            {"max_seq_length": 1000},
            "--max_seq_length 1000 exceeds the config's max_position_embeddings",
        ),
        ({"max_seq_length": 19}, "--max_predictions_per_seq 20 is more than --max_seq_length 19"),
        ({"measure": True}, "--train_batch_size 4096 needs some 2,503.6 GB and this machine has"),
        ({"watts": 7}, "--watts 7 needs a speed to compute kWh: set --tokens_per_second"),
        ({"watts": "nan"}, r"--watts=nan: nan is not a number in \(0, inf\)"),
        ({"tokens_per_second": 0}, r"0.0 is not a number in \(0, inf\)"),
    ],
)
def test_bad_flags(capsys, given, message):
    if given and "albert_config_file" not in given:
        given = {"albert_config_file": "albert_base_v2", **given}
    with pytest.raises(SystemExit, match=message) as caught:
        printed(capsys, **given)
    assert "\n" not in caught.value.code
