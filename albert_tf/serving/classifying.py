"""Classification and regression of raw texts, in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from albert_tf.conversion.labels import check_labels
from albert_tf.serving.served_models import ServedModel
from albert_tf.tasks.multilabel import THRESHOLD
from albert_tf.tasks.table_files import LABEL_SEPARATOR
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.types import Features


class Classifier(ServedModel):
    """A classifier of texts, or of pairs of texts.

    It returns `logits` and `probabilities` `<float32>[B, C]`, `label` `<string>[B]`, the names of
    all `labels` `<string>[B, C]` and, if given, the `threshold` `<float32>[B]`; for a regression,
    `score` `<float32>[B]`. With `multilabel` each probability is of its own, and `label` is all
    labels of a text, joined by LABEL_SEPARATOR.

    Args:
      model: An AlbertForSequenceClassification.
      vocabulary: Its vocabulary.
      labels: Names of the classes by id; none for a regression.
      pairs: Whether it takes `text_a` and `text_b` instead of `text`.
      threshold: With two labels, the least probability for the second to be the answer; with
        `multilabel`, that of each label, 0.5 by default.
      multilabel: Whether a text may have any number of labels.
      max_seq_length: See ServedModel.

    Raises:
      ValueError: If labels are not one per class, or not distinct; if the threshold is not a
        probability, or given for other than two labels; or if a regression is `multilabel`.

    Source: run_classifier.py, serving_input_receiver_fn and --threshold_to_export.
    Differs: the release serves the threshold beside the probabilities and doesn't use it.
    """

    def __init__(
        self,
        model: keras.Model,
        vocabulary: Vocabulary,
        labels: Sequence[str] = (),
        *,
        pairs: bool = False,
        threshold: float | None = None,
        multilabel: bool = False,
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__(model, vocabulary, max_seq_length)
        classes = model.num_labels if model.num_labels > 1 else 0
        check_labels(labels, classes)
        if multilabel and not labels:
            raise ValueError("`multilabel` is for classes, and the model is a regression")
        takes_threshold = multilabel or len(labels) == 2
        if threshold is not None and not (takes_threshold and 0 <= threshold <= 1):
            raise ValueError(
                f"threshold {threshold} must be in [0, 1] and for two labels or `multilabel`; "
                f"there are {len(labels)}"
            )
        self.labels = tuple(labels)
        self.threshold = threshold
        self.multilabel = multilabel
        self.text_names = ("text_a", "text_b") if pairs else ("text",)

    def answer_texts(self, **texts: tf.Tensor) -> Features:
        """Truncates long texts: see Joiner."""
        most = self.joiner.max_seq_length
        ids = [self.tokenizer.first(texts[name], most) for name in self.text_names]
        return self.run(self.joiner.pair(*ids) if len(ids) == 2 else self.joiner.single(*ids))

    def answer(self, features: Features) -> Features:
        """See the class."""
        logits = self.apply(features)
        if not self.labels:
            return {"score": logits[:, 0]}
        probabilities = tf.nn.sigmoid(logits) if self.multilabel else tf.nn.softmax(logits)
        return {"logits": logits, **self._named(probabilities)}

    def _named(self, probabilities: tf.Tensor) -> Features:
        """Answers with the probabilities `<float32>[B, C]`."""
        rows = tf.shape(probabilities)[0]
        labels = tf.tile(tf.constant([self.labels]), [rows, 1])
        answers = {"probabilities": probabilities, "labels": labels}
        if self.threshold is not None:
            answers["threshold"] = tf.fill([rows], self.threshold)
        if self.multilabel:
            least = THRESHOLD if self.threshold is None else self.threshold
            found = tf.ragged.boolean_mask(labels, probabilities >= least)
            label = tf.strings.reduce_join(found, axis=1, separator=LABEL_SEPARATOR)
        elif self.threshold is not None:
            label = tf.where(probabilities[:, 1] >= self.threshold, self.labels[1], self.labels[0])
        else:
            label = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=1))
        return {**answers, "label": label}
