"""Multiple choice: the ending that fits a context best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import CLASSIFIER_HEAD, Kind, Reading, option, softmax
from albert_tf.answers.rows import Row
from albert_tf.text.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Kind):
    """Multiple choice.

    Attributes:
      num_choices: Number of endings in the release's examples, whose features concatenate them;
        raw texts and features with an axis for them may have any number.
      max_qa_length: Maximum number of pieces per ending, which keeps its last ones.

    Source: race_utils.py, convert_single_example.
    """

    task = "choose"
    task_name = "choice"
    model = "AlbertForMultipleChoice"
    pipeline = "multiple-choice"
    heads = (CLASSIFIER_HEAD,)
    reads_pooler = True
    takes_many = True

    num_choices: int = option(4, "Number of endings per example.", least=2, most=1000)
    max_qa_length: int = option(128, "Maximum length of an ending in tokens.")

    @property
    def text_names(self) -> tuple[str, ...]:
        return ("context", "endings")

    @property
    def feature_settings(self) -> dict[str, Any]:
        return {**super().feature_settings, "max_qa_length": self.max_qa_length}

    def rows(self, tokenizer: Tokenizer, context: str, endings: Sequence[str]) -> Iterator[Row]:
        """Yields one row `<int32>[C, L]` of all endings."""
        lengths = self.max_seq_length, self.max_qa_length
        yield rows_of.choice_features(tokenizer, context, endings, *lengths)

    def shares(self, logits: Any) -> np.ndarray:
        """Turns logits `<float>[N, C]` into probabilities `<float64>[N, C]`."""
        return softmax(logits)

    def found(self, reading: Reading) -> dict[str, Any]:
        logits = reading.outputs[0]["logits"]
        shares = self.shares(logits).astype(np.float32)
        return {"logits": logits, "probabilities": shares, "choice": np.int32(logits.argmax())}

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {"choice": int(found["choice"]), "probabilities": found["probabilities"].tolist()}

    def said(self, answer: Mapping[str, Any]) -> str:
        shares = ", ".join(f"{share:.3f}" for share in answer["probabilities"])
        return f"{answer['choice'] + 1} ({shares})"
