"""The base of exported models: a tf.Module with model and vocabulary, from raw texts to answers."""

from __future__ import annotations

import abc
import copy
from typing import Any

import keras
import tensorflow as tf

from albert_tf.answers.kind import POSITIONS_AT_ONCE, Kind
from albert_tf.answers.rows import FEATURES
from albert_tf.serving import exported_files
from albert_tf.serving.graphs import tokenizer
from albert_tf.serving.graphs.text import SequenceBuilder, dense, parse_examples
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.types import Features


class ServedModel(tf.Module, abc.ABC):
    """A model that takes raw texts.

    Args:
      model: The model.
      vocabulary: Its vocabulary.
      kind: How its texts are read, and what its outputs mean.

    Attributes:
      depths: Smaller numbers of layers with which the exported model can answer as well.
      about: The model's description for people.
    """

    kind_class: type[Kind]

    def __init__(self, model: keras.Model, vocabulary: Vocabulary, kind: Any) -> None:
        super().__init__()
        kind.check(model.config)
        vocabulary.check(model.config)
        self.kind, self.config, self.vocabulary = kind, model.config, vocabulary
        self.depths: tuple[int, ...] = ()
        self.about = exported_files.UNSAID
        # If the last text is a list, its texts have an axis of their own in the features.
        self.feature_rank = 2 + kind.takes_many
        # A keras.Model as an attribute would be saved with all its functions.
        self.apply = lambda inputs: model(inputs, training=False)
        self.weights = [weight.value for weight in model.weights]
        self.builder = SequenceBuilder(vocabulary.tokenizer, kind.max_seq_length)
        self._trace()

    def _trace(self) -> None:
        specs = [self.feature_specs()]
        self.run = tf.function(self.answer, input_signature=specs, autograph=False)
        self._numbers = tf.function(self.numbers, input_signature=specs, autograph=False)

    def at_depth(self, depth: int) -> ServedModel:
        """Returns the same model, but answering after `depth` layers."""
        shallow = copy.copy(self)
        shallow.apply = lambda inputs: self.apply({**inputs, "depth": tf.constant(depth)})
        shallow._trace()
        return shallow

    def read_texts(self) -> None:
        """Builds the tokenizer for raw texts; its tables of all characters take seconds."""
        self.tokenizer = tokenizer.build(self.vocabulary)

    def run_numbers(self, features: Features) -> Features:
        """Returns the outputs of `numbers` for features, both as NumPy arrays."""
        return {name: value.numpy() for name, value in self._numbers(dict(features)).items()}

    def answer(self, features: Features) -> Features:
        """Maps `input_ids`, `input_mask`, `segment_ids` `<int32>[B, S]` to the served outputs."""
        return self.numbers(features)

    def numbers(self, features: Features) -> Features:
        """Maps features, and a `depth` if there is one, to the model's own numeric outputs."""
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
        further = self.depths, self.about
        exported_files.describe(directory, self.kind, self.config, is_quantized, *further)

    def text_signature(self) -> Any:
        """Returns the concrete function of raw texts, after `read_texts`."""
        specs = {
            name: tf.TensorSpec([None] * rank, tf.string, name)
            for name, rank in self.kind.text_ranks.items()
        }
        return _concrete(lambda **texts: self.answer_texts(**texts), specs)

    def signatures(self) -> dict[str, Any]:
        """Returns the served functions by name; those of a smaller depth end in `_depth_4`."""
        self.read_texts()
        shallow = {
            f"{name}_depth_{depth}": function
            for depth in self.depths
            for name, function in self.at_depth(depth)._signatures().items()
        }
        return {**self._signatures(), **shallow}

    def _signatures(self) -> dict[str, Any]:
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
    # A part has a bounded number of positions; without any rows there is one empty part.
    size = tf.maximum(POSITIONS_AT_ONCE // width, 1)
    number = tf.maximum(-(-rows // size), 1)
    specs = run.get_concrete_function().structured_outputs
    # The width of a part's outputs is that of the features, or of the beam.
    parts = {
        name: tf.TensorArray(spec.dtype, number, infer_shape=False) for name, spec in specs.items()
    }

    def add(i: tf.Tensor, parts: dict[str, tf.TensorArray]) -> Any:
        part = {name: values[i * size : (i + 1) * size] for name, values in features.items()}
        outputs = run(part)
        return i + 1, {name: array.write(i, outputs[name]) for name, array in parts.items()}

    # One part at a time: in parallel they would need the memory of all.
    _, parts = tf.while_loop(
        lambda i, _: i < number, add, (tf.constant(0), parts), parallel_iterations=1
    )
    return {
        name: tf.ensure_shape(array.concat(), specs[name].shape) for name, array in parts.items()
    }


def _concrete(function: Any, specs: dict[str, tf.TensorSpec]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(**specs)
