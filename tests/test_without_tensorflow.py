"""What works without TensorFlow: on JAX, in a process that can't import it.

Bundles are compared with what TensorFlow's own reader finds in them.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import bundle, bundle_index, checkpoint
from albert_tf.conversion.convert import convert
from tests import goldens, tolerances
from tests.model.test_backends import run

GOLDEN = pathlib.Path(__file__).parent / "golden"
BUNDLES = sorted(str(path.with_suffix("")) for path in GOLDEN.rglob("*.index"))

LOADED = """
import sys
sys.modules["tensorflow"] = None
import json
import numpy as np
import albert_tf
inputs, outputs, vocabulary, *sources = sys.argv[1:]
tokenizer = albert_tf.Tokenizer(spm_model_file=vocabulary)
with np.load(inputs) as stored:
    inputs = {name: stored[name] for name in ("input_ids", "input_mask", "segment_ids")}
found = {}
for source in sources:
    model = albert_tf.AlbertModel(albert_tf.load_config(source))
    report = albert_tf.load_weights(model, source)
    assert not report.missing, report
    found[source.replace("/", "|")] = np.asarray(model(inputs)["pooled_output"])
np.savez(outputs, **found)
print(json.dumps([tokenizer.tokenize("A lite BERT."), "keras" in sys.modules]))
"""


def test_weights_are_loaded_and_used_on_jax(tmp_path):
    pytest.importorskip("jax")
    folder, vocabulary = goldens.FOLDER / "base", GOLDEN / "spm/en_small.model"
    layouts = [tmp_path / name for name in ("huggingface", "keras", "kerashub")]
    for layout in layouts:
        convert(str(folder), layout.name, str(layout), drop=["cls/"])
    sources = (folder, folder / "model.ckpt-best", *layouts, GOLDEN / "tfhub")
    files = (folder / "inputs.npz", tmp_path / "outputs.npz", vocabulary)
    printed = run(LOADED, *files, *sources, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    tokenizer = albert_tf.Tokenizer(spm_model_file=str(vocabulary))
    assert json.loads(printed) == [tokenizer.tokenize("A lite BERT."), True]
    expected = goldens.outputs("base")["pooled_output"]
    found = goldens.arrays(tmp_path / "outputs.npz")
    assert set(found) == set(map(str, sources))
    assert found.pop(str(GOLDEN / "tfhub")).shape == expected.shape  # It is another model.
    for name, actual in found.items():
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.OUTPUT, err_msg=name)


FITTED = """
import sys
sys.modules["tensorflow"] = None
import keras
import numpy as np
import albert_tf
path, outputs = sys.argv[1:]
preprocess = albert_tf.Preprocessor.from_weights(path, max_seq_length=16)
model = albert_tf.AlbertForSequenceClassification.from_weights(path, num_labels=2)
texts, labels = ["in the beginning", "the earth was void and without form"] * 3, [0, 1] * 3
dataset = preprocess.dataset(texts, labels, batch_size=3, static_lengths=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss)
model.fit(dataset, verbose=0)
assert len(model.predict(preprocess.dataset(texts, batch_size=3), verbose=0)) == 6
np.savez(outputs, **preprocess(texts))
"""


def test_strings_are_fitted_on_jax(tmp_path):
    pytest.importorskip("jax")
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    albert_tf.AlbertModel(config).save(tmp_path / "model.keras")
    vocabulary = GOLDEN / "spm/en_small.model"
    model = tmp_path / "model"
    convert(
        str(tmp_path / "model.keras"), "huggingface", str(model), spm_model_file=str(vocabulary)
    )
    outputs = tmp_path / "outputs.npz"
    run(FITTED, model, outputs, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    texts = ["in the beginning", "the earth was void and without form"] * 3
    expected = albert_tf.Preprocessor.from_weights(model, max_seq_length=16)(texts)
    found = goldens.arrays(outputs)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_there_are_bundles():
    assert len(BUNDLES) > 10


@pytest.mark.parametrize(
    "prefix", BUNDLES, ids=lambda prefix: str(pathlib.Path(prefix).parent.name)
)
def test_bundles_are_what_tensorflow_reads(prefix):
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    found = bundle.read(prefix)
    assert list(found) == sorted(reader.get_variable_to_shape_map())
    check(found, {name: reader.get_tensor(name) for name in found})


def test_bundles_of_all_types_and_shapes(tmp_path):
    """And of several data files, which TensorFlow makes when it merges bundles."""
    rng = np.random.default_rng(4)
    first = {
        dtype.name: tf.cast(rng.normal(size=(3, 2)) * 50, dtype)
        for dtype in (tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint16, tf.int64, tf.bool)
    }
    first["complex"] = tf.complex(*rng.normal(size=(2, 4)))
    second = {
        "text": tf.constant([["", "one"], ["zwölf", "x" * 300]]),
        "one text": tf.constant(b"\xff\0"),
        "none": tf.zeros((0, 7)),
        "no text": tf.constant([], tf.string),
        "scalar": tf.constant(1e-45),
        "name/" + "n" * 300: tf.constant([3]),
    }
    parts = [str(tmp_path / f"part{i}") for i in range(2)]
    for part, tensors in zip(parts, (first, second), strict=True):
        checkpoint.write(part, tensors)
    merged = str(tmp_path / "merged")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=merged)
    found = bundle.read(merged)
    assert set(found) == set(first) | set(second)
    reader = tf.compat.v1.train.NewCheckpointReader(merged)
    check(found, {name: reader.get_tensor(name) for name in found})
    assert found["float64"].flags.writeable


def check(found: dict, expected: dict) -> None:
    for name, value in expected.items():
        if isinstance(value, bytes):
            assert found[name] == value
            continue
        value = np.asarray(value)
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        if value.dtype == object:
            assert found[name].tolist() == value.tolist()
        else:
            assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("name", ["text", "numbers"])
def test_every_byte_counts(tmp_path, name):
    """One bit of any byte of the data: of numbers, of text, of its lengths and their checksum."""
    tensors = {"text": tf.constant(["one", "two!"]), "numbers": tf.constant([1.0, -2.0, 3.0])}
    prefix = str(tmp_path / "m")
    checkpoint.write(prefix, {name: tensors[name]})
    data = pathlib.Path(f"{prefix}.data-00000-of-00001")
    whole = data.read_bytes()
    for i in range(len(whole)):
        data.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises((ValueError, IndexError)):
            bundle.read(prefix)
    data.write_bytes(whole)
    assert set(bundle.read(prefix)) == {name}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('model_checkpoint_path: "b"\n', ["b"]),
        (
            'model_checkpoint_path: "/x/b"\nall_model_checkpoint_paths: "/x/a"\n'
            'all_model_checkpoint_paths: "/x/b"\nall_model_checkpoint_timestamps: 1.5e9\n'
            "last_preserved_timestamp: 1570000000.25\n",
            ["/x/a", "/x/b"],
        ),
        ('model_checkpoint_path: "d\\303\\251 \\"q\\" \\\\ \\n"\n', ['dé "q" \\ \n']),
        ('model_checkpoint_path: "dé"', ["dé"]),
    ],
)
def test_lists_are_read_as_tensorflow_does(tmp_path, content, expected):
    (tmp_path / "checkpoint").write_text(content)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    theirs = list(state.all_model_checkpoint_paths) or [state.model_checkpoint_path]
    absolute = [str(tmp_path / path) for path in expected]
    assert checkpoint._paths_listed(content) == expected and theirs == absolute


def test_tensorflows_own_list_is_read(tmp_path):
    names = ["é ü", 'a"b\\']
    paths = [str(tmp_path / name) for name in names]
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[1], paths)
    assert checkpoint._names_listed(str(tmp_path)) == names


def test_other_orders_of_bytes_are_refused():
    with pytest.raises(ValueError, match="big-endian"):
        bundle_index._num_shards(b"\x08\x01\x10\x01")
