"""Studies and scales: TOML files, read and checked before anything runs."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from research.experiments import claims
from research.experiments.arms import (
    RECORD_SIZES,
    Settings,
    check_settings,
    check_starts,
    cross,
    read_arm,
    require,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = pathlib.Path(__file__).parent
# Settings that a scale must have: other steps or the report need them.
_SIZES = {
    "text": ("train", "dev"),
    "config": ("vocab_size",),
    "pretrain": (*RECORD_SIZES, *("train_batch_size", "num_train_steps", "save_checkpoints_steps")),
}

# The generator's flags that say how text becomes pieces.
_OF_PIECES = ("spm_model_file", "vocab_file", "do_lower_case")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Which learning rates each arm of a study that tunes them tries.

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
      tests: Test sets for each cell, by name: the flags of their records.
      probe: Whether cells are also judged by a fresh linear probe of each test's order labels.
      per_word: Whether losses are given by word, too: `word_loss`.
      gap: Two tests, or none: `gap_loss` is the first one's masked-LM loss less the second's.
      tune: Whether each arm's learning rate is chosen by the scale's `tuning`.
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
    tune: bool
    claims: tuple[claims.Claim, ...]


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the cells are.

    Attributes:
      name, path: The file's.
      about: In words.
      cells_at_a_time, threads: Cells that run together, and threads of each.
      most_seeds, most_arms: The most of a study's that it takes; by default all.
      settings: What all cells have in common.
      tuning: How learning rates are chosen where a study asks for it; None keeps the scale's.
    """

    name: str
    path: str
    about: str
    cells_at_a_time: int
    threads: int
    most_seeds: int
    most_arms: int
    settings: Settings
    tuning: Tuning | None


def names(folder: str) -> list[str]:
    """Returns the names of the files in studies/ or scales/."""
    return sorted(path.stem for path in (HERE / folder).glob("*.toml"))


def read_study(name: str) -> Study:
    """Reads a study: a name in studies/, or a path."""
    path, values = _read("studies", name)
    try:
        base = check_settings(values.pop("base", {}), "base")
        factors, arms = values.pop("factors", {}), values.pop("arms", {})
        require(factors or arms, "[factors] or [arms]", "at least one arm", None)
        crossed = {} if not factors else cross(factors)
        arms = {arm: read_arm(base, level, arm) for arm, level in {**crossed, **arms}.items()}
        check_starts(arms)
        claimed = tuple(claims.read(row, arms) for row in values.pop("claims", []))
        study = Study(
            path.stem,
            str(path),
            *(_take(values, key, str) for key in ("question", "paper")),
            seeds=_take(values, "seeds", int),
            arms=arms,
            tests=(tests := _tests(values.pop("tests", {}), base)),
            probe=_take(values, "probe", bool, False),
            per_word=_take(values, "per_word", bool, False),
            gap=_gap(values.pop("gap", []), tests),
            tune=_take(values, "tune", bool, False),
            claims=claimed,
        )
        require(not values, "the file", "no other keys", sorted(values))
        _check(study)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return study


def read_scale(name: str) -> Scale:
    """Reads a scale: a name in scales/, or a path."""
    path, values = _read("scales", name)
    try:
        about = _take(values, "about", str)
        counts = {key: _take(values, key, int) for key in ("cells_at_a_time", "threads")}
        for key in ("most_seeds", "most_arms"):
            counts[key] = _take(values, key, int, sys.maxsize)
        tuning = _tuning(values.pop("tuning")) if "tuning" in values else None
        settings = check_settings(values, path.stem)
        for section, flags in _SIZES.items():
            missing = sorted(set(flags) - set(settings.get(section, {})))
            require(not missing, f"[{section}]", f"{', '.join(flags)}", f"without {missing}")
        rate = settings["pretrain"].get("learning_rate")
        require(rate or not tuning, "[pretrain]", "a learning_rate beside [tuning]", None)
        return Scale(path.stem, str(path), about, settings=settings, tuning=tuning, **counts)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _read(folder: str, name: str) -> tuple[pathlib.Path, dict[str, Any]]:
    path = HERE / folder / f"{name}.toml"
    if name not in names(folder):
        path = pathlib.Path(name)
        if path.suffix != ".toml" or not path.is_file():
            raise ValueError(
                f"{name!r} is neither in research/experiments/{folder} nor a .toml file: expected "
                f"a file, or one of {', '.join(names(folder))}"
            )
        if path.stem in names(folder) and path.resolve().parent != HERE.resolve() / folder:
            raise ValueError(
                f"{path}: {path.stem} is in research/experiments/{folder}, and their results would "
                "share a directory: give the file another name"
            )
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _tests(values: dict[str, Any], base: Settings) -> dict[str, dict[str, Any]]:
    for name, flags in values.items():
        check_settings({"records": flags}, f"tests.{name}", may_set=["input_file"])
    return {name: {**base.get("records", {}), **flags} for name, flags in values.items()}


