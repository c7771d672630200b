"""The models for fine-tuning: an AlbertModel with a head."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor, ops

from albert_tf.config import ConfigSource, check_integer
from albert_tf.model import albert, dropout
from albert_tf.model.albert import AlbertModel
from albert_tf.model.configured import ConfiguredModel
from albert_tf.model.heads import (
    AnswerabilityHead,
    ClassifierHead,
    ConditionalSpanHead,
    with_positions,
)
from albert_tf.types import Array


class FineTunedModel(ConfiguredModel):
    """Base class of the models for fine-tuning: an encoder, and a head with its own dropout.

    Args:
      config: See ConfiguredModel.
      classifier_dropout_prob: Dropout rate of the head, separate from the config's
        `hidden_dropout_prob` and `attention_probs_dropout_prob`.
      recompute: See ConfiguredModel.
      **kwargs: Passed to keras.Model.
    """

    def __init__(
        self,
        config: ConfigSource,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, **kwargs)
        is_number = isinstance(classifier_dropout_prob, numbers.Real)
        if not (is_number and 0 <= classifier_dropout_prob < 1):
            raise ValueError(
                f"`classifier_dropout_prob` must be in [0, 1), not {classifier_dropout_prob!r}"
            )
        self.classifier_dropout_prob = classifier_dropout_prob
        self.albert = AlbertModel(self.config, recompute, dtype=self.dtype_policy)
        self.seed_generator = keras.random.SeedGenerator() if classifier_dropout_prob else None

    def build(self, input_shape: object = None) -> None:
        width = self.config.hidden_size
        # A head gets one pooled vector per example, or one vector per position.
        of_head = (None, width) if self.reads_pooler else (None, None, width)
        for layer in self.layers:
            if not layer.built:
                layer.build(of_head)
        self.built = True

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classifier_dropout_prob": self.classifier_dropout_prob}

    def encode(
        self, inputs: dict[str, Array], training: bool | None, dropout_seed: Array
    ) -> tuple[dict[str, Any], Array]:
        """Returns AlbertModel's outputs and the head's seed, `<int>[2]` or None without dropout."""
        if training and dropout_seed is None and self.seed_generator is not None:
            dropout_seed = dropout.draw_seed(self.seed_generator)
        # Leave out inputs that only the head takes.
        inputs = {name: inputs[name] for name in AlbertModel.input_axes if name in inputs}
        outputs = self.albert(inputs, training=training, dropout_seed=dropout_seed)
        # The head's dropout site follows those of the embeddings and of all blocks.
        site = 1 + dropout.SITES_PER_BLOCK * self.config.num_blocks
        return outputs, dropout.fold_in(dropout_seed if training else None, site)

    def add_classifier(self, num_outputs: int, name: str) -> ClassifierHead:
        return ClassifierHead(
            self.config,
            num_outputs,
            self.classifier_dropout_prob,
            name=name,
            dtype=self.dtype_policy,
        )


class ClassifierModel(FineTunedModel):
    """Base class of the classifiers.

    Args: see FineTunedModel; `num_labels` is the number of classes C.
    """

    default_name: str

    def __init__(
        self,
        config: ConfigSource,
        num_labels: int,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_integer("num_labels", num_labels, 1)
        # A model without a class would fail only later, in its head's matrix.
        kwargs["name"] = name or self.default_name
        super().__init__(config, classifier_dropout_prob, recompute, **kwargs)
        self.num_labels = num_labels
        self.classifier = self.add_classifier(num_labels, "classifier")
        self.build_all()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_labels": self.num_labels}


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForSequenceClassification(ClassifierModel):
    """Classifies a text or a pair of texts; with one label, a regression.

    Called on AlbertModel's inputs, it returns logits `<float32>[B, C]`.

    Args: see ClassifierModel; dropout acts on the pooled vector, by default at the release's rate.

    Source: classifier_utils.py, create_model.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
      >>> tuple(model({"input_ids": np.array([[2, 7, 8, 3]])}).shape)
      (1, 2)
    """

    default_name = "albert_for_sequence_classification"

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        self.check_inputs(inputs)
        outputs, seed = self.encode(inputs, training, dropout_seed)
        return self.classifier(outputs["pooled_output"], seed=seed)

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
        rows = inputs["input_ids"].shape[0], *albert.packed_axis(inputs)
        return KerasTensor((*rows, self.num_labels))


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForTokenClassification(ClassifierModel):
    """Classifies each position of a sequence, as for names in a text or parts of speech.

    Called on AlbertModel's inputs, it returns logits `<float32>[B, S, C]` for all positions,
    including padding.

    Args: see ClassifierModel; dropout acts on each position's vector.

    Differs: the release has no such model. The head is AlbertForSequenceClassification's.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForTokenClassification(config, num_labels=5)
      >>> tuple(model({"input_ids": np.array([[2, 7, 8, 3]])}).shape)
      (1, 4, 5)
    """

    default_name = "albert_for_token_classification"
    label_axes = "B, S"
    reads_pooler = False

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        self.check_inputs(inputs)
        outputs, seed = self.encode(inputs, training, dropout_seed)
        return self.classifier(outputs["sequence_output"], seed=seed)

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
        return KerasTensor((*inputs["input_ids"].shape, self.num_labels))


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForMultipleChoice(FineTunedModel):
    """Scores the choices of a question.

    Called on AlbertModel's inputs with an axis of choices, `<int32>[B, C, S]`, it returns logits
    `<float32>[B, C]`.

    Args: see FineTunedModel; dropout acts on the pooled vector.

    Source: race_utils.py, create_model.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForMultipleChoice(config)
      >>> choices = np.array([[[2, 7, 3, 8, 3], [2, 7, 3, 9, 3], [2, 7, 3, 5, 3]]])
      >>> tuple(model({"input_ids": choices}).shape)
      (1, 3)
    """

    input_axes = {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), "B, C, S"),
        "depths": "B, D",
        "depth": "",
    }

    def __init__(
        self,
        config: ConfigSource,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        name: str = "albert_for_multiple_choice",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, classifier_dropout_prob, recompute, name=name, **kwargs)
        self.classifier = self.add_classifier(1, "classifier")
        self.build_all()

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        self.check_inputs(inputs)
        # Each choice is a row of the encoder.
        _, choices, length = ops.shape(inputs["input_ids"])
        rows = {
            name: ops.reshape(inputs[name], (-1, length))
            for name, axes in self.input_axes.items()
            if inputs.get(name) is not None and "S" in axes
        }
        if inputs.get("depths") is not None:
            rows["depths"] = ops.repeat(inputs["depths"], choices, axis=0)
        rows["depth"] = inputs.get("depth")
        outputs, seed = self.encode(rows, training, dropout_seed)
        return ops.reshape(self.classifier(outputs["pooled_output"], seed=seed), (-1, choices))

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
        return KerasTensor(inputs["input_ids"].shape[:2])


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForQuestionAnswering(FineTunedModel):
    """Finds the span that answers a question (SQuAD v1.1).

    Called on AlbertModel's inputs, it returns `start_logits` and `end_logits` `<float32>[B, S]`
    for all positions, including padding and the question.

    Args: see FineTunedModel; dropout is 0 by default because the release's head has none.

    Source: squad_utils.py, create_v1_model.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForQuestionAnswering(config)
      >>> outputs = model({"input_ids": np.array([[2, 7, 3, 8, 9, 3]])})
      >>> tuple(outputs["start_logits"].shape), tuple(outputs["end_logits"].shape)
      ((1, 6), (1, 6))
    """

    reads_pooler = False

    def __init__(
        self,
        config: ConfigSource,
        classifier_dropout_prob: float = 0.0,
        recompute: bool = False,
        name: str = "albert_for_question_answering",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, classifier_dropout_prob, recompute, name=name, **kwargs)
        self.span = self.add_classifier(2, "span")
        self.build_all()

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Array]:
        self.check_inputs(inputs)
        outputs, seed = self.encode(inputs, training, dropout_seed)
        logits = self.span(outputs["sequence_output"], seed=seed)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, KerasTensor]:
        shape = inputs["input_ids"].shape
        return {name: KerasTensor(shape) for name in ("start_logits", "end_logits")}


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForQuestionAnsweringV2(FineTunedModel):
    """Finds the span that answers a question, if there is one (SQuAD v2.0).

    Called on AlbertModel's inputs and `p_mask` `<int32>[B, S]`, 1 where no answer can start or
    end, it returns `cls_logits` `<float32>[B]`, which is larger if there is no answer, and

    - if `start_positions` `<int32>[B]` is among the inputs: `start_log_probs` and, given that
      start, `end_log_probs`, both `<float32>[B, S]`;
    - otherwise a beam: the K best starts, `start_top_log_probs` and `start_top_index` `[B, K]`,
      and the J best ends of each start, `end_top_log_probs` and `end_top_index` `[B, K * J]`, the
      ends of the best start first.

    Args:
      config: See FineTunedModel.
      start_n_top: Beam width K for starts.
      end_n_top: Beam width J for the ends of each start.
      classifier_dropout_prob: Dropout of the answerability head's hidden layer.
      recompute: See ConfiguredModel.
      name: Name of the model.
      **kwargs: Passed to keras.Model.

    Source: squad_utils.py, create_v2_model.
    Differs: the release conditions on the true start in training; this model does if it is given.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=2, end_n_top=3)
      >>> ids, p_mask = np.array([[2, 7, 3, 8, 9, 3]]), np.array([[0, 1, 1, 0, 0, 1]])
      >>> outputs = model({"input_ids": ids, "p_mask": p_mask})
      >>> tuple(outputs["cls_logits"].shape), tuple(outputs["end_top_index"].shape)
      ((1,), (1, 6))
    """

    reads_pooler = False
    input_axes = {**ConfiguredModel.input_axes, "p_mask": "B, S", "start_positions": "B"}
    needed_inputs = ("input_ids", "p_mask")

    def __init__(
        self,
        config: ConfigSource,
        start_n_top: int = 5,
        end_n_top: int = 5,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        name: str = "albert_for_question_answering_v2",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, classifier_dropout_prob, recompute, name=name, **kwargs)
        # The widths are part of the graph: they fix the shapes of the beam's outputs.
        check_integer("start_n_top", start_n_top, 1)
        check_integer("end_n_top", end_n_top, 1)
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        policy = self.dtype_policy
        self.span = ConditionalSpanHead(self.config, name="conditional_span", dtype=policy)
        self.answerability = AnswerabilityHead(
            self.config, classifier_dropout_prob, name="answerability", dtype=policy
        )
        self.build_all()

    def get_config(self) -> dict[str, Any]:
        beam = {"start_n_top": self.start_n_top, "end_n_top": self.end_n_top}
        return {**super().get_config(), **beam}

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Array]:
        self.check_inputs(inputs)
        outputs, seed = self.encode(inputs, training, dropout_seed)
        sequence, p_mask = outputs["sequence_output"], inputs["p_mask"]
        starts = inputs.get("start_positions")
        if inputs.get("depths") is not None:  # The same texts, read after fewer layers.
            copies = 1 + inputs["depths"].shape[1]
            p_mask = ops.concatenate([p_mask] * copies)
            starts = None if starts is None else ops.concatenate([starts] * copies)
        beam = (self.start_n_top, self.end_n_top)
        # A short sequence is padded, since the beam may be wider than it.
        if starts is None:
            sequence, p_mask = with_positions(sequence, p_mask, max(beam))
        # Starts, and whether there is an answer.
        start_logits = self.span(sequence, p_mask)
        start_log_probs = ops.log_softmax(start_logits, axis=-1)
        result = {"cls_logits": self.answerability(sequence, start_logits, seed=seed)}
        # Ends, given the true start.
        if starts is not None:
            end_logits = self.span.end_logits(sequence, starts[:, None], p_mask)
            end_log_probs = ops.log_softmax(end_logits[:, 0], axis=-1)
            return {**result, "start_log_probs": start_log_probs, "end_log_probs": end_log_probs}
        # The beam: the best ends of each of the best starts.
        start_top_log_probs, start_top_index = ops.top_k(start_log_probs, self.start_n_top)
        end_logits = self.span.end_logits(sequence, start_top_index, p_mask)
        end_log_probs = ops.log_softmax(end_logits, axis=-1)
        end_top_log_probs, end_top_index = ops.top_k(end_log_probs, self.end_n_top)
        return {
            **result,
            "start_top_log_probs": start_top_log_probs,
            "start_top_index": start_top_index,
            "end_top_log_probs": ops.reshape(end_top_log_probs, (-1, beam[0] * beam[1])),
            "end_top_index": ops.reshape(end_top_index, (-1, beam[0] * beam[1])),
        }

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, KerasTensor]:
        # With a given start every position has a score; otherwise only the beam's spans do.
        shape = inputs["input_ids"].shape
        result = {"cls_logits": KerasTensor(shape[:1])}
        if inputs.get("start_positions") is not None:
            names = ("start_log_probs", "end_log_probs")
            return {**result, **{name: KerasTensor(shape) for name in names}}
        widths = {"start": self.start_n_top, "end": self.start_n_top * self.end_n_top}
        for side, width in widths.items():
            result[f"{side}_top_log_probs"] = KerasTensor((shape[0], width))
            result[f"{side}_top_index"] = KerasTensor((shape[0], width), "int32")
        return result
