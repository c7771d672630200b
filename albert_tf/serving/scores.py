"""Scores of a served model on labelled texts, by the metrics of the task it was trained for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.serving.served_models import ServedModel
from albert_tf.tasks import table
from albert_tf.tasks.classification import (
    MultiLabelTask,
    MultipleChoiceTask,
    SequenceClassificationTask,
)
from albert_tf.tasks.question_answering import (
    Predictions,
    SquadSettings,
    SquadV1Task,
    SquadV2Task,
    is_labelled,
)
from albert_tf.tasks.squad_text import read_squad

# Rows answered at once.
_BATCH = 32
# Outputs that scores are made of; the others may be large.
_SCORED = ("probabilities", "score", "answer", "answers", "null_odds")
# Rows of texts, as Predictor.outputs takes them, to outputs by name.
Answer = Callable[[Sequence[Sequence[str]]], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Labelled texts, and how answers to them are scored.

    Attributes:
      rows: The texts of each example.
      score: Maps the outputs for all rows to metrics by name.
    """

    rows: list[list[str]]
    score: Callable[[Mapping[str, np.ndarray]], dict[str, float]]

    def __call__(self, answer: Answer) -> dict[str, float]:
        """Answers all rows, in batches of about the same length, and scores the answers."""
        order = sorted(range(len(self.rows)), key=lambda i: sum(map(len, self.rows[i])))
        parts = []
        for start in range(0, len(order), _BATCH):
            outputs = answer([self.rows[i] for i in order[start : start + _BATCH]])
            parts.append({name: outputs[name] for name in _SCORED if name in outputs})
        back = np.argsort(order)
        return self.score(
            {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
        )


def read(served: ServedModel, path: str, columns: table.TableColumns) -> Evaluation:
    """Reads the examples that a model is scored on.

    Args:
      served: The model.
      path: A table as run_finetune.py reads it or, for questions, a file of SQuAD.
      columns: The table's columns.

    Raises:
      FileNotFoundError: If the file doesn't exist.
      ValueError: If it is not in that format, or the model's task has no score.
    """
    if served.task == "classify":
        return _texts(served, path, columns)
    if served.task == "choose":
        return _choices(served, path, columns)
    if served.task in ("answer_v1", "answer_v2"):
        return _questions(served, path)
    raise ValueError(
        f"`eval_file` applies only to tasks with labels, not to {served.task}: leave it out"
    )


def _texts(served: Any, path: str, columns: table.TableColumns) -> Evaluation:
    if served.pairs and not columns.text_pair:
        raise ValueError("the model takes pairs of texts: set `text_pair_column`")
    if columns.text_pair and not served.pairs:
        raise ValueError(
            "the model takes single texts: leave `text_pair_column` out, or set `pairs`"
        )
    examples = table.read_texts(path, columns, served.labels, several=served.multilabel)
    task_class = MultiLabelTask if served.multilabel else SequenceClassificationTask
    task = task_class(None, None, served.max_seq_length, served.labels)
    rows = [[each.text_a, each.text_b] if served.pairs else [each.text_a] for each in examples]

    def score(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        found = outputs["probabilities"] if served.labels else outputs["score"][:, None]
        return task.scores(examples, found)

    return Evaluation(rows, score)


def _choices(served: Any, path: str, columns: table.TableColumns) -> Evaluation:
    if not columns.choices:
        raise ValueError("`eval_file` of choose needs `choice_columns`: give a column per ending")
    examples = table.read_choices(path, columns)
    task = MultipleChoiceTask(
        None, None, served.max_seq_length, columns.choices, max_qa_length=served.max_qa_length
    )
    rows = [[each.context, *each.endings] for each in examples]
    return Evaluation(rows, lambda outputs: task.scores(examples, outputs["probabilities"]))


def _questions(served: Any, path: str) -> Evaluation:
    examples = read_squad(path)
    if not is_labelled(examples):
        raise ValueError(f"{path} has no answers to compare with: give another file")
    without = [each.qas_id for each in examples if not each.answers]
    if without and not served.may_be_impossible:
        raise ValueError(
            f"{path}: question {without[0]} has no answer, but answer_v1 needs one for each "
            "question: use answer_v2"
        )
    task_class = SquadV2Task if served.may_be_impossible else SquadV1Task
    task = task_class(SquadSettings(), None, None, served.max_seq_length)
    ids = [each.qas_id for each in examples]

    def score(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        # Whatever the null odds: squad_v2's scores are those at the best threshold.
        texts = (
            [row[0] for row in outputs["answers"]]
            if served.may_be_impossible
            else outputs["answer"]
        )
        found = Predictions(
            texts=dict(zip(ids, (text.decode() for text in texts), strict=True)),
            nbest={},
            null_odds=dict(zip(ids, outputs.get("null_odds", ()), strict=False)),
        )
        return task.scores(examples, found)

    return Evaluation([[each.question, each.paragraph] for each in examples], score)


def table_of(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Returns both scores as lines of text."""
    lines = [f"{'':16} {'before':>9} {'after':>9}"]
    lines += [f"{name:16} {before[name]:9.4f} {after[name]:9.4f}" for name in before]
    return "\n".join(lines)
