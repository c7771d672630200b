"""albert-inspect sizes: what it prints."""

import pathlib

from albert_tf.cli import inspect as commands
from tests.tiny import parse


def printed(capsys, **given) -> list[str]:
    commands.sizes(parse(commands.SizesSettings, **given))
    return capsys.readouterr().out.splitlines()


def test_a_run_of_albert_base(capsys):
    run = {"train_batch_size": 100, "max_seq_length": 360, "num_train_steps": 1000}
    lines = printed(capsys, albert_config_file="albert_base_v2", **run)
    found = {line[:24].strip(): line[24:].strip().replace(",", "") for line in lines}
    assert int(found["total without heads"]) == 11_683_584
    assert int(found["parameters"]) == 11_683_584 + 128_688 + 1_538
    assert int(found["optimizer's moments"]) == 2 * int(found["weights"])
    assert int(found["tokens"]) == 36_000_000


def test_the_table_of_parameters(capsys):
    lines = printed(capsys, markdown=True)
    assert "| ALBERT xxlarge | 12 | 4096 | 128 | 235M | 222.6M |" in lines
    assert "| BERT base | 12 | 768 | 768 | 108M | 109.1M |" in lines
    assert len(lines) == 8
    assert "\n".join(lines) in (pathlib.Path(__file__).parents[2] / "README.md").read_text()
