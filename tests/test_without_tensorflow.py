"""Processes that can't import TensorFlow: weights on JAX, and conversions between files.

Bundles and lists of checkpoints are compared with what TensorFlow's own reader finds in them.
"""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import bundle, checkpoint
from tests.kit import goldens, jax_process, tolerances
from tests.model.test_backends import run

GOLDEN = pathlib.Path(__file__).parent / "golden"
VOCABULARY = GOLDEN / "spm/en_small.model"
TEXTS = ["in the beginning", "the earth was void and without form"] * 3

ON_JAX = """
import sys
sys.modules["tensorflow"] = None
import jax
import keras
import numpy as np
import albert_tf
from albert_tf.optimization import create_optimizer

# --- weights of all layouts: those of the first, which computes
inputs, small, outputs, *sources = sys.argv[1:]
models = []
for source in sources:
    models.append(albert_tf.AlbertModel(albert_tf.load_config(source)))
    report = albert_tf.load_weights(models[-1], source)
    assert not report.missing, report
    for found, expected in zip(models[-1].get_weights(), models[0].get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=source)
with np.load(inputs) as stored:
    inputs = {name: stored[name] for name in ("input_ids", "input_mask", "segment_ids")}
pooled = np.asarray(models[0](inputs)["pooled_output"])

# --- a model fitted to strings
preprocess = albert_tf.Preprocessor.from_weights(small, max_seq_length=16)
model = albert_tf.AlbertForSequenceClassification.from_weights(small, num_labels=2)
texts, labels = ["in the beginning", "the earth was void and without form"] * 3, [0, 1] * 3
dataset = preprocess.dataset(texts, labels, batch_size=3, static_lengths=1)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(dataset, verbose=0)
assert len(model.predict(preprocess.dataset(texts, batch_size=3), verbose=0)) == 6
np.savez(outputs, pooled=pooled, **preprocess(texts))

# --- an update: clipped gradients are 1 / sqrt(11); Lamb moves the kernel by 0.1 of its weights
variables = [keras.Variable(np.ones((2, 3), "float32"), name="kernel"),
             keras.Variable(np.ones(5, "float32"), name="bias")]
optimizer = create_optimizer(0.1, 10, 0, "lamb")
optimizer.build(variables)
step = jax.jit(optimizer.stateless_apply)
grads = [np.full((2, 3), 7.0, "float32"), np.full(5, 7.0, "float32")]
(kernel, bias), state = step(
    [v.value for v in optimizer.variables], grads, [v.value for v in variables])
np.testing.assert_allclose(state[1], 0.1 / np.sqrt(11), rtol=1e-5)
np.testing.assert_allclose(kernel, 0.9, rtol=1e-5)
np.testing.assert_allclose(bias, 1 - 0.1 * 0.1 / np.sqrt(0.001), rtol=1e-4)
"""


def test_weights_are_loaded_and_used_on_jax(tmp_path):
    pytest.importorskip("jax")
    base, outputs = goldens.FOLDER / "base", tmp_path / "outputs.npz"
    layouts = [tmp_path / name for name in ("huggingface", "keras", "kerashub")]
    for layout in layouts:
        convert(str(base), layout.name, str(layout), drop=["cls/"])
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    keras_file, small = str(tmp_path / "small.keras"), str(tmp_path / "small")
    albert_tf.AlbertModel(config).save(keras_file)
    convert(keras_file, "huggingface", small, spm_model_file=str(VOCABULARY))
    sources = [base, base / "model.ckpt-best", *layouts, GOLDEN / "tfhub"]
    run(ON_JAX, base / "inputs.npz", small, outputs, *sources, **jax_process.base_environment())
    found, expected = goldens.arrays(outputs), goldens.outputs("base")["pooled_output"]
    np.testing.assert_allclose(found.pop("pooled"), expected, rtol=0, atol=tolerances.OUTPUT)
    features = albert_tf.Preprocessor.from_weights(small, max_seq_length=16)(TEXTS)
    assert {*found} == {*features}
    for name, array in features.items():
        np.testing.assert_array_equal(found[name], array)


