"""Multiple choice on raw texts, in the graph."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.answers.choose import Choose
from albert_tf.answers.rows import longest_ending
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.serving.graphs.text import dense, first, last, parse_examples
from albert_tf.types import Features


class Chooser(ServedModel):
    """Chooses the ending that goes with a context.

    It takes `context` `<string>[B]` and `endings` `<string>[B, C]`; features with an axis of
    choices `<int32>[B, C, S]`; or the release's examples, whose features concatenate the choices.
    It returns `logits` and `probabilities` `<float32>[B, C]` and `choice` `<int32>[B]`, from 0.

    Source: race_utils.py, convert_single_example.
    """

    kind_class = Choose

    def answer(self, features: Features) -> Features:
        logits = self.apply(features)
        choice = tf.argmax(logits, axis=1, output_type=tf.int32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), "choice": choice}

    def answer_texts(self, context: tf.Tensor, endings: tf.Tensor) -> Features:
        # Pair the context with each ending: an ending keeps its end, the context fills the rest.
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
        # The release's examples concatenate rows that are equally long.
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
