"""Tries to lose, hang and confuse the scripts: python -m tools.campaign --help.

Programs are killed at random moments and restarted, every kind of input file is damaged, disks fill
up, one of two workers is lost, a model gets many requests at once. Defects are a traceback, a
refusal that doesn't name its file, a hang, a crash, gigabytes of memory, output that differs from
an undisturbed run's, or a damaged file that was accepted though the damage is detectable.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time

from tools.campaign import disk, exports, kills, mutations, programs
from tools.campaign.outcomes import Tally
from tools.campaign.processes import CONTEXT

_PARTS = ("mutations", "kills", "disk", "workers", "predictions")
_PRELOADED = ["tensorflow", "keras", "tensorboard", "tools.campaign.mutations"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.campaign", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="Seed of all random choices.")
    parser.add_argument(
        "--kills", type=int, default=100, help="Number of signals to send to running processes."
    )
    parser.add_argument("--mutations", type=int, default=5000, help="Number of files to damage.")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="Begin nothing after so many minutes: half of them for files, then the rest in the "
        "order of --only's list. What was not reached is printed.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"Parts to run: any of {', '.join(_PARTS)}; programs ({'; '.join(_programs())}); "
        "kinds of files.",
    )
    return parser


def _programs() -> list[str]:
    return [program.name for program in programs.PROGRAMS]


def _chosen(part: str, names: list[str], only: list[str] | None) -> list[str]:
    """Returns the requested names of a part."""
    if not only or part in only:
        named = [name for name in names if only and name in only]
        return named or names
    # Programs are killed unless a part is named.
    alone = part == "mutations" or (part == "kills" and not set(only) & set(_PARTS))
    return [name for name in names if name in only] if alone else []


def _run(args: argparse.Namespace, tally: Tally, folder: pathlib.Path) -> list[str]:
    """Runs the chosen parts; returns what time was left for none of."""
    start, left_out = time.monotonic(), []
    end = start + 60 * args.minutes
    files = _chosen("mutations", list(mutations.KINDS), args.only)
    killed, full = (_chosen(part, _programs(), args.only) for part in ("kills", "disk"))
    if files:
        half = end if not (killed or full) else start + 30 * args.minutes
        place = folder / "mutations"
        done = mutations.run(tally, files, args.mutations, args.seed, place, half)
        print(f"{done} of {args.mutations} damaged files", flush=True)
        left_out += [name for name in files if name not in tally.subjects]
    if killed:
        done = kills.run(tally, killed, args.kills, args.seed, folder / "kills", end)
        print(f"{done} of {args.kills} kills", flush=True)
        left_out += [f"kills, {name}" for name in killed if f"kills, {name}" not in tally.subjects]
    parts = {
        "disk": lambda: disk.run(tally, full, folder / "disk"),
        "workers": lambda: kills.lose_workers(tally, folder / "workers"),
        "predictions": lambda: exports.predict_concurrently(tally, folder / "predictions"),
    }
    for name, part in parts.items():
        if full if name == "disk" else not args.only or name in args.only:
            if time.monotonic() < end:
                print(f"{name}: {part() or 'done'}", flush=True)
            else:
                left_out.append(name)
    return left_out


def main() -> None:
    """Runs the campaign; exits with 1 if there is a defect."""
    args = _parser().parse_args()
    unknown = set(args.only or ()) - {*_PARTS, *_programs(), *mutations.KINDS}
    if unknown:
        known = "; ".join((*_PARTS, *_programs(), *mutations.KINDS))
        sys.exit(f"error: --only must name any of {known}, not {', '.join(sorted(unknown))}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The tracker that removes the semaphores of killed pools would warn of them at the end.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    CONTEXT.set_forkserver_preload(_PRELOADED)
    tally, since = Tally(), time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="campaign"))
    left_out = _run(args, tally, folder)
    print(*tally.lines(), sep="\n")
    if left_out:
        print(f"not reached in {args.minutes:g} minutes: {'; '.join(left_out)}")
    print(f"{tally.total()} attempts in {time.monotonic() - since:.0f} s, seed {args.seed}")
    if tally.defects:
        print(*tally.defects, sep="\n")
        sys.exit(f"error: {len(tally.defects)} defects; their files are in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
