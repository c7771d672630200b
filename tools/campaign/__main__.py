"""Tries to break the scripts: python -m tools.campaign --help.

Programs are killed at random moments and restarted, or resumed with other flags; every type of
input file is damaged, disks fill up, one of two workers is lost, a model gets many requests at
once, and a server gets generated ones. A defect is a traceback, a refusal that doesn't name its
file or flag, a hang, a crash, gigabytes of memory, output that differs from that of an undisturbed
run, a damaged file that is accepted although the damage is detectable, or a flag without effect.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from tools.campaign import disk, exports, flags, kills, mutations, programs, requests
from tools.campaign.outcomes import Tally
from tools.campaign.processes import CONTEXT

# The parts and their shares of `--minutes`; a part that ends early leaves its time to later ones.
_PARTS = {
    "mutations": 8,
    "kills": 6,
    "disk": 4,
    "workers": 1,
    "predictions": 1,
    "requests": 1,
    "flags": 2,
}
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
        help="Begin nothing after so many minutes; each part has a share of them. Whatever was not "
        "reached is printed, also after SIGTERM or Ctrl-C.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"Parts to run: any of {', '.join(_PARTS)}; programs ({'; '.join(_programs())}); "
        "types of files.",
    )
    return parser


def _programs() -> list[str]:
    return [program.name for program in programs.PROGRAMS]


def _chosen(part: str, names: list[str], only: list[str] | None) -> list[str]:
    """Returns the requested names of a part."""
    if not only or part in only:
        named = [name for name in names if only and name in only]
        return named or names
    # A name alone means damage for a type of file, and kills for a program.
    alone = part == "mutations" or (part == "kills" and not set(only) & set(_PARTS))
    return [name for name in names if name in only] if alone else []


def _run(args: argparse.Namespace, tally: Tally, folder: pathlib.Path) -> list[str]:
    """Runs the chosen parts; returns the subjects that they did not reach."""
    files = _chosen("mutations", list(mutations.FILE_TYPES), args.only)
    killed, full = (_chosen(part, _programs(), args.only) for part in ("kills", "disk"))
    run = {
        "mutations": lambda *to: mutations.run(tally, files, args.mutations, args.seed, *to),
        "kills": lambda *to: kills.run(tally, killed, args.kills, args.seed, *to),
        "disk": lambda *to: disk.run(tally, full, *to),
        "workers": lambda folder, _: kills.lose_workers(tally, folder),
        "predictions": lambda folder, _: exports.predict_concurrently(tally, folder),
        "requests": lambda *to: requests.run(tally, args.seed, *to),
        "flags": lambda *to: flags.run(tally, args.seed, *to),
    }
    # The subjects that need at least one outcome.
    wanted = {
        "mutations": files,
        "kills": kills.subjects(killed),
        "disk": [f"full disk, {name}" for name in full],
        "workers": _chosen("workers", ["a lost worker"], args.only),
        "predictions": _chosen("predictions", ["predictions, threads"], args.only),
        "requests": _chosen("requests", [*requests.SUBJECTS], args.only),
        "flags": _chosen("flags", [flags.SUBJECT], args.only),
    }
    chosen = [part for part in run if wanted[part]]
    start, shares = time.monotonic(), 0
    for part in chosen:
        shares += _PARTS[part]
        end = start + 60 * args.minutes * shares / sum(map(_PARTS.__getitem__, chosen))

        def is_over(end: float = end) -> bool:
            return tally.closed or time.monotonic() >= end

        if not is_over():
            print(f"{part}: {run[part](folder / part, is_over) or 'done'}", flush=True)
    return [each for part in chosen for each in wanted[part] if each not in tally.subjects]


def main() -> None:
    """Runs the campaign; exits with 1 if there is a defect."""
    args = _parser().parse_args()
    unknown = set(args.only or ()) - {*_PARTS, *_programs(), *mutations.FILE_TYPES}
    if unknown:
        known = "; ".join((*_PARTS, *_programs(), *mutations.FILE_TYPES))
        sys.exit(f"error: --only must name any of {known}, not {', '.join(sorted(unknown))}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Python's resource tracker removes the semaphores of killed pools, and would warn at the end.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    CONTEXT.set_forkserver_preload(_PRELOADED)
    tally, since = Tally(), time.monotonic()

    def stop(number: int, _: object) -> None:
        tally.closed = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="campaign"))
    try:
        left_out = _run(args, tally, folder)
    finally:  # A signal may also have stopped the campaign's processes: print the table first.
        print(*tally.lines(), sep="\n")
    if left_out:
        print(f"not reached: {'; '.join(left_out)}")
    print(f"{tally.total()} attempts in {time.monotonic() - since:.0f} s, seed {args.seed}")
    if tally.defects:
        print(*tally.defects, sep="\n")
        sys.exit(f"error: {len(tally.defects)} defects; their files are in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
