"""Scores of a served model on labelled texts, by the metrics of the task it was trained for."""

from __future__ import annotations

from collections.abc import Mapping

from albert_tf.serving.served_models import Evaluation, ServedModel
from albert_tf.tasks.table import TableColumns


def read(served: ServedModel, path: str, columns: TableColumns) -> Evaluation:
    """Reads the examples that a model is scored on; see ServedModel.evaluation."""
    return served.evaluation(path, columns)


def table_of(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Returns both scores as lines of text."""
    lines = [f"{'':16} {'before':>9} {'after':>9}"]
    lines += [f"{name:16} {before[name]:9.4f} {after[name]:9.4f}" for name in before]
    return "\n".join(lines)
