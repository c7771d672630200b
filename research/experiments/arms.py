"""The settings of an arm: tables of flags and of the config, and where it starts."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

# Sections of an arm, a study or a scale: files of text, keys of the config, and scripts' flags.
SECTIONS = (
    *("part", "text", "vocabulary", "extend", "records", "train_records", "dev_records"),
    *("config", "pretrain", "evaluate", "measure", "finetune", "hits"),
)
# Training flags with which records are made, too.
RECORD_SIZES = ("max_seq_length", "max_predictions_per_seq")
# Flags that the plan sets itself: another value would collapse seeds, or lose a result.
_RECORDS = ("output_file", *RECORD_SIZES, "input_file")
_RUN = ("output_dir", "do_train", "do_eval", "random_seed", "albert_config_file")
_OF_THE_PLAN = {
    "part": ("output_dir",),
    "vocabulary": ("model_prefix", "vocab_size"),
    "extend": ("init_checkpoint", "spm_model_file", "output_dir"),
    **dict.fromkeys(("records", "train_records", "dev_records"), _RECORDS),
    "pretrain": (*_RUN, "input_file"),
    "evaluate": (*_RUN, "input_file", "num_train_steps", *RECORD_SIZES),
    "measure": (*_RUN, "input_file", "documents_file", "measures_file", "probe_train_file"),
    "finetune": _RUN,
    "hits": (*_RUN, "measures_file"),
}
# Fixed in every study: each record to evaluate on has one example, and its masks. Records to train
# on may lack masks.
_ONLY = {"max_examples_per_row": 1, "masking": "static"}
# Fine-tuning flags that differ only in their unit: the script takes one of each pair.
_SAME = {"num_train_epochs": "train_step", "warmup_proportion": "warmup_step"}
_SAME |= {other: flag for flag, other in _SAME.items()}
Settings = dict[str, dict[str, Any]]
# Keys of arms alone: whose weights an arm starts from, and how long it trains.
_OWN = ("start", "share_of_steps")


def merge(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings by section; later values win, even if they are given in another unit."""
    merged: dict[str, Any] = {}
    for one in settings:
        for name, value in one.items():
            if isinstance(value, dict):
                others = {_SAME.get(flag) for flag in value}
                kept = {k: v for k, v in merged.get(name, {}).items() if k not in others}
                value = {**kept, **value}
            merged[name] = value
    return merged


def cross(factors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the product of the factors' levels, named by the levels."""
    products = itertools.product(*(factor.items() for factor in factors.values()))
    return {
        ", ".join(name for name, _ in product): merge(*(level for _, level in product))
        for product in products
    }


def read_arm(base: Settings, level: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns what an arm sets, with what all have in common; raises ValueError if it is wrong."""
    own = {key: level[key] for key in _OWN if key in level}
    share = own.get("share_of_steps", 1)
    require(share > 0, f"{name}.share_of_steps", "a number above 0", share)
    sections = {key: value for key, value in level.items() if key not in _OWN}
    found = {**merge(base, check_settings(sections, name)), **own}
    right = "extend" not in found or "start" in own
    require(right, f"{name}.extend", "a start, whose vocabulary it extends", None)
    return found


def check_starts(arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError unless starts are arms, and no arm starts, even indirectly, from itself."""
    for arm in arms:
        way = [arm]
        while (start := arms[way[-1]].get("start")) is not None:
            known = isinstance(start, str) and start in arms
            require(known, f"{way[-1]}.start", f"one of {list(arms)}", start)
            expected = "an arm that does not start from this one"
            require(start not in way, f"{way[-1]}.start", expected, start)
            way.append(start)


def check_settings(values: dict[str, Any], where: str, may_set: Collection[str] = ()) -> Settings:
    """Returns the tables of an arm, a study or a scale, checked.

    Flags in `may_set` can be set although the plan has its own values for them.
    """
    for section, flags in values.items():
        require(section in SECTIONS, where, f"only {', '.join(SECTIONS)}", section)
        known = section != "text" or set(flags) <= {"train", "dev"}
        require(known, f"{where}.text", "only train and dev", sorted(flags))
        for flag, value in flags.items():
            where_set = f"{where}.{section}.{flag}"
            owned = flag in _OF_THE_PLAN.get(section, ()) and flag not in may_set
            its = "[text]" if flag == "input_file" else "the study's plan"
            require(not owned, where_set, f"no value, as {its} sets it", value)
            is_free = flag == "masking" and section in ("train_records", "pretrain")
            only = value if is_free else _ONLY.get(flag, value)
            require(value == only, where_set, f"{only}, as studies have no other records", value)
    return values


def require(condition: object, where: str, expected: str, received: Any) -> None:
    """Raises ValueError unless a condition holds; a `received` of None is left out."""
    if not condition:
        got = "" if received is None else f", not {received!r}"
        raise ValueError(f"{where}: expected {expected}{got}")
