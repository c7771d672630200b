"""Labels, or a number, of a text or of a pair of texts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import (
    CLASSIFIER_HEAD,
    Labelled,
    Reading,
    class_names,
    option,
    sigmoid,
    softmax,
    strings,
)
from albert_tf.answers.rows import Row
from albert_tf.text.tokenization import Tokenizer

# Hugging Face's problem_type -> our name of the task.
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
REGRESSION = "regression"
TASK_NAMES = {SINGLE_LABEL: "classification", MULTI_LABEL: "multilabel", REGRESSION: "regression"}
# Joins the labels of a multi-label answer.
LABEL_SEPARATOR = "|"
# Default minimum probability of a label in multi-label classification.
THRESHOLD = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(Labelled):
    """Classification with one label or any number of them, and regression, which has no labels.

    Attributes:
      labels: See Labelled; none for a regression.
      pairs: Whether it reads `text_a` and `text_b` in place of `text`.
      multilabel: Whether a text may have any number of the labels.
      threshold: With two labels, the minimum probability for the second to be the answer; with
        `multilabel`, that of each label. None chooses the likelier label, or is THRESHOLD.
      windows: "mean" or "max" reads texts of any length in windows, and combines the windows'
        probabilities (or scores of a regression) into the text's. None truncates long texts.
      doc_stride: Pieces from one window's start to the next one's.

    Source: run_classifier.py.
    Differs: the release serves the threshold beside the probabilities and doesn't use it.
    """

    task = "classify"
    model = "AlbertForSequenceClassification"
    pipeline = "text-classification"
    heads = (CLASSIFIER_HEAD,)
    reads_pooler = True
    title = "Classify a text"
    mediapipe = "TextClassifier"

    pairs: bool = option(False, "Inputs are pairs of texts.")
    multilabel: bool = option(False, "A text may have any number of the labels.")
    threshold: float | None = option(
        None,
        "With two labels, the minimum probability of the second one to be the answer; with "
        "multilabel, the minimum probability of a label.",
        least=0,
        most=1,
        alias="threshold_to_export",
    )
    windows: str | None = option(
        None,
        "Read long texts in overlapping windows, and take the mean or the maximum of their "
        "probabilities; none cuts them.",
        choices=("mean", "max"),
    )
    doc_stride: int = option(128, "Distance in tokens between the starts of successive windows.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multilabel and not self.labels:
            raise ValueError(
                "`multilabel` applies only to classifiers, but the model does regression: leave "
                "it out"
            )
        if self.threshold is not None and not (self.multilabel or len(self.labels) == 2):
            raise ValueError(
                f"`threshold` needs two labels or `multilabel`, got {len(self.labels)} labels"
            )
        if self.windows and self.pairs:  # The second texts would be left out.
            raise ValueError("`windows` reads single texts, not pairs: leave it out")

    @classmethod
    def names_of(cls, labels: Any, num_outputs: int) -> tuple[str, ...]:
        return class_names(labels, num_outputs if num_outputs > 1 else 0)

    @property
    def problem_type(self) -> str:
        """Hugging Face's problem_type of the head."""
        if self.multilabel:
            return MULTI_LABEL
        return SINGLE_LABEL if self.labels else REGRESSION

    @property
    def task_name(self) -> str:
        return TASK_NAMES[self.problem_type]

    @property
    def text_names(self) -> tuple[str, ...]:
        return ("text_a", "text_b") if self.pairs else ("text",)

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        return {"logits": (None, len(self.labels) or 1)}

    @property
    def feature_settings(self) -> dict[str, Any]:
        windows = {"window_doc_stride": self.doc_stride} if self.windows else {}
        targets = {"num_labels": len(self.labels)} if self.multilabel else {}
        return {**super().feature_settings, **windows, **targets}

    def with_threshold(self, threshold: float | None) -> Classify:
        if threshold is None or not (self.multilabel or len(self.labels) == 2):
            return self
        return self.replace(threshold=threshold)

    def rows(self, tokenizer: Tokenizer, *texts: str | None) -> Iterator[Row]:
        """Yields one row for a text or a pair; with `windows`, a row for each window."""
        if not self.windows:
            # A single text has None as its second.
            text, second = (*texts, None)[:2]
            yield rows_of.pair_features(tokenizer, text, second, self.max_seq_length)
            return
        ids = tokenizer.encode(texts[0])
        for start, end in rows_of.window_spans(len(ids), self.max_seq_length - 2, self.doc_stride):
            yield rows_of.join_ids(tokenizer, ids[start:end])

    def shares(self, logits: Any, firsts: Sequence[int] | np.ndarray) -> np.ndarray:
        """Turns the logits `<float>[R, C]` of N texts' rows into probabilities `<float64>[N, C]`.

        Scores of a regression, `<float>[R, 1]`, are only combined over windows.

        Args:
          logits: Those of all rows.
          firsts: The first row of each text, ascending from 0.
        """
        shares = np.asarray(logits, np.float64)
        if self.labels:
            shares = (sigmoid if self.multilabel else softmax)(logits)
        if not self.windows:
            return shares
        if self.windows == "max":
            return np.maximum.reduceat(shares, firsts)
        # The mean over each text's windows; texts may differ in their number.
        counts = np.diff(firsts, append=len(shares))
        return np.add.reduceat(shares, firsts) / counts[:, None]

    def chosen(self, shares: np.ndarray) -> list[str]:
        """Returns the chosen labels of N texts with probabilities `[N, C]`."""
        if self.multilabel:
            least = THRESHOLD if self.threshold is None else self.threshold
            found = (itertools.compress(self.labels, row >= least) for row in shares)
            return [*map(LABEL_SEPARATOR.join, found)]
        if self.threshold is not None:
            return [self.labels[int(row[1] >= self.threshold)] for row in shares]
        return [self.labels[i] for i in shares.argmax(axis=-1)]

    def found(self, reading: Reading) -> dict[str, Any]:
        logits = np.stack([output["logits"] for output in reading.outputs])
        shares = self.shares(logits, [0]).astype(np.float32)
        if not self.labels:
            return {"score": shares[0, 0]}
        named: dict[str, Any] = {} if self.windows else {"logits": logits[0]}
        named |= {"probabilities": shares[0], "labels": strings(self.labels)}
        if self.threshold is not None:
            named["threshold"] = np.float32(self.threshold)
        return {**named, "label": self.chosen(shares)[0]}

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if not self.labels:
            return {"score": float(found["score"])}
        shares = dict(zip(self.labels, found["probabilities"].tolist(), strict=True))
        threshold = {} if self.threshold is None else {"threshold": float(found["threshold"])}
        return {"label": found["label"], "probabilities": shares, **threshold}

    def said(self, answer: Mapping[str, Any]) -> str:
        if not self.labels:
            return f"score {answer['score']:.4f}"
        shares = (f"{name} {share:.3f}" for name, share in answer["probabilities"].items())
        return f"{answer['label'] or 'no label'} ({', '.join(shares)})"
