"""Classification of raw texts, in the graph."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.answers.classify import LABEL_SEPARATOR, THRESHOLD, Classify
from albert_tf.serving.graphs.base import ServedModel, run_in_parts
from albert_tf.serving.graphs.text import cut, ragged_rows
from albert_tf.types import Features

# Combines the answers for windows into those for texts.
_COMBINED = {"mean": tf.math.segment_mean, "max": tf.math.segment_max}


class Classifier(ServedModel):
    """A classifier of texts, or of pairs of texts.

    It returns `logits` and `probabilities` `<float32>[B, C]`, `label` `<string>[B]`, the names of
    all `labels` `<string>[B, C]` and, if given, the `threshold` `<float32>[B]`; for a regression,
    `score` `<float32>[B]`. With `multilabel` probabilities are independent, and `label` has all
    labels of a text, joined by LABEL_SEPARATOR.

    With `windows`, raw texts may have any length: the probabilities (without logits) or scores of a
    text are the mean or the maximum of its windows'. The other signatures answer for single
    windows.

    Source: run_classifier.py, serving_input_receiver_fn and --threshold_to_export.
    """

    kind_class = Classify

    def answer_texts(self, **texts: tf.Tensor) -> Features:
        """Truncates long texts, see SequenceBuilder; or reads them in windows."""
        kind = self.kind
        most = kind.max_seq_length
        if not kind.windows:
            ids = [self.tokenizer.first(texts[name], most) for name in kind.text_names]
            return self.run(self.builder.pair(*ids) if len(ids) == 2 else self.builder.single(*ids))
        # Read windows on all texts, and combine the answers for each text.
        windows, of_text = text_windows(self.tokenizer(texts["text"]).ids, most, kind.doc_stride)
        outputs = run_in_parts(self.run, self.builder.single(windows))
        combine = _COMBINED[kind.windows]
        if not kind.labels:
            return {"score": combine(outputs["score"], of_text)}
        return self._named(combine(outputs["probabilities"], of_text))

    def answer(self, features: Features) -> Features:
        logits = self.apply(features)
        if not self.kind.labels:
            return {"score": logits[:, 0]}
        shares = tf.nn.sigmoid(logits) if self.kind.multilabel else tf.nn.softmax(logits)
        return {"logits": logits, **self._named(shares)}

    def _named(self, probabilities: tf.Tensor) -> Features:
        """Adds names and the chosen labels to probabilities `<float32>[B, C]`."""
        kind, rows = self.kind, tf.shape(probabilities)[0]
        labels = tf.tile(tf.constant([kind.labels]), [rows, 1])
        answers = {"probabilities": probabilities, "labels": labels}
        if kind.threshold is not None:
            answers["threshold"] = tf.fill([rows], tf.constant(kind.threshold, tf.float32))
        # Choose labels as answers/classify.py does.
        if kind.multilabel:
            least = THRESHOLD if kind.threshold is None else kind.threshold
            found = tf.ragged.boolean_mask(labels, probabilities >= least)
            label = tf.strings.reduce_join(found, axis=1, separator=LABEL_SEPARATOR)
        elif kind.threshold is not None:
            label = tf.where(probabilities[:, 1] >= kind.threshold, kind.labels[1], kind.labels[0])
        else:
            label = tf.gather(tf.constant(kind.labels), tf.argmax(probabilities, axis=1))
        return {**answers, "label": label}


def text_windows(
    ids: tf.RaggedTensor, max_seq_length: int, doc_stride: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Cuts the pieces of texts `<int32>[B, (T)]` into windows; each text has at least one.

    Returns:
      The pieces of each window, `<int32>[W, (L)]`, and its text, `<int32>[W]`, ascending.
    """
    room = tf.fill(tf.shape(ids.row_lengths()), max_seq_length - 2)
    texts, widths, flat = cut(ids, room, doc_stride)
    return ragged_rows(tf.gather(ids.values, flat), widths), texts
