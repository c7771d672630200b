"""Weights from each source into each model; --init_checkpoint of pre-training."""

import contextlib
import dataclasses
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.cli import pretrain
from albert_tf.conversion import keras_files, names
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests.kit import goldens, tiny
from tests.kit import pretraining_runs as runs


def encoder(variant: str = "base", **changes) -> albert_tf.AlbertModel:
    return albert_tf.AlbertModel(goldens.config(variant, **changes))


def stored(variant: str = "base") -> dict[str, np.ndarray]:
    return checkpoint.read(goldens.checkpoint(variant))


def save(directory, tensors) -> str:
    return checkpoint.save(str(directory), 7, tensors, keep_max=1)


def check_weights(model, expected: dict[str, np.ndarray]) -> None:
    for name, variable in conversion.named_weights(model).items():
        np.testing.assert_array_equal(variable.numpy(), expected[name], err_msg=name)


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_every_weight_is_filled(variant):
    """Weights have the release's names and shapes."""
    model = albert_tf.AlbertForPreTraining(goldens.config(variant))
    variables = json.loads((goldens.FOLDER / variant / "variables.json").read_text())
    shapes = {each["name"]: each["shape"] for each in variables["trainable_variables"]}
    named = conversion.named_weights(model)
    assert {name: list(variable.shape) for name, variable in named.items()} == shapes
    report = albert_tf.load_weights(model, goldens.checkpoint(variant))
    assert report.loaded == tuple(variable.path for variable in model.weights)
    assert report.missing == report.unused == ()
    assert str(report) == f"{len(model.weights)} variables loaded"
    check_weights(model, stored(variant))
    if variant == "base":
        check_weights(model, goldens.arrays(goldens.FOLDER / "base" / "variables.npz"))


@pytest.mark.parametrize("sharing", ["attention", "ffn", "none"])
def test_unshared_sublayers_are_stored_by_the_names_of_their_groups(sharing, tmp_path):
    """tests/test_weight_shapes.py has the names."""
    config = goldens.config("base", parameter_sharing=sharing)
    named = tiny.weights(albert_tf.AlbertModel(config))
    again = albert_tf.AlbertModel(config)
    assert len(conversion.load_weights(again, save(tmp_path, named)).loaded) == len(named)
    check_weights(again, named)


def test_two_weights_of_one_name_are_refused():
    config = goldens.config("base")
    inputs = keras.Input((None,), dtype="int32", name="input_ids")
    towers = [albert_tf.AlbertModel(config, name=name) for name in ("question", "answer")]
    pooled = [tower({"input_ids": inputs})["pooled_output"] for tower in towers]
    model = keras.Model(inputs, keras.layers.Add()(pooled))
    with pytest.raises(ValueError, match="question/embeddings.* and answer/embeddings.* both be"):
        conversion.named_weights(model)


def test_heads_that_only_the_checkpoint_has_are_reported():
    model = encoder()
    report = conversion.load_weights(model, goldens.checkpoint("base"))
    heads = sorted(name for name in stored() if name.startswith("cls/"))
    assert (report.missing, report.unused, len(heads)) == ((), tuple(heads), 7)
    assert str(report) == "25 variables loaded; unused: cls/predictions, cls/seq_relationship"
    check_weights(model, stored())


def test_heads_that_only_the_model_has_are_reported_and_left_alone(tmp_path):
    values = {name: value for name, value in stored().items() if name.startswith("bert/")}
    model = albert_tf.AlbertForPreTraining(goldens.config("base"))
    before = {n: v for n, v in tiny.weights(model).items() if n.startswith("cls/")}
    report = conversion.load_weights(model, save(tmp_path, values))
    assert {names.tf1_name(path) for path in report.missing} == {*before} and len(before) == 7
    assert str(report).endswith("; missing: cls/predictions, cls/seq_relationship")
    check_weights(model, values | before)


def test_a_head_of_ones_own_is_reported():
    inputs = keras.Input((None,), dtype="int32", name="input_ids")
    pooled = encoder()({"input_ids": inputs})["pooled_output"]
    model = keras.Model(inputs, keras.layers.Dense(3, name="classes")(pooled))
    report = conversion.load_weights(model, goldens.checkpoint("base"))
    assert report.missing == ("classes/kernel", "classes/bias") and len(report.loaded) == 25


QUERY = "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel"
POOLER = "bert/pooler/dense/bias"


