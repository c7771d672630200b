"""Vectors of pairs: features, losses and scores by hand; a run, what it leaves, and its export."""

import json
import logging
import pathlib
import re

import keras
import numpy as np
import pytest
from keras import ops

import albert_tf
from albert_tf.answers.embed import Embed
from albert_tf.conversion import kinds, loading
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import predict, served_tasks
from albert_tf.storage import eval_results
from albert_tf.tasks import embedding, metrics, registry, table
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from albert_tf.tasks.table import TableSettings
from albert_tf.tasks.text_batches import TextBatches
from tests.kit import finetune_runs as runs
from tests.kit import jax_process, tiny, tolerances
from tests.kit.files import refused

PAIRS = [TextExample("1", "a cat sat", "a dog", 1.0), TextExample("2", "one", "the end of it", 5.0)]
STSB = runs.GOLDEN / "features/glue_data/STS-B"
COLUMNS = {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "score"}
FILES = {"train_file": STSB / "train.tsv", "eval_file": STSB / "dev.tsv", "data_dir": None}


UNSCORED = {**COLUMNS, "label_column": None}


def make(tokenizer=None, **options):
    task = registry.TASKS["embedding"].task(Embed(**options), None, tokenizer, classes=())
    task.evaluate_by(("spearman", "pearson"))
    return task


def test_scores_are_scaled_to_cosines_and_texts_are_rows(tokenizer):
    rows = list(make(tokenizer, max_seq_length=7).rows(PAIRS, is_training=True))
    assert [row["label_ids"] for row in rows] == [0, 1]
    for row, pair in zip(rows, PAIRS, strict=True):
        for ids, mask, text in zip(
            row["input_ids"], row["input_mask"], (pair.text_a, pair.text_b), strict=True
        ):
            expected = [tokenizer.cls_id, *tokenizer.encode(text)[:5], tokenizer.sep_id]
            assert ids[mask == 1].tolist() == expected and not ids[mask == 0].any()
        assert not row["segment_ids"].any()
    with pytest.raises(ValueError, match="all pairs to train on have the score 5"):
        list(make(tokenizer, max_seq_length=7).rows(PAIRS[1:], is_training=True))


def test_losses_and_predictions():
    outputs = np.array([[[3.0, 4.0], [4.0, 3.0]], [[1.0, 0.0], [0.0, 2.0]]], np.float32)
    features = {"label_ids": ops.convert_to_tensor(np.float32([0.5, 1]))}
    losses = make().example_losses(ops.convert_to_tensor(outputs), features)
    np.testing.assert_allclose(losses["cosine_loss"], [0.46**2, 1], rtol=1e-6)
    found = make(similarity="dot").predictions(PAIRS, None, outputs)
    np.testing.assert_allclose(found, [[24], [0]])
    assert make().scores(PAIRS, np.array([[0.2], [0.1]])) == {"spearman": -1, "pearson": -1}
    unlabelled = [TextExample("1", "a", "b", None)]
    assert make().scores(unlabelled, np.array([[0.2]])) == {}


def cross_entropy(scores: np.ndarray) -> np.ndarray:
    return np.log(np.exp(scores).sum(axis=1)) - np.diagonal(scores)


