"""Wrong settings of a study end it with one line, before anything runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from albert_tf.cli.finetune_settings import FinetuningSettings
from experiments import check_flags, study
from experiments.plan import Plan
from tests.experiments.test_study import STUDY, cells, read


@pytest.mark.parametrize("name", study.names("studies"))
def test_the_studies_here_are_right(name):
    for scale in map(study.read_scale, study.names("scales")):
        rows = check_flags.list_settings(study.read_study(name), scale)
        assert check_flags.find_wrong(rows) is None, scale.name


@pytest.mark.parametrize("name", study.names("studies"))
def test_the_steps_that_a_plan_makes_of_them_are_right(name):
    steps = Plan(study.read_study(name), study.read_scale("cpu")).steps.values()
    assert check_flags.find_wrong([(step.kind, step.kind, step.flags) for step in steps]) is None


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("config = { hidden_dropout_prob", "pretrain = { lerning_rate",
         "with.pretrain.lerning_rate: run_pretraining.py has no such flag; did you mean "
         "learning_rate?"),
        ("config = { hidden_dropout_prob = 0.1", "pretrain = { sentence_order_weight = -1",
         "with.pretrain.sentence_order_weight: run_pretraining.py does not take -1"),
        ("config = { hidden_dropout_prob = 0.1", "pretrain = { num_train_steps = 1.5",
         "with.pretrain.num_train_steps: run_pretraining.py does not take 1.5"),
        ("hidden_dropout_prob = 0.1", "hidden_dropout = 0.1",
         "with.config: unknown ALBERT config keys ['hidden_dropout']"),
        ("hidden_dropout_prob = 0.1", "hidden_dropout_prob = 1.5",
         "with.config: ALBERT config key hidden_dropout_prob must be a probability"),
        ("config = { hidden_dropout_prob = 0.1", 'train_records = { single_segment = "cut"',
         "with.train_records.single_segment: data/create_pretraining_data.py does not take 'cut'"),
        ('[[claims]]\ntext = "Removing it helps"\nmetric = "',
         '[tests]\nnsp = { random_next = true }\n[[claims]]\ntext = ""\nmetric = "nsp.',
         "tests.nsp.random_next: data/create_pretraining_data.py has no such flag"),
    ],
)  # fmt: skip
def test_a_setting_that_no_script_takes(tmp_path, old, new, message):
    assert old in STUDY
    asked = read(tmp_path, STUDY.replace(old, new))
    found = check_flags.find_wrong(check_flags.list_settings(asked, study.read_scale("smoke")))
    assert found.startswith(f"{tmp_path}/own.toml: {message}") and "\n" not in found


@pytest.mark.parametrize("flag, other", FinetuningSettings.same.items())
def test_a_study_says_in_another_unit_how_long_it_tunes(tmp_path, flag, other):
    """The script takes one of the two, and every scale sets one."""
    base = f"[base.finetune]\nfrom_scratch = true\n{flag} = 0.5\n[arms]"
    text = STUDY.replace("config = {", f"finetune = {{ {other} = 7 }}, config = {{")
    found, plan = cells(tmp_path, text.replace("[arms]", base))
    for arm, expected in (("without", {flag: 0.5}), ("with", {other: 7})):
        flags = plan.steps[found[arm, 1].finetune].flags
        assert {name: flags[name] for name in (flag, other) if name in flags} == expected


def test_a_scales_own_settings_are_checked(tmp_path):
    path = tmp_path / "own.toml"
    text = (study.HERE / "scales/smoke.toml").read_text()
    path.write_text(text.replace('optimizer = "adamw"', 'optimizer = "adm"'))
    command = [sys.executable, "-m", "experiments", "dropout", "--scale", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1 and process.stderr.count("\n") == 1
    assert "own.toml: pretrain.optimizer: run_pretraining.py does not take 'adm'" in process.stderr
