"""Reads studies and scales: TOML files, checked before anything runs."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tomllib

from experiments.arms import Settings, check_settings, check_starts, cross, read_arm, require

HERE = pathlib.Path(__file__).parent
# What a scale must set: other steps or the report need it.
_SIZES = {
    "text": ("train", "dev"),
    "config": ("vocab_size",),
    "pretrain": (
        *("max_seq_length", "max_predictions_per_seq", "train_batch_size"),
        *("num_train_steps", "save_checkpoints_steps"),
    ),
}
# What a claim says of the paper's numbers.
_PAPER = {"table", "column", "better", "worse"}


@dataclasses.dataclass(frozen=True)
class Claim:
    """What the paper says of two arms.

    Attributes:
      text: The claim, in words.
      metric: One of a cell's metrics, such as "masked_lm_loss". Of losses the lower is better.
      better, worse: The arms' names.
      effect: The smallest difference worth seeing, in the metric's unit.
      equal: Whether they are claimed to differ by less than that instead.
      paper: The two published numbers with their table and column; empty if it prints none.
    """

    text: str
    metric: str
    better: str
    worse: str
    effect: float
    equal: bool = False
    paper: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def sign(self) -> int:
        """1 if a higher metric is better, -1 if a lower one is."""
        return -1 if self.metric.endswith("loss") else 1


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Which learning rates each arm tries.

    Attributes:
      rates: At least two.
      share_of_steps: A trial's steps, as a share of a cell's.
    """

    rates: tuple[float, ...]
    share_of_steps: float


