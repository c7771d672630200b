"""Scores of a model on labelled data, before and after its export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert_tf.answers.kind import Kind
from albert_tf.serving.settings import ExportSettings
from albert_tf.tasks import registry

# Rows per batch.
_ROWS_AT_ONCE = 32


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Labelled examples, and the task that scores a model's results for their texts."""

    task: Any
    examples: Sequence[Any]

    @classmethod
    def read(cls, kind: Kind, settings: ExportSettings) -> Evaluation:
        """Reads the file to evaluate on, in the format of the kind's task."""
        if not kind.is_scored:
            raise ValueError(
                "`eval_file` applies only to tasks with labels for whole texts, not to "
                f"{kind.task}: leave it out"
            )
        pair, pairs = settings.text_pair_column, getattr(kind, "pairs", None)
        # Without this check, half of each pair would be left out.
        if pairs is not None and pairs != bool(pair):
            raise ValueError(
                "the model takes pairs of texts: set `text_pair_column`"
                if pairs
                else "the model takes single texts: leave `text_pair_column` out, or set `pairs`"
            )
        task = registry.of_kind(kind, settings)
        return cls(task, task.row.read(settings, "dev", task))

    def texts(self) -> list[Sequence[Any]]:
        """Returns the texts of each example."""
        return [self.task.texts(example) for example in self.examples]

    def __call__(
        self, find: Callable[[Sequence[Sequence[str]]], Sequence[Mapping[str, Any]]]
    ) -> dict[str, float]:
        """Scores a function of rows of texts, such as Predictor.outputs."""
        texts = self.texts()
        if self.task.kind.takes_many:
            texts = [(*alone, *many) for *alone, many in texts]
        # Sort by length, so that batches need little padding.
        order = sorted(range(len(texts)), key=lambda i: sum(map(len, texts[i])))
        found: dict[int, Mapping[str, Any]] = {}
        for start in range(0, len(order), _ROWS_AT_ONCE):
            part = order[start : start + _ROWS_AT_ONCE]
            found |= zip(part, find([texts[i] for i in part]), strict=True)
        # Restore the order of the examples and of their labels.
        predictions = self.task.predictions_of(self.examples, [found[i] for i in range(len(texts))])
        return self.task.scores(self.examples, predictions)
