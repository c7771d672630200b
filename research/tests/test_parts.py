"""Parts of the text, pieces added to a start's vocabulary, losses by word, gaps between tests."""

import json
import shutil

import pytest

from albert_tf.generator.settings import GeneratorSettings
from research.experiments import claims, corpus, outcomes, part, run, study
from research.experiments.plan import Plan
from research.experiments.steps import Step
from research.tests.study_runs import FAKE, keep, kept_in, plan_of, read, report_of, run_all
from research.tests.test_intervals import row
from tests.kit.tiny import parse

ADDRESSES = [
    {"id": f"{year}", "year": year, "split": split, "text": [f"Words of {year}.", "More."]}
    for year, split in [(y, "train") for y in range(1900, 1980)] + [(1905, "dev"), (1975, "dev")]
]
STUDY = """
question = "?"
paper = "-"
seeds = 1
per_word = true
gap = ["dev", "other"]
[base.text]
train = "{part}/train.txt"
dev = "{part}/dev.txt"
[arms]
old = { part = { last_year = 1940 } }
more = { start = "old", share_of_steps = 0.5, part = { first_year = 1941 } }
new = { start = "old", extend = { num_pieces = 70 }, part = { first_year = 1941 } }
[tests]
dev = {}
other = { input_file = "{part}/train.txt" }
[[claims]]
text = "Pieces help"
metric = "dev.word_loss"
better = "new"
worse = "more"
effect = 0.05
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return Plan(read(tmp_path_factory.mktemp("study"), STUDY), study.read_scale("smoke"))


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    run_all(plan, folder / "work", kept_in(folder))
    return folder


@pytest.fixture
def done(finished, tmp_path):
    """Returns a work directory in which all steps have run, and their kept records."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "work", kept_in(tmp_path)


def test_a_part_is_of_its_years_and_evenly_spread(tmp_path):
    source = tmp_path / "addresses.jsonl"
    source.write_text("".join(json.dumps(address) + "\n" for address in ADDRESSES))
    out = tmp_path / "out"
    given = {"first_year": 1900, "last_year": 1939, "share": 0.25, "judged_first_year": 1970}
    part.main(parse(part.PartSettings, addresses_file=source, output_dir=out, **given))
    lines = (out / "train.txt").read_text().splitlines()
    years = [int(line[-5:-1]) for line in lines if line.startswith("Words")]
    assert years == list(range(1903, 1940, 4))
    assert "1975" in (out / "dev.txt").read_text() and "1905" not in (out / "dev.txt").read_text()
    rows = [json.loads(line) for line in (out / "passages_train.jsonl").read_text().splitlines()]
    assert len(rows) == 10 and {row["decade"] for row in rows} == {"1970s"}


def test_a_part_without_addresses_is_refused(tmp_path):
    source = tmp_path / "addresses.jsonl"
    source.write_text("".join(json.dumps(address) + "\n" for address in ADDRESSES))
    given = {"addresses_file": source, "output_dir": tmp_path / "out", "first_year": 1990}
    with pytest.raises(SystemExit, match="error: no train address is left of the years 1990 to "):
        part.main(parse(part.PartSettings, **given))
    assert not (tmp_path / "out").exists()


def test_pieces_and_words_of_a_text(tmp_path):
    """Words are what spaces separate: "cat." has two pieces, and "rat" one, which is unknown."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ncat\nc\n##at\n.\n")
    (tmp_path / "text.txt").write_text("a cat.\ncat a\n\na  rat\n")
    corpus.main(
        parse(
            corpus.CorpusSettings,
            input_file=tmp_path / "text.txt",
            output_file=tmp_path / "none",
            vocab_file=tmp_path / "vocab.txt",
            max_unknown_share=1,
            words_file=tmp_path / "words.json",
        )
    )
    assert json.loads((tmp_path / "words.json").read_text()) == {"pieces": 7, "words": 6}


def test_an_arm_has_the_vocabulary_of_its_start(plan):
    steps = {cell.arm: plan.steps[cell.pretrain] for cell in plan.cells}
    records = {arm: plan.steps[step.needs["records"]] for arm, step in steps.items()}
    assert records["more"].needs["vocabulary"] == records["old"].needs["vocabulary"]
    assert records["more"].needs["part"] != records["old"].needs["part"]
    extended = plan.steps[records["new"].needs["vocabulary"]]
    assert extended.kind == "extend" and extended.flags["num_pieces"] == 70
    assert extended.needs["vocabulary"] == records["old"].needs["vocabulary"]
    assert records["new"].flags["spm_model_file"] == "{vocabulary}/model/spm.model"
    assert steps["new"].needs["start"] == records["new"].needs["vocabulary"]
    assert steps["new"].flags["init_checkpoint"] == "{start}/model"
    sizes = {arm: step.config["vocab_size"] for arm, step in steps.items()}
    assert sizes == {"old": 2000, "more": 2000, "new": 2070}
    trained = {arm: step.flags["num_train_steps"] for arm, step in steps.items()}
    assert trained == {"old": 40, "more": 20, "new": 40}


def test_losses_by_word_and_gaps(plan, done):
    """The fake text has 3 pieces in 2 words, and the fake model the same loss on each test."""
    _, kept = done
    row, *others = outcomes.read(plan, kept)
    loss = row.metrics["dev.masked_lm_loss"]
    assert row.metrics["dev.word_loss"] == pytest.approx(1.5 * loss)
    assert row.metrics["gap_loss"] == 0 and len(others) == 2
    by_word, by_piece = (row.documents[f"dev.{name}_loss"] for name in ("word", "masked_lm"))
    assert by_word == [pytest.approx([1.5 * total, weight]) for total, weight in by_piece]
    keep(kept, plan.cells[0].results["other"], metrics={"masked_lm_loss": loss - 0.25})
    assert outcomes.read(plan, kept)[0].metrics["gap_loss"] == pytest.approx(0.25)


def test_a_cell_that_is_judged_in_part_has_not_run(plan, done, tmp_path):
    """Nor is it known to have learned: only the first test's evaluation tells that."""
    work, kept = done
    cell = plan.cells[0]
    assert plan.missing(kept, work) == [] == plan.missing(kept, tmp_path / "elsewhere")
    kept.discard(cell.results["dev"])
    row, *others = outcomes.read(plan, kept)
    assert "other.masked_lm_loss" in row.metrics and not row.learned and not row.is_finished
    assert all(other.is_finished and other.learned for other in others)
    assert plan.missing(kept, work) == [cell.results["dev"]]
    # Elsewhere there is no checkpoint: no result of the old training stays beside the new one's.
    again = {cell.pretrain, *cell.results.values(), *cell.measures.values()}
    assert set(plan.missing(kept, tmp_path / "elsewhere")) == again
    # Stopped there after the training, it still lacks all results, although old ones are kept.
    run_all(plan, tmp_path / "work", kept)
    shutil.copytree(work / cell.pretrain, tmp_path / "elsewhere" / cell.pretrain)
    assert set(plan.missing(kept, tmp_path / "elsewhere")) == again - {cell.pretrain}
    # A kept result is made again if it is not from the training in `work`.
    keep(kept, cell.results["dev"], seconds=9e9)
    assert plan.missing(kept, work) == [cell.results["dev"]]


