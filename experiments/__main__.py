"""Runs a study and writes its report: `python -m experiments sharing --scale smoke`."""

from __future__ import annotations

import argparse
import pathlib
import sys

from experiments import check_flags, report, run, study, tuning
from experiments.plan import Plan

HERE = pathlib.Path(__file__).resolve().parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", help="a name in experiments/studies, or a .toml file")
    parser.add_argument("--scale", default="smoke", help="a name in experiments/scales, or a file")
    parser.add_argument(
        "--report_only", action="store_true", help="run nothing; report the finished cells"
    )
    for name, folder, use in (
        ("work", HERE / "work", "checkpoints and logs"),
        ("results", HERE / "results", "metrics of finished cells, and reports"),
        ("scripts", HERE.parent, "the clone whose scripts are run"),
    ):
        parser.add_argument(f"--{name}", type=pathlib.Path, default=folder, help=use)
    return parser.parse_args()


def _run(
    arguments: argparse.Namespace, asked: study.Study, scale: study.Scale, kept: pathlib.Path
) -> str | None:
    """Runs what is missing of a study; returns an error if it was stopped, or some steps failed."""
    check_flags.check(asked, scale)
    work, scripts = arguments.work.resolve(), arguments.scripts.resolve()
    runner = run.Runner(work, scripts, scale.threads)
    # The trials, if there are any to make, then the cells.
    for _ in range(2 if tuning.untried(asked, scale, kept) else 1):
        plans = tuning.next_plans(asked, scale, kept)
        failed = runner.run_missing(plans, kept, scale.cells_at_a_time)
        if runner.stopping:
            return "stopped"
        if failed:
            return (
                f"{failed} steps failed, and what needs them was not run: see log.txt of each in "
                f"{work}, then start the study again"
            )
    return None


def main() -> None:
    """Checks the study, runs it and writes its report."""
    arguments, failed = _arguments(), None
    try:
        asked, scale = study.read_study(arguments.study), study.read_scale(arguments.scale)
        Plan(asked, scale)  # A study that has none ends here.
        kept = arguments.results / scale.name / "cells"
        if not arguments.report_only:
            failed = _run(arguments, asked, scale, kept)
        asked = tuning.reported(asked, scale, kept)
        directory = arguments.results / scale.name / asked.name
        report.write(asked, scale, Plan(asked, scale), kept, directory)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(f"report: {directory / 'report.md'}")
    if failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
