"""Learning rates are chosen by arm, on a separate seed; cells at the scale's rate stay."""

import pytest

from research.experiments import study, tuning
from research.experiments.plan import TRIAL_SEED, Plan
from research.tests.study_runs import kept_in, read, report_of, run_all
from research.tests.test_study import STUDY

TUNED = STUDY.replace("[arms]", "tune = true\n[arms]").replace("= 0.1 }", "= 0.2 }")
RATES = "[tuning]\nlearning_rate = [5e-4, 1e-3, 2e-3]\nshare_of_steps = 0.5\n[evaluate]"
SCALE = (study.HERE / "scales/smoke.toml").read_text().replace("[evaluate]", RATES)


def read_scale(tmp_path, text=SCALE):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return study.read_scale(str(path))


@pytest.fixture
def scale(tmp_path):
    return read_scale(tmp_path)


def test_each_arm_has_its_best_rate(tmp_path, scale):
    """In the fake script 1e-3, the scale's own, is the best without dropout, and 2e-3 with 0.2."""
    asked, kept = read(tmp_path, TUNED), kept_in(tmp_path)
    before = Plan(asked, scale)
    trials = tuning.untried(asked, scale, kept)
    assert len(trials) == 3
    for plan in trials:
        run_all(plan, tmp_path / "work", kept)
    assert tuning.untried(asked, scale, kept) == []
    settled = tuning.settle(asked, scale, kept)
    found = {arm: level["pretrain"]["learning_rate"] for arm, level in settled.arms.items()}
    assert found == {"without": 1e-3, "with": 2e-3}
    plan = Plan(settled, scale)
    for cell, old in zip(plan.cells, before.cells, strict=True):
        assert (cell.pretrain == old.pretrain) == (cell.arm == "without")
    lines = report_of(settled, scale, kept, tmp_path).splitlines()
    chosen = {line.split(" | ")[0][2:]: line for line in lines if "**5." in line}
    assert chosen["without"].split(" | ")[2].startswith("**")
    assert chosen["with"].split(" | ")[3].startswith("**")


def test_trials_differ_in_seed_rate_and_steps_only(tmp_path, scale):
    asked = read(tmp_path, TUNED)
    cell, plan = Plan(asked, scale).cells[0], Plan(asked, scale)
    flags = plan.steps[cell.pretrain].flags
    for rate, trial in tuning.trials(asked, scale).items():
        assert [one.seed for one in trial.cells] == [TRIAL_SEED] * 2
        tried = trial.steps[trial.cells[0].pretrain]
        changed = {"random_seed": TRIAL_SEED, "learning_rate": rate, "num_train_steps": 20}
        assert tried.flags == {**flags, **changed}
        assert not trial.cells[0].measures
    assert TRIAL_SEED not in {one.seed for one in plan.cells}


def test_a_study_of_fine_tuning_tunes_the_pre_training(tmp_path, scale):
    asked = study.read_study("domain_task")
    trials = tuning.trials(asked, scale)
    for rate, plan in tuning.trials(study.read_study("domain"), scale).items():
        found = {(cell.arm, cell.pretrain, *cell.results.values()) for cell in plan.cells}
        own = {(cell.arm, cell.pretrain, *cell.results.values()) for cell in trials[rate].cells}
        assert own == found and len(own) == 4


def test_until_all_trials_have_run_the_rate_is_the_scales(tmp_path, scale):
    asked, kept = read(tmp_path, TUNED), kept_in(tmp_path)
    some = tuning.trials(asked, scale)[1e-3]
    run_all(some, tmp_path / "work", kept)
    assert tuning.settle(asked, scale, kept) == asked
    text = report_of(asked, scale, kept, tmp_path)
    assert "0 of 4 cells have run" in text and "fewer than two pairs" in text
    assert "**cannot tell**" in text
    assert (
        "**Learning rates are not tuned: not all trials have run, and every arm has 0.001" in text
    )
    assert text.index("**Learning rates are not") < text.index("## Claims")
    assert text.count("| not run | **5.9") == 2


def test_until_as_many_cells_have_run_at_the_best_rates_the_report_has_the_scales(tmp_path, scale):
    asked, kept = read(tmp_path, TUNED), kept_in(tmp_path)
    run_all(Plan(asked, scale), tmp_path / "work", kept)
    assert tuning.reported(asked, scale, kept) == asked
    for plan in tuning.untried(asked, scale, kept):
        run_all(plan, tmp_path / "work", kept)
    settled = tuning.settle(asked, scale, kept)
    assert tuning.reported(asked, scale, kept) == asked != settled
    text = report_of(asked, scale, kept, tmp_path)
    assert "every arm has 0.001, and at the best rates 2 cells have run so far" in text
    run_all(Plan(settled, scale), tmp_path / "work", kept)
    assert tuning.reported(asked, scale, kept) == settled


def test_an_arm_that_diverges_at_every_rate(tmp_path):
    scale = read_scale(tmp_path, SCALE.replace("[5e-4, 1e-3, 2e-3]", "[2, 3]"))
    asked, kept = read(tmp_path, TUNED), kept_in(tmp_path)
    for plan in tuning.untried(asked, scale, kept):
        run_all(plan, tmp_path / "work", kept)
    with pytest.raises(ValueError, match="'without' diverged at every rate: .*small.toml"):
        tuning.settle(asked, scale, kept)


def test_a_study_that_tunes_nothing_or_a_scale_without_rates_keeps_its_own(tmp_path, scale):
    for text, size in ((STUDY, scale), (TUNED, study.read_scale("smoke"))):
        asked = read(tmp_path, text)
        assert tuning.settle(asked, size, kept_in(tmp_path)) == asked
        assert not tuning.untried(asked, size, kept_in(tmp_path))


def test_a_key_of_tuning_that_is_misspelt(tmp_path):
    assert "share_of_steps" in SCALE
    with pytest.raises(ValueError, match="small.toml: tuning: expected only"):
        read_scale(tmp_path, SCALE.replace("share_of_steps", "steps"))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("tune = true", "tune = 1", "tune: expected true or false, not 1"),
        ("config = {", "pretrain = { learning_rate = 1e-3 }, config = {",
         "with.pretrain.learning_rate: expected none beside"),
    ],
)  # fmt: skip
def test_a_study_that_can_not_be_tuned(tmp_path, old, new, message):
    assert old in TUNED
    with pytest.raises(ValueError, match=f"own.toml: {message}"):
        read(tmp_path, TUNED.replace(old, new))
