"""Models for fine-tuning: a head on an AlbertModel. Axis letters: see model/__init__.py."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from albert_tf.config import ConfigSource
from albert_tf.model import functional, model_inputs, output_specs
from albert_tf.model.finetuning_bases import ClassifierModel, FineTunedModel
from albert_tf.model.span_heads import AnswerabilityHead, ConditionalSpanHead
from albert_tf.types import Array


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForSequenceClassification(ClassifierModel):
    """Classifies a text or a pair of texts; with one label, a regression.

    Called on AlbertModel's inputs, it returns logits `<float32>[B, C]`.

    Args: see ClassifierModel; the dropout acts on the pooled vector, and its default is the
      release's.

    Source: classifier_utils.py, create_model.
    """

    output_spec = output_specs.classes_of_texts
    default_name = "albert_for_sequence_classification"

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        """Scores the classes of a batch; see AlbertModel.call."""
        outputs, seed = self.encode(inputs, training, dropout_seed)
        return self.classifier(outputs["pooled_output"], seed=seed)


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForMultipleChoice(FineTunedModel):
    """Scores the choices of a question.

    Called on AlbertModel's inputs with an axis of choices, `<int32>[B, C, S]`, it returns logits
    `<float32>[B, C]`.

    Args: see FineTunedModel; the dropout acts on the pooled vector.

    Source: race_utils.py, create_model.
    """

    input_rank = 3
    output_spec = output_specs.choices

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
        self.build()

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        """Scores the choices of a batch; see AlbertModel.call."""
        model_inputs.check(inputs, axes="B, C, S")
        _, choices, length = ops.shape(inputs["input_ids"])
        rows = {
            name: ops.reshape(inputs[name], (-1, length))
            for name in ("input_ids", "input_mask", "segment_ids")
            if inputs.get(name) is not None
        }
        outputs, seed = self.encode(rows, training, dropout_seed)
        return ops.reshape(self.classifier(outputs["pooled_output"], seed=seed), (-1, choices))


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForQuestionAnswering(FineTunedModel):
    """Finds the span that answers a question (SQuAD v1.1).

    Called on AlbertModel's inputs, it returns `start_logits` and `end_logits` `<float32>[B, S]`
    for all positions, those of padding and the question included.

    Args: see FineTunedModel; dropout is 0 by default because the release's head has none.

    Source: squad_utils.py, create_v1_model.
    """

    reads_pooler = False
    output_spec = output_specs.spans

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
        self.build()

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Array]:
        """Scores all positions of a batch; see AlbertModel.call."""
        outputs, seed = self.encode(inputs, training, dropout_seed)
        logits = self.span(outputs["sequence_output"], seed=seed)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForQuestionAnsweringV2(FineTunedModel):
    """Finds the span that answers a question, if there is one (SQuAD v2.0).

    Called on AlbertModel's inputs and `p_mask` `<int32>[B, S]`, 1 where no answer can start or
    end, it returns `cls_logits` `<float32>[B]` (larger: no answer) and,

    - if `start_positions` `<int32>[B]` is among the inputs, `start_log_probs` and, given that
      start, `end_log_probs`, both `<float32>[B, S]`;
    - if not, a beam: the K best starts, `start_top_log_probs` and `start_top_index` `[B, K]`, and
      the J best ends of each, `end_top_log_probs` and `end_top_index` `[B, K * J]`, those of the
      best start first.

    Args:
      config: See FineTunedModel.
      start_n_top: Beam width K for starts.
      end_n_top: Beam width J for the ends of each start.
      classifier_dropout_prob: Dropout of the answerability head's hidden layer.
      recompute: See ConfiguredModel.
      name: Name of the model.
      **kwargs: Passed to keras.Model.

    Source: squad_utils.py, create_v2_model.
    Differs: the release conditions on the true start in training; here, whenever it is given.
    """

    reads_pooler = False
    output_spec = output_specs.answers

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
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        policy = self.dtype_policy
        self.span = ConditionalSpanHead(self.config, name="conditional_span", dtype=policy)
        self.answerability = AnswerabilityHead(
            self.config, classifier_dropout_prob, name="answerability", dtype=policy
        )
        self.build()

    def symbolic_inputs(self) -> dict[str, keras.KerasTensor]:
        """See ConfiguredModel; without start positions the model answers a beam."""
        p_mask = keras.Input(batch_shape=(None, None), dtype="int32", name="p_mask")
        return {**super().symbolic_inputs(), "p_mask": p_mask}

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        beam = {"start_n_top": self.start_n_top, "end_n_top": self.end_n_top}
        return {**super().get_config(), **beam}

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Array]:
        """Scores a batch; see the class and AlbertModel.call."""
        model_inputs.check(inputs, "p_mask")
        outputs, seed = self.encode(inputs, training, dropout_seed)
        sequence, p_mask = outputs["sequence_output"], inputs["p_mask"]
        beam = (self.start_n_top, self.end_n_top)
        if inputs.get("start_positions") is None:
            sequence, p_mask = functional.with_positions(sequence, p_mask, max(beam))
        start_logits = self.span(sequence, p_mask)
        start_log_probs = ops.log_softmax(start_logits, axis=-1)
        result = {"cls_logits": self.answerability(sequence, start_logits, seed=seed)}
        if inputs.get("start_positions") is not None:
            end_logits = self.span.end_logits(sequence, inputs["start_positions"][:, None], p_mask)
            end_log_probs = ops.log_softmax(end_logits[:, 0], axis=-1)
            return {**result, "start_log_probs": start_log_probs, "end_log_probs": end_log_probs}
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
