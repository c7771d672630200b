"""`albert-inspect plan`: numbers by hand, what was measured, its commands, the pages' tables.

Not tested here: whether the rules are good ones; several devices.
"""

import pathlib
import re
import shlex

import pytest

from albert_tf.cli import inspect as commands
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.config import AlbertConfig
from albert_tf.console import settings
from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings
from albert_tf.inspection.plan import DEVICES, make
from tests.kit import tiny

ROOT = pathlib.Path(__file__).parents[2]
BASE = AlbertConfig.from_json_file("albert_base_v2")
# FLOPs of a training step of ALBERT-base for one sequence, with 77 of its 512 pieces masked.
BLOCK = 512 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 512 * 768)
HEADS = 77 * (768 * 128 + 128 * 30_000) + 768**2 + 2 * 768
SEQUENCE = 6 * (12 * BLOCK + 512 * 128 * 768 + HEADS)
# The number of records from a gigabyte of text, in rows of 512 tokens.
RECORDS = 1e9 / 4.6 / 400.5


def printed(capsys, **given) -> tuple[dict[str, str], list[list[str]]]:
    """Returns the values by name, and the commands' words."""
    commands.plan(tiny.parse(commands.PlanSettings, **given))
    lines = capsys.readouterr().out.splitlines()
    values = {line[:18].strip(): line[18:36].strip() for line in lines[:-3]}
    return values, [shlex.split(line) for line in lines[-3:]]


def test_a_plan_is_what_a_hand_computes(capsys):
    """For 100 GB of text, which these hours suffice to read twenty times."""
    assert SEQUENCE == 292_035_326_976  # 570 million a token.
    given = {"text_bytes": 100e9, "device": "h100", "devices": 8, "hours": 24, "mfu": 0.5}
    values, _ = printed(capsys, **given)
    sequences = 24 * 3600 * 8 * 989.4e12 * 0.5 / SEQUENCE
    assert values == {
        "words": "15,974,440,895",
        "tokens": "21,739,130,435",
        "vocabulary": "30,000",
        "records": f"{100 * RECORDS:,.0f}",
        "disk for records": "41.8 GB",  # 54 million of 770 bytes.
        "writing them": "6.17 hours",  # 4.5 MB/s.
        "MFU": "50%",
        "tokens/s": f"{sequences * 512 / 24 / 3600:,.0f}",
        "tokens that fit": f"{sequences * 512:,.0f}",
        "passes": "20.0",
        "batch": "4,096",
        "learning rate": "0.00176",
        "steps": f"{int(20 * 100 * RECORDS / 4096):,}",
        "warm-up": "3,125",
        "a checkpoint": "142 MB",
        "saved each": "5,000 steps",
        "training": f"{20 * 100 * RECORDS / sequences * 24:.3g} hours",
    }


@pytest.mark.parametrize(("device", "devices", "measured"), [("h100", 1, 697_603), ("cpu", 2, 421)])
def test_tokens_per_second_are_about_those_measured(device, devices, measured):
    """Rows of 512 with ALBERT-base: docs/performance.md."""
    found = make(BASE, 1e9, DEVICES[device], devices, 24).tokens_per_second
    assert found == pytest.approx(measured, rel=0.02)
    figures = (ROOT / "docs" / "performance.md").read_text()
    assert f"{measured:,}" in figures


def test_hours_that_are_too_few_for_twenty_passes():
    plan = make(BASE, 100e9, DEVICES["h100"], 8, 6)
    sequences = 6 * 3600 * 8 * 989.4e12 * 0.4 / SEQUENCE
    assert plan.steps == int(sequences / 4096) == 57_171
    assert plan.passes == pytest.approx(sequences / (100 * RECORDS), rel=1e-4)
    assert plan.hours == pytest.approx(6, rel=1e-4)
    half = make(BASE, 100e9, DEVICES["h100"]._replace(mfu=0.2), 8, 6)
    assert half.steps == int(sequences / 2 / 4096)


