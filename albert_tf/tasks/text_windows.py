"""Texts longer than a sequence: overlapping windows, whose predictions are combined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from albert_tf.tasks import sequence_features
from albert_tf.text.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """How texts are cut, and what is predicted for them.

    Attributes:
      combination: "mean" or "max": for each class, the mean or the largest of the probabilities of
        a text's windows; likewise for a regression's numbers.
      doc_stride: Pieces from one window to the next.
    """

    combination: str
    doc_stride: int

    def features(
        self, tokenizer: Tokenizer, text: str, max_seq_length: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the sequence of each window on a text; see sequence_features.pair_features."""
        ids = tokenizer.encode(text)
        spans = sequence_features.window_spans(len(ids), max_seq_length - 2, self.doc_stride)
        for start, end in spans:
            yield sequence_features.join_ids(tokenizer, ids[start:end])

    def combined(self, predictions: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Returns predictions for N texts, `<float64>[N, C]`.

        Args:
          predictions: `<float64>[W, C]`, those for windows.
          texts: `<int>[W]`, the text of each, ascending, from 0 to N - 1.
        """
        starts = np.flatnonzero(np.diff(texts, prepend=-1))
        if self.combination == "max":
            return np.maximum.reduceat(predictions, starts)
        counts = np.diff(starts, append=len(texts))
        return np.add.reduceat(predictions, starts) / counts[:, None]
