"""Runs a study and writes its report: `python -m research.experiments sharing --scale smoke`."""

from __future__ import annotations

import argparse
import pathlib
import sys

from albert_tf.console import errors

HERE = pathlib.Path(__file__).resolve().parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", help="a name in research/experiments/studies, or a .toml file")
    parser.add_argument(
        "--scale", default="smoke", help="a name in research/experiments/scales, or a file"
    )
    parser.add_argument(
        "--report_only", action="store_true", help="run nothing; report the finished cells"
    )
    for name, folder, use in (
        ("work", HERE / "work", "checkpoints and logs"),
        ("results", HERE / "results", "metrics of finished cells, and reports"),
        ("scripts", HERE.parents[1], "the clone whose scripts are run"),
    ):
        parser.add_argument(f"--{name}", type=pathlib.Path, default=folder, help=use)
    return parser.parse_args()


def main() -> None:
    """Checks the study, runs what is missing of it and writes its report."""
    arguments = _arguments()
    with errors.in_one_line():
        # Imported here, since Ctrl-C may come during the import.
        from research.experiments import report, run, study, tuning
        from research.experiments.kept import Kept
        from research.experiments.plan import Plan

        asked, scale = study.read_study(arguments.study), study.read_scale(arguments.scale)
        Plan(asked, scale)  # Raises ValueError if the study can't be planned.
        results = arguments.results / scale.name
        work, kept = arguments.work.resolve(), Kept(results / "cells.jsonl")
        runner = run.Runner(work, arguments.scripts.resolve(), scale.threads)
        failed = 0
        # The trials, if there are any to make, then the cells.
        for _ in range(2 if tuning.untried(asked, scale, kept) else 1):
            if not (arguments.report_only or failed or runner.stopping):
                plans = tuning.next_plans(asked, scale, kept)
                failed = runner.run_missing(plans, kept, scale.cells_at_a_time)
        asked = tuning.reported(asked, scale, kept)
        directory = results / asked.name
        report.write(asked, scale, Plan(asked, scale), kept, directory)
        print(f"report: {directory / 'report.md'}")
    if runner.stopping:
        sys.exit("error: stopped")
    if failed:
        sys.exit(
            f"error: {failed} steps failed, and what needs them was not run: see log.txt of each "
            f"in {work}, then start the study again"
        )


if __name__ == "__main__":
    main()
