"""Studies are checked before anything runs; keys of cells follow what shapes them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from albert_tf.cli.extend_vocabulary import ExtensionSettings
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.config import AlbertConfig
from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings
from research.experiments import corpus, hits, measure, part, report, run, steps, study, tuning
from research.experiments.plan import Plan
from research.tests.study_runs import kept_in, plan_of, read, report_of
from tests.kit.tiny import parse

RESULTS = pathlib.Path(report.__file__).parent / "results" / "cpu"
SETTINGS = {
    "part": part.PartSettings,
    "vocabulary": SentencePieceSettings,
    "extend": ExtensionSettings,
    "records": GeneratorSettings,
    "documents": corpus.CorpusSettings,
    "words": corpus.CorpusSettings,
    "pretrain": PretrainingSettings,
    "evaluate": PretrainingSettings,
    "measure": measure.MeasurementSettings,
    "finetune": FinetuningSettings,
    "hits": hits.HitsSettings,
}

STUDY = """
question = "?"
paper = "table 8"
seeds = 2
[arms]
"without" = {}
"with" = { config = { hidden_dropout_prob = 0.1 } }
[[claims]]
text = "Removing it helps"
metric = "masked_lm_loss"
better = "without"
worse = "with"
effect = 0.05
paper = { table = 8, column = "avg", better = "without dropout", worse = "with dropout" }
"""


def cells(tmp_path, text=STUDY):
    plan = Plan(read(tmp_path, text), study.read_scale("smoke"))
    return {(cell.arm, cell.seed): cell for cell in plan.cells}, plan


@pytest.mark.parametrize("scale", study.names("scales"))
@pytest.mark.parametrize("name", study.names("studies"))
def test_every_study_has_a_plan_at_every_scale(name, scale):
    asked, size = study.read_study(name), study.read_scale(scale)
    plan = Plan(asked, size)
    arms, seeds = len(asked.arms), asked.seeds
    if scale == "smoke":
        arms, seeds = min(arms, 4), min(seeds, 2)
    assert len(plan.cells) == arms * seeds
    for step in plan.steps.values():
        assert set(step.needs.values()) <= set(plan.steps)
    assert all(step.key == key for key, step in plan.steps.items())


@pytest.mark.parametrize(
    "name, scale",
    [*((name, "cpu") for name in study.names("studies")), ("dropout", "smoke"), ("dropout", "gpu")],
)
def test_the_scripts_take_what_studies_and_scales_set(name, scale):
    for step in plan_of(name, scale).steps.values():
        if step.kind in SETTINGS and step.flags.get("random_seed", 1) == 1:
            assert parse(SETTINGS[step.kind], *run._command(step, {})[1:])
        if step.config:
            AlbertConfig.from_dict(step.config)


@pytest.mark.parametrize("flag, other", FinetuningSettings.same.items())
def test_a_study_says_in_another_unit_how_long_it_tunes(tmp_path, flag, other):
    """The script takes one of the two, and every scale sets one."""
    base = f"[base.finetune]\nfrom_scratch = true\n{flag} = 0.5\n[arms]"
    text = STUDY.replace("config = {", f"finetune = {{ {other} = 7 }}, config = {{")
    found, plan = cells(tmp_path, text.replace("[arms]", base))
    for arm, expected in (("without", {flag: 0.5}), ("with", {other: 7})):
        flags = plan.steps[found[arm, 1].finetune].flags
        assert {name: flags[name] for name in (flag, other) if name in flags} == expected


def test_a_large_study_of_ones_own_is_run_whole(tmp_path):
    """Only `smoke` leaves arms and seeds out, and says so."""
    level = "'{0}' = {{ config = {{ hidden_dropout_prob = {0} }} }}\n"
    dropouts = "".join(map(level.format, (0, 0.1, 0.2)))
    level = "r{0} = {{ finetune = {{ learning_rate = {0}e-5 }} }}\n"
    rates = "".join(map(level.format, range(1, 6)))
    text = f"""question = "?"\npaper = "-"\nseeds = 10
