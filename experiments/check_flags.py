"""Checks what a study sets against the flags that the scripts define, before anything runs.

`python -m experiments.check_flags`, with the project's own Python, which has the scripts, reads
[where, section, settings] rows as JSON, and ends with one line on the first that is wrong.
"""

from __future__ import annotations

import difflib
import functools
import glob
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from experiments.arms import merge, require
from experiments.steps import ROOT, SCRIPTS, references

if TYPE_CHECKING:  # The project's Python may lack tomllib.
    from experiments.study import Scale, Study

# What weights that a model starts from must have in common with it.
_SIZES_OF_A_START = ("embedding_size", "hidden_size", "intermediate_size")
_OF_RECORDS = ("train_records", "dev_records")
# Defaults of the config and of run_finetune.py: what defines them can't be imported here.
_POSITIONS = _LENGTH = 512
_LENGTH_OF_SQUAD, _OF_SQUAD = 384, ("squad_v1", "squad_v2", "question_answering")


def check(study: Study, scale: Scale, python: str) -> None:
    """Checks a study and its scale.

    Args:
      study: The study.
      scale: The scale.
      python: Of the project's own environment.

    Raises:
      ValueError: If a script has no such flag or does not take its value, a config is not valid or
        does not fit what it is used with, or a file is not there.
    """
    rows = list_settings(study, scale)
    _check_files(rows)
    _check_sizes(study, scale)
    _check_parts(study, scale)
    process = subprocess.run(
        [python, "-m", "experiments.check_flags"],
        input=json.dumps(rows),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode:
        raise ValueError(process.stderr.strip().splitlines()[-1])


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


def _check_files(rows: list[tuple[str, str, dict[str, Any]]]) -> None:
    for where, section, flags in rows:
        for name, value in flags.items():
            # A config has names, too: albert_base_v2.
            is_file = name.endswith("_file") and name != "albert_config_file"
            if not (is_file or name == "data_dir" or section == "text"):
                continue
            for path in filter(None, str(value).split(",")):
                local = not ("{" in path or "://" in path)
                there = not local or glob.glob(path, root_dir=ROOT)
                require(there, f"{where}.{name}", f"a file that exists (seen from {ROOT})", path)


def _check_sizes(study: Study, scale: Scale) -> None:
    """Raises ValueError unless rows fit the models, and models those that they start from."""
    for arm, level in study.arms.items():
        own = merge(scale.settings, level)
        config, tuned = own["config"], level.get("finetune", {})
        lengths = {"pretrain": own["pretrain"]["max_seq_length"]}
        if tuned.get("from_scratch") or "pretrain" in references(tuned):
            lengths["finetune"] = _tuned_length(own["finetune"])
        most = config.get("max_position_embeddings", _POSITIONS)
        expected = f"at most the config's max_position_embeddings, {most}"
        for section, length in lengths.items():
            where = f"{study.path}: {arm}.{section}.max_seq_length"
            require(length <= most, where, expected, length)
        if "start" in level:
            theirs = merge(scale.settings, study.arms[level["start"]])["config"]
            for size in _SIZES_OF_A_START:
                expected = f"that of its start, {theirs.get(size)}"
                where = f"{study.path}: {arm}.config.{size}"
                require(config.get(size) == theirs.get(size), where, expected, config.get(size))


def _tuned_length(flags: dict[str, Any]) -> int:
    is_squad = str(flags.get("task_name")).lower() in _OF_SQUAD
    return flags.get("max_seq_length", _LENGTH_OF_SQUAD if is_squad else _LENGTH)


def _check_parts(study: Study, scale: Scale) -> None:
    """Raises ValueError for an arm's part that no file is of."""
    for arm, level in study.arms.items():
        tables = [*merge(scale.settings, level).values(), *study.tests.values()]
        used = any("part" in references(flags) for flags in tables if isinstance(flags, dict))
        expected = "{part} in [text] or a file's flag: it is used nowhere"
        require(used or "part" not in level, f"{study.path}: {arm}.part", expected, None)


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
    from albert_tf.cli import extend_vocabulary_flags, finetune_flags
    from albert_tf.cli.pretraining_settings import PretrainingSettings
    from albert_tf.console import settings
    from albert_tf.generator import flags as generator_flags
    from albert_tf.generator import sentencepiece
    from experiments import hits, measure, part

    pretraining = functools.partial(settings.define_flags, PretrainingSettings)
    return {
        "part": part.define_flags,
        "vocabulary": sentencepiece.define_flags,
        "extend": extend_vocabulary_flags.define_flags,
        "records": generator_flags.define_flags,
        "pretrain": pretraining,
        "evaluate": pretraining,
        "measure": functools.partial(settings.define_flags, measure.MeasurementSettings),
        "finetune": finetune_flags.define_flags,
        "hits": hits.define_flags,
    }


if __name__ == "__main__":
    sys.exit(find_wrong(json.load(sys.stdin)))
