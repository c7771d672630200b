"""albert-inspect sizes: what it prints."""

import pathlib

import pytest

from albert_tf.cli import inspect as commands
from tests.tiny import parse


def printed(capsys, **given) -> str:
    commands.sizes(parse(commands.SizesSettings, **given))
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
    )
    assert value(text, "total without heads") == 11_683_584
    assert value(text, "parameters") == 11_683_584 + 128_688 + 1_538
    assert value(text, "optimizer's moments") == 2 * value(text, "weights")
    assert value(text, "tokens") == 36_000_000


def test_the_table_of_parameters(capsys):
    lines = printed(capsys, markdown=True).splitlines()
    assert "| ALBERT xxlarge | 12 | 4096 | 128 | 235M | 222.6M |" in lines
    assert "| BERT base | 12 | 768 | 768 | 108M | 109.1M |" in lines
    assert len(lines) == 8
    assert "\n".join(lines) in (pathlib.Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no model given: set --albert_config_file, or --markdown"),
        ({"albert_config_file": "none"}, "ALBERT config none does not exist, nor is it the name"),
    ],
)
def test_bad_flags(capsys, given, message):
    with pytest.raises(SystemExit, match=message):
        printed(capsys, **given)