[base.finetune]\ntask_name = "rte"\ndata_dir = "glue/"\nfrom_scratch = true
[factors.dropout]\n{dropouts}[factors.rate]\n{rates}"""
    asked = read(tmp_path, text)
    for name, cells, said in (("cpu", 150, False), ("smoke", 8, True)):
        scale = study.read_scale(name)
        plan = Plan(asked, scale)
        assert len(plan.cells) == cells
        text = report_of(asked, scale, kept_in(tmp_path), tmp_path)
        assert f"0 of {cells} cells have run" in text
        assert ("first 4 of the study's 15 arms, and 2 of its 10 seeds" in text) == said


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("config = {", "pretrain = { random_seed = 1 }, config = {", "with.pretrain.random_seed"),
        ("config = {", "finetune = { from_scratch = true }, config = {",
         "`finetune` in each of them or in none"),
        ('[arms]\n"without" = {}',
         '[tests]\na = {}\n[arms]\n"without" = { records = { spm_model_file = "own.model" } }',
         "without.records.spm_model_file"),
        ("[arms]", '[base.records]\ninput_file = "a.txt"\n[arms]', "base.records.input_file"),
        ("config = {", "dev_records = { max_examples_per_row = 2 }, config = {",
         "with.dev_records.max_examples_per_row"),
        ("config = {", 'dev_records = { masking = "dynamic" }, config = {', "dev_records.masking"),
        ("effect = 0.05", 'effect = 0.05\nequal = "false"', "equal: expected true or false"),
        ("config = {", "evaluate = { max_eval_steps = 9 }, config = {", "judged on the same text"),
        ("seeds = 2", "seeds = 0", "seeds: expected a positive integer, not 0"),
        ("config =", "confg =", "with: expected only part, .* not 'confg'"),
        ('worse = "with"', 'worse = "majority"', "arms among .*, not 'majority'"),
        ("config = {", "vocabulary = { character_coverage = 1 }, config = {", "of one vocabulary"),
        ("config = {", "config = { vocab_size = 2100,", "arms of one vocabulary, or per_word and"),
        ('worse = "with"', 'worse = "witout"', "arms among .*, not 'witout'"),
        ("masked_lm_loss", "probe_accuracy", "metric: expected one of .*, not 'probe_accuracy'"),
        ("[arms]", "[tests]\nsop = {}\n[arms]", "metric: expected one of .*'sop.masked_lm_loss',"),
        ("effect = 0.05", "effect = 0", "effect: expected a number above 0"),
        ('column = "avg", ', "", "paper: expected the keys .*'column'.* not"),
        ('column = "avg"', 'column = "average"', "a column with a number .*'avg'.* not 'average'"),
        ('better = "without dropout"', 'better = "no dropout"', "a row of table 8"),
        ('"without dropout", worse = "with dropout"', '"with dropout", worse = "without dropout"',
         "a direction that agrees with the paper's numbers"),
        ("config = { hidden_dropout_prob", "text = { trian", "with.text: expected only train and"),
        ("seeds = 2", "seeds = 2\nprobe = 1", "probe: expected true or false, not 1"),
        ("[arms]", "[armes]", "at least one arm"),
        ('"with" = {', '"with" = { start = "none",', "with.start: expected one of"),
        ('"without" = {}', '"without" = { start = "without" }', "without.start: expected an arm"),
        ('out" = {}\n"with" = {', 'out" = { start = "with" }\n"with" = { start = "without",',
         "with.start: expected an arm that does not start from this one, not 'without'"),
        ("question", "queston", "question: expected a string"),
        ("effect =", "efect =", "unexpected keyword argument 'efect'"),
        ("[arms]", "[arms", "Expected .]. at the end of a table"),
        ("config = {", 'records = { ngram = 3 }, config = {', "with records of the same flags"),
        ("config = {", "pretrain = { max_seq_length = 32 }, config = {", "records of the same fl"),
        ("config = {", 'text = { dev = "easy.txt" }, config = {', "judged on the same text"),
        ("config = {", "part = { judged_first_year = 1970 }, config = {", "judged on the same te"),
    ],
)  # fmt: skip
def test_a_study_that_is_not_valid(tmp_path, old, new, message):
    assert old in STUDY
    with pytest.raises(ValueError, match=f"own.toml: .*{message}"):
        read(tmp_path, STUDY.replace(old, new))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"save_checkpoints_steps = 20": ""}, r"\[pretrain\]: .*'save_checkpoints_steps'"),
        (
            {
                "[evaluate]": "[tuning]\nlearning_rate = [1e-3, 2e-3]\n[evaluate]",
                "learning_rate = 1e-3\n": "",
            },
            r"\[pretrain\]: expected a learning_rate bes",
        ),
    ],
)
def test_a_scale_that_is_not_valid(tmp_path, changes, message):
    text = (study.HERE / "scales/smoke.toml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"own.toml: {message}"):
        study.read_scale(str(path))


@pytest.mark.parametrize(
    "folder, read_file", [("studies", study.read_study), ("scales", study.read_scale)]
)
def test_a_file_with_a_name_of_ours_is_refused(tmp_path, folder, read_file):
    """Their results would share a directory."""
    name = study.names(folder)[0]
    path = tmp_path / f"{name}.toml"
    path.write_text((study.HERE / folder / f"{name}.toml").read_text())
    with pytest.raises(
        ValueError, match=f"{name} is in research/experiments/{folder}, .*another name"
    ):
        read_file(str(path))
    assert read_file(str(study.HERE / folder / f"{name}.toml"))


def test_a_test_on_a_part_of_the_text_needs_arms_of_one_part(tmp_path):
    tests = '[tests]\ndev = {}\ntrain = { input_file = "{part}/train.txt" }\n[arms]'
    text = STUDY.replace("[arms]", tests).replace(
        "config = {", "part = { share = 0.5 }, config = {"
    )
    read(tmp_path, text.replace("masked_lm_loss", "dev.masked_lm_loss"))
    with pytest.raises(ValueError, match="arms judged on the same text"):
        read(tmp_path, text.replace("masked_lm_loss", "train.masked_lm_loss"))


@pytest.mark.parametrize("flag", ["eval_file", "data_dir", "task_name"])
def test_fine_tunings_are_compared_on_the_same_files(tmp_path, flag):
    text = STUDY.replace(
        "config = { hidden_dropout_prob = 0.1 }", "finetune = { learning_rate = 1e-4 }"
    )
    text = text.replace("[arms]", "[base.finetune]\nfrom_scratch = true\n[arms]")
    read(tmp_path, text)
    with pytest.raises(ValueError, match="arms of one task, judged on the same files"):
        read(tmp_path, text.replace("learning_rate = 1e-4", f'{flag} = "other"'))


def test_tests_have_what_all_arms_have_in_common(tmp_path):
    text = STUDY.replace(
        "[arms]", "[base.records]\nngram = 2\n[tests]\nb = { ngram = 3 }\na = {}\n[arms]"
    )
    text = text.replace('"masked_lm_loss"', '"a.masked_lm_loss"')
    found, plan = cells(tmp_path, text)
    dev = {
        name: plan.steps[plan.steps[key].needs["dev"]].flags["ngram"]
        for name, key in found["with", 1].results.items()
    }
    assert dev == {"b": 3, "a": 2}


def test_a_probe_is_trained_on_the_training_text(tmp_path):
    """So is the probe of a test that has its own file to evaluate on."""
    tests = 'probe = true\n[tests]\ndev = {}\nold = { input_file = "{text}/old.txt" }\n[arms]'
    text = STUDY.replace("[arms]", tests).replace("masked_lm_loss", "dev.masked_lm_loss")
    found, plan = cells(tmp_path, text)
    for test, judged in (("dev", "{text}/dev.txt"), ("old", "{text}/old.txt")):
        needs = plan.steps[found["with", 1].measures[test]].needs
        files = [plan.steps[needs[name]].flags["input_file"] for name in ("dev", "probe")]
        assert files == [judged, "{text}/train.txt"]


def test_an_unknown_study_ends_with_the_known_names():
    command = [sys.executable, "-m", "research.experiments", "sharng"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.startswith("error: 'sharng' is neither in research/experiments/studies")
    assert process.stderr.count("\n") == 1 and "sharing" in process.stderr


def test_an_unknown_directory_in_a_flag(tmp_path):
    text = STUDY.replace("[arms]", '[base.text]\ndev = "{txt}/a"\n[arms]')
    with pytest.raises(ValueError, match="{txt} in a flag of a records step .* {vocabulary}"):
        cells(tmp_path, text)


def test_seeds_of_an_arm_share_records_and_differ_in_seed_only(tmp_path):
    found, plan = cells(tmp_path)
    first, second = (plan.steps[found["with", seed].pretrain] for seed in (1, 2))
    assert first.needs == second.needs
    assert {**first.flags, "random_seed": 2} == second.flags
    assert {step.kind for step in plan.steps.values()} == {
        *("text", "vocabulary", "records", "unigram", "pretrain", "evaluate"),
        *("documents", "measure"),
    }


def test_arms_that_are_the_same_cells_are_refused(tmp_path):
    """A part of the text that no flag reads changes nothing."""
    text = STUDY.replace("config = { hidden_dropout_prob = 0.1 }", "part = { share = 0.25 }")
    with pytest.raises(ValueError, match="own.toml: 'without' and 'with' are the same cells"):
        cells(tmp_path, text)
    read_it = '[base.text]\ntrain = "{part}/train.txt"\n[base.vocabulary]\n'
    cells(tmp_path, text.replace("[arms]", f'{read_it}input_file = "{{text}}/train.txt"\n[arms]'))


def test_studies_share_cells():
    same = {
        "dropout": "without dropout",
        "sharing": "all, E=128",
        "embedding": "all, E=128",
        "objective": "SOP",
    }
    found = set()
    for name, arm in same.items():
        plan = plan_of(name, "cpu")
        found |= {cell.pretrain for cell in plan.cells if (cell.arm, cell.seed) == (arm, 1)}
    assert len(found) == 1


@pytest.mark.parametrize(("scale", "steps"), [("cpu", 4885), ("smoke", 20)])
def test_a_branch_is_as_long_as_its_arm(scale, steps):
    plan = plan_of("schedule", scale)
    found = {(cell.arm, cell.seed): plan.steps[cell.pretrain] for cell in plan.cells}
    branch, start = found["wsd branched at half", 1], found["stable half", 1]
    assert branch.needs["start"] == start.key
    assert (branch.flags["decay_from"], branch.flags["decay_steps"]) == ("{start}/run", steps)
    assert start.flags["num_train_steps"] == steps
    assert plan.tokens("wsd branched at half") == plan.tokens("linear")


def test_a_warm_start_has_its_arms_seed(tmp_path):
    text = STUDY.replace('"with" = {', '"with" = { start = "without",')
    found, plan = cells(tmp_path, text)
    for seed in (1, 2):
        step = plan.steps[found["with", seed].pretrain]
        assert step.needs["start"] == found["without", seed].pretrain
        assert step.flags["init_checkpoint"] == "{start}/run"


def test_a_changed_file_of_the_user_is_another_cell(tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("One.\n")
    settings = f'[base.text]\ntrain = "{text}"\n[arms]'
    first, plan = cells(tmp_path, STUDY.replace("[arms]", settings))
    assert len({step.files["input_file"] for step in plan.steps.values() if step.files}) == 1
    text.write_text("Two.\n")
    second, _ = cells(tmp_path, STUDY.replace("[arms]", settings))
    assert first["with", 1].pretrain != second["with", 1].pretrain


def step_on(value):
    flags = {"input_file": value, "seed": 1}
    return steps.Step("records", flags, {}, files=steps.digests(flags)).key


def test_a_step_is_known_by_its_files_not_by_where_they_lie(tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for name in ("a", "b"):
            (tmp_path / folder / f"{name}.txt").write_text(f"{name}\n")
    here, there = tmp_path / "here", tmp_path / "there"
    assert step_on(f"{here}/a.txt") == step_on(f"{there}/a.txt") != step_on(f"{here}/b.txt")
    assert step_on(f"{here}/*.txt") == step_on(f"{here}/a.txt,{there}/b.txt")
    assert step_on(str(here)) == step_on(str(there))
    before = {value: step_on(value) for value in (f"{here}/*.txt", str(here), f"{here}/a")}
    (here / "a.txt").write_text("other\n")
    os.utime(here / "a.txt", ns=(1, 1))
    assert all(step_on(value) != key for value, key in before.items())
    # Relative paths are relative to the clone, wherever the study is started.
    known = step_on("configs/albert_base_v2.json")
    monkeypatch.chdir(tmp_path)
    assert step_on("configs/albert_base_v2.json") == known
    assert not steps.digests({"optimizer": "adamw", "input_file": "{text}/a.txt", "steps": 3})


def test_committed_verdicts_are_those_of_the_committed_cells(tmp_path, monkeypatch):
    """To nine digits: SciPy's versions differ in the last ones. Tables and reports match, too."""

    def numbers(text):
        return re.sub(r"\d+\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.9g}", text)

    monkeypatch.setattr(report.figures, "draw", lambda *_: b"")  # It takes seconds.
    scale, kept = study.read_scale("cpu"), kept_in(RESULTS)
    for name in ("depth", "dropout", "objective", "schedule", "sharing", "tokens"):
        asked = tuning.reported(study.read_study(name), scale, kept)
        report.write(asked, scale, Plan(asked, scale), kept, tmp_path / name)
        for file in ("claims.json", "cells.csv", "report.md"):
            found, expected = (each / name / file for each in (tmp_path, RESULTS))
            assert numbers(found.read_text()) == numbers(expected.read_text())
