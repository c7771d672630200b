"""Turns a study at a scale into steps: commands, each named by a digest of all its inputs."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from research.experiments.arms import RECORD_SIZES, merge
from research.experiments.kept import Kept, to_line
from research.experiments.steps import Step, digests, references
from research.experiments.study import Scale, Study

# Reported seeds begin with 1.
TRIAL_SEED = 0


@dataclasses.dataclass
class Cell:
    """The steps of an arm and a seed: keys of its training and, by test, of steps that judge it.

    In fine-tuning `pretrain` is not set, and results and unigram judge the model that it starts
    from, if there is one.
    """

    arm: str
    seed: int
    pretrain: str | None = None
    results: dict[str, str] = dataclasses.field(default_factory=dict)
    unigram: dict[str, str] = dataclasses.field(default_factory=dict)
    measures: dict[str, str] = dataclasses.field(default_factory=dict)
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    finetune: str | None = None

    def step_keys(self) -> list[str]:
        """Returns the steps whose metrics a report reads."""
        by_test = (self.results, self.unigram, self.measures, self.words)
        tests = [key for keys in by_test for key in keys.values()]
        return [key for key in (self.pretrain, *tests, self.finetune) if key]

    def is_finished(self, kept: Kept) -> bool:
        """Tells whether all records that a report reads of it are kept."""
        return all(key in kept for key in self.step_keys())

    def missing(self, kept: Kept, work: pathlib.Path) -> list[str]:
        """Returns the keys of the steps to run.

        If the cell is unfinished, or some of its results were made in `work`, results kept from a
        training elsewhere are made again: a cell's results must all come from one training, and
        checkpoints are not kept. For a fine-tuning, that training is the fine-tuning itself; the
        results of its start are shared with the other cells of that start.
        """
        results = () if self.finetune else self.results.values()
        follow = (self.pretrain or self.finetune, *results, *self.measures.values())
        foreign = [key for key in follow if not _is_of(work, kept, key)]
        if self.is_finished(kept) and len(foreign) == len(follow):
            return []
        keys = [key for key in self.step_keys() if key not in kept]
        return keys + foreign


def _is_of(work: pathlib.Path, kept: Kept, key: str) -> bool:
    """Whether the kept record of a step is the one made in `work`, not one from elsewhere."""
    path, record = work / key / "metrics.json", kept.get(key)
    if record is None or not path.exists():
        return False
    return to_line(json.loads(path.read_text(encoding="utf-8"))) == to_line(record)


class Plan:
    """All steps of a study at a scale.

    Attributes:
      steps: By key.
      cells: Arm by arm, seed by seed.
      gap: The study's.

    Args:
      study, scale: What to plan.
      trial: Whether it serves to choose settings: with TRIAL_SEED alone, and without measures.
    """

    def __init__(self, study: Study, scale: Scale, trial: bool = False) -> None:
        self.steps: dict[str, Step] = {}
        self.cells: list[Cell] = []
        self.gap = study.gap
        self._study, self._scale, self._trial = study, scale, trial
        seeds = range(1, min(study.seeds, scale.most_seeds) + 1)
        for arm in list(study.arms)[: scale.most_arms]:
            for seed in [TRIAL_SEED] if trial else seeds:
                self.cells.append(self._cell(arm, seed))
        for claim in () if trial else study.claims:
            self._check_differ(claim.better, claim.worse)

    def missing(self, kept: Kept, work: pathlib.Path) -> list[str]:
        """Returns the keys of the steps to run; see Cell.missing."""
        keys = [key for cell in self.cells for key in cell.missing(kept, work)]
        return list(dict.fromkeys(keys))

    def settings(self, arm: str) -> dict[str, Any]:
        """Returns all that an arm sets, with the scale's values for the rest."""
        found = merge(self._scale.settings, self._study.arms[arm])
        if "start" in found:
            size = self.settings(found["start"])["config"]["vocab_size"]
            size += found.get("extend", {}).get("num_pieces", 0)
            found = merge(found, {"config": {"vocab_size": size}})
        steps = found["pretrain"]["num_train_steps"] * found.get("share_of_steps", 1)
        return merge(found, {"pretrain": {"num_train_steps": max(1, round(steps))}})

    def tokens(self, arm: str) -> int:
        """Returns how many tokens an arm's models have seen, those of their starts among them."""
        settings = self.settings(arm)
        flags = settings["pretrain"]
        own = flags["num_train_steps"] * flags["train_batch_size"] * flags["max_seq_length"]
        return own + (self.tokens(settings["start"]) if "start" in settings else 0)

    def _check_differ(self, *arms: str) -> None:
        """Raises ValueError if two arms of a claim are the same cells."""
        keys = [cell.step_keys() for cell in self.cells if cell.arm in arms and cell.seed == 1]
        if len(keys) == 2 and keys[0] == keys[1]:
            raise ValueError(
                f"{self._study.path}: {' and '.join(map(repr, arms))} are the same cells: what "
                "sets them apart is used nowhere ({part} must be in [text] or a file's flag)"
            )

    def _cell(self, arm: str, seed: int) -> Cell:
        cell, settings = Cell(arm, seed), self.settings(arm)
        if "finetune" in self._study.arms[arm]:
            cell.finetune, cell.measures[""] = self._finetune(arm, seed)
            # The gate: whether the model that it starts from has learned.
            if start := self.steps[cell.finetune].needs.get("pretrain"):
                self._judge(cell, "", start, settings, seed)
            return cell
        cell.pretrain = self._pretrain(arm, seed)
        for name, flags in (self._study.tests or {"": settings.get("records", {})}).items():
            common = merge(self._scale.settings, {"records": flags})
            judged = {**settings, "records": common["records"]}
            evaluation = self._judge(cell, name, cell.pretrain, settings, seed, judged)
            dev = self.steps[evaluation.needs["dev"]]
            if not self._trial:
                cell.measures[name] = self._measure(evaluation, judged, seed)
            if self._study.per_word:
                counted = {**dev.flags, "words_file": "{out}/words.json"}
                cell.words[name] = self._add("words", counted, dev.needs)
        return cell

    def _judge(
        self,
        cell: Cell,
        test: str,
        trained: str,
        settings: dict[str, Any],
        seed: int,
        judged: dict[str, Any] | None = None,
    ) -> Step:
        """Adds a model's evaluation on a test, and its gate; returns the evaluation.

        Args:
          cell: The cell to which both are added.
          test: The test.
          trained: The key of the model's training.
          settings: The settings of that training.
          seed: The seed of the records.
          judged: Settings of the test's records; None means `settings`.
        """
        dev = self._records(judged or settings, "dev", seed)
        train = self._records(settings, "train", seed)
        sizes = {key: settings["pretrain"][key] for key in RECORD_SIZES}
        cell.unigram[test] = self._unigram(sizes, train, dev)
        flags = {
            **sizes,
            "num_train_steps": settings["pretrain"]["num_train_steps"],
            "albert_config_file": "{out}/albert_config.json",
            "input_file": "{dev}/records.tfrecord",
            "output_dir": "{out}/run",
            "do_train": False,
            "do_eval": True,
            **settings.get("evaluate", {}),
        }
        needs = {"dev": dev, "trained": trained}
        cell.results[test] = self._add("evaluate", flags, needs, settings["config"])
        return self.steps[cell.results[test]]

    def _measure(self, evaluation: Step, settings: dict[str, Any], seed: int) -> str:
        """Adds a step that measures a model on a test by document and, if asked for, by a probe."""
        dev = self.steps[evaluation.needs["dev"]]
        documents = {**dev.flags, "documents_file": "{out}/documents.json"}
        needs = {**evaluation.needs, "documents": self._add("documents", documents, dev.needs)}
        flags = {
            **evaluation.flags,
            "documents_file": "{documents}/documents.json",
            "measures_file": "{out}/measures.json",
        }
        if self._study.probe:
            needs["probe"] = self._records(settings, "train", seed)
            flags["probe_train_file"] = "{probe}/records.tfrecord"
            flags |= settings.get("measure", {})
        return self._add("measure", flags, needs, evaluation.config)

    def _unigram(self, sizes: dict[str, Any], train: str, dev: str) -> str:
        flags = {
            **sizes,
            "train": "{train}/records.tfrecord",
            "dev": "{dev}/records.tfrecord",
            "output": "{out}/unigram.json",
        }
        return self._add("unigram", flags, {"train": train, "dev": dev})

    def _pretrain(self, arm: str, seed: int) -> str:
        settings = self.settings(arm)
        needs, flags = {"records": self._records(settings, "train", seed)}, {}
        if "extend" in settings:
            needs["start"] = self._vocabulary(settings, seed)
            flags["init_checkpoint"] = "{start}/model"
        elif "start" in settings:
            needs["start"] = self._pretrain(settings["start"], seed)
            flags["init_checkpoint"] = "{start}/run"
        flags |= {
            "albert_config_file": "{out}/albert_config.json",
            "input_file": "{records}/records.tfrecord",
            "output_dir": "{out}/run",
            "keep_checkpoint_max": 1,
            "random_seed": seed,
            **settings["pretrain"],
        }
        if "decay_from" in flags:  # By default it decays over all steps of its arm.
            flags.setdefault("decay_steps", flags["num_train_steps"])
        return self._add("pretrain", flags, needs, settings["config"])

    def _finetune(self, arm: str, seed: int) -> tuple[str, str]:
        """Adds a fine-tuning, and the step that counts its right answers by document."""
        settings = self.settings(arm)
        flags = {
            "output_dir": "{out}/run",
            "do_train": True,
            "do_eval": True,
            "random_seed": seed,
            **settings["finetune"],
        }
        used = references(flags)
        needs = self._texts(flags, settings)
        if "vocabulary" in used:
            needs["vocabulary"] = self._vocabulary(settings, seed)
            flags = self._with_vocabulary(flags, needs)
        if "pretrain" in used:
            needs["pretrain"] = self._pretrain(arm, seed)
        config = settings["config"] if flags.get("from_scratch") else {}
        if config:
            flags["albert_config_file"] = "{out}/albert_config.json"
        tuned = self._add("finetune", flags, needs, config)
        # Drops flags that name other steps than its texts': counting needs no others.
        texts = {name: key for name, key in needs.items() if name in ("text", "part")}
        flags = {
            name: value for name, value in flags.items() if references({name: value}) <= set(texts)
        }
        flags |= {
            "output_dir": "{tuned}/run",
            "do_train": False,
            "measures_file": "{out}/measures.json",
            **settings.get("hits", {}),
        }
        return tuned, self._add("hits", flags, {**texts, "tuned": tuned})

    def _vocabulary(self, settings: dict[str, Any], seed: int) -> str:
        """Adds the vocabulary: that of a start, perhaps extended, or without a start a new one."""
        if "start" in settings:
            begun = self._vocabulary(self.settings(settings["start"]), seed)
            return self._extend(settings, seed, begun) if "extend" in settings else begun
        flags = {
            "input_file": settings["text"]["train"],
            "model_prefix": "{out}/spm",
            "vocab_size": settings["config"]["vocab_size"],
            **settings.get("vocabulary", {}),
        }
        return self._add("vocabulary", flags, self._texts(flags, settings))

    def _extend(self, settings: dict[str, Any], seed: int, vocabulary: str) -> str:
        start = self._pretrain(settings["start"], seed)
        flags = {
            "init_checkpoint": "{start}/run",
            "spm_model_file": "{vocabulary}/spm.model",
            "input_file": settings["text"]["train"],
            "output_dir": "{out}/model",
            **settings["extend"],
        }
        needs = {"start": start, "vocabulary": vocabulary, **self._texts(flags, settings)}
        return self._add("extend", self._with_vocabulary(flags, needs), needs)

    def _with_vocabulary(self, flags: dict[str, Any], needs: dict[str, str]) -> dict[str, Any]:
        """Returns flags with the path of an extended vocabulary, if the vocabulary is one."""
        if self.steps[needs["vocabulary"]].kind != "extend":
            return flags
        old, new = "{vocabulary}/", "{vocabulary}/model/"
        return {k: v.replace(old, new) if isinstance(v, str) else v for k, v in flags.items()}

    def _records(self, settings: dict[str, Any], split: str, seed: int) -> str:
        common = dict(settings.get("records", {}))
        if split == "train":
            # A test's own file is only to evaluate on: its probe is trained on the training text.
            common.pop("input_file", None)
        flags = {
            "input_file": settings["text"][split],
            "output_file": "{out}/records.tfrecord",
            "spm_model_file": "{vocabulary}/spm.model",
            **{key: settings["pretrain"][key] for key in RECORD_SIZES},
            **common,
            **settings.get(f"{split}_records", {}),
        }
        vocabulary = self._vocabulary(settings, seed)
        needs = {"vocabulary": vocabulary, **self._texts(flags, settings)}
        return self._add("records", self._with_vocabulary(flags, needs), needs)

    def _texts(self, flags: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
        """Adds the steps that make the text that flags name."""
        found, used = {}, references(flags)
        if "text" in used:
            found["text"] = self._text()
        if "part" in used:
            chosen = {"addresses_file": "{text}/addresses.jsonl", "output_dir": "{out}"}
            chosen |= settings.get("part", {})
            found["part"] = self._add("part", chosen, {"text": self._text()})
        return found

    def _text(self) -> str:
        return self._add("text", {"output_dir": "{out}"}, {})

    def _add(
        self,
        kind: str,
        flags: dict[str, Any],
        needs: dict[str, str],
        config: dict[str, Any] | None = None,
    ) -> str:
        unknown = references(flags) - set(needs) - {"out"}
        if unknown:
            known = ", ".join(f"{{{name}}}" for name in ("out", *needs))
            raise ValueError(
                f"{{{unknown.pop()}}} in a flag of a {kind} step is not a directory: expected one "
                f"of {known}"
            )
        step = Step(kind, dict(flags), needs, config or {}, digests(flags))
        self.steps[step.key] = step
        return step.key
