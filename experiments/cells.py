"""A cell of a study: the steps of an arm and a seed, and which of them are still to be made."""

from __future__ import annotations

import dataclasses
import pathlib


@dataclasses.dataclass
class Cell:
    """The steps of an arm and a seed: keys of its training, and by test of what judges it.

    In fine-tuning `pretrain` is not set, and results and unigram are of the model that it starts
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

    def is_finished(self, kept: pathlib.Path) -> bool:
        """Tells whether all that a report reads of it is kept."""
        return all(_metrics(kept, key).exists() for key in self.step_keys())

    def missing(self, kept: pathlib.Path, work: pathlib.Path) -> list[str]:
        """Returns the keys of the steps to make.

        If the cell is unfinished, or some of its results were made in `work`, those kept from a
        training elsewhere are made again: a cell's results must all come from one training, and
        checkpoints are not kept. In fine-tuning that is the fine-tuning; what a start is judged by
        is shared with the other cells of that start.
        """
        results = () if self.finetune else self.results.values()
        follow = (self.pretrain or self.finetune, *results, *self.measures.values())
        foreign = [key for key in follow if not _is_of(work, kept, key)]
        if self.is_finished(kept) and len(foreign) == len(follow):
            return []
        keys = [key for key in self.step_keys() if not _metrics(kept, key).exists()]
        return keys + foreign


def _is_of(work: pathlib.Path, kept: pathlib.Path, key: str) -> bool:
    """Whether what is kept of a step is what was made in `work`, and not elsewhere."""
    paths = [_metrics(directory, key) for directory in (work, kept)]
    return all(path.exists() for path in paths) and len({p.read_bytes() for p in paths}) == 1


def _metrics(directory: pathlib.Path, key: str) -> pathlib.Path:
    return directory / key / "metrics.json"
