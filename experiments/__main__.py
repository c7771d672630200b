"""Runs a study and writes its report: `python -m experiments sharing --scale smoke`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys

from experiments import check_flags, report, study, tuning
from experiments.plan import Plan

HERE = pathlib.Path(__file__).resolve().parent


def snakemake_command(
    arguments: argparse.Namespace, asked: study.Study, scale: study.Scale
) -> list[str]:
    """Returns the command that makes what is missing.

    Nothing is locked but each step, so a killed study can be started again at once; and a step is
    run again only because it was interrupted or is another one.
    """
    config = {
        "study": pathlib.Path(asked.path).resolve(),
        "scale": pathlib.Path(scale.path).resolve(),
        "python": _python(),
        "root": HERE.parent,
        "scripts": arguments.scripts.resolve(),
        "work": arguments.work.resolve(),
        "kept": _kept(arguments, scale).resolve(),
    }
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(HERE / "Snakefile")),
        *("--directory", str(config["work"])),
        *("--cores", str(scale.cells_at_a_time * scale.threads)),
        *("--nolock", "--rerun-incomplete", "--rerun-triggers", "input", "params"),
        *("--keep-going", "--quiet", "rules"),
        *("--config", *(f"{name}={value}" for name, value in config.items())),
    ]


def _python() -> str:
    """Returns the Python of the project's own environment."""
    return os.environ.get("ALBERT_PYTHON", str(HERE.parent / ".venv/bin/python"))


def _kept(arguments: argparse.Namespace, scale: study.Scale) -> pathlib.Path:
    return arguments.results / scale.name / "cells"


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


def _run(arguments: argparse.Namespace, asked: study.Study, scale: study.Scale) -> int:
    """Checks the study's flags and runs what is missing; returns Snakemake's exit code."""
    check_flags.check(asked, scale, _python())
    if not importlib.util.find_spec("snakemake"):
        raise ValueError(
            "snakemake is not installed: run `make study`, which sets up its environment"
        )
    arguments.work.mkdir(parents=True, exist_ok=True)
    command, kept = snakemake_command(arguments, asked, scale), _kept(arguments, scale)
    failed = 0
    # The trials, if there are any to make, then the cells.
    for _ in range(2 if tuning.untried(asked, scale, kept) else 1):
        for plan in tuning.next_plans(asked, scale, kept):
            # Snakemake makes nothing that is there: what is kept of another training must go.
            for key in plan.missing(kept, arguments.work):
                (kept / key / "metrics.json").unlink(missing_ok=True)
        failed = subprocess.run(command, check=False).returncode
        if failed:
            break
    return failed


def main() -> None:
    """Checks the study, runs it and writes its report."""
    arguments, failed = _arguments(), 0
    try:
        asked, scale = study.read_study(arguments.study), study.read_scale(arguments.scale)
        Plan(asked, scale)  # A study that has none ends here.
        if not arguments.report_only:
            failed = _run(arguments, asked, scale)
        kept = _kept(arguments, scale)
        asked = tuning.reported(asked, scale, kept)
        directory = arguments.results / scale.name / asked.name
        report.write(asked, scale, Plan(asked, scale), kept, directory)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(f"report: {directory / 'report.md'}")
    if failed:
        sys.exit(
            f"error: some steps failed: see their log.txt in {arguments.work}, then start the "
            "study again"
        )


if __name__ == "__main__":
    main()
