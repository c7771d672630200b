"""Vectors of pairs: features, losses and scores by hand; a run, what it leaves, and its export."""

import numpy as np
import pytest
from keras import ops

import albert_tf
from albert_tf.answers.embed import Embed
from albert_tf.conversion import kinds, loading
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import predict, served_tasks
from albert_tf.storage import eval_results
from albert_tf.tasks import registry, table
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.table import TableSettings
from tests.kit import finetune_runs as runs
from tests.kit import tiny, tolerances
from tests.kit.files import refused

PAIRS = [TextExample("1", "a cat sat", "a dog", 1.0), TextExample("2", "one", "the end of it", 5.0)]
STSB = runs.GOLDEN / "features/glue_data/STS-B"
COLUMNS = {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "score"}
FILES = {"train_file": STSB / "train.tsv", "eval_file": STSB / "dev.tsv", "data_dir": None}


def make(tokenizer=None, **options):
    return registry.TASKS["embedding"].task(Embed(**options), None, tokenizer, classes=())


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


def test_a_pair_needs_two_columns(tmp_path):
    command = runs.command("embedding", tmp_path, **FILES, text_column="sentence1")
    message = "--text_pair_column names the column of a pair's second text: set that too"
    with refused(message, tmp_path / "out"):
        runs.main([*command, "--do_train"])
