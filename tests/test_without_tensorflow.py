"""What works without TensorFlow: on JAX, in a process that can't import it.

Bundles are compared with what TensorFlow's own reader finds in them.
"""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import bundle, checkpoint
from tests import goldens, tolerances
from tests.model.test_backends import run

GOLDEN = pathlib.Path(__file__).parent / "golden"

ON_JAX = """
import sys
sys.modules["tensorflow"] = None
import json
import jax
import keras
import numpy as np
import albert_tf
from albert_tf.optimization import create_optimizer

# --- weights of all layouts
inputs, vocabulary, small, folder, *sources = sys.argv[1:]
tokenizer = albert_tf.Tokenizer(spm_model_file=vocabulary)
with np.load(inputs) as stored:
    inputs = {name: stored[name] for name in ("input_ids", "input_mask", "segment_ids")}
found = {}
for source in sources:
    model = albert_tf.AlbertModel(albert_tf.load_config(source))
    report = albert_tf.load_weights(model, source)
    assert not report.missing, report
    found[source.replace("/", "|")] = np.asarray(model(inputs)["pooled_output"])
np.savez(f"{folder}/outputs.npz", **found)

# --- a model fitted to strings
preprocess = albert_tf.Preprocessor.from_weights(small, max_seq_length=16)
model = albert_tf.AlbertForSequenceClassification.from_weights(small, num_labels=2)
texts, labels = ["in the beginning", "the earth was void and without form"] * 3, [0, 1] * 3
dataset = preprocess.dataset(texts, labels, batch_size=3, static_lengths=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss)
model.fit(dataset, verbose=0)
assert len(model.predict(preprocess.dataset(texts, batch_size=3), verbose=0)) == 6
np.savez(f"{folder}/features.npz", **preprocess(texts))

# --- an encoder in a functional model, of any batch and length
encoder = albert_tf.AlbertModel.from_weights(small)
symbolic = encoder.symbolic_inputs()
scores = keras.layers.Dense(2)(encoder(symbolic)["pooled_output"])
assert keras.Model(symbolic, scores)(preprocess(texts)).shape == (6, 2)

# --- an update
variables = [keras.Variable(np.ones((2, 3), "float32"), name="kernel"),
             keras.Variable(np.ones(5, "float32"), name="bias")]
optimizer = create_optimizer(0.1, 10, 0, "lamb")
optimizer.build(variables)
step = jax.jit(optimizer.stateless_apply)
grads = [np.full((2, 3), 7.0, "float32"), np.full(5, 7.0, "float32")]
weights, state = step([v.value for v in optimizer.variables], grads, [v.value for v in variables])
np.savez(f"{folder}/update.npz", kernel=weights[0], bias=weights[1], moment=state[1])
print(json.dumps(tokenizer.tokenize("A lite BERT.")))
"""
VOCABULARY = GOLDEN / "spm/en_small.model"


@dataclasses.dataclass
class OnJax:
    """What a process on JAX was given, wrote and printed."""

    sources: list[pathlib.Path]
    small: pathlib.Path
    folder: pathlib.Path
    printed: str


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory) -> OnJax:
    pytest.importorskip("jax")
    folder, base = tmp_path_factory.mktemp("jax"), goldens.FOLDER / "base"
    layouts = [folder / name for name in ("huggingface", "keras", "kerashub")]
    for layout in layouts:
        convert(str(base), layout.name, str(layout), drop=["cls/"])
    sources = [base, base / "model.ckpt-best", *layouts, GOLDEN / "tfhub"]
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    keras_file, small = str(folder / "small.keras"), folder / "small"
    albert_tf.AlbertModel(config).save(keras_file)
    convert(keras_file, "huggingface", str(small), spm_model_file=str(VOCABULARY))
    arguments = (base / "inputs.npz", VOCABULARY, small, folder, *sources)
    printed = run(ON_JAX, *arguments, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    return OnJax(sources, small, folder, printed)


def test_weights_are_loaded_and_used_on_jax(on_jax):
    tokenizer = albert_tf.Tokenizer(spm_model_file=str(VOCABULARY))
    assert json.loads(on_jax.printed) == tokenizer.tokenize("A lite BERT.")
    expected = goldens.outputs("base")["pooled_output"]
    found = goldens.arrays(on_jax.folder / "outputs.npz")
    assert set(found) == set(map(str, on_jax.sources))
    assert found.pop(str(GOLDEN / "tfhub")).shape == expected.shape  # It is another model.
    for name, actual in found.items():
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.OUTPUT, err_msg=name)


def test_strings_are_fitted_on_jax(on_jax):
    texts = ["in the beginning", "the earth was void and without form"] * 3
    expected = albert_tf.Preprocessor.from_weights(on_jax.small, max_seq_length=16)(texts)
    found = goldens.arrays(on_jax.folder / "features.npz")
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_optimizers_update_on_jax(on_jax):
    """Clipped gradients of 1 / sqrt(11); Lamb moves the kernel by the rate times its weights."""
    found = goldens.arrays(on_jax.folder / "update.npz")
    np.testing.assert_allclose(found["moment"], 0.1 / np.sqrt(11), rtol=1e-5)
    np.testing.assert_allclose(found["kernel"], 0.9, rtol=1e-5)
    np.testing.assert_allclose(found["bias"], 1 - 0.1 * 0.1 / np.sqrt(0.001), rtol=1e-4)


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
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.read(prefix)
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
        (  # A user went back to the one before.
            'model_checkpoint_path: "a"\nall_model_checkpoint_paths: "a"\n'
            'all_model_checkpoint_paths: "b"\n',
            ["b", "a"],
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
    found = checkpoint._paths_listed(content)
    assert found == expected and sorted(theirs) == sorted(absolute)
    assert str(tmp_path / found[-1]) == state.model_checkpoint_path


def test_tensorflows_own_list_is_read(tmp_path):
    names = ["é ü", 'a"b\\']
    paths = [str(tmp_path / name) for name in names]
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[1], paths)
    assert checkpoint.read_list(str(tmp_path)) == names