@pytest.mark.parametrize(
    ("gigabytes", "devices", "batch", "rate"),
    [
        # 20 passes are 10.856 million sequences a GB; with at least 8,599 steps, a batch has 1,262.
        (1, 8, 1024, 0.00088),
        (1, 3, 768, 0.000762),
        (0.1, 8, 64, 0.00022),
        # A text of a million bytes has too few: one sequence per device.
        (0.001, 8, 8, 7.78e-05),
        (10, 1, 4096, 0.00176),
        (10, 6, 3072, 0.001524),
    ],
)
def test_the_largest_batch_that_leaves_enough_steps(gigabytes, devices, batch, rate):
    plan = make(BASE, gigabytes * 1e9, DEVICES["h100"], devices, 999)
    assert (plan.batch, plan.steps) == (batch, int(20 * gigabytes * RECORDS / batch))
    assert plan.learning_rate == pytest.approx(rate, rel=2e-3)
    assert plan.warmup == min(3125, plan.steps // 10)
    assert plan.save_steps == min(5000, plan.steps // 10)


@pytest.mark.parametrize(("device", "parts"), [("h100", 4), ("a100", 8), ("v5e", 32)])
def test_a_part_of_a_batch_fits_into_memory(device, parts):
    """512 sequences per device, each with 312 MB of activations in bfloat16."""
    plan = make(BASE, 50e9, DEVICES[device], 8, 999)
    assert (plan.batch, plan.parts) == (4096, parts)
    fits = 512 / parts * 0.312e9
    assert fits < DEVICES[device].memory / 2 < 2 * fits
    # No sequence can be split.
    assert make(BASE, 50e9, DEVICES[device]._replace(memory=1), 8, 999).parts == 512


@pytest.mark.parametrize(
    ("text_bytes", "pieces"), [(1e6, 4_000), (6.5e6, 8_000), (11e6, 8_000), (44e6, 30_000)]
)
def test_pieces_are_those_of_the_page(text_bytes, pieces):
    """docs/own_language.md: its table, by the size of the text."""
    plan = make(BASE, text_bytes, DEVICES["h100"], 1, 1)
    assert plan.config.vocab_size == pieces
    row = rf"\| {text_bytes / 1e6:g} MB \| {pieces:,}"
    assert re.search(row, (ROOT / "docs" / "own_language.md").read_text())
    # Weights and two moments in float32: E is 128, and each piece has an output bias.
    fewer = 30_000 - pieces
    assert plan.checkpoint_bytes == 141_765_720 - 3 * 4 * fewer * (128 + 1)


PARSED = (SentencePieceSettings, GeneratorSettings, PretrainingSettings)


@pytest.mark.parametrize("device", DEVICES)
def test_the_commands_have_the_plans_numbers(device, capsys):
    given = {"text_bytes": 2.5e9, "device": device, "devices": 4, "hours": 24}
    values, lines = printed(capsys, **given, albert_config_file="albert_tiny")
    pieces, generator, run = (settings.parse(*pair) for pair in zip(PARSED, lines, strict=True))
    names = ["albert-train-sentencepiece", "albert-create-pretraining-data", "albert-pretrain"]
    assert [pathlib.Path(line[0]).name for line in lines] == names
    assert pieces.vocab_size == run.vocab_size == int(values["vocabulary"].replace(",", ""))
    assert (generator.dupe_factor, generator.num_output_shards) == (1, 3)
    assert generator.masking == run.masking == "dynamic"
    assert generator.max_predictions_per_seq == run.max_predictions_per_seq == 0
    assert f"{pieces.model_prefix}.model" == generator.spm_model_file
    assert (run.optimizer, run.albert_config_file) == ("lamb", "albert_tiny")
    for name, number in (
        ("batch", run.train_batch_size),
        ("steps", run.num_train_steps),
        ("warm-up", run.num_warmup_steps),
    ):
        assert values[name] == f"{number:,}"
    assert values["learning rate"] == f"{run.learning_rate:g}"
    assert run.train_batch_size % (4 * run.gradient_accumulation_steps) == 0
    is_tpu, is_cpu = device.startswith("v"), device == "cpu"
    assert (run.use_tpu, run.num_tpu_cores) == (is_tpu, 4 if is_tpu else 8)
    assert run.backend == (None if is_cpu else "jax")
    assert run.precision == ("float32" if is_cpu else "bfloat16")


COLUMNS = ("records", "disk for records", "writing them", "batch", "learning rate", "steps")
COLUMNS += ("warm-up", "passes", "training")


@pytest.mark.parametrize(("page", "devices"), [("pretraining", 8), ("own_language", 1)])
def test_the_tables_of_the_pages_are_what_it_prints(page, devices, capsys):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert f"| text | {' | '.join(COLUMNS)} |" in text
    for gigabytes in (1, 10, 100):
        given = {"text_bytes": gigabytes * 1e9, "device": "h100", "devices": devices, "hours": 24}
        values, _ = printed(capsys, **given)
        row = f"| {gigabytes} GB | {' | '.join(values[name] for name in COLUMNS)} |"
        assert row in text, row
