"""What is exported: a tf.Module with model and vocabulary, from raw texts to answers."""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf.conversion import labels
from albert_tf.conversion.names import POOLER, SENTENCE_ORDER_HEAD
from albert_tf.serving import graph_tokenizer
from albert_tf.serving.exported_files import (
    DESCRIPTION_FILE,
    option_names,
    sequence_length,
)
from albert_tf.serving.graph_text import (
    SPACES,
    Joiner,
    RowTable,
    dense,
    from_rows,
    of_rows,
    parse_examples,
    places,
    with_origins,
)
from albert_tf.serving.settings import FEATURES
from albert_tf.storage import files
from albert_tf.tasks.table import TableSettings
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.words import SPACE_MARK
from albert_tf.types import Features

_MASK = "[MASK]"
# Positions that the model reads at once (at least one window): memory doesn't grow with the texts.
_POSITIONS_AT_ONCE = 4096
# Rows that are scored at once, and outputs that scores are made of; the others may be large.
_ROWS_AT_ONCE = 32
_SCORED = ("probabilities", "score", "answer", "answers", "null_odds")
# What a MaskFiller may be without, and the model's output that it is made of.
MADE_OF = {"pooled": "pooled_output", "swapped": "sentence_order_logits"}


class Evaluation(NamedTuple):
    """Texts of labelled examples, and what maps the outputs for all of them to metrics by name."""

    rows: list[list[str]]
    score: Callable[[Mapping[str, np.ndarray]], dict[str, float]]

    def __call__(
        self, answer: Callable[[Sequence[Sequence[str]]], Mapping[str, np.ndarray]]
    ) -> dict[str, float]:
        """Scores a function of rows of texts, such as Predictor.outputs."""
        # In batches of about the same length.
        order = sorted(range(len(self.rows)), key=lambda i: sum(map(len, self.rows[i])))
        parts = []
        for start in range(0, len(order), _ROWS_AT_ONCE):
            outputs = answer([self.rows[i] for i in order[start : start + _ROWS_AT_ONCE]])
            parts.append({name: outputs[name] for name in _SCORED if name in outputs})
        back = np.argsort(order)
        return self.score(
            {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
        )


class ServedModel(tf.Module, abc.ABC):
    """A model that takes raw texts.

    Args:
      model: The model.
      vocabulary: Its vocabulary.
      max_seq_length: Maximum pieces that raw texts become, special ones included; the model's
        maximum by default.
    """

    # The raw texts that it takes, each `<string>[B]` unless it has another rank.
    text_names: tuple[str, ...] = ("text",)
    text_ranks: dict[str, int] = {}
    # The rank of features.
    feature_rank = 2
    # One of settings.TASKS.
    task: str
    # Whether it has names of classes, and these.
    takes_labels = False
    labels: tuple[str, ...] = ()
    # Name prefixes of weights that it can do without, and the outputs that need them.
    dispensable: Mapping[str, set[str]] = {}

    def __init__(
        self, model: keras.Model, vocabulary: Vocabulary, max_seq_length: int | None = None
    ) -> None:
        super().__init__()
        self.max_seq_length = sequence_length(model.config, max_seq_length)
        vocabulary.check(model.config)
        self.config, self.vocabulary = model.config, vocabulary
        # A keras.Model as an attribute would be saved with all its functions.
        self.apply = lambda inputs: model(inputs, training=False)
        self.weights = [weight.value for weight in model.weights]
        self.tokenizer = graph_tokenizer.build(vocabulary)
        self.joiner = Joiner(vocabulary.tokenizer, self.max_seq_length)
        self.vocabulary_asset = tf.saved_model.Asset(vocabulary.path)
        self.run = tf.function(self.answer, input_signature=[self.feature_specs()], autograph=False)

    def evaluation(self, path: str, columns: TableSettings) -> Evaluation:
        """Reads the labelled examples that the model is scored on, by the metrics of its task.

        Args:
          path: A table as run_finetune.py reads it or, for questions, a file of SQuAD.
          columns: The table's columns.
        """
        raise ValueError(
            f"`eval_file` applies only to tasks with labels, not to {self.task}: leave it out"
        )

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

    def describe(self, directory: str) -> None:
        """Writes the model's task, config and options, and its labels in their own file."""
        options = {name: getattr(self, name, None) for name in option_names(self.task)}
        description = {
            "task": self.task,
            "options": {name: value for name, value in options.items() if value is not None},
            "config": self.config.to_dict(),
        }
        text = json.dumps(description, indent=2) + "\n"
        files.replace(os.path.join(directory, DESCRIPTION_FILE), text)
        if self.labels:
            labels.write(directory, self.labels)

    def text_signature(self) -> Any:
        """Returns the function that takes raw texts."""
        specs = {
            name: tf.TensorSpec([None] * self.text_ranks.get(name, 1), tf.string, name)
            for name in self.text_names
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
    size = tf.maximum(_POSITIONS_AT_ONCE // width, 1)
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

    Args:
      model: An AlbertForPreTraining.
      vocabulary: Its vocabulary.
      top_k: Number of pieces K.
      without: Which of `pooled` and `swapped` are left out because they weren't trained.
      max_seq_length: See ServedModel.
    """

    task = "fill_mask"
    dispensable = {POOLER: {"pooled", "swapped"}, SENTENCE_ORDER_HEAD: {"swapped"}}

    def __init__(
        self,
        model: keras.Model,
        vocabulary: Vocabulary,
        *,
        top_k: int = 5,
        without: Collection[str] = (),
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__(model, vocabulary, max_seq_length)
        if not 1 <= top_k <= model.config.vocab_size:
            raise ValueError(f"`top_k` must be from 1 to {model.config.vocab_size}, got {top_k}")
        tokenizer = vocabulary.tokenizer
        self.top_k = top_k
        self.without = frozenset(without)
        self.mask_id = tokenizer.mask_id
        self.pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        self._glued = _glued_pieces(self.pieces)

    def numbers(self, features: Features) -> Features:
        """Returns `masked_lm_logits` of all positions, `sequence_output`, and its other outputs."""
        ids = features["input_ids"]
        positions = tf.range(tf.shape(ids)[1])[None] * tf.ones_like(ids)
        outputs = self.apply({**features, "masked_lm_positions": positions})
        kept = [name for answer, name in MADE_OF.items() if answer not in self.without]
        return {name: outputs[name] for name in ("masked_lm_logits", "sequence_output", *kept)}

    def answer_texts(self, text: tf.Tensor) -> Features:
        """Splits the text at each [MASK], then the parts into pieces.

        Text after [MASK] without a space continues its word.
        """
        parts = tf.strings.split(text, _MASK)
        ids = self.tokenizer.first(parts.values, self.max_seq_length)
        has_space = tf.strings.regex_full_match(parts.values, f"(?s){SPACES}.*")
        glued = of_rows(ids, (places(parts) > 0) & ~has_space) & (places(ids) == 0)
        shift = tf.where(glued, len(self.pieces), 0)
        values, origins, _ = self._glued.lookup(ids.values + shift)
        ids = with_origins(ids, values, origins)
        masks = tf.fill([ids.nrows(), 1], self.mask_id)
        ids = parts.with_values(tf.concat([masks, ids], axis=1)).merge_dims(1, 2)
        return self.run(self.joiner.single(ids[:, 1:]))

    def answer(self, features: Features) -> Features:
        is_mask = features["input_ids"] == self.mask_id
        masked = tf.where(is_mask)
        columns = tf.cast(masked[:, 1], tf.int32)
        rows = from_rows(columns, masked[:, 0], tf.shape(is_mask, tf.int64)[0])
        positions = rows.to_tensor()
        outputs = self.apply({**features, "masked_lm_positions": positions})
        probabilities = tf.nn.softmax(outputs["masked_lm_logits"])
        probabilities, ids = tf.math.top_k(probabilities, self.top_k)
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
        if "pooled" not in self.without:
            answers["pooled"] = tf.cast(outputs["pooled_output"], tf.float32)
        if "swapped" not in self.without:
            answers["swapped"] = tf.nn.softmax(outputs["sentence_order_logits"])[:, 1]
        return answers


def _glued_pieces(pieces: Sequence[str]) -> RowTable:
    """Returns a table of all pieces, then of their forms without a space before them."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    without = [ids.get(piece.removeprefix(SPACE_MARK), i) for i, piece in enumerate(pieces)]
    rows = [[i] if piece != SPACE_MARK else [] for i, piece in zip(without, pieces, strict=True)]
    return RowTable([*([i] for i in range(len(pieces))), *rows])