@dataclasses.dataclass(frozen=True)
class Study:
    """A question and how it is asked.

    Attributes:
      name, path: The file's.
      question, paper: In words.
      seeds: Number of seeds of each arm.
      arms: What each sets, by name; `start` names the arm whose weights it starts from, and
        `share_of_steps` says how long it trains.
      tests: Sets to judge each cell on, by name: flags of their records.
      probe: Whether a fresh linear probe of each test's order labels judges the cells, too.
      per_word: Whether losses are given by word, too: `word_loss`.
      gap: Two tests, or none: `gap_loss` is the first one's masked-LM loss less the second's.
      tuning: How its learning rates are chosen, or None.
      claims: In the file's order.
    """

    name: str
    path: str
    question: str
    paper: str
    seeds: int
    arms: dict[str, dict[str, Any]]
    tests: dict[str, dict[str, Any]]
    probe: bool
    per_word: bool
    gap: tuple[str, ...]
    tuning: Tuning | None
    claims: tuple[Claim, ...]


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the cells are.

    Attributes:
      name, path: The file's.
      about: In words.
      cells_at_a_time, threads: Cells that run together, and threads of each.
      most_seeds, most_arms: Bounds on a study's.
      settings: What all cells have in common.
    """

    name: str
    path: str
    about: str
    cells_at_a_time: int
    threads: int
    most_seeds: int
    most_arms: int
    settings: Settings


def names(folder: str) -> list[str]:
    """Returns the names of the files in studies/ or scales/."""
    return sorted(path.stem for path in (HERE / folder).glob("*.toml"))


def read_study(name: str) -> Study:
    """Reads a study: a name in studies/, or a path.

    Raises:
      ValueError: If there is none, or it is not valid.
    """
    path, values = _read("studies", name)
    try:
        base = check_settings(values.pop("base", {}), "base")
        factors, arms = values.pop("factors", {}), values.pop("arms", {})
        require(factors or arms, "[factors] or [arms]", "at least one arm", None)
        crossed = {} if not factors else cross(factors)
        arms = {arm: read_arm(base, level, arm) for arm, level in {**crossed, **arms}.items()}
        check_starts(arms)
        claims = tuple(_claim(row, arms) for row in values.pop("claims", []))
        study = Study(
            path.stem,
            str(path),
            *(_take(values, key, str) for key in ("question", "paper")),
            seeds=_take(values, "seeds", int),
            arms=arms,
            tests=(tests := _tests(values.pop("tests", {}))),
            probe=_take({"probe": values.pop("probe", False)}, "probe", bool),
            per_word=_take({"per_word": values.pop("per_word", False)}, "per_word", bool),
            gap=_gap(values.pop("gap", []), tests),
            tuning=_tuning(values.pop("tuning"), arms) if "tuning" in values else None,
            claims=claims,
        )
        require(not values, "the file", "no other keys", sorted(values))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return study


def read_scale(name: str) -> Scale:
    """Reads a scale: a name in scales/, or a path.

    Raises:
      ValueError: If there is none, or it is not valid.
    """
    path, values = _read("scales", name)
    try:
        about = _take(values, "about", str)
        counts = {
            key: _take(values, key, int)
            for key in ("cells_at_a_time", "threads", "most_seeds", "most_arms")
        }
        settings = check_settings(values, path.stem)
        for section, flags in _SIZES.items():
            missing = sorted(set(flags) - set(settings.get(section, {})))
            require(not missing, f"[{section}]", f"{', '.join(flags)}", f"without {missing}")
        return Scale(path.stem, str(path), about, settings=settings, **counts)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def published(table: str) -> dict[str, dict[str, str]]:
    """Returns the rows of one of the paper's tables of downstream results, by their first cell."""
    with open(HERE / "published/downstream.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == table]
    for row in rows:
        row.update(pair.split("=") for pair in row["extra"].split(";") if "=" in pair)
    return {row["row"]: row for row in rows}


def _read(folder: str, name: str) -> tuple[pathlib.Path, dict[str, Any]]:
    path = HERE / folder / f"{name}.toml"
    if name not in names(folder):
        path = pathlib.Path(name)
        if path.suffix != ".toml" or not path.is_file():
            raise ValueError(
                f"{name!r} is neither in experiments/{folder} nor a .toml file: expected a file, "
                f"or one of {', '.join(names(folder))}"
            )
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _tests(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    for name, flags in values.items():
        check_settings({"records": flags}, f"tests.{name}")
    return values


def _gap(names: Any, tests: Mapping[str, Any]) -> tuple[str, ...]:
    right = names == [] or (
        isinstance(names, list) and len(names) == 2 and set(names) <= set(tests)
    )
    require(right, "gap", f"two of the tests {list(tests)}", names)
    return tuple(names)


def _tuning(values: dict[str, Any], arms: Mapping[str, dict[str, Any]]) -> Tuning:
    keys = {"learning_rate", "share_of_steps"}
    require(set(values) <= keys, "tuning", f"only {sorted(keys)}", sorted(values))
    rates = values.get("learning_rate")
    several = isinstance(rates, list) and len(set(rates)) == len(rates) > 1
    right = several and all(isinstance(rate, (int, float)) and rate > 0 for rate in rates)
    require(right, "tuning.learning_rate", "a list of different numbers above 0", rates)
    share = values.get("share_of_steps", 1.0)
    right = isinstance(share, (int, float)) and 0 < share <= 1
    require(right, "tuning.share_of_steps", "a number above 0, up to 1", share)
    for arm, level in arms.items():
        require("finetune" not in level, arm, "pre-training alone, as [tuning] is of it", None)
        own = level.get("pretrain", {}).get("learning_rate")
        require(own is None, f"{arm}.pretrain.learning_rate", "none beside [tuning]", own)
    return Tuning(tuple(map(float, rates)), share)


def _claim(row: dict[str, Any], arms: Sequence[str]) -> Claim:
    known = {field.name for field in dataclasses.fields(Claim)}
    needed = known - {"equal", "paper"}
    require(needed <= set(row) <= known, "a claim", f"the keys {sorted(known)}", sorted(row))
    claim = Claim(**row)
    for arm in (claim.better, claim.worse):
        require(arm in arms, f"claim {claim.text!r}", f"arms among {list(arms)}", arm)
    right = isinstance(claim.effect, (int, float)) and claim.effect > 0
    require(right, f"claim {claim.text!r}: effect", "a number above 0", claim.effect)
    if claim.paper:
        where, given = f"claim {claim.text!r}: paper", set(claim.paper)
        require(given == _PAPER, where, f"the keys {sorted(_PAPER)}", sorted(given))
        table = published(str(claim.paper["table"]))
        numbers = []
        for row_name in (claim.paper["better"], claim.paper["worse"]):
            known = f"a row of table {claim.paper['table']}: {list(table)}"
            require(row_name in table, where, known, row_name)
            column, numeric = claim.paper["column"], _numeric(table[row_name])
            known = f"a column with a number for {row_name!r}: {list(numeric)}"
            require(column in numeric, where, known, column)
            numbers.append(numeric[column])
        right = claim.equal or numbers[0] > numbers[1]
        require(
            right,
            f"claim {claim.text!r}",
            "a direction that agrees with the paper's numbers",
            numbers,
        )
        claim.paper["numbers"] = numbers
    return claim


def _numeric(row: Mapping[str, str]) -> dict[str, float]:
    """Returns the cells of a published row that are numbers."""
    found = {}
    for column in row.keys() - {"table", "row"}:
        with contextlib.suppress(ValueError):
            found[column] = float(row[column])
    return dict(sorted(found.items()))


def _take(values: dict[str, Any], key: str, kind: type) -> Any:
    value = values.pop(key, None)
    right = isinstance(value, kind) and (kind is not int or value > 0)
    kinds = {str: "a string", int: "a positive integer", bool: "true or false"}
    require(right, key, kinds[kind], value)
    return value
