"""Checks what a study sets against the flags that the scripts define, before anything runs."""

from __future__ import annotations

import difflib
import functools
from typing import Any

from experiments.steps import SCRIPTS
from experiments.study import Scale, Study

_OF_RECORDS = ("train_records", "dev_records")


def check(study: Study, scale: Scale) -> None:
    """Raises ValueError if a script has no such flag, or a value or a config is not valid."""
    found = find_wrong(list_settings(study, scale))
    if found:
        raise ValueError(found)


def list_settings(study: Study, scale: Scale) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns where each section stands, its name, and what it sets: a whole config, or flags."""
    rows = [(f"{scale.path}: {name}", name, flags) for name, flags in scale.settings.items()]
    for arm, level in study.arms.items():
        sections = {name: flags for name, flags in level.items() if isinstance(flags, dict)}
        sections["config"] = {**scale.settings["config"], **sections.get("config", {})}
        rows += [(f"{study.path}: {arm}.{name}", name, sections[name]) for name in sections]
    for name, flags in study.tests.items():
        rows.append((f"{study.path}: tests.{name}", "records", flags))
    return rows


def find_wrong(rows: list[tuple[str, str, dict[str, Any]]]) -> str | None:
    """Returns one line on the first wrong setting of `list_settings`, or None."""
    from absl import flags

    from albert_tf.config import AlbertConfig

    definitions = _definitions()
    for where, section, settings in rows:
        if section == "config":
            try:
                AlbertConfig.from_dict(settings)
            except (TypeError, ValueError) as error:
                return f"{where}: {error}"
        kind = "records" if section in _OF_RECORDS else section
        if kind not in definitions:
            continue
        values = flags.FlagValues()
        definitions[kind](values)
        for name, value in settings.items():
            if name not in values:
                near = difflib.get_close_matches(name, list(values), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                return f"{where}.{name}: {SCRIPTS[kind]} has no such flag{hint}"
            try:
                values[name].parse(str(value).lower() if isinstance(value, bool) else str(value))
            except flags.Error as error:
                text = " ".join(str(error).split())
                return f"{where}.{name}: {SCRIPTS[kind]} does not take {value!r} ({text})"
    return None


def _definitions() -> dict[str, Any]:
    from albert_tf.cli.extend_vocabulary import ExtensionSettings
    from albert_tf.cli.finetune_settings import FinetuningSettings
    from albert_tf.cli.pretraining_settings import PretrainingSettings
    from albert_tf.console.settings import define_flags
    from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings
    from experiments import hits, measure, part

    by_settings = {
        "part": part.PartSettings,
        "vocabulary": SentencePieceSettings,
        "extend": ExtensionSettings,
        "records": GeneratorSettings,
        "pretrain": PretrainingSettings,
        "evaluate": PretrainingSettings,
        "measure": measure.MeasurementSettings,
        "finetune": FinetuningSettings,
        "hits": hits.HitsSettings,
    }
    return {kind: functools.partial(define_flags, cls) for kind, cls in by_settings.items()}