def without(names) -> dict[str, np.ndarray]:
    return {name: value for name, value in stored().items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "messages"),
    [
        (lambda: without([QUERY, POOLER]), [f"lacks .*{QUERY}", f"lacks .*{POOLER}"]),
        (lambda: stored() | {"bert/extra": np.ones(3, "f")}, ["has, unlike the model, bert/extra"]),
        (lambda: stored() | {POOLER: np.ones(37, "f")}, [rf"{POOLER} \[37\] .*, \[32\] in the mo"]),
        (lambda: {"w": np.ones(3, "f")}, [f"lacks .*{QUERY}", "shares no variable"]),
    ],
    ids=["missing", "unused", "shape", "other"],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, tensors, messages):
    path, model = save(tmp_path, tensors()), encoder()
    before = tiny.weights(model)
    for message in [*messages, "use the albert_config.json that belongs to it"]:
        with pytest.raises(ValueError, match=message):
            conversion.load_weights(model, path)
    check_weights(model, before)


def test_the_head_of_another_task_is_left_out_if_asked(golden, caplog):
    config = albert_tf.AlbertConfig.from_json_file(golden / "heads/cola/albert_config.json")
    model = albert_tf.AlbertForSequenceClassification(config, num_labels=3)
    before = model.classifier.get_weights()
    path = str(golden / "heads/cola/model.ckpt-best")
    with pytest.raises(ValueError, match=r"output_weights \[2, 32\] in the checkpoint, \[3, 32\]"):
        albert_tf.load_weights(model, path)
    report = albert_tf.load_weights(model, path, replace_heads=True)
    assert report.unused == ("output_bias", "output_weights")
    assert len(report.missing) == 2
    assert "has the head of another task (output_weights [2, 32], output_bias [2])" in caplog.text
    for value, expected in zip(model.classifier.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    config = dataclasses.replace(config, intermediate_size=60)
    other = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
    with pytest.raises(ValueError, match="has other shapes than the model .bert/"):
        albert_tf.load_weights(other, path, replace_heads=True)


def with_own_head(path, **arguments) -> keras.layers.Layer:
    """Saves a model whose head is a plain Keras layer; returns that layer."""
    inputs = {"input_ids": keras.Input((None,), dtype="int32", name="input_ids")}
    head = keras.layers.Dense(2, bias_initializer="ones", name="classifier", **arguments)
    keras.Model(inputs, head(encoder()(inputs)["pooled_output"])).save(path)
    return head


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_is_left_out_as_a_whole_and_bfloat16_of_keras_is_read(tmp_path, dtype):
    """The kernel of a plain Keras layer has another shape than ours; its bias has the same."""
    head = with_own_head(tmp_path / "model.keras", dtype=dtype)
    model = albert_tf.AlbertForSequenceClassification.from_weights(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.classifier.output_bias, [0, 0])
    weights = keras_files.read_weights(str(tmp_path / "model.keras"))
    expected = keras.ops.convert_to_numpy(head.kernel).astype("float32")
    np.testing.assert_array_equal(weights["output_weights"], expected)


def test_a_checkpoint_may_have_no_pooler_at_all(tmp_path):
    """Hugging Face's AlbertForMaskedLM and AlbertForQuestionAnswering have none."""
    poolers = [name for name in stored() if name.startswith("bert/pooler/")]
    report = conversion.load_weights(encoder(), save(tmp_path, without(poolers)))
    assert report.missing == ("albert/pooler/kernel", "albert/pooler/bias")


def test_what_is_no_weight_is_passed_over(tmp_path):
    half = {name: value.astype(np.float16) for name, value in stored().items()}
    others = {"name": np.array(b"x"), "counts": np.arange(3), "scale": np.float32(1)}
    report = conversion.load_weights(model := encoder(), save(tmp_path, half | others))
    assert {"name", "counts", "scale"} & set(report.unused) == {"scale"}
    check_weights(model, half)


def test_group_0_fills_the_groups_that_the_checkpoint_lacks(golden):
    """The rule is the release's assignment, stored as checkpoint name -> model name.

    It has one name twice and so loses attention_1 and ffn_1 of group_0 itself; here they are read.
    """
    stored_rule = json.loads((golden / "heads/checkpoint_assignment.json").read_text())
    rule = stored_rule["two_group_model_from_one_group_checkpoint_num_of_group=2"]
    source = {mine: theirs for part in rule["assignment_map"] for theirs, mine in part.items()}
    model, values = encoder(num_hidden_groups=2), stored()
    report = conversion.load_weights(model, goldens.checkpoint("base"), expand_group0=True)
    assert report.missing == ()
    names = set(conversion.named_weights(model))
    assert all("group_0/" in name for name in names - set(source))
    assert any("group_1/" in name for name in source)
    check_weights(model, {name: values[source.get(name, name)] for name in names})


def test_group_0_fills_nothing_unasked(golden):
    stored_rule = json.loads((golden / "heads/checkpoint_assignment.json").read_text())
    rule = stored_rule["two_group_model_from_one_group_checkpoint_num_of_group=0"]
    with pytest.raises(ValueError) as error:
        conversion.load_weights(encoder(num_hidden_groups=2), goldens.checkpoint("base"))
    lacking = str(error.value).partition("lacks ")[2].partition(";")[0].split(", ")
    assert sorted(lacking) == sorted(rule["not_restored"])


def test_group_0_replaces_no_group_that_is_there():
    model, values = encoder(num_hidden_groups=3), stored("groups2")
    conversion.load_weights(model, goldens.checkpoint("groups2"), expand_group0=True)
    names = conversion.named_weights(model)
    there = {name: name.replace("group_2/", "group_0/") for name in names}
    check_weights(model, {n: values[n if n in values else there[n]] for n in names})
    assert any("group_2/" in name for name in names)
    # Missing inner groups are never filled from others.
    with pytest.raises(ValueError, match="lacks .*group_0/inner_group_1"):
        inner = encoder(inner_group_num=2)
        conversion.load_weights(inner, goldens.checkpoint("base"), expand_group0=True)


def test_moments_and_step_are_passed_over(golden):
    folder = golden / "optim" / "lamb_a_checkpoint"
    names = set(checkpoint.read(str(folder)))
    assert {f"{QUERY}/adam_m", f"{QUERY}/adam_v", "global_step"} <= names
    model = albert_tf.AlbertForPreTraining(goldens.config("base"))
    report = conversion.load_weights(model, str(folder))
    assert report.missing == report.unused == ()
    after = goldens.arrays(golden / "optim" / "lamb_a_params.npz")
    check_weights(model, {n.removeprefix("after10/"): v for n, v in after.items()})


def test_a_checkpoint_of_objects_is_refused(tmp_path):
    path = tf.train.Checkpoint(w=tf.Variable(tf.ones(3))).save(str(tmp_path / "ckpt"))
    with pytest.raises(ValueError, match="shares no variable with the model"):
        conversion.load_weights(encoder(), path)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return runs.write_records(tmp_path_factory.mktemp("records") / "a.tfrecord", runs.examples(13))


@pytest.fixture
def prepare(records, tmp_path, caplog):
    """Starts run_pretraining.py up to the first step; returns its Trainer."""
    caplog.set_level("INFO", logger="absl")

    def prepare(source, config, *arguments):
        (tmp_path / "albert_config.json").write_text(config.to_json())
        command = runs.command(tmp_path, input_file=records, init_checkpoint=source)
        with contextlib.ExitStack() as held:
            return pretrain.prepare(runs.parse([*command, *arguments]), held)[1]

    return prepare


def source_of(layout, golden, folder):
    base = goldens.FOLDER / "base"
    if layout == "tfhub":
        return golden / "tfhub"
    if layout == "tf1":
        return base / "model.ckpt-best"
    drop = ["cls/seq_relationship/"] if layout == "kerashub" else []
    convert(str(base), layout, str(folder / layout), drop=drop)
    return folder / layout


LOADED, DEEPER = r"\(\d\d variables loaded\)", "num_hidden_layers 4 there, 7 here"
TWO_GROUPS = ({"num_hidden_groups": 2}, "--init_from_group0", LOADED)


@pytest.mark.parametrize(
    ("layout", "changes", "flag", "said"),
    [
        *((each, {}, None, LOADED) for each in ("tf1", "tfhub", "huggingface", "keras")),
        ("kerashub", {}, None, r"\(30 variables loaded; missing: [^;]*relationship[^;]*\)"),
        *((layout, *TWO_GROUPS) for layout in ("tfhub", "huggingface")),
        # As in the paper's appendix A.1.
        *((layout, {"num_hidden_layers": 7}, None, DEEPER) for layout in ("tf1", "huggingface")),
    ],
)
def test_a_run_starts_with_weights(layout, changes, flag, said, golden, tmp_path, prepare, caplog):
    source = source_of(layout, golden, tmp_path)
    trainer = prepare(source, goldens.config("base", **changes), *filter(None, [flag]))
    assert re.search(f"init_checkpoint: {re.escape(str(source))} {LOADED[:-2]}", caplog.text)
    assert re.search(said, caplog.text) and trainer.step == 0
    for name, value in tiny.weights(trainer.model).items():
        expected = stored()[name.replace("group_1/", "group_0/")]
        is_lacking = layout == "kerashub" and "seq_relationship" in name
        assert (value.tobytes() == expected.tobytes()) != is_lacking, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_groups": 2}, "lacks .*/group_1/"),
        ({"num_hidden_layers": 7, "parameter_sharing": "none"}, "sharing all there, none here"),
    ],
)
def test_a_run_does_not_start_with_another_models_weights(changes, message, prepare):
    with pytest.raises(ValueError, match=message):
        prepare(goldens.FOLDER / "base", goldens.config("base", **changes))


def test_a_named_config_replaces_a_damaged_one(copy_of, prepare, caplog):
    source = copy_of("tf1")
    (source / "albert_config.json").write_text("{")
    prepare(source, goldens.config("base"))
    assert "not compared with the model's: " in caplog.text