def _gap(names: Any, tests: Mapping[str, Any]) -> tuple[str, ...]:
    right = names == [] or (
        isinstance(names, list) and len(names) == 2 and set(names) <= set(tests)
    )
    require(right, "gap", f"two of the tests {list(tests)}", names)
    return tuple(names)


def _tuning(values: dict[str, Any]) -> Tuning:
    rates, share = values.pop("learning_rate", ()), values.pop("share_of_steps", 1.0)
    require(not values, "tuning", "only learning_rate and share_of_steps", sorted(values))
    return Tuning(tuple(map(float, rates)), share)


def _take(values: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = values.pop(key, default)
    right = isinstance(value, kind) and (kind is not int or value > 0)
    kinds = {str: "a string", int: "a positive integer", bool: "true or false"}
    require(right, key, kinds[kind], value)
    return value


def _check(study: Study) -> None:
    """Checks a study as a whole: claims compare what can be compared."""
    tuned = [arm for arm, level in study.arms.items() if "finetune" in level]
    alike = len(tuned) in (0, len(study.arms))
    require(alike, "[arms]", f"`finetune` in each of them or in none, not only in {tuned}", None)
    _check_pieces(study)
    for arm, level in study.arms.items() if study.tune else ():
        own = level.get("pretrain", {}).get("learning_rate")
        require(own is None, f"{arm}.pretrain.learning_rate", "none beside `tune`", own)
    if not tuned:
        claims.check_metrics(study.claims, study.tests, study.probe, study.per_word, study.gap)
    for claim in study.claims:
        _check_judged_alike(claim, study)


def _check_pieces(study: Study) -> None:
    """Raises ValueError unless tests split text into pieces as each arm's training does."""
    for arm, level in study.arms.items():
        for test, flags in study.tests.items():
            for name in _OF_PIECES:
                own, theirs = level.get("records", {}).get(name), flags.get(name)
                where = f"{arm}.records.{name}"
                expected = f"{theirs!r}, as in the test {test!r} (set both in [base.records])"
                require(own == theirs, where, expected, own)


def _check_judged_alike(claim: claims.Claim, study: Study) -> None:
    arms, tests = study.arms, study.tests
    if claim.worse == claims.MAJORITY:
        return
    if "finetune" in arms[claim.better]:
        alike = _tuned_for(arms[claim.better]) == _tuned_for(arms[claim.worse])
        require(alike, f"claim {claim.text!r}", "arms of one task, judged on the same files", None)
        return
    test = claim.metric.rpartition(".")[0]
    # The metric of a gap names no test: it is measured on two.
    own = [tests[test]] if test in tests else [*tests.values()]
    alike = _judged_on(arms[claim.better], own) == _judged_on(arms[claim.worse], own)
    expected = "arms judged on the same text, with records of the same flags, or [tests]"
    require(alike, f"claim {claim.text!r}", expected, None)
    if claim.metric.rpartition(".")[2] in claims.BY_PIECE:
        alike = _pieces_of(arms, claim.better) == _pieces_of(arms, claim.worse)
        expected = "arms of one vocabulary, or per_word and word_loss"
        require(alike, f"claim {claim.text!r}", expected, None)


def _judged_on(level: Mapping[str, Any], tests: list[dict[str, Any]]) -> list[Any]:
    """Returns the settings that determine an arm's held-out records, and how many are judged."""
    dev = level.get("text", {}).get("dev")
    sizes = [level.get("pretrain", {}).get(flag) for flag in RECORD_SIZES]
    part = _part_of(level, [dev, *(flags.get("input_file") for flags in tests)])
    flags = [level.get("dev_records", {}), tests or level.get("records", {})]
    return [dev, part, sizes, flags, level.get("evaluate", {})]


def _tuned_for(level: Mapping[str, Any]) -> list[Any]:
    """Returns the settings that determine a fine-tuning arm's evaluation examples."""
    flags = level.get("finetune", {})
    named = [flags.get(name) for name in ("task_name", "data_dir", "eval_file", "label_column")]
    return [named, _part_of(level, named)]


def _part_of(level: Mapping[str, Any], files: list[str | None]) -> dict[str, Any]:
    """Returns the settings of an arm's part that change any of these files; see part.py."""
    found = level.get("part", {})
    # Only the judged years change these.
    judged = ("/dev.txt", "/passages_dev.jsonl")
    if any(name and "{part}" in name and not name.endswith(judged) for name in files):
        return found
    return {name: value for name, value in found.items() if name.startswith("judged_")}


def _pieces_of(arms: Mapping[str, dict[str, Any]], arm: str) -> list[Any]:
    """Returns the settings that determine an arm's vocabulary."""
    level = arms[arm]
    begun = _pieces_of(arms, level["start"]) if "start" in level else []
    if begun and "extend" not in level:
        return begun
    flags = level.get("extend" if begun else "vocabulary", {})
    text = flags.get("input_file", level.get("text", {}).get("train"))
    part = level.get("part") if text and "{part}" in text else None
    return [*begun, flags, text, part, level.get("config", {}).get("vocab_size")]