def test_a_finished_cell_stays_where_its_start_is_trained_again(plan, done, tmp_path):
    """In a clone that has only metrics, where it is retrained for a cell that starts from it."""
    work, kept, clone = *done, tmp_path / "clone"
    old, more, _ = plan.cells
    kept.discard(more.results["dev"])
    new = plan.missing(kept, clone)
    assert set(new) == {more.pretrain, *more.results.values(), *more.measures.values()}
    shutil.copytree(work, clone)
    for path in clone.glob("*/metrics.json"):
        if path.parent.name in (*new, old.pretrain):
            path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 9e9}))
        else:
            path.unlink()
    kept.put(*(run.read_record(clone / key) for key in new))
    assert plan.missing(kept, clone) == []


def test_a_gap_has_an_interval_over_both_tests_documents(plan):
    """The arm `old` loses 0.2 more on `dev`, the same in each of a seed's documents."""
    claim = claims.Claim("", "gap_loss", "more", "old", 0.05)
    rows = [
        row(
            arm,
            seed,
            metrics={"dev.masked_lm_loss": 5.0, "gap_loss": gap},
            masked_lm_loss=5.0,
            documents={
                "dev.masked_lm_loss": [[gap, 1.0]] * 4,
                "other.masked_lm_loss": [[0.5, 1.0]] * 6,
            },
            unigram_loss=9.0,
        )
        for arm, gaps in (("old", [0.4, 0.41]), ("more", [0.2, 0.2]))
        for seed, gap in enumerate(gaps)
    ]
    found = outcomes.verdict(claim, rows, plan.gap)
    assert found.gain == pytest.approx(0.205)
    assert found.over_documents == pytest.approx((found.low, found.high), rel=1e-3)


def test_the_training_text_is_judged_in_records_of_its_own():
    """Pairs and masks are a function of the seed, the document and the pass."""
    plan = plan_of("overfit", "cpu")
    cell = plan.cells[0]
    trained = plan.steps[plan.steps[cell.pretrain].needs["records"]]
    judged = plan.steps[plan.steps[cell.results["train"]].needs["dev"]]
    assert trained.flags["input_file"] == judged.flags["input_file"]
    assert trained.needs == judged.needs
    own, theirs = (parse(GeneratorSettings, **s.flags) for s in (judged, trained))
    assert own.random_seed != theirs.random_seed


def test_a_report_counts_the_tokens_of_starts(tmp_path):
    asked, scale = read(tmp_path, STUDY), study.read_scale("smoke")
    rows = report_of(asked, scale, kept_in(tmp_path), tmp_path).splitlines()
    tokens = {row.split(" | ")[0][2:]: row.split(" | ")[4] for row in rows if " of 1 | " in row}
    assert tokens == {"old": "40,960", "more": "61,440", "new": "81,920"}


def test_an_extended_vocabulary_that_a_killed_step_left_is_made_anew(plan, tmp_path):
    """The script refuses a directory that exists."""
    (key,) = [key for key, step in plan.steps.items() if step.kind == "extend"][:1]
    step = Step("extend", plan.steps[key].flags, {})
    (tmp_path / key / "model").mkdir(parents=True)
    (tmp_path / key / "model/spm.model").touch()
    run.Runner(tmp_path, FAKE, 1).run(step, key)
    assert not (tmp_path / key / "model").exists() and (tmp_path / key / "metrics.json").exists()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('start = "old", extend', "extend", "new.extend: expected a start, whose vocabulary"),
        ("share_of_steps = 0.5", "share_of_steps = 0", "more.share_of_steps: expected a number ab"),
        ('"other"]', '"others"]', r"gap: expected two of the tests \['dev', 'other'\], not"),
    ],
)
def test_wrong_settings(tmp_path, old, new, message):
    assert old in STUDY
    with pytest.raises(ValueError, match=message):
        read(tmp_path, STUDY.replace(old, new))
