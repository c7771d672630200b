"""Folders of sentence-transformers: what is read from them, and written back.

tests/peers compares vectors with the library's own.
"""

import json

import numpy as np
import pytest
import safetensors.numpy

import albert_tf
from albert_tf.answers.embed import Embed
from albert_tf.conversion import kinds, layouts, sentence_transformers
from albert_tf.conversion.convert import convert
from albert_tf.conversion.names import DENSE
from albert_tf.conversion.stored_model import ModelLocation, read
from albert_tf.model.embedding import AlbertForEmbedding
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
OLDEST = {**OLD, "sentence_albert_config.json": OLD["sentence_bert_config.json"]}
del OLDEST["sentence_bert_config.json"]
SETTINGS = "config_sentence_transformers.json"
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


@pytest.mark.parametrize("files", [NEW, OLD, OLDEST], ids=["new", "old", "oldest"])
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
    # In Hugging Face's layout, no run.json overrides a later change of the modules.
    assert (tmp_path / "ours/run.json").exists() == (layout != "huggingface")


def test_left_out_outputs_of_a_dense_layer_are_not_asked_for_again(tmp_path):
    model = AlbertForEmbedding(tiny.config(), dense_units=9, dimensions=4)
    tiny.randomise(model).save(tmp_path / "model.keras")
    assert "not kept" not in convert(
        str(tmp_path / "model.keras"), "huggingface", str(tmp_path / "a")
    )
    convert(str(tmp_path / "a"), "tf1", str(tmp_path / "b"))
    ids = {"input_ids": np.array([[2, 7, 8, 3]])}
    for name in "ab":
        found = AlbertForEmbedding.from_weights(tmp_path / name)
        np.testing.assert_array_equal(found(ids), model(ids))


@pytest.mark.parametrize(
    ("layout", "how", "noun"),
    [
        ("keras", {"drop": ["embedding/"]}, "layer with 4 outputs, .* weights have 0"),
        ("huggingface", {"drop": ["embedding/"]}, "layer with 4 outputs, .* weights have 0"),
        ("huggingface", {"architecture": "AlbertModel"}, "no place for embedding/"),
    ],
)
def test_weights_behind_the_encoder_are_not_lost(layout, how, noun, encoder, tmp_path):
    (theirs := tmp_path / "theirs").mkdir()
    put(theirs, encoder, NEW)
    with pytest.raises(ValueError, match=noun):
        convert(str(theirs), layout, str(tmp_path / "ours"), **how)
    how = {"drop": ["embedding/"], "architecture": "AlbertModel"}
    convert(str(theirs), "huggingface", str(tmp_path / "ours"), **how)
    assert kinds.find(str(tmp_path / "ours")) is None


def test_a_head_besides_the_vectors_is_refused(encoder, tmp_path):
    (theirs := tmp_path / "theirs").mkdir()
    put(theirs, encoder, NEW)
    file = theirs / "model.safetensors"
    tensors = {f"albert.{n}": value for n, value in safetensors.numpy.load_file(file).items()}
    tensors |= {"qa_outputs.weight": np.ones((2, 15), "f4"), "qa_outputs.bias": np.ones(2, "f4")}
    safetensors.numpy.save_file(tensors, file)
    for layout in ("keras", "huggingface"):
        with pytest.raises(ValueError, match="has no place for cls/squad/"):
            convert(str(theirs), layout, str(tmp_path / "ours"))


@pytest.mark.parametrize("units", [None, 6])
def test_left_out_dimensions_are_a_dense_layer(units, tmp_path):
    """A dense layer loses its last columns; without one, a new layer selects dimensions."""
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
    """Its encoder can be fine-tuned, and a classifier's can embed; but it can't fill masks."""
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


def test_other_models_with_modules_are_read_without_them(encoder, tmp_path):
    put(tmp_path, encoder, NEW, **{SETTINGS: {"model_type": "CrossEncoder"}})
    assert kinds.find(str(tmp_path)) is None
    assert AlbertForEmbedding.from_weights(tmp_path).dense_units is None


