"""Runs a study and writes its report: `python -m experiments sharing --scale smoke`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys

from experiments import report, study
from experiments.plan import Plan

HERE = pathlib.Path(__file__).resolve().parent


def snakemake_command(arguments: argparse.Namespace, scale: study.Scale) -> list[str]:
    """Returns the command that makes what is missing.

    Nothing is locked but each step, so a killed study can be started again at once; and a step is
    run again only because it was interrupted or is another one.
    """
    config = {
        "study": arguments.study,
        "scale": arguments.scale,
        # Of the project's own environment.
        "python": os.environ.get("ALBERT_PYTHON", HERE.parent / ".venv/bin/python"),
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


def main() -> None:
    """Checks the study, runs it and writes its report."""
    arguments, failed = _arguments(), 0
    try:
        asked, scale = study.read_study(arguments.study), study.read_scale(arguments.scale)
        plan = Plan(asked, scale)
        if not arguments.report_only:
            if not importlib.util.find_spec("snakemake"):
                raise ValueError(
                    "snakemake is not installed: run `make study`, which sets up its environment"
                )
            arguments.work.mkdir(parents=True, exist_ok=True)
            failed = subprocess.run(snakemake_command(arguments, scale), check=False).returncode
        directory = arguments.results / scale.name / asked.name
        report.write(asked, scale, plan, _kept(arguments, scale), directory)
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