# Only TensorFlow can write bundles: on the way back, a copy of the source stands in for one.
BOTH_WAYS = """
import shutil, sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from albert_tf.cli import commands
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
source, vocabulary, there, back = sys.argv[1:]
sys.argv = ["albert-convert", f"--from={source}", "--to=huggingface", f"--output_dir={there}"]
try:
    commands.convert()
except SystemExit as end:
    assert not end.code
def write(prefix, tensors):
    for ending in (".index", ".data-00000-of-00001"):
        shutil.copy(source + ending, prefix + ending)
checkpoint.write = write
convert(there, "tf1", back)
print([name for name in sys.modules if name.startswith("albert_tf.model")])
"""


def test_hugging_faces_files_are_converted_without_a_framework_or_a_model(tmp_path):
    base, there = goldens.FOLDER / "base", tmp_path / "there"
    printed = run(BOTH_WAYS, base / "model.ckpt-best", VOCABULARY, there, tmp_path / "back")
    assert printed.splitlines()[-1] == "[]"
    model = albert_tf.AlbertForPreTraining.from_weights(there)
    for name, value in goldens.arrays(base / "variables.npz").items():
        np.testing.assert_array_equal(albert_tf.conversion.named_weights(model)[name], value)


def test_bundles_of_all_types_and_shapes(tmp_path):
    """Also bundles with several data files, which TensorFlow makes when it merges bundles."""
    rng = np.random.default_rng(4)
    types_ = (tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint16, tf.int64, tf.bool)
    first = {kind.name: tf.cast(rng.normal(size=(3, 2)) * 50, kind) for kind in types_}
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
    found, reader = bundle.read(merged), tf.compat.v1.train.NewCheckpointReader(merged)
    assert {*found} == {*first, *second}
    for name, value in found.items():
        expected = reader.get_tensor(name)
        if isinstance(expected, bytes) or expected.dtype == object:
            assert np.shape(value) == np.shape(expected), name
            assert (np.array(value, object) == np.array(expected, object)).all(), name
        else:
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape), name
            assert value.tobytes() == expected.tobytes(), name
    assert found["float64"].flags.writeable


@pytest.mark.parametrize("tensor", [["one", "two!"], [1.0, -2.0, 3.0]], ids=["text", "numbers"])
def test_every_byte_counts(tmp_path, tensor):
    """Any flipped bit of the data is found: in numbers, text, its lengths and their checksum."""
    prefix = str(tmp_path / "m")
    checkpoint.write(prefix, {"a": tf.constant(tensor)})
    data = pathlib.Path(f"{prefix}.data-00000-of-00001")
    whole = data.read_bytes()
    for i in range(len(whole)):
        data.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.read(prefix)
    data.write_bytes(whole)
    assert {*bundle.read(prefix)} == {"a"}


NEWEST, OTHER = 'model_checkpoint_path: "{}"\n', 'all_model_checkpoint_paths: "{}"\n'
TIMES = "all_model_checkpoint_timestamps: 1.5e9\nlast_preserved_timestamp: 1570000000.25\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (NEWEST.format("b"), ["b"]),
        (NEWEST.format("/x/b") + OTHER.format("/x/a") + OTHER.format("/x/b") + TIMES, "/x/a /x/b"),
        # A user went back to the previous checkpoint.
        (NEWEST.format("a") + OTHER.format("a") + OTHER.format("b"), ["b", "a"]),
        (NEWEST.format(r"d\303\251 \"q\" \\ \n"), ['dé "q" \\ \n']),
        (NEWEST.format("dé").rstrip(), ["dé"]),
    ],
)
def test_lists_are_read_as_tensorflow_does(tmp_path, content, expected):
    expected = expected.split() if isinstance(expected, str) else expected
    (tmp_path / "checkpoint").write_text(content)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    theirs = list(state.all_model_checkpoint_paths) or [state.model_checkpoint_path]
    absolute = [str(tmp_path / path) for path in expected]
    found = checkpoint._paths_listed(content)
    assert found == expected and sorted(theirs) == sorted(absolute)
    assert str(tmp_path / found[-1]) == state.model_checkpoint_path
    # TensorFlow's own list.
    names = ["é ü", 'a"b\\']
    paths = [str(tmp_path / name) for name in names]
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[1], paths)
    assert checkpoint.read_list(str(tmp_path)) == names
