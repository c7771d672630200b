"""Folders of sentence-transformers: what is read of them, and written again.

tests/peers compares vectors with the library's own.
"""

import json

import numpy as np
import pytest
import safetensors.numpy

import albert_tf
from albert_tf.answers.embed import Embed
from albert_tf.conversion import kinds, sentence_transformers
from albert_tf.conversion.convert import convert
from albert_tf.conversion.names import DENSE
from albert_tf.conversion.stored_model import ModelLocation, read
from albert_tf.model.finetuning import AlbertForEmbedding
from albert_tf.serving import served_tasks
from tests.kit import tiny
from tests.kit.files import refused

BASE, OWN = (
    "sentence_transformers.base.modules",
    "sentence_transformers.sentence_transformer.modules",
)
# Files of one model as version 6.2 writes them, and as version 2 did.
NEW = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{BASE}.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OWN}.pooling.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{BASE}.dense.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": f"{BASE}.normalize.Normalize"},
    ],
    "1_Pooling/config.json": {
        "embedding_dimension": 15,
        "pooling_mode": "mean_sqrt_len_tokens",
        "include_prompt": True,
    },
    "2_Dense/config.json": {
        "in_features": 15,
        "out_features": 4,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.ReLU",
    },
    "tokenizer_config.json": {"model_max_length": 19},
    "config_sentence_transformers.json": {
        "default_prompt_name": None,
        "prompts": {"query": "find: ", "document": ""},
        "similarity_fn_name": "dot",
    },
}
_MODULE = "sentence_transformers.models"
OLD = {
    **NEW,
    "modules.json": [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"{_MODULE}.{name}"}
        for i, name in enumerate(("Transformer", "Pooling", "Dense", "Normalize"))
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 15,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": True,
    },
    "sentence_bert_config.json": {"max_seq_length": 19, "do_lower_case": False},
    "tokenizer_config.json": {"model_max_length": 512},
}
KIND = Embed(
    pooling="mean_sqrt",
    dense_units=4,
    dense_activation="relu",
    normalize=True,
    similarity="dot",
    query_prompt="find: ",
    max_seq_length=19,
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Returns an encoder's directory in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny.randomise(albert_tf.AlbertModel(tiny.config())).save(folder / "model.keras")
    convert(str(folder / "model.keras"), "huggingface", str(folder / "theirs"))
    return folder / "theirs"


def put(folder, encoder, files, **changes):
    """Writes a folder with these files; in a change, None leaves a file out."""
    for path in encoder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, value in {**files, **changes}.items():
        if value is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(value))
    rng = np.random.default_rng(3)
    tensors = {"linear.weight": rng.normal(size=(4, 15)), "linear.bias": rng.normal(size=4)}
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    safetensors.numpy.save_file(tensors, folder / "2_Dense/model.safetensors")
    return tensors


@pytest.mark.parametrize("files", [NEW, OLD], ids=["new", "old"])
def test_options_and_weights_are_read(files, encoder, tmp_path):
    tensors = put(tmp_path, encoder, files)
    task = kinds.find(str(tmp_path))
    assert (
        task.name == "embedding"
        and Embed(**sentence_transformers.read_options(str(tmp_path))) == KIND
    )
    model = AlbertForEmbedding.from_weights(tmp_path)
    assert (model.pooling, model.dense_activation, model.normalize) == ("mean_sqrt", "relu", True)
    kernel, bias = map(np.asarray, model.dense.weights)
    np.testing.assert_array_equal(kernel, tensors["linear.weight"].T)
    np.testing.assert_array_equal(bias, tensors["linear.bias"])


@pytest.mark.parametrize("layout", ["tf1", "keras", "huggingface"])
def test_each_layout_keeps_all(layout, encoder, tmp_path):
    (source := tmp_path / "theirs").mkdir()
    put(source, encoder, NEW)
    line = convert(str(source), layout, str(tmp_path / "ours"))
    assert "not kept" not in line
    before, after = (read(ModelLocation(str(tmp_path / name))) for name in ("theirs", "ours"))
    assert {*after.weights} == {*before.weights} > {*DENSE}
    for name, value in before.weights.items():
        np.testing.assert_array_equal(after.weights[name], value)
    assert after.task == before.task
    if layout == "huggingface":  # Its modules alone tell the same.
        assert Embed(**sentence_transformers.read_options(str(tmp_path / "ours"))) == KIND


