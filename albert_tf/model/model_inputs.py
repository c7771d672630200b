"""A batch as the models take it, checked before they compute. Axis letters: see __init__.py."""

from __future__ import annotations

from collections.abc import Mapping

from keras import ops

from albert_tf.types import Array

# Other libraries' names of our inputs: Hugging Face's, KerasHub's, TF-Hub's.
_OURS = {
    "attention_mask": "input_mask",
    "padding_mask": "input_mask",
    "token_type_ids": "segment_ids",
    "input_type_ids": "segment_ids",
    "token_ids": "input_ids",
    "input_word_ids": "input_ids",
}
# Hugging Face's inputs that no model here has.
_NOT_HERE = ("position_ids", "inputs_embeds", "head_mask")
_MEANINGS = {
    "masked_lm_positions": "the positions to predict",
    "p_mask": "1 where no answer can start or end",
}


def check(inputs: Mapping[str, Array], needed: str = "", axes: str = "B, S") -> None:
    """Checks a model's inputs, which would be passed over, or fail deep inside it.

    Args:
      inputs: The inputs, by name.
      needed: One that there must be besides `input_ids`.
      axes: Those of `input_ids`, `input_mask`, `segment_ids` and `p_mask`.

    Raises:
      TypeError: If they are not by name.
      ValueError: If there is one of another library, one is missing, or has other axes.
    """
    if not isinstance(inputs, Mapping):
        # Keras' export also tries a single tensor, and passes over a TypeError alone.
        raise TypeError("expected a dictionary of inputs with `input_ids`: see Preprocessor")
    _check_names(inputs)
    expected = dict.fromkeys(("input_ids", "input_mask", "segment_ids", "p_mask"), axes)
    expected |= {"masked_lm_positions": "B, P", "cls_positions": "B, K"}
    if needed and inputs.get(needed) is None:
        raise ValueError(
            f"expected {needed} <int32>[{expected[needed]}] ({_MEANINGS[needed]}) among the "
            f"inputs, got {', '.join(inputs)}: add it"
        )
    for name, letters in expected.items():
        shape = getattr(inputs.get(name), "shape", None)
        # TensorFlow may not know the rank.
        if shape is None or getattr(shape, "rank", 0) is None:
            continue
        if len(shape) != letters.count(",") + 1:
            raise ValueError(
                f"expected {name} <int32>[{letters}], got the shape {tuple(shape)}: give it these "
                "axes"
            )


def _check_names(inputs: Mapping[str, Array]) -> None:
    wanted = "expected input_ids, input_mask and segment_ids, got"
    foreign = [name for name in inputs if name in _NOT_HERE]
    if foreign:
        raise ValueError(f"{wanted} {', '.join(foreign)}, which no model here takes: leave it out")
    wrong = [f"{name} ({_OURS[name]} here)" for name in inputs if name in _OURS]
    if wrong or "input_ids" not in inputs:
        raise ValueError(f"{wanted} {', '.join(wrong or inputs)}: rename them")


def read(inputs: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns ids, mask and segments `<int32>[B, S]`; the last two may be left out.

    Raises: what `check` raises.
    """
    check(inputs)
    # Already integers, except when fit builds a model under MirroredStrategy: it passes floats.
    input_ids = ops.cast(inputs["input_ids"], "int32")
    input_mask, segment_ids = inputs.get("input_mask"), inputs.get("segment_ids")
    if input_mask is None:
        input_mask = ops.ones_like(input_ids)
    if segment_ids is None:
        segment_ids = ops.zeros_like(input_ids)
    return input_ids, input_mask, ops.cast(segment_ids, "int32")
