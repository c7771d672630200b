"""Folders of sentence-transformers: its vectors are ours, also after a round trip."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.answers.embed import Embed
from albert_tf.answers.rows import stack
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
from albert_tf.tasks.embedding import CorpusTexts, EmbeddingTask
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
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
# Pooling, outputs and activation of a dense layer, and whether vectors are normalised.
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


@pytest.mark.parametrize("number", [2, 3], ids=["pairs", "triplets"])
def test_losses_and_gradients_are_theirs(embedders, hugging_face, number, tmp_path):
    """Also with hard negatives, and with truncated vectors."""
    folder = str(embedders[0] / "cls")
    columns = [TEXTS[start : start + 3] for start in (0, 4, 7)[:number]]
    scores = [0.9, 0.1, 0.4] if number == 2 else []
    asked = {"directory": folder, "columns": columns, "scores": scores, "scale": 7.0}
    expected = hugging_face("train_embedder", **asked, dimensions=[24, 9, 4])
    assert len(expected) == (4 if number == 2 else 2)
    model = albert_tf.AlbertForEmbedding.from_weights(folder)
    served = served_tasks.load_served("embed", ModelLocation(folder), {})
    rows = [
        row
        for texts in zip(*columns, strict=True)
        for text in texts
        for row in served.kind.rows(served.vocabulary.tokenizer, text)
    ]
    inputs = {n: x.reshape(3, number, -1) for n, x in stack(rows, 40).items()}
    names = {"ranking": MultipleNegativesRankingLoss, "cosine": CosineSimilarityLoss}
    given = {"ranking": {"scale": 7.0}, "cosine": {}}
    table = model.albert.embeddings.word_embeddings
    for name, (value, gradient) in expected.items():
        of, _, short = name.partition(", ")
        loss = names[of](matryoshka_dimensions=(9, 4) if short else (), **given[of])
        with tf.GradientTape() as tape:
            found = loss(np.array(scores or [0] * 3, np.float32), model(inputs, training=True))
        assert abs(float(found) - value) < 1e-5, name
        found = tf.convert_to_tensor(tape.gradient(found, table.value))
        assert np.abs(gradient).max() > 1e-4
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-5, err_msg=name)


def test_metrics_of_retrieval_are_theirs(embedders, hugging_face):
    """One query has two relevant texts, and some texts of the corpus are in no pair."""
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[0], TEXTS[9]), (TEXTS[5], TEXTS[6]), (TEXTS[4], TEXTS[7])]
    corpus = [*dict.fromkeys(second for _, second in pairs), TEXTS[2]]
    corpus += [f"{a} {b}" for a in ("cat", "dog", "end") for b in ("one", "two", "fox", "sat")]
    queries = {first: first for first, _ in pairs}
    relevant = {first: [b for a, b in pairs if a == first] for first in queries}
    asked = {"queries": queries, "corpus": {text: text for text in corpus}, "relevant": relevant}
    theirs = hugging_face("retrieve", directory=embedders[0] / "cls", **asked)
    vectors = theirs["vectors"]
    examples = [TextExample(str(i), *pair, None) for i, pair in enumerate(pairs)]
    others = corpus[3:]  # Includes one text of a pair again.
    assert len(others) % 2 == 0
    examples += [CorpusTexts("", *two, None) for two in zip(others[::2], others[1::2], strict=True)]
    task = EmbeddingTask(Embed(similarity="euclidean"))
    task.evaluate_by(("ndcg_at_10", "recall_at_10", "mrr_at_10"))
    outputs = np.array([[vectors[each.text_a], vectors[each.text_b]] for each in examples])
    scores = task.scores(examples, task.predictions(examples, None, outputs))
    assert 0 < scores["ndcg_at_10"] < 1
    expected = {name: theirs["scores"][f"euclidean_{name.replace('_at_', '@')}"] for name in scores}
    assert scores == pytest.approx(expected, abs=1e-6)