@pytest.mark.parametrize("texts", [2, 4])
def test_second_texts_are_found_among_those_of_the_batch(texts):
    """In both directions, but without hard negatives backwards; also by the first dimensions."""
    vectors = np.random.default_rng(texts).normal(size=(3, texts, 5)).astype(np.float32)
    expected = 0
    for size in (2, 5):
        units = vectors[..., :size] / np.linalg.norm(vectors[..., :size], axis=-1, keepdims=True)
        candidates = np.concatenate([units[:, i] for i in range(1, texts)])
        found, back = 7 * units[:, 0] @ candidates.T, 7 * units[:, 1] @ units[:, 0].T
        expected += (cross_entropy(found) + cross_entropy(back)) / 2
    loss = MultipleNegativesRankingLoss(7, matryoshka_dimensions=(2,))
    given = ops.convert_to_tensor(vectors)
    np.testing.assert_allclose(loss.call(None, given), expected, rtol=1e-5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    np.testing.assert_allclose(again(ops.zeros(3), given), expected.mean(), rtol=1e-5)


@pytest.mark.parametrize("loss", [CosineSimilarityLoss, MultipleNegativesRankingLoss])
def test_losses_refuse_single_texts_and_dimensions_that_are_not_there(loss):
    with pytest.raises(ValueError, match=r"of several texts each, got \(3, 5\): give pairs"):
        loss().call(ops.ones(3), ops.ones([3, 5]))
    for sizes in ([0], [2, 6]):
        with pytest.raises(ValueError, match="must be numbers from 1 to 5, got"):
            loss(matryoshka_dimensions=sizes).call(ops.ones(3), ops.ones([3, 2, 5]))


def test_metrics_of_ranks():
    """Hits in the top ten: one at rank 1; one at 3, of two; none; and ten, of eleven."""
    found = metrics.retrieval([[1], [3, 11], [12], [*range(1, 12)]])
    assert found["recall_at_10"] == pytest.approx((1 + 1 / 2 + 0 + 10 / 11) / 4)
    assert found["mrr_at_10"] == pytest.approx((1 + 1 / 3 + 0 + 1) / 4)
    second = (1 / 2) / (1 + 1 / np.log2(3))
    assert found["ndcg_at_10"] == pytest.approx((1 + second + 0 + 1) / 4)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_pairs_are_found_among_all_texts_once(similarity):
    """One first text is in two pairs, one second text occurs twice; a corpus has two more texts."""
    pairs = [("a", "one"), ("a", "two"), ("b", "one"), ("c", "three")]
    examples = [TextExample(str(i), *pair, None) for i, pair in enumerate(pairs)]
    examples.append(embedding.CorpusTexts("corpus 0", "four", "two", None))
    at = {"one": (1, 0), "two": (0, 1), "three": (3, 4), "four": (5, 12)}
    at |= {"a": (1, 0), "b": (0, 1), "c": (5, 12)}
    sides = [(each.text_a, each.text_b) for each in examples]
    outputs = np.array([[at[text] for text in pair] for pair in sides], np.float32)
    task = make(similarity=similarity)
    task.key_metric = ""
    task.evaluate_by(("ndcg_at_10", "recall_at_10", "mrr_at_10"))
    found = task.predictions(examples, None, outputs)
    assert found[:, 1].tolist() == {"cosine": [1, 4, 4, 2], "euclidean": [1, 2, 2, 2]}[similarity]
    np.testing.assert_allclose(
        found[:, 0], make(similarity=similarity).kind.compared(*outputs[:4].swapaxes(0, 1))
    )
    assert task.scores(examples, found) == metrics.retrieval(
        [found[:2, 1].tolist(), [found[2, 1]], [found[3, 1]]]
    )
    # Ties count as failures: with equal vectors, the true text ranks last.
    same = task.predictions(examples, None, np.ones_like(outputs))
    assert same[:, 1].tolist() == [4, 4, 4, 4]


def test_a_run_leaves_vectors(tmp_path):
    command = runs.command("embedding", tmp_path, **FILES, **COLUMNS, max_seq_length=23)
    runs.main([*command, "--do_train", "--do_eval"])
    out = tmp_path / "out"
    assert {*eval_results.read(str(out), 4)} == {"spearman", "pearson"}
    task = kinds.find(str(out))
    assert (task.name, task.kind["task"], task.kind["max_seq_length"]) == ("embedding", "embed", 23)
    # The served model compares the pairs as the evaluation did.
    best = str(out / "model.ckpt-best")
    served = served_tasks.load_served("embed", ModelLocation(best), {})
    examples = table.read_texts(str(STSB / "dev.tsv"), TableSettings(**COLUMNS), ())
    answers = predict.from_model(served)([[each.text_a, each.text_b] for each in examples])
    found = np.array([[answer["similarity"]] for answer in answers])
    task = make()
    scores = task.scores(examples, found)
    stored = eval_results.of_checkpoint(best)
    assert scores == {n: pytest.approx(stored[n], abs=tolerances.OUTPUT) for n in scores}


def test_a_run_keeps_the_modules_that_it_begins_with(tmp_path, tokenizer):
    model = tiny.randomise(
        albert_tf.AlbertForEmbedding(
            runs.write_config(tmp_path), pooling="max", dense_units=4, normalize=True
        )
    )
    model.save(tmp_path / "model.keras")
    command = runs.command(
        "embedding",
        tmp_path,
        **{**FILES, **COLUMNS, "max_seq_length": 23, "train_step": 2},
        init_checkpoint=tmp_path / "model.keras",
        from_scratch=None,
        albert_config_file=None,
    )
    runs.main([*command, "--do_train"])
    kind = kinds.find(str(tmp_path / "out")).kind
    assert (kind["pooling"], kind["dense_units"], kind["normalize"]) == ("max", 4, True)
    trained = loading.from_weights(albert_tf.AlbertForEmbedding, str(tmp_path / "out"))
    assert np.abs(trained.dense.weights[0] - model.dense.weights[0]).max() > 1e-6


def test_a_run_on_pairs_without_scores(tmp_path, caplog):
    """With hard negatives and gradient accumulation, evaluated among the texts of a corpus."""
    given = {**FILES, **UNSCORED, "max_seq_length": 23, "negative_columns": "genre,source1"}
    given |= {
        "train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "corpus_file": tmp_path / "c.csv",
    }
    (tmp_path / "c.csv").write_text("sentence2\nA first text.\nAnother\nA third\n")
    command = runs.command("embedding", tmp_path, **given, ranking_scale=9, matryoshka_dimensions=5)
    runs.main([*command, "--do_train", "--do_eval", f"--predict_file={STSB / 'test.tsv'}"])
    scores = eval_results.read(str(tmp_path / "out"), 4)
    assert {*scores} == {"ndcg_at_10", "recall_at_10", "mrr_at_10"}
    assert 0 < scores["mrr_at_10"] < 1
    features = (tmp_path / "features").glob("embedding_train-*.npz")
    with np.load(next(features)) as stored:
        assert stored["sequences/input_ids"].shape[1] == 4 and "scalars/label_ids" not in stored
    # Only the pairs have predictions.
    lines = (STSB / "dev.tsv").read_text().splitlines()[1:]
    with open(tmp_path / "out" / "dev_probabilities.json") as stored:
        assert np.shape(json.load(stored)["probabilities"]) == (len(lines), 2)
    with caplog.at_level(logging.INFO):
        both = f"{tmp_path / 'out'},{tmp_path / 'out'}"
        runs.main([*command, "--do_eval", f"--ensemble_dirs={both}", f"--output_dir={tmp_path}/of"])
    assert f"for {len(lines)} examples were written" in caplog.text


def fit_as_in_the_docs(folder: str) -> None:
    """Runs the Keras example of docs/embeddings.md, and writes the losses of its epochs."""
    root = pathlib.Path(__file__).parents[2]
    text = root.joinpath("docs/embeddings.md").read_text(encoding="utf-8")
    (code,) = (x for x in re.findall("```python\n(.*?)```", text, re.DOTALL) if "two_towers" in x)
    for before, after in (
        ("hf://albert/albert-base-v2", folder),
        ('"similar', f'"{folder}/{keras.backend.backend()}'),
        ("pairs=answers", "pairs=answers, shuffle=False, batch_size=5), epochs=(20"),
        ("AdamW(2e-5", "AdamW(3e-3"),
    ):
        assert before in code
        code = code.replace(before, after)
    names = {"questions": QUESTIONS, "answers": [text[:9] for text in reversed(QUESTIONS)]}
    exec(code, names)
    losses = names["model"].history.history["loss"]
    pathlib.Path(folder, f"{keras.backend.backend()}.json").write_text(json.dumps(losses))


def test_keras_fits_no_single_pairs(vocabulary):
    """If the loss compares pairs; in all forms of data whose batches are known in advance."""
    model = albert_tf.AlbertForEmbedding(tiny.config(vocab_size=vocabulary.tokenizer.vocab_size))
    given = {"pairs": QUESTIONS[::-1]}
    texts = albert_tf.Preprocessor(vocabulary, 16, two_towers=True)
    inputs, ones = texts(QUESTIONS, **given), np.ones(5)
    in_batches = {n: texts.dataset(QUESTIONS, ones, n, **given, shuffle=False) for n in (1, 4)}
    alone = TextBatches([{name: x[0] for name, x in inputs.items()}], [ones[:1]], 4, (16,), 0)
    model.compile("sgd", MultipleNegativesRankingLoss())
    for each in ((in_batches[1],), (alone,), (inputs, ones, 1)):
        with pytest.raises(ValueError, match="expected batches of at least two .*, got one pair"):
            model.fit(*each, verbose=0)
    # The last batch may have one pair; so may all, if pairs have negatives or are not compared.
    negatives = {name: x[:, [0, 1, 1]] for name, x in inputs.items()}
    for each in ((in_batches[4],), (negatives, ones, 1)):
        assert model.evaluate(*each, verbose=0) > 0
    model.compile("sgd", CosineSimilarityLoss())
    assert model.evaluate(in_batches[1], verbose=0) > 0


QUESTIONS = ["a cat sat", "the end of it all", "one", "He said no.", "2,5 % more"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras always warns.
def test_keras_fits_pairs(tmp_path, vocabulary):
    """On both backends; albert-export takes the saved model."""
    pytest.importorskip("jax")
    size = vocabulary.tokenizer.vocab_size
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = tiny.config(vocab_size=size, max_position_embeddings=64, **none)
    tiny.randomise(albert_tf.AlbertModel(config)).save(tmp_path / "model.keras")
    albert_tf.Preprocessor(vocabulary, 64).save(tmp_path)
    fit_as_in_the_docs(str(tmp_path))
    jax_process.finish(jax_process.start(fit_as_in_the_docs, str(tmp_path)))
    losses, others = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("tensorflow", "jax")
    )
    assert losses[0] > 1.2 * losses[-1] > 0
    np.testing.assert_allclose(others[:4], losses[:4], rtol=1e-4)
    served = served_tasks.load_served("embed", ModelLocation(str(tmp_path / "jax")), {})
    assert predict.from_model(served).embed(QUESTIONS).shape == (5, config.hidden_size)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"label_column": "scor"},
            "neither --train_file nor --eval_file has the --label_column 'scor': correct it, or "
            "leave it out for pairs without scores",
        ),
        (
            {"negative_columns": "genre"},
            f"--negative_columns are of no use with scores, which {STSB / 'train.tsv'} has in "
            "'score': leave either out",
        ),
        (
            {"matryoshka_dimensions": "4,99"},
            "--matryoshka_dimensions must be numbers from 1 to 6, got 4,99",
        ),
        (
            {"key_metric": "mrr_at_10", "do_eval": True},
            "--key_metric must be one of spearman, pearson for the pairs of --eval_file, not "
            "mrr_at_10",
        ),
    ],
)
def test_refusals(tmp_path, given, message):
    command = runs.command("embedding", tmp_path, **{**FILES, **COLUMNS, **given})
    with refused(message, tmp_path / "out"):
        runs.main([*command, "--do_train"])


def test_a_pair_needs_others_in_its_batch(tmp_path):
    given = {**FILES, **UNSCORED, "train_batch_size": 1}
    command = runs.command("embedding", tmp_path, **given)
    message = (
        "--train_batch_size 1 teaches nothing: without scores, pairs are compared with the others "
        "of their batch; give at least 2, or --negative_columns"
    )
    with refused(message, tmp_path / "out"):
        runs.main([*command, "--do_train"])
    # A pair with negatives of its own needs no others.
    given = {**given, "negative_columns": "genre", "train_step": 2}
    runs.main([*runs.command("embedding", tmp_path, **given), "--do_train"])
    assert (tmp_path / "out" / "model.ckpt-2.index").exists()


def test_a_pair_needs_two_columns(tmp_path):
    command = runs.command("embedding", tmp_path, **FILES, text_column="sentence1")
    message = "--text_pair_column names the column of a pair's second text: set that too"
    with refused(message, tmp_path / "out"):
        runs.main([*command, "--do_train"])
