"""The shapes of each model's outputs: its `output_spec`. Axis letters: see model/__init__.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import KerasTensor

from albert_tf.model import model_inputs


def encoder(
    model: Any,
    inputs: Mapping[str, Any],
    training: bool | None = None,
    dropout_seed: Any = None,
    positions: Any = None,
) -> dict[str, Any]:
    """Returns those of AlbertModel."""
    model_inputs.check(inputs)
    config = model.config
    batch, length = inputs["input_ids"].shape

    def spec(*shape: int | None) -> KerasTensor:
        return KerasTensor(shape, model.compute_dtype)

    result = {
        "sequence_output": spec(batch, length, config.hidden_size),
        "pooled_output": spec(batch, *_slots(inputs), config.hidden_size),
        "all_encoder_layers": [
            spec(batch, length, config.hidden_size) for _ in range(config.num_blocks)
        ],
        "embedding_output": spec(batch, length, config.embedding_size),
    }
    if positions is not None:
        result["gathered_output"] = spec(batch, positions.shape[1], config.hidden_size)
    return result


def pretraining(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
    """Returns those of AlbertForPreTraining."""
    model_inputs.check(inputs, "masked_lm_positions")
    batch, predictions = inputs["masked_lm_positions"].shape
    return {
        **encoder(model.albert, inputs),
        "masked_lm_logits": KerasTensor((batch, predictions, model.config.vocab_size)),
        "sentence_order_logits": KerasTensor((batch, *_slots(inputs), 2)),
    }


def classes_of_texts(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
    """Returns that of AlbertForSequenceClassification."""
    model_inputs.check(inputs)
    return KerasTensor((inputs["input_ids"].shape[0], *_slots(inputs), model.num_labels))


def classes_of_pieces(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
    """Returns that of AlbertForTokenClassification."""
    model_inputs.check(inputs)
    return KerasTensor((*inputs["input_ids"].shape, model.num_labels))


def choices(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
    """Returns that of AlbertForMultipleChoice."""
    model_inputs.check(inputs, axes="B, C, S")
    return KerasTensor(inputs["input_ids"].shape[:2])


def spans(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, KerasTensor]:
    """Returns those of AlbertForQuestionAnswering."""
    model_inputs.check(inputs)
    return {name: KerasTensor(inputs["input_ids"].shape) for name in ("start_logits", "end_logits")}


def answers(model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, KerasTensor]:
    """Returns those of AlbertForQuestionAnsweringV2."""
    model_inputs.check(inputs, "p_mask")
    shape = inputs["input_ids"].shape
    result = {"cls_logits": KerasTensor(shape[:1])}
    if inputs.get("start_positions") is not None:
        return {
            **result,
            "start_log_probs": KerasTensor(shape),
            "end_log_probs": KerasTensor(shape),
        }
    widths = {"start": model.start_n_top, "end": model.start_n_top * model.end_n_top}
    for side, width in widths.items():
        result[f"{side}_top_log_probs"] = KerasTensor((shape[0], width))
        result[f"{side}_top_index"] = KerasTensor((shape[0], width), "int32")
    return result


def _slots(inputs: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Returns the axis of examples that packed rows have."""
    packed = inputs.get("cls_positions")
    return () if packed is None else packed.shape[1:]
