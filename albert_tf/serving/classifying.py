"""Classification and multiple choice on raw texts, in the graph."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import LABEL_SEPARATOR, THRESHOLD, Classify
from albert_tf.answers.rows import longest_ending
from albert_tf.serving.graph_text import cut, dense, first, last, parse_examples, ragged_rows
from albert_tf.serving.served_models import ServedModel, run_in_parts
from albert_tf.types import Features

# How the answers for windows become those for texts.
_COMBINED = {"mean": tf.math.segment_mean, "max": tf.math.segment_max}


class Classifier(ServedModel):
    """A classifier of texts, or of pairs of texts.

    It returns `logits` and `probabilities` `<float32>[B, C]`, `label` `<string>[B]`, the names of
    all `labels` `<string>[B, C]` and, if given, the `threshold` `<float32>[B]`; for a regression,
    `score` `<float32>[B]`. With `multilabel` each probability is of its own, and `label` is all
    labels of a text, joined by LABEL_SEPARATOR.

    With `windows`, raw texts of any length are read as a whole: the probabilities (without logits)
    or scores of a text are the mean or the max of its windows'. The other signatures answer for
    single windows.

    Args: see ServedModel.

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
        """Answers with the probabilities `<float32>[B, C]`."""
        kind, rows = self.kind, tf.shape(probabilities)[0]
        labels = tf.tile(tf.constant([kind.labels]), [rows, 1])
        answers = {"probabilities": probabilities, "labels": labels}
        if kind.threshold is not None:
            answers["threshold"] = tf.fill([rows], tf.constant(kind.threshold, tf.float32))
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


class Chooser(ServedModel):
    """Chooses the ending that goes with a context.

    It takes `context` `<string>[B]` and `endings` `<string>[B, C]`; features with an axis of
    choices `<int32>[B, C, S]`; or the release's examples, whose features concatenate the choices.
    It returns `logits` and `probabilities` `<float32>[B, C]` and `choice` `<int32>[B]`, from 0.

    Args: see ServedModel.

    Source: race_utils.py, convert_single_example.
    """

    kind_class = Choose

    def answer(self, features: Features) -> Features:
        logits = self.apply(features)
        choice = tf.argmax(logits, axis=1, output_type=tf.int32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), "choice": choice}

    def answer_texts(self, context: tf.Tensor, endings: tf.Tensor) -> Features:
        """Pairs the context with each ending, and truncates both."""
        choices = tf.shape(endings)[1]
        of_ending = tf.repeat(tf.range(tf.size(context)), choices)
        longest = longest_ending(self.kind.max_seq_length, self.kind.max_qa_length)
        ids = last(self.tokenizer(tf.reshape(endings, [-1])).ids, longest)
        room = self.kind.max_seq_length - 3 - ids.row_lengths()
        ids_of_context = self.tokenizer.first(context, self.kind.max_seq_length)
        contexts = first(tf.gather(ids_of_context, of_ending), room)
        rows = self.builder.join(contexts, ids, tf.ones_like(of_ending, tf.bool))
        return self.run(_with_choices(rows, choices))

    def parse(self, examples: tf.Tensor) -> Features:
        rows = parse_examples(examples)
        lengths = tf.repeat(
            rows["input_ids"].row_lengths() // self.kind.num_choices, self.kind.num_choices
        )
        choices = {
            name: dense(tf.RaggedTensor.from_row_lengths(values.values, lengths), 0)
            for name, values in rows.items()
        }
        return _with_choices(choices, self.kind.num_choices)


def _with_choices(rows: Features, choices: int | tf.Tensor) -> Features:
    """Splits the first axis of features `<int32>[B * C, S]`."""
    return {
        name: tf.reshape(values, [tf.shape(values)[0] // choices, choices, tf.shape(values)[1]])
        for name, values in rows.items()
    }