@pytest.mark.parametrize("units", [None, 6])
def test_left_out_dimensions_are_a_dense_layer(units, tmp_path):
    """With one, its last columns go; without, a layer selects the first numbers."""
    kernel = np.random.default_rng(4).normal(size=(15, 6)).astype(np.float32)
    dense = dict(zip(DENSE, (kernel, np.arange(6, dtype=np.float32)), strict=True)) if units else {}
    kind = Embed(dense_units=units, dimensions=4, normalize=True)
    sentence_transformers.write(str(tmp_path), kind, 15, dense)
    read_again = Embed(**sentence_transformers.read_options(str(tmp_path)))
    activation = "tanh" if units else "linear"
    assert read_again == kind.replace(dense_units=4, dense_activation=activation, dimensions=None)
    found = sentence_transformers.read_dense(str(tmp_path))
    expected = (kernel[:, :4], np.arange(4)) if units else (np.eye(15)[:, :4], np.zeros(4))
    for name, right in zip(DENSE, expected, strict=True):
        np.testing.assert_array_equal(found[name], right)


def test_a_folder_is_a_start_for_other_tasks(encoder, tmp_path):
    """Its encoder is fine-tuned, and that of a classifier embeds; a mask can't be filled."""
    put(tmp_path, encoder, NEW)
    model = albert_tf.AlbertForSequenceClassification.from_weights(tmp_path, num_labels=2)
    assert model.num_labels == 2
    with pytest.raises(ValueError, match="is trained for embed, not for fill_mask"):
        served_tasks._stored_kind("fill_mask", str(tmp_path), tiny.config(), {}, ())
    tiny.store(tmp_path / "run", model, ("no", "yes"))
    tiny.fine_tuned("classification", "", {"max_seq_length": 17}).write(str(tmp_path / "run"))
    kind = served_tasks._stored_kind(
        "embed", str(tmp_path / "run"), tiny.config(), {"pooling": "cls"}, ()
    )
    assert kind == Embed(pooling="cls", max_seq_length=17)


def modules(*names):
    return [
        {"path": f"{i}_{n}" if i else "", "type": f"{_MODULE}.{n}"} for i, n in enumerate(names)
    ]


POOLING, DENSE_CONFIG = NEW["1_Pooling/config.json"], NEW["2_Dense/config.json"]
SETTINGS = "config_sentence_transformers.json"
REFUSED = [
    ({"modules.json": {}}, "must be a list of objects"),
    ({"modules.json": modules("Transformer")}, "expected the modules .* not Transformer"),
    ({"modules.json": modules("Transformer", "Pooling", "LayerNorm")}, "not .* LayerNorm"),
    ({"modules.json": modules("Transformer", "Pooling", "Normalize", "Dense")}, "Normalize, Dense"),
    ({"modules.json": modules("Transformer", "Pooling", "Dense", "Dense")}, "Dense, Dense"),
    (
        {"modules.json": [*modules("Transformer"), {"path": "../1", "type": "a.Pooling"}]},
        "modules must be in folders of this one",
    ),
    ({"1_Pooling/config.json": {**POOLING, "pooling_mode": "weightedmean"}}, "weightedmean is not"),
    ({"1_Pooling/config.json": {**POOLING, "pooling_mode": ["cls", "max"]}}, "cls and max is not"),
    ({"1_Pooling/config.json": {"pooling_mode_lasttoken": True}}, "pooling_mode_lasttoken is not"),
    ({"1_Pooling/config.json": {"embedding_dimension": 15}}, "the pooling none is not known"),
    (
        {"1_Pooling/config.json": {**POOLING, "include_prompt": False}},
        "include_prompt must be true",
    ),
    ({"2_Dense/config.json": {**DENSE_CONFIG, "activation_function": "a.B"}}, "activation a.B"),
    ({"2_Dense/config.json": {**DENSE_CONFIG, "use_residual": True}}, "a residual connection"),
    ({"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case must be false"),
    ({SETTINGS: {"prompts": {"classify": "a: "}}}, "the prompt 'classify' is not known"),
    ({SETTINGS: {"default_prompt_name": "passage"}}, "the prompt 'passage' is not known"),
    ({SETTINGS: {"similarity_fn_name": "jaccard"}}, "`similarity` must be cosine or dot"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_unknown_modules_are_refused(changes, message, encoder, tmp_path):
    put(tmp_path, encoder, NEW, **changes)
    with refused(message, tmp_path, exception=ValueError):
        served_tasks._stored_kind("embed", str(tmp_path), tiny.config(), {}, ())
