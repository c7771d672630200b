"""Classification and multiple choice on raw texts, in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from albert_tf.conversion import labels as labels_file
from albert_tf.serving.graph_text import cut, dense, first, last, parse_examples, ragged_rows
from albert_tf.serving.served_models import Evaluation, ServedModel, run_in_parts
from albert_tf.tasks import table
from albert_tf.tasks.classification import (
    MultiLabelTask,
    MultipleChoiceTask,
    SequenceClassificationTask,
)
from albert_tf.tasks.sequence_features import longest_ending
from albert_tf.tasks.table import LABEL_SEPARATOR, THRESHOLD, TableSettings
from albert_tf.text.vocabulary import Vocabulary
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

    Args:
      model: An AlbertForSequenceClassification.
      vocabulary: Its vocabulary.
      labels: Names of the classes by id; none for a regression.
      pairs: Whether it takes `text_a` and `text_b` instead of `text`.
      threshold: With two labels, the least probability for the second to be the answer; with
        `multilabel`, that of each label, 0.5 by default.
      multilabel: Whether a text may have any number of labels.
      windows: "mean" or "max", see above; None cuts long texts.
      doc_stride: Pieces from one window to the next.
      max_seq_length: See ServedModel.

    Source: run_classifier.py, serving_input_receiver_fn and --threshold_to_export.
    Differs: the release serves the threshold beside the probabilities and doesn't use it.
    """

    task = "classify"
    takes_labels = True

    def __init__(
        self,
        model: keras.Model,
        vocabulary: Vocabulary,
        labels: Sequence[str] = (),
        *,
        pairs: bool = False,
        threshold: float | None = None,
        multilabel: bool = False,
        windows: str | None = None,
        doc_stride: int = 128,
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__(model, vocabulary, max_seq_length)
        self.labels = labels_file.names(labels, model.num_labels if model.num_labels > 1 else 0)
        if multilabel and not labels:
            raise ValueError(
                "`multilabel` applies only to classifiers, but the model does regression: leave "
                "it out"
            )
        takes_threshold = multilabel or len(labels) == 2
        if threshold is not None and not (takes_threshold and 0 <= threshold <= 1):
            raise ValueError(
                "`threshold` must be in [0, 1], and needs two labels or `multilabel`; got "
                f"{threshold} and {len(labels)} labels"
            )
        if windows is not None and (windows not in _COMBINED or pairs or doc_stride < 1):
            raise ValueError(
                f"`windows` must be {' or '.join(_COMBINED)}, for single texts, with a positive "
                f"`doc_stride`; got {windows!r}, {'pairs' if pairs else 'texts'} and {doc_stride}"
            )
        self.pairs = pairs
        self.windows = windows
        self.doc_stride = doc_stride
        self.threshold = threshold
        self.multilabel = multilabel
        self.text_names = ("text_a", "text_b") if pairs else ("text",)

    def evaluation(self, path: str, columns: TableSettings) -> Evaluation:
        if self.pairs != bool(columns.text_pair_column):  # Half of a pair would be left out.
            raise ValueError(
                "the model takes pairs of texts: set `text_pair_column`"
                if self.pairs
                else "the model takes single texts: leave `text_pair_column` out, or set `pairs`"
            )
        examples = table.read_texts(path, columns, self.labels, several=self.multilabel)
        task_class = MultiLabelTask if self.multilabel else SequenceClassificationTask
        task = task_class(None, None, self.max_seq_length, self.labels)

        def score(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
            found = outputs["probabilities"] if self.labels else outputs["score"][:, None]
            return task.scores(examples, found)

        texts = [[each.text_a, each.text_b] if self.pairs else [each.text_a] for each in examples]
        return Evaluation(texts, score)

    def answer_texts(self, **texts: tf.Tensor) -> Features:
        """Truncates long texts, see Joiner; or reads them in windows."""
        most = self.max_seq_length
        if not self.windows:
            ids = [self.tokenizer.first(texts[name], most) for name in self.text_names]
            return self.run(self.joiner.pair(*ids) if len(ids) == 2 else self.joiner.single(*ids))
        windows, of_text = text_windows(self.tokenizer(texts["text"]).ids, most, self.doc_stride)
        outputs = run_in_parts(self.run, self.joiner.single(windows))
        combine = _COMBINED[self.windows]
        if not self.labels:
            return {"score": combine(outputs["score"], of_text)}
        return self._named(combine(outputs["probabilities"], of_text))

    def answer(self, features: Features) -> Features:
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

    Args:
      model: An AlbertForMultipleChoice.
      vocabulary: Its vocabulary.
      num_choices: Number of choices in an example.
      max_qa_length: Maximum pieces in an ending, which keeps its last ones.
      max_seq_length: See ServedModel.

    Source: race_utils.py, convert_single_example.
    """

    task = "choose"
    text_names = ("context", "endings")
    text_ranks = {"endings": 2}
    feature_rank = 3

    def __init__(
        self,
        model: keras.Model,
        vocabulary: Vocabulary,
        *,
        num_choices: int = 4,
        max_qa_length: int = 128,
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__(model, vocabulary, max_seq_length)
        if num_choices < 2:
            raise ValueError(f"`num_choices` must be at least 2, got {num_choices}")
        if max_qa_length < 1:
            raise ValueError(f"`max_qa_length` must be at least 1, got {max_qa_length}")
        self.num_choices = num_choices
        self.max_qa_length = longest_ending(self.max_seq_length, max_qa_length)

    def evaluation(self, path: str, columns: TableSettings) -> Evaluation:
        if not columns.choice_columns:
            raise ValueError(
                "`eval_file` of choose needs `choice_columns`: give a column per ending"
            )
        examples = table.read_choices(path, columns)
        task = MultipleChoiceTask(
            None,
            None,
            self.max_seq_length,
            columns.choice_columns,
            max_qa_length=self.max_qa_length,
        )
        rows = [[each.context, *each.endings] for each in examples]
        return Evaluation(rows, lambda outputs: task.scores(examples, outputs["probabilities"]))

    def answer(self, features: Features) -> Features:
        logits = self.apply(features)
        choice = tf.argmax(logits, axis=1, output_type=tf.int32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), "choice": choice}

    def answer_texts(self, context: tf.Tensor, endings: tf.Tensor) -> Features:
        """Pairs the context with each ending, and truncates both."""
        choices = tf.shape(endings)[1]
        of_ending = tf.repeat(tf.range(tf.size(context)), choices)
        ids = last(self.tokenizer(tf.reshape(endings, [-1])).ids, self.max_qa_length)
        room = self.max_seq_length - 3 - ids.row_lengths()
        ids_of_context = self.tokenizer.first(context, self.max_seq_length)
        contexts = first(tf.gather(ids_of_context, of_ending), room)
        rows = self.joiner.join(contexts, ids, tf.ones_like(of_ending, tf.bool))
        return self.run(_with_choices(rows, choices))

    def parse(self, examples: tf.Tensor) -> Features:
        rows = parse_examples(examples)
        lengths = tf.repeat(rows["input_ids"].row_lengths() // self.num_choices, self.num_choices)
        choices = {
            name: dense(tf.RaggedTensor.from_row_lengths(values.values, lengths), 0)
            for name, values in rows.items()
        }
        return _with_choices(choices, self.num_choices)


def _with_choices(rows: Features, choices: int | tf.Tensor) -> Features:
    """Splits the first axis of features `<int32>[B * C, S]`."""
    return {
        name: tf.reshape(values, [tf.shape(values)[0] // choices, choices, tf.shape(values)[1]])
        for name, values in rows.items()
    }
