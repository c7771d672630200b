"""How many careless changes of the library its tests notice.

    python -m tools.mutants --count 200 --seed 1 --commit HEAD

Draws places of albert_tf/ at random, changes one at a time in a clone of the commit (an operator,
a constant, a condition, two arguments exchanged, a statement dropped), and runs the tests of the
same folder, those that share a word with the file's name first, until one fails. A mutant that
passes them all, or as many as `--cpu_seconds` allow, has survived. The first N mutants of a seed
are the same whatever the count.

Can't see: what only the tests of another folder notice; mutants that change nothing.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
# A mutant may hang.
WALL_SECONDS = 600
OUT_OF_TIME = 77
OPERATORS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """Returns what a careless writer could have written in place of a node, if anything."""
    match node:
        case ast.Compare(left, [operator], rest):
            return ast.Compare(left, [OPERATORS[type(operator)]()], rest)
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            if any(isinstance(side, ast.JoinedStr) for side in (left, right)):
                return None
            return ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(OPERATORS[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Call(function, [first, second, *rest], keywords):
            if not any(isinstance(argument, ast.Starred) for argument in (first, second)):
                return ast.Call(function, [second, first, *rest], keywords)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue():
            return ast.Pass()
    return None


def code_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walks over a tree without annotations, decorators, and what lies in strings."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from code_nodes(child)


def mutants(root: pathlib.Path) -> Iterator[Mutant]:
    """Makes every mutant of a checkout's library."""
    for path in sorted((root / "albert_tf").rglob("*.py")):
        source = path.read_text()
        lines = source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line.encode()))
        for node in code_nodes(ast.parse(source)):
            new = changed(node)
            if new is None:
                continue
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            after = ast.unparse(new)
            if isinstance(node, ast.expr):
                after = f"({after})"
            data = source.encode()
            before = data[start:end].decode()
            text = (data[:start] + after.encode() + data[end:]).decode()
            yield Mutant(str(path.relative_to(root)), node.lineno, before, after, text)


def tests_of(root: pathlib.Path, file: str) -> list[str]:
    """Returns the test files for a library file, those that share words of its name first."""
    parts = pathlib.Path(file).with_suffix("").parts
    folder = root / "tests" / (parts[1] if len(parts) > 2 else "")
    words = set(parts[-1].split("_"))

    def strangeness(path: pathlib.Path) -> tuple[int, str]:
        return -len(words & set(path.stem.split("_"))), path.name

    return [str(path) for path in sorted(folder.glob("test_*.py"), key=strangeness)]


class _CpuLimit:
    """Ends pytest after a test if all tests so far have taken too long."""

    def __init__(self, seconds: float) -> None:
        self.end = _cpu_seconds() + seconds

    def pytest_runtest_logfinish(self) -> None:
        import pytest

        if _cpu_seconds() > self.end:
            pytest.exit("out of time", returncode=OUT_OF_TIME)


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def outcome(root: pathlib.Path, mutant: Mutant, cpu_seconds: float) -> str:
    """Runs the tests on a mutant, in a process forked from this one; returns their verdict."""
    path = root / mutant.file
    original = path.read_text()
    path.write_text(mutant.source)
    pid = os.fork()
    if not pid:
        _test(root, tests_of(root, mutant.file), cpu_seconds)
    end = time.monotonic() + WALL_SECONDS
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    # Also ends processes that the tests started and left running.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended[0]:
        os.waitpid(pid, 0)
        ended = (pid, 1)
    path.write_text(original)
    code = os.waitstatus_to_exitcode(ended[1])
    return {0: "survived", 5: "survived", OUT_OF_TIME: "out of time"}.get(code, "killed")


def _test(root: pathlib.Path, files: list[str], cpu_seconds: float) -> None:
    os.setsid()
    os.chdir(root)
    sys.path[0] = str(root)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    import pytest

    flags = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not peers"]
    os._exit(pytest.main([*flags, *files], plugins=[_CpuLimit(cpu_seconds)]))


def main() -> None:
    """Draws mutants, tests each, and prints a line for it and a table by folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="the first so many are not run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--cpu_seconds", type=float, default=60, help="of tests, for each mutant")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    # As in tests/conftest.py, set before NumPy is imported.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import keras  # noqa: F401, PLC0415
    import tensorflow  # noqa: F401, PLC0415

    tally = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", ROOT, root], check=True)
        subprocess.run(["git", "-C", root, "checkout", "-q", options.commit], check=True)
        every = list(mutants(root))
        # The order is the same for all counts.
        drawn = random.Random(options.seed).sample(every, len(every))
        print(f"{len(every)} places", flush=True)
        for mutant in drawn[options.skip : options.count]:
            result = outcome(root, mutant, options.cpu_seconds)
            tally[os.path.dirname(mutant.file)][result] += 1
            print(f"{result}\t{' '.join(str(mutant).split())}", flush=True)
    for name, results in sorted(tally.items()):
        print(f"{name}: {results['killed']} of {results.total()} killed")
    everything = sum(tally.values(), collections.Counter())
    print(f"all: {everything['killed']} of {everything.total()} killed, {dict(everything)}")


if __name__ == "__main__":
    main()