def test_a_folder_without_an_encoder_in_itself_is_named(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(FileNotFoundError, match="no ALBERT encoder in itself"):
        layouts.find(tmp_path)


def test_a_preprocessor_reads_as_much_as_the_folder_says(encoder, tmp_path):
    put(tmp_path, encoder, NEW)
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map("piece{}".format, range(48)))
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    assert albert_tf.Preprocessor.from_weights(tmp_path).max_seq_length == 19


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"truncate_dim": 3}, {"dimensions": 3}),
        (
            {"default_prompt_name": "query", "prompts": {"query": "q: "}},
            {"default_prompt": "query"},
        ),
        ({"default_prompt_name": "query", "prompts": {"query": ""}}, {"default_prompt": None}),
    ],
)
def test_settings_are_read(settings, options, encoder, tmp_path):
    plain = NEW["modules.json"][:2]
    put(tmp_path, encoder, NEW, **{"modules.json": plain, SETTINGS: settings})
    found = Embed(**sentence_transformers.read_options(str(tmp_path))).options()
    assert {name: found[name] for name in options} == options


def modules(*names):
    return [
        {"path": f"{i}_{n}" if i else "", "type": f"{_MODULE}.{n}"} for i, n in enumerate(names)
    ]


POOLING, DENSE_CONFIG = NEW["1_Pooling/config.json"], NEW["2_Dense/config.json"]
LENGTHS, NORMALIZE = "sentence_bert_config.json", "3_Normalize/config.json"
REFUSED = [
    ({"modules.json": {}}, "must be a list of objects"),
    ({"modules.json": modules("Transformer")}, "expected the modules .* not Transformer"),
    ({"modules.json": modules("Transformer", "Pooling", "LayerNorm")}, "not .* LayerNorm"),
    ({"modules.json": modules("Transformer", "Pooling", "Normalize", "Dense")}, "Normalize, Dense"),
    ({"modules.json": modules("Transformer", "Pooling", "Dense", "Dense")}, "Dense, Dense"),
    (
        {"modules.json": [*modules("Transformer"), {"path": "../1", "type": f"{_MODULE}.Pooling"}]},
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
    ({"2_Dense/config.json": {**DENSE_CONFIG, "use_residual": True}}, "use_residual must be false"),
    ({"2_Dense/config.json": {**DENSE_CONFIG, "module_output_name": "b"}}, "module_output_name"),
    ({"2_Dense/config.json": {**DENSE_CONFIG, "activation_function": "activation.ReLU"}}, "activ"),
    ({NORMALIZE: {"module_input_name": "token_embeddings"}}, "module_input_name must be"),
    ({"modules.json": [*modules("Transformer"), {"path": "1", "type": "own.Pooling"}]}, "own.Pool"),
    ({LENGTHS: {"do_lower_case": True}}, "do_lower_case must be false"),
    ({LENGTHS: {"query_length": 8}}, "query_length must be null"),
    ({LENGTHS: {"config_args": {"num_hidden_layers": 1}}}, "config_args must be null"),
    ({LENGTHS: {"processing_kwargs": {"text": {"max_length": 7}}}}, "processing_kwargs must be"),
    ({LENGTHS: {"module_output_name": "pooler_output"}}, "module_output_name must be"),
    ({"tokenizer_config.json": {"truncation_side": "left"}}, "truncation_side must be right"),
    ({"tokenizer.json": {"truncation": {"direction": "Left"}}}, "truncation_side must be right"),
    ({SETTINGS: {"truncate_dim": 3}}, "truncate_dim after the module Normalize .* `dimensions=3`"),
    ({SETTINGS: {"prompts": ["a: "]}}, "'prompts' is an object"),
    ({SETTINGS: {"prompts": {"classify": "a: "}}}, "the prompt 'classify' is not known"),
    ({SETTINGS: {"default_prompt_name": "passage"}}, "the prompt 'passage' is not known"),
    ({SETTINGS: {"similarity_fn_name": "jaccard"}}, "`similarity` must be cosine or dot"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_unknown_modules_are_refused(changes, message, encoder, tmp_path):
    put(tmp_path, encoder, NEW, **changes)
    with refused(message, tmp_path, exception=ValueError):
        served_tasks._stored_kind("embed", str(tmp_path), tiny.config(), {}, ())
