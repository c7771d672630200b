"""What is exported: a tf.Module with model and vocabulary, from raw texts to answers."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.answers.fill import MADE_OF, MASK, Fill
from albert_tf.answers.kind import POSITIONS_AT_ONCE, Kind
from albert_tf.answers.rows import FEATURES
from albert_tf.serving import exported_files, graph_tokenizer
from albert_tf.serving.graph_text import (
    SPACES,
    RowTable,
    SequenceBuilder,
    dense,
    from_rows,
    of_rows,
    parse_examples,
    places,
    with_origins,
)
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.word_starts import SPACE_MARK
from albert_tf.types import Features


class ServedModel(tf.Module, abc.ABC):
    """A model that takes raw texts.

    Args:
      model: The model.
      vocabulary: Its vocabulary.
      kind: How its texts are read, and what its outputs mean.
    """

    kind_class: type[Kind]

    def __init__(self, model: keras.Model, vocabulary: Vocabulary, kind: Any) -> None:
        super().__init__()
        kind.check(model.config)
        vocabulary.check(model.config)
        self.kind, self.config, self.vocabulary = kind, model.config, vocabulary
        # Several texts have an axis of their own, and so have their features.
        self.feature_rank = 2 + kind.takes_many
        # A keras.Model as an attribute would be saved with all its functions.
        self.apply = lambda inputs: model(inputs, training=False)
        self.weights = [weight.value for weight in model.weights]
        self.builder = SequenceBuilder(vocabulary.tokenizer, kind.max_seq_length)
        self.run = tf.function(self.answer, input_signature=[self.feature_specs()], autograph=False)
        self._numbers = tf.function(
            self.numbers, input_signature=[self.feature_specs()], autograph=False
        )

    def read_texts(self) -> None:
        """Makes what raw texts are read with; tables of all characters, which take seconds."""
        self.tokenizer = graph_tokenizer.build(self.vocabulary)

    def run_numbers(self, features: Features) -> Features:
        """Returns the outputs of `numbers` as arrays, for features as arrays."""
        return {name: value.numpy() for name, value in self._numbers(dict(features)).items()}

    def answer(self, features: Features) -> Features:
        """Maps `input_ids`, `input_mask` and `segment_ids` `<int32>[B, S]` to what is served."""
        return self.numbers(features)

    def numbers(self, features: Features) -> Features:
        """Maps features to the model's own numeric outputs, without strings."""
        outputs = self.apply(features)
        return outputs if isinstance(outputs, dict) else {"logits": outputs}

    @abc.abstractmethod
    def answer_texts(self, *texts: Any, **named: Any) -> Features:
        """Maps raw texts, `<string>[B]` each, named as in `text_names`, to the served outputs."""

    def parse(self, examples: tf.Tensor) -> Features:
        """Maps serialized tf.train.Examples `<string>[B]` to features; shorter ones are padded."""
        return {name: dense(rows, 0) for name, rows in parse_examples(examples).items()}

    def feature_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the features' specs, by name."""
        shape = [None] * self.feature_rank
        return {name: tf.TensorSpec(shape, tf.int32, name) for name in FEATURES}

    def describe(self, directory: str, is_quantized: bool = False) -> None:
        """Writes the model's kind and config, and its labels in a file of their own."""
        exported_files.describe(directory, self.kind, self.config, is_quantized)

    def text_signature(self) -> Any:
        """Returns the function that takes raw texts."""
        self.read_texts()
        specs = {
            name: tf.TensorSpec([None] * rank, tf.string, name)
            for name, rank in self.kind.text_ranks.items()
        }

        return _concrete(lambda **texts: self.answer_texts(**texts), specs)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions that are served, by name."""
        examples = {"examples": tf.TensorSpec([None], tf.string)}
        return {
            "features": _concrete(lambda **features: self.run(features), self.feature_specs()),
            "examples": _concrete(lambda examples: self.run(self.parse(examples)), examples),
            "serving_default": self.text_signature(),
        }


def run_in_parts(run: Any, features: Features) -> Features:
    """Applies a tf.function to features `<int32>[V, S]` of all windows, a few windows at a time.

    Its outputs `[V, ...]` may be as wide as the features.
    """
    rows, width = tf.unstack(tf.shape(features["input_ids"]))
    size = tf.maximum(POSITIONS_AT_ONCE // width, 1)
    number = tf.maximum(-(-rows // size), 1)
    specs = run.get_concrete_function().structured_outputs
    # An output's parts are as wide as the features, or the beam.
    parts = {
        name: tf.TensorArray(spec.dtype, number, infer_shape=False) for name, spec in specs.items()
    }

    def add(i: tf.Tensor, parts: dict[str, tf.TensorArray]) -> Any:
        part = {name: values[i * size : (i + 1) * size] for name, values in features.items()}
        outputs = run(part)
        return i + 1, {name: array.write(i, outputs[name]) for name, array in parts.items()}

    # One at a time: in parallel they would take the memory of all.
    _, parts = tf.while_loop(
        lambda i, _: i < number, add, (tf.constant(0), parts), parallel_iterations=1
    )
    return {
        name: tf.ensure_shape(array.concat(), specs[name].shape) for name, array in parts.items()
    }


def _concrete(function: Any, specs: dict[str, tf.TensorSpec]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(**specs)


class MaskFiller(ServedModel):
    """A pretrained model: it fills [MASK] in texts and embeds them.

    With M the largest number of [MASK] in a text, it returns the most probable `pieces`
    `<string>[B, M, K]` and their `probabilities` `<float32>[B, M, K]` (padded with "" and 0),
    `pooled` `<float32>[B, H]`, `mean` `<float32>[B, H]` (over the vectors of all pieces) and
    `swapped` `<float32>[B]`, the probability that the segments are swapped.

    Args: see ServedModel.
    """

    kind_class = Fill

    def __init__(self, model: keras.Model, vocabulary: Vocabulary, kind: Any) -> None:
        super().__init__(model, vocabulary, kind)
        tokenizer = vocabulary.tokenizer
        self.mask_id = tokenizer.mask_id
        self.pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))

    def read_texts(self) -> None:
        super().read_texts()
        self._glued = _glued_pieces(self.pieces)

    def numbers(self, features: Features) -> Features:
        """Returns `masked_lm_logits` of all positions, `sequence_output`, and its other outputs."""
        ids = features["input_ids"]
        positions = tf.range(tf.shape(ids)[1])[None] * tf.ones_like(ids)
        outputs = self.apply({**features, "masked_lm_positions": positions})
        kept = [name for answer, name in MADE_OF.items() if answer not in self.kind.without]
        return {name: outputs[name] for name in ("masked_lm_logits", "sequence_output", *kept)}

    def answer_texts(self, text: tf.Tensor) -> Features:
        """Splits the text at each [MASK], then the parts into pieces.

        Text after [MASK] without a space continues its word.
        """
        parts = tf.strings.split(text, MASK)
        ids = self.tokenizer.first(parts.values, self.kind.max_seq_length)
        has_space = tf.strings.regex_full_match(parts.values, f"(?s){SPACES}.*")
        glued = of_rows(ids, (places(parts) > 0) & ~has_space) & (places(ids) == 0)
        shift = tf.where(glued, len(self.pieces), 0)
        values, origins, _ = self._glued.lookup(ids.values + shift)
        ids = with_origins(ids, values, origins)
        masks = tf.fill([ids.nrows(), 1], self.mask_id)
        ids = parts.with_values(tf.concat([masks, ids], axis=1)).merge_dims(1, 2)
        return self.run(self.builder.single(ids[:, 1:]))

    def answer(self, features: Features) -> Features:
        is_mask = features["input_ids"] == self.mask_id
        masked = tf.where(is_mask)
        columns = tf.cast(masked[:, 1], tf.int32)
        rows = from_rows(columns, masked[:, 0], tf.shape(is_mask, tf.int64)[0])
        positions = rows.to_tensor()
        outputs = self.apply({**features, "masked_lm_positions": positions})
        probabilities = tf.nn.softmax(outputs["masked_lm_logits"])
        probabilities, ids = tf.math.top_k(probabilities, self.kind.top_k)
        there = tf.sequence_mask(rows.row_lengths(), tf.shape(positions)[1])[:, :, None]
        keep = tf.cast(features["input_mask"], tf.float32)[:, :, None]
        sequence = tf.cast(outputs["sequence_output"], tf.float32)
        answers = {
            "pieces": tf.where(there, tf.gather(tf.constant(self.pieces), ids), ""),
            "probabilities": tf.where(there, probabilities, 0.0),
            "mean": tf.math.divide_no_nan(
                tf.reduce_sum(sequence * keep, axis=1), tf.reduce_sum(keep, axis=1)
            ),
        }
        if "pooled" not in self.kind.without:
            answers["pooled"] = tf.cast(outputs["pooled_output"], tf.float32)
        if "swapped" not in self.kind.without:
            answers["swapped"] = tf.nn.softmax(outputs["sentence_order_logits"])[:, 1]
        return answers


def _glued_pieces(pieces: Sequence[str]) -> RowTable:
    """Returns a table of all pieces, then of their forms without a space before them."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    without = [ids.get(piece.removeprefix(SPACE_MARK), i) for i, piece in enumerate(pieces)]
    rows = [[i] if piece != SPACE_MARK else [] for i, piece in zip(without, pieces, strict=True)]
    return RowTable([*([i] for i in range(len(pieces))), *rows])
