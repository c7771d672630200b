"""Models refuse inputs with wrong names, axes or values, and wrong losses and arguments."""

import contextlib
import functools
import inspect
import itertools
from typing import Any

import keras
import numpy as np
import pytest

import albert_tf
from tests.kit import jax_process, tiny, tolerances
from tests.kit.files import refused

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
ALONE = {"input_mask": None, "segment_ids": None}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # Model, changes of its inputs (None leaves one out), and the message.
    *((kind, change, f"^expected inputs among .* got .*{name}.*$") for kind, change, name in NAMES),
    ("ForPreTraining", {"masked_lm_positions": None}, r"^.*masked_lm_positions <int32>\[B, P\] .*"),
    (V2, {"p_mask": None}, r"^expected p_mask <int32>\[B, S\] .*: add it$"),
    (CHOICES, {"input_ids": MASK}, r"^expected input_ids <int32>\[B, C, S\], got the shape.*$"),
    (CHOICES, {"input_mask": MASK}, r"^expected input_mask <int32>\[B, C, S\], got.*$"),
    ("Model", {"input_mask": MASK[:, None]}, r"^.* input_mask <int32>\[B, S\], .* \(2, 1, 8\).*$"),
    ("Model", {"input_ids": MASK[0]}, "^expected input_ids .*, got the shape .*axes$"),
    (
        "Model",
        {**ALONE, "input_ids": np.tile(MASK, 4)},
        r"32 tokens .*max_position_embeddings \(31\)",
    ),
    (CLASSES, {"input_ids": -MASK}, "input_ids must be .*from 0 to 52.* is -1"),
    (CLASSES, {"input_ids": 53 * MASK}, "input_ids must be .*from 0 to 52.* is 53"),
    (CLASSES, {"input_ids": MASK + 0.25}, "input_ids must be .* is 1.25"),
    (CLASSES, {"segment_ids": 2 * MASK}, "segment_ids must be .*from 0 to 1.* is 2"),
    (CLASSES, {"segment_ids": MASK * np.nan}, "segment_ids must be .* is nan"),
    (CLASSES, {"input_mask": 0.999 * MASK}, "input_mask must be .* is 0.999"),
    (CLASSES, {"input_mask": 2 * MASK}, "input_mask must be .* is 2"),
    (CLASSES, {"cls_positions": 8 * MASK[:, :3]}, "cls_positions must be .*from 0 to 7.* is 8"),
    (CLASSES, {"input_mask": -MASK}, "input_mask must be .* is -1: .* -100 or less"),
    (V2, {"p_mask": 0.5 * MASK}, "p_mask must be .* is 0.5"),
    (V2, {"p_mask": -100 * MASK}, "p_mask must be .* is -100"),
    (CLASSES, {"input_mask": MASK[:, 1:]}, r"many positions, .* \(2, 8\), input_mask \(2, 7\)"),
    (CLASSES, {"segment_ids": MASK[:1]}, r"many rows, .* segment_ids \(1, 8\)"),
    (V2, {"start_positions": MASK[0]}, r"many rows, .* start_positions \(8,\)"),
    (CLASSES, {**ALONE, "input_ids": MASK[:, :0]}, r"many positions, at .* \(2, 0\)"),
    (V2, {"start_positions": -MASK[:, 0]}, "start_positions must be .*from 0 to 7.* is -1"),
    *(
        ("ForPreTraining", {"masked_lm_positions": at * MASK[:, :3]}, f"masked_lm_pos.* is {at}")
        for at in (8, -1, 0.5)
    ),
]


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED)
def test_inputs_are_refused(kind, change, message):
    model, inputs = build(kind), {**features(kind), **change}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    labels = np.ones((2, 2)) if kind == CLASSES else None
    uses = model, model.predict, lambda x: model.fit(x, labels)
    for use in uses if "must be" in message or "many" in message else uses[:1]:
        with pytest.raises(ValueError, match=message):
            use(inputs)


def test_what_is_not_refused():
    """The whole position table; labels and lists among the inputs; and each form of a mask."""
    assert build("Model")({"input_ids": np.ones((1, 31), "int32")})
    model, inputs = build(CLASSES), features(CLASSES)
    lists = {name: value.tolist() for name, value in inputs.items()}
    np.testing.assert_array_equal(model({**lists, "label_ids": MASK[:, 0]}), model(inputs))
    assert model.predict(inputs, verbose=0).shape == (2, 2)
    mask = np.repeat([[1, 1, 1, 0]], 2, axis=1) * MASK
    expected = model({**inputs, "input_mask": mask})
    for form in (mask == 1, mask.astype("float16"), 1e4 * (mask - 1), np.where(mask, 0, -np.inf)):
        given = {**inputs, "input_mask": form}
        tolerances.assert_close(model(given), expected, tolerances.OUTPUT)


