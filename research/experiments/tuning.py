"""Tunes the pre-training learning rate of each arm alike, on a seed that no report counts.

First come trials of each arm at each rate, then the cells, each at its arm's best rate.
"""

from __future__ import annotations

import dataclasses
import math

from research.experiments import outcomes
from research.experiments.arms import merge
from research.experiments.kept import Kept
from research.experiments.plan import Plan
from research.experiments.study import Scale, Study


def trials(study: Study, scale: Scale) -> dict[float, Plan]:
    """Returns, by rate, a plan that tries it on all arms, also on those that others start from.

    Empty if the study tunes no rates, or the scale has none to try.
    """
    if not (study.tune and scale.tuning):
        return {}
    found = {}
    for rate in scale.tuning.rates:
        arms = {}
        for arm, level in study.arms.items():
            level = {section: set_ for section, set_ in level.items() if section != "finetune"}
            steps = merge(scale.settings, level)["pretrain"]["num_train_steps"]
            steps = max(1, round(steps * scale.tuning.share_of_steps))
            arms[arm] = _set(level, learning_rate=rate, num_train_steps=steps)
        tests = dict(list(study.tests.items())[:1])
        tried = dataclasses.replace(study, arms=arms, tests=tests)
        found[rate] = Plan(tried, scale, trial=True)
    return found


def losses(study: Study, scale: Scale, kept: Kept) -> dict[str, dict[float, float]]:
    """Returns each arm's masked-LM loss at each rate; infinite if it diverged, NaN if not run."""
    found: dict[str, dict[float, float]] = {}
    for rate, plan in trials(study, scale).items():
        for row in outcomes.read(plan, kept):
            loss = math.inf if row.failed else math.nan
            found.setdefault(row.arm, {})[rate] = row.masked_lm_loss or loss
    return found


def settle(study: Study, scale: Scale, kept: Kept) -> Study:
    """Returns the study with each arm's best rate; unchanged until all trials have run."""
    if untried(study, scale, kept):
        return study
    arms = dict(study.arms)
    for arm, found in losses(study, scale, kept).items():
        best = min(found, key=found.get)
        if math.isinf(found[best]):
            raise ValueError(
                f"{study.path}: {arm!r} diverged at every rate: add lower ones to {scale.path}"
            )
        arms[arm] = _set(arms[arm], learning_rate=best)
    return dataclasses.replace(study, arms=arms)


def reported(study: Study, scale: Scale, kept: Kept) -> Study:
    """Returns the study at its best rates or, while more cells have run at it, the scale's rate."""
    # On a tie max returns the first.
    return max(settle(study, scale, kept), study, key=lambda each: finished(each, scale, kept))


def finished(study: Study, scale: Scale, kept: Kept) -> int:
    """Returns how many of a study's cells have run."""
    return sum(cell.is_finished(kept) for cell in Plan(study, scale).cells)


def untried(study: Study, scale: Scale, kept: Kept) -> list[Plan]:
    """Returns the trials, or none if all have been run."""
    plans = list(trials(study, scale).values())
    cells = [cell for plan in plans for cell in plan.cells]
    return [] if all(cell.is_finished(kept) for cell in cells) else plans


def next_plans(study: Study, scale: Scale, kept: Kept) -> list[Plan]:
    """Returns the plans to run now: the trials or, once all have been run, the study itself."""
    return untried(study, scale, kept) or [Plan(settle(study, scale, kept), scale)]


def _set(level: dict, **flags: float) -> dict:
    return merge(level, {"pretrain": flags})
