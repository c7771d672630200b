"""Folders of sentence-transformers: its vectors are ours, also after a round trip."""

import importlib.util

import numpy as np
import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import (
    exported_files,
    other_formats,
    predict,
    saved_model,
    served_tasks,
    transformers_onnx,
)
from tests.kit import goldens, tiny, tolerances

pytestmark = pytest.mark.peers

TEXTS = [
    *(
        "Crème brûlée, in 1,024 cafés!",
        "the quick 2,5 % fox",
        "``It's'' -- e\u0301té 漢字",
        "",
        "x",
    ),
    *("Über den Dächern", "¿Dónde está?", "Москва слезам", "हिन्दी में", "a cat sat " * 40),
]
# A pooling, outputs and activation of a dense layer, and whether vectors have the length 1.
MODELS = {
    "mean": ("mean", None, None, True),
    "cls": ("cls", 24, "Tanh", False),
    "max": ("max", None, None, False),
    "sqrt": ("mean_sqrt_len_tokens", 20, "Identity", True),
    "relu": ("mean", 40, "ReLU", False),
}


@pytest.fixture(scope="module")
def embedders(vocabulary, hugging_face, tmp_path_factory):
    """Returns a folder of MODELS as the library saves them, and their vectors there."""
    if importlib.util.find_spec("sentence_transformers") is None:  # Importing it loads torch.
        pytest.skip("sentence_transformers is not installed: make test-peers installs it")
    folder = tmp_path_factory.mktemp("embedders")
    size = vocabulary.tokenizer.vocab_size
    config = goldens.config("base", vocab_size=size, num_hidden_layers=2)
    tiny.randomise(albert_tf.AlbertModel(config)).save(folder / "model.keras")
    convert(
        *(str(folder / "model.keras"), "huggingface", str(folder / "encoder")),
        spm_model_file=vocabulary.path,
    )
    given = {"encoder": folder / "encoder", "length": 40, "texts": TEXTS}
    found = {}
    for name, (pooling, units, activation, normalize) in MODELS.items():
        options = {"units": units, "activation": activation, "normalize": normalize}
        asked = {"directory": folder / name, "pooling": pooling, **options, **given}
        found[name] = hugging_face("make_embedder", **asked)
    return folder, found


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_theirs(embedders, hugging_face, name, tmp_path):
    folder, expected = embedders[0] / name, embedders[1][name]
    served = served_tasks.load_served("embed", ModelLocation(str(folder)), {})
    assert served.kind.max_seq_length == 40
    found = {"model": predict.from_model(served)}
    if name == "sqrt":
        saved_model.save(served, str(tmp_path / "saved_model"))
        other_formats.save(served, str(tmp_path / "onnx"), "onnx")
        found |= {n: albert_tf.load_exported(tmp_path / n) for n in ("saved_model", "onnx")}
    convert(str(folder), "tf1", str(tmp_path / "ours"))
    convert(str(tmp_path / "ours"), "huggingface", str(tmp_path / "theirs"))
    again = hugging_face("embed", directory=tmp_path / "theirs", texts=TEXTS)
    assert again["vectors"] == expected["vectors"]
    for where, predictor in found.items():
        for prompt, right in ((None, "vectors"), ("query", "queries")):
            np.testing.assert_allclose(
                *(predictor.embed(TEXTS, prompt), expected[right]),
                rtol=0,
                atol=tolerances.PEER_OUTPUT,
                err_msg=where,
            )
        (answer,) = predictor([TEXTS[:2]])
        assert answer["similarity"] == pytest.approx(expected["similarity"], rel=1e-4)


def test_a_sep_in_a_text_begins_no_second_one_in_onnx(embedders, tmp_path):
    folder, ours = str(embedders[0] / "mean"), tmp_path / "ours"
    convert(folder, "huggingface", str(ours), complete=transformers_onnx.write)
    run = exported_files.runtime_loader(True)((ours / "onnx/model.onnx").read_bytes()).run
    ids = np.array([[2, 7, 3, 8, 3]])
    types = {"token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    expected = albert_tf.AlbertModel.from_weights(folder)({"input_ids": ids})["sequence_output"]
    found = run({"input_ids": ids, **types})["last_hidden_state"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.PEER_OUTPUT)
