"""Models refuse inputs under other names and of other axes, ids, losses and arguments."""

import functools
from typing import Any

import keras
import numpy as np
import pytest

import albert_tf
from tests.kit import tiny

MASK = np.ones((2, 8), "int32")


@functools.cache
def build(kind: str) -> keras.Model:
    arguments = {"num_labels": 2} if kind.endswith("Classification") else {}
    config = tiny.config(num_hidden_layers=1)
    model = getattr(albert_tf, f"Albert{kind}")(config, **arguments)
    model.compile("sgd", keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def features(kind: str) -> dict[str, np.ndarray]:
    shapes = {2: (2, 8), 3: (2, 4, 8)}
    inputs = build(kind).symbolic_inputs()
    return {name: np.ones(shapes[x.ndim], "int32") for name, x in inputs.items()}


CLASSES, CHOICES, V2 = "ForSequenceClassification", "ForMultipleChoice", "ForQuestionAnsweringV2"
# Other libraries' names, and misspelt ones; a batch may hold its labels.
THEIRS = ("attention_mask", "token_type_ids", "token_ids", "position_ids")
OTHERS = ("input_masks", "segment_id", *THEIRS)
NAMES = [
    *((kind, {name: MASK}, name) for kind in (CLASSES, CHOICES, V2) for name in OTHERS),
    *((CLASSES, {"input_mask": None, name: MASK}, name) for name in ("mask", "masks")),
    (V2, {"input_mask": None, "attention_masks": MASK}, "attention_masks"),
    (CLASSES, {"cls_position": MASK[:, :1]}, "cls_position"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # A model, a change of its inputs, where None leaves one out, and the message.
    *((kind, change, f"^expected inputs among .* got .*{name}.*$") for kind, change, name in NAMES),
    ("ForPreTraining", {"masked_lm_positions": None}, r"^.*masked_lm_positions <int32>\[B, P\] .*"),
    (V2, {"p_mask": None}, r"^expected p_mask <int32>\[B, S\] .*: add it$"),
    (CHOICES, {"input_ids": MASK}, r"^expected input_ids <int32>\[B, C, S\], got the shape.*$"),
    (CHOICES, {"input_mask": MASK}, r"^expected input_mask <int32>\[B, C, S\], got.*$"),
    ("Model", {"input_mask": MASK[:, None]}, r"^.* input_mask <int32>\[B, S\], .* \(2, 1, 8\).*$"),
    ("Model", {"input_ids": MASK[0]}, "^expected input_ids .*, got the shape .*axes$"),
    ("Model", {"input_ids": np.tile(MASK, 4)}, r"32 tokens .*max_position_embeddings \(31\)"),
    (CLASSES, {"input_ids": -MASK}, "input_ids must be from 0 to 52, but one is -1"),
    (CLASSES, {"input_ids": 53 * MASK}, "input_ids must be from 0 to 52, but one is 53"),
    (CLASSES, {"segment_ids": 2 * MASK}, "segment_ids must be from 0 to 1, but one is 2"),
]


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED)
def test_inputs_are_refused(kind, change, message):
    model, inputs = build(kind), {**features(kind), **change}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    uses = model, model.predict, lambda x: model.fit(x, np.ones((2, 2)))
    for use in uses if "must be" in message else uses[:1]:
        with pytest.raises(ValueError, match=message):
            use(inputs)


def test_what_is_not_refused():
    """The whole position table; and labels and lists among the inputs."""
    assert build("Model")({"input_ids": np.ones((1, 31), "int32")})
    model, inputs = build(CLASSES), features(CLASSES)
    lists = {name: value.tolist() for name, value in inputs.items()}
    np.testing.assert_array_equal(model({**lists, "label_ids": MASK[:, 0]}), model(inputs))
    assert model.predict(inputs, verbose=0).shape == (2, 2)


def test_texts_and_arrays_are_refused():
    pandas = pytest.importorskip("pandas")
    model = build(CLASSES)
    for given in (["a text"], pandas.Series(["a text"]), np.array(["a text"]), MASK):
        form = type(given).__name__
        for use in (model, model.predict):
            with pytest.raises(TypeError, match=f"^expected .* `input_ids`, .* texts, not {form}$"):
                use(given)


LOSSES = ["sparse_categorical_crossentropy", keras.losses.BinaryCrossentropy()]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_probabilities_is_refused(loss):
    """Its value on logits is no loss, but training would go on without a word."""
    model = build.__wrapped__(CLASSES)
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="returns logits, but its loss takes probabilities"):
        model.fit(features(CLASSES), np.ones(2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("classifier_dropout_prob", rate) for rate in (1.0, -0.1, "0.1")),
        *(("num_labels", count) for count in (0, "2", 2.0, True, None)),
    ],
)
def test_an_argument_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be .* not {value!r}$"):
        albert_tf.AlbertForTokenClassification("albert_tiny", **{"num_labels": 2, name: value})


def test_export_on_another_backend_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="on TensorFlow, but Keras runs on jax: save the model, l"):
        build("Model").export(tmp_path / "exported")
