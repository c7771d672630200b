"""Checks a study as a whole: something reads each key, and claims compare what can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments import claims
from experiments.arms import RECORD_SIZES, require
from experiments.steps import references

if TYPE_CHECKING:
    from experiments.study import Study

# The generator's flags that say how text becomes pieces.
_OF_PIECES = ("spm_model_file", "vocab_file", "do_lower_case")


def check(study: Study) -> None:
    """Checks a study whose parts have been read.

    Raises:
      ValueError: If they do not fit together.
    """
    tuned = [arm for arm, level in study.arms.items() if "finetune" in level]
    alike = len(tuned) in (0, len(study.arms))
    require(alike, "[arms]", f"`finetune` in each of them or in none, not only in {tuned}", None)
    _check_read(study, bool(tuned))
    _check_pieces(study)
    if study.tune:
        _check_tuned(study.arms)
    if not tuned:
        claims.check_metrics(study.claims, study.tests, study.probe, study.per_word, study.gap)
    for claim in study.claims:
        _check_judged_alike(claim, study)


def _check_read(study: Study, is_finetuning: bool) -> None:
    """Raises ValueError for keys that nothing reads in such a study."""
    of_pretraining = {
        "[tests]": study.tests,
        "probe": study.probe,
        "per_word": study.per_word,
        "gap": study.gap,
    }
    for key, value in of_pretraining.items():
        unread = is_finetuning and value
        require(not unread, key, "none in a study of fine-tuning, where nothing reads it", None)
    needs = {"measure": ("probe = true", study.probe), "hits": ("finetune", is_finetuning)}
    for arm, level in study.arms.items():
        for section, (needed, is_there) in needs.items():
            expected = f"`{needed}` in the study, or nothing reads it"
            require(is_there or section not in level, f"{arm}.{section}", expected, None)


def _check_pieces(study: Study) -> None:
    """Raises ValueError unless the text of tests becomes the pieces that each arm is trained on."""
    for arm, level in study.arms.items():
        for test, flags in study.tests.items():
            for name in _OF_PIECES:
                own, theirs = level.get("records", {}).get(name), flags.get(name)
                where = f"{arm}.records.{name}"
                expected = f"{theirs!r}, as in the test {test!r} (set both in [base.records])"
                require(own == theirs, where, expected, own)


def _check_tuned(arms: Mapping[str, dict[str, Any]]) -> None:
    for arm, level in arms.items():
        unused = "finetune" in level and "pretrain" not in references(level["finetune"])
        require(not unused, arm, "a start from {pretrain}, as `tune` is of its rate", None)
        own = level.get("pretrain", {}).get("learning_rate")
        require(own is None, f"{arm}.pretrain.learning_rate", "none beside `tune`", own)


def _check_judged_alike(claim: claims.Claim, study: Study) -> None:
    arms, tests = study.arms, study.tests
    if claim.worse == claims.MAJORITY:
        return
    if "finetune" in arms[claim.better]:
        alike = _tuned_for(arms[claim.better]) == _tuned_for(arms[claim.worse])
        require(alike, f"claim {claim.text!r}", "arms of one task, judged on the same files", None)
        return
    test = claim.metric.rpartition(".")[0]
    # Those of a gap are two.
    own = [tests[test]] if test in tests else [*tests.values()]
    alike = _judged_on(arms[claim.better], own) == _judged_on(arms[claim.worse], own)
    expected = "arms judged on the same text, with records of the same flags, or [tests]"
    require(alike, f"claim {claim.text!r}", expected, None)
    if claim.metric.rpartition(".")[2] in claims.BY_PIECE:
        alike = _pieces_of(arms, claim.better) == _pieces_of(arms, claim.worse)
        expected = "arms of one vocabulary, or per_word and word_loss"
        require(alike, f"claim {claim.text!r}", expected, None)


def _judged_on(level: Mapping[str, Any], tests: list[dict[str, Any]]) -> list[Any]:
    """Returns what an arm's held-out records follow from, and how many of them count."""
    dev = level.get("text", {}).get("dev")
    sizes = [level.get("pretrain", {}).get(flag) for flag in RECORD_SIZES]
    part = _part_of(level, [dev, *(flags.get("input_file") for flags in tests)])
    flags = [level.get("dev_records", {}), tests or level.get("records", {})]
    return [dev, part, sizes, flags, level.get("evaluate", {})]


def _tuned_for(level: Mapping[str, Any]) -> list[Any]:
    """Returns what a fine-tuning arm's examples to evaluate on follow from."""
    flags = level.get("finetune", {})
    named = [flags.get(name) for name in ("task_name", "data_dir", "eval_file", "label_column")]
    return [named, _part_of(level, named)]


def _part_of(level: Mapping[str, Any], files: list[str | None]) -> dict[str, Any]:
    """Returns what an arm's part sets that changes such files; see part.py."""
    found = level.get("part", {})
    # Their years are the judged ones.
    judged = ("/dev.txt", "/passages_dev.jsonl")
    if any(name and "{part}" in name and not name.endswith(judged) for name in files):
        return found
    return {name: value for name, value in found.items() if name.startswith("judged_")}


def _pieces_of(arms: Mapping[str, dict[str, Any]], arm: str) -> list[Any]:
    """Returns what an arm's vocabulary follows from."""
    level = arms[arm]
    begun = _pieces_of(arms, level["start"]) if "start" in level else []
    if begun and "extend" not in level:
        return begun
    flags = level.get("extend" if begun else "vocabulary", {})
    text = flags.get("input_file", level.get("text", {}).get("train"))
    part = level.get("part") if text and "{part}" in text else None
    return [*begun, flags, text, part, level.get("config", {}).get("vocab_size")]
