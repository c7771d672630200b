"""Multiple choice on raw texts, in the graph."""

from __future__ import annotations

import keras
import tensorflow as tf

from albert_tf.serving.sequences import first, last, parse_examples
from albert_tf.serving.served_models import ServedModel
from albert_tf.serving.tables import dense
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.types import Features


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

    Raises:
      ValueError: If there are fewer than two choices, or an ending leaves no room for the context.

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
        if not 1 <= max_qa_length <= self.max_seq_length - 3:
            raise ValueError(
                f"`max_qa_length` must be from 1 to {self.max_seq_length - 3} for "
                f"sequences of {self.max_seq_length} tokens, got {max_qa_length}"
            )
        self.num_choices = num_choices
        self.max_qa_length = max_qa_length

    def answer(self, features: Features) -> Features:
        """See the class."""
        logits = self.apply(features)
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "choice": tf.argmax(logits, axis=1, output_type=tf.int32),
        }

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
        """See ServedModel."""
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