def test_texts_and_arrays_are_refused():
    pandas = pytest.importorskip("pandas")
    model = build(CLASSES)
    for given in (["a text"], pandas.Series(["a text"]), np.array(["a text"]), MASK):
        form = type(given).__name__
        for use in (model, model.predict):
            with pytest.raises(TypeError, match=f"^expected .* `input_ids`, .* texts, not {form}$"):
                use(given)


class Batches(keras.utils.PyDataset):
    """Three batches of two rows, drawn by threads."""

    def __init__(self, x: dict[str, np.ndarray], y: np.ndarray) -> None:
        super().__init__(workers=2)
        self.batches = [({k: v[i : i + 2] for k, v in x.items()}, y[i : i + 2]) for i in (0, 2, 4)]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def tf_data(x: dict[str, np.ndarray], y: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((dict(x), y)).batch(2)


# Calls that pass inputs and labels in each form.
HELD = {
    "arrays": lambda model, x, y: model.fit(x, y, verbose=0),
    "dataset": lambda model, x, y: model.fit(Batches(x, y), verbose=0),
    "generator": lambda model, x, y: model.fit(
        (b for b in itertools.cycle(Batches(x, y))), shuffle=False, verbose=0, steps_per_epoch=3
    ),
    "tf.data": lambda model, x, y: model.fit(tf_data(x, y), shuffle=False, verbose=0),
    "validation": lambda m, x, y: m.fit(*GOOD, validation_data=(x, y), batch_size=2, verbose=0),
    "validated": lambda m, x, y: m.fit(*GOOD, validation_data=tf_data(x, y), verbose=0),
    "evaluate": lambda model, x, y: model.evaluate(Batches(x, y), verbose=0),
    "a batch": lambda model, x, y: model.train_on_batch(x, y),
}
IDS = np.random.default_rng(5).integers(5, 53, (6, 7))
GOOD = {"input_ids": IDS}, np.array([0, 2, 1, 1, 0, 2])


def refuse_what_is_wrong(*holders: str) -> None:
    """Wrong labels and ids are refused in the first and last batch; the model stays as it was."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = albert_tf.AlbertForSequenceClassification(tiny.config(num_hidden_layers=1), 3, 0.0)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=keras.backend.backend() == "jax")
    before = model.evaluate(*GOOD, verbose=0)
    for hold in map(HELD.get, holders):
        for row in (0, 5):
            labels, ids = GOOD[1].copy(), IDS.copy()
            labels[row], ids[row, 4] = 3, 53
            with refused("labels must be .* 0 to 2.* is 3.*`ignore_class`", exception=ValueError):
                hold(model, GOOD[0], labels)
            with refused("input_ids must be .*from 0 to 52.* is 53", exception=ValueError):
                hold(model, {"input_ids": ids}, GOOD[1])
            assert model.evaluate(*GOOD, verbose=0) == before
        hold(model, *GOOD)
    # Labels of a test set may be unknown.
    assert model.predict(Batches(GOOD[0], GOOD[1] - 1), verbose=0).shape == (6, 3)


# The others take the same code paths in Keras.
WAYS = ["tf.data", "validation"]
WAYS += [pytest.param(name, marks=pytest.mark.slow) for name in HELD if name not in WAYS]


@pytest.mark.parametrize("holder", WAYS)
def test_labels_and_ids_are_refused_before_a_step(holder):
    refuse_what_is_wrong(holder)


@pytest.mark.slow
def test_labels_and_ids_are_refused_before_a_step_of_jax():
    """On JAX, a label that is not a class would add no loss, and train nothing."""
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(refuse_what_is_wrong, *HELD))


NLL = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
BINARY = keras.losses.BinaryCrossentropy(from_logits=True)
SPANS = {"start_logits": np.arange(6), "end_logits": np.arange(1, 7)}
MULTI_HOT = np.eye(3)[[0, 1, 2, 0, 1, 1]]
TAGS, ANSWERS = "ForTokenClassification", "ForQuestionAnswering"


def own(labels: Any, logits: Any) -> Any:
    return keras.ops.mean(NLL()(labels % 3, logits))


def own_but_unknown(labels: Any, logits: Any) -> Any:
    return own(labels, logits)


own_but_unknown.ignore_class = -1  # type: ignore[attr-defined]
LABELS = [
    # A model, a loss, labels, and why they are refused.
    (CLASSES, NLL(), GOOD[1] + 0.5, "labels .* 0 to 2.* is 0.5"),
    (CLASSES, NLL(ignore_class=2), GOOD[1], ""),
    (CLASSES, NLL(ignore_class=-1), GOOD[1] - 2, "labels .* is -2"),
    (CLASSES, BINARY, MULTI_HOT * 0.5, ""),
    (CLASSES, BINARY, 2 * MULTI_HOT, "labels .* 2"),
    (CLASSES, keras.losses.MeanSquaredError(), MULTI_HOT - 7.5, ""),
    (TAGS, NLL(), IDS - IDS, ""),
    (TAGS, NLL(), IDS, "labels .* 0 to 2"),
    (ANSWERS, {name: NLL() for name in SPANS}, SPANS, ""),
    (ANSWERS, [NLL(), NLL()], SPANS, ""),
    (ANSWERS, NLL(), {**SPANS, "end_logits": IDS[:, 0]}, "of end_log.* 0 to 6"),
    (ANSWERS, NLL(), {"start_logits": GOOD[1]}, "expected labels of end_logits as an array"),
    (CHOICES, NLL(), np.full(6, 4), "labels .* 0 to 3.* is 4"),
    # Integers are classes to a loss that isn't known, floats are not.
    (CLASSES, own, GOOD[1] + 1, "labels .* 0 to 2.* is 3.*floats"),
    (CLASSES, own, GOOD[1] + 1.0, ""),
    (CLASSES, own_but_unknown, GOOD[1] - 1, ""),
    (CLASSES, own_but_unknown, GOOD[1] - 2, "labels .* is -2"),
    # Labels that are no array, missing, texts, not finite, or of another size.
    (CLASSES, NLL(), GOOD[1].tolist(), "expected labels as an array, got list"),
    (CLASSES, NLL(), None, "expected labels as an array, got NoneType"),
    (CLASSES, NLL(), np.array(["a"] * 6), "labels .* one is a:"),
    (CLASSES, "mse", MULTI_HOT * np.nan, "labels must be finite numbers, but one is nan"),
    (CLASSES, "mse", np.where(MULTI_HOT, -np.inf, 0), "labels must be finite .* -inf"),
    (CLASSES, NLL(), GOOD[1][:5], r"many rows, .* \(6, 7\), labels \(5,\)"),
    (TAGS, NLL(), IDS[:, 1:] % 3, r"many positions, .* \(6, 7\), labels \(6, 6\)"),
    (CLASSES, "mse", GOOD[1], r"mean_squared_error .* \(6, 3\), but labels have \(6,\)"),
    # Computed on logits these are not losses, but training would go on without a warning.
    (CLASSES, "sparse_categorical_crossentropy", GOOD[1], "logits, .* takes probabilities"),
    (CLASSES, keras.losses.BinaryCrossentropy(), MULTI_HOT, "logits, .* takes probabilities"),
]


@pytest.mark.parametrize(("kind", "loss", "labels", "noun"), LABELS)
def test_which_labels_a_loss_takes(kind, loss, labels, noun):
    inputs = {"input_ids": np.stack([IDS] * 4, axis=1) if kind == CHOICES else IDS}
    with either(noun):
        compiled(kind, loss).evaluate(inputs, labels, verbose=0)


def compiled(kind: str, loss: Any) -> keras.Model:
    arguments = {"num_labels": 3} if kind.endswith("tion") else {}
    model = getattr(albert_tf, f"Albert{kind}")(tiny.config(num_hidden_layers=1), **arguments)
    model.compile("sgd", loss, run_eagerly=True)
    return model


def either(noun: str) -> contextlib.AbstractContextManager[None]:
    return refused(noun, exception=(TypeError, ValueError)) if noun else contextlib.nullcontext()


WEIGHTS = [
    (CLASSES, {"sample_weight": np.arange(6.0)}, ""),
    (TAGS, {"sample_weight": np.ones((6, 1))}, ""),
    (CLASSES, {"sample_weight": np.arange(6) - 1.0}, "sample_weight must be .* from 0, .* is -1.0"),
    (CLASSES, {"sample_weight": np.full(6, np.nan)}, "sample_weight must be finite .* is nan"),
    (CLASSES, {"sample_weight": np.ones(5)}, r"many rows, .* sample_weight \(5,\)"),
    (CLASSES, {"sample_weight": [1.0] * 6}, "expected sample_weight as an array"),
    (TAGS, {"sample_weight": np.ones((6, 6))}, r"many positions, .* sample_weight \(6, 6\)"),
    (CLASSES, {"class_weight": {0: 1.0, 1: 0.0, 2: 2.0}}, ""),
    (CLASSES, {"class_weight": {0: -1.0}}, "expected `class_weight` .* from 0, got {0: -1.0}"),
    (CLASSES, {"class_weight": [1.0, 1.0]}, "expected `class_weight` as a dictionary"),
    (TAGS, {"class_weight": {0: 1.0}}, r"`class_weight` .* `sample_weight` <float>\[B, S\]"),
]


@pytest.mark.parametrize(("kind", "weights", "noun"), WEIGHTS)
def test_which_weights_are_taken(kind, weights, noun):
    model, labels = compiled(kind, NLL()), IDS % 3 if kind == TAGS else GOOD[1]
    use = model.train_on_batch if "class_weight" in weights else model.test_on_batch
    with either(noun):
        use(GOOD[0], labels, **weights)


def run_tables() -> None:
    for test, rows in (
        (test_inputs_are_refused, REFUSED),
        (test_which_labels_a_loss_takes, LABELS),
        (test_which_weights_are_taken, WEIGHTS),
    ):
        for row in rows:
            test(*row)


@pytest.mark.slow
def test_the_same_is_refused_on_jax():
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(run_tables))


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        (lambda x, y: (x, y), ""),
        (lambda x, y: (x, y[:, 1:]), r"many positions, .* \(6, 7\), labels \(6, 6\)"),
        (lambda x, y: (x, y, -y), "sample_weight must be .* from 0, but one is"),
        (lambda x, y: (x,), "expected labels as an array, got NoneType"),
        (lambda x, y: (x, y * 9), "labels .* 0 to 2"),
    ],
)
def test_a_graph_refuses_sizes_that_it_knows_or_not(change, noun):
    """Also a ragged tensor, which Keras pads."""
    import tensorflow as tf

    def unknown(x: Any) -> Any:
        return tf.compat.v1.placeholder_with_default(x, (None, None))

    data = tf.data.Dataset.from_tensors(change(GOOD[0], IDS % 3))
    for each in (data, data.map(lambda *batch: keras.tree.map_structure(unknown, batch))):
        with either(noun):
            compiled(TAGS, NLL()).evaluate(each, verbose=0)
    ragged = tf.data.Dataset.from_tensors({"input_ids": tf.ragged.constant([[5], [6, 7]])})
    with refused("input_ids as an array, got RaggedTensor", exception=TypeError):
        build(CLASSES).predict(ragged)


PLATEAU = keras.callbacks.ReduceLROnPlateau("loss")
SCHEDULED = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)


@pytest.mark.parametrize(
    ("callback", "rate"),
    [(PLATEAU, 0.1), (PLATEAU, None), (SCHEDULED, None), (keras.callbacks.TerminateOnNaN(), None)],
)
def test_a_callback_can_not_set_the_rate_of_a_schedule(callback, rate):
    """Keras itself would fail only at the first plateau, after several epochs."""
    model = build.__wrapped__(CLASSES)
    optimization = albert_tf.optimization
    optimizer = optimization.AdamW(rate) if rate else optimization.create_optimizer(0.1, 9, 0)
    model.compile(optimizer, keras.losses.MeanSquaredError(), run_eagerly=True)
    is_refused = callback in (PLATEAU, SCHEDULED) and not rate
    check = refused(f"^{type(callback).__name__} .*optimization.AdamW", exception=ValueError)
    with check if is_refused else contextlib.nullcontext():
        model.fit(features(CLASSES), np.ones((2, 2)), callbacks=[callback], verbose=0)


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict", "train_on_batch"])
def test_methods_show_the_arguments_and_the_docstring_of_keras(name):
    ours, theirs = (getattr(each, name) for each in (albert_tf.AlbertModel, keras.Model))
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert "Args:" in inspect.getdoc(getattr(build("Model"), name))


RATES, COUNTS = (1.0, -0.1, "0.1"), (0, "2", 2.0, True, None)
ARGUMENTS = [("classifier_dropout_prob", rate) for rate in RATES]


@pytest.mark.parametrize(("name", "value"), [*ARGUMENTS, *(("num_labels", n) for n in COUNTS)])
def test_an_argument_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be .* not {value!r}$"):
        albert_tf.AlbertForTokenClassification("albert_tiny", **{"num_labels": 2, name: value})


def test_export_on_another_backend_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="on TensorFlow, but Keras runs on jax: save the model, l"):
        build("Model").export(tmp_path / "exported")
