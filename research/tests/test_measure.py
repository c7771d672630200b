"""Sums by document are the evaluation's; records find their documents; probes read labels."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.generator import create
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import compact_spec
from albert_tf.storage import eval_results
from research.experiments import claims, corpus, measure
from tests.kit import pretraining_runs as runs
from tests.kit.tiny import parse

# There are 37 records; an evaluation of three batches of 12 sees 36 of them.
DOCUMENTS = np.arange(37) % 5
YEARS = 9


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns flags of a measurement of a model that was trained and evaluated, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)
    runs.write_records(folder / "a.tfrecord", runs.examples(37))
    runs.write_records(folder / "probe.records", runs.examples(100, seed=1))
    changes = {"num_train_steps": 150, "iterations_per_loop": 50}
    runs.main(runs.command(folder, do_eval=True, max_eval_steps=3, **changes))
    (folder / "documents.json").write_text(json.dumps(DOCUMENTS.tolist()))
    given = {
        "albert_config_file": folder / "albert_config.json",
        "input_file": folder / "a.tfrecord",
        "output_dir": folder / "out",
        "max_seq_length": runs.LENGTH,
        "max_predictions_per_seq": runs.PREDICTIONS,
        "eval_batch_size": 12,
        "max_eval_steps": 3,
        "do_train": "false",
        "do_eval": "true",
        "documents_file": folder / "documents.json",
        "measures_file": folder / "measures.json",
        "probe_train_file": folder / "probe.records",
        "probe_examples": 96,
    }
    return folder, given


def test_sums_by_document_are_the_evaluations(trained):
    folder, given = trained
    measure.main(parse(measure.MeasurementSettings, **given))
    found = json.loads((folder / "measures.json").read_text())
    evaluated = eval_results.read_last(folder / "out")
    for name in ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_accuracy"):
        sums, weights = np.transpose(found["documents"][name])
        assert len(sums) == 5
        np.testing.assert_allclose(sums.sum() / weights.sum(), evaluated[name], rtol=1e-4)
    assert set(claims.METRICS) <= {*evaluated, *found["metrics"]}
    rows = runs.examples(37)[:36]
    pieces = np.bincount(DOCUMENTS[:36], [row["masked_lm_weights"].sum() for row in rows])
    assert np.transpose(found["documents"]["masked_lm_loss"])[1].tolist() == pieces.tolist()
    label = np.mean([row["sentence_order_labels"] for row in rows])
    metrics = found["metrics"]
    assert metrics["sentence_order_majority"] == pytest.approx(max(label, 1 - label))
    # Each row's second piece gives its label away.
    assert metrics["probe_accuracy"] > 0.8 > metrics["sentence_order_majority"]


def test_documents_of_other_records_are_refused(trained, tmp_path, capsys):
    (tmp_path / "other.json").write_text("[0, 0, 1]")
    given = {**trained[1], "documents_file": tmp_path / "other.json"}
    with pytest.raises(SystemExit, match="error: --documents_file is of 3 records, --input_file "):
        measure.main(parse(measure.MeasurementSettings, **given))


def test_keras_starts_on_what_backend_names(tmp_path, monkeypatch):
    """The measured run does, too."""
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    unread = ("albert_config_file", "input_file", "output_dir", "documents_file")
    given = {"measures_file": tmp_path / "measures.json", "backend": "jax"}
    values = parse(measure.MeasurementSettings, **dict.fromkeys(unread, "unread"), **given)
    measure.write(values, values.names(), lambda _: os.environ["KERAS_BACKEND"])
    assert json.loads((tmp_path / "measures.json").read_text()) == "jax"


def test_neighbours_share_a_group_if_documents_are_many():
    numbers = np.repeat(np.arange(250), 2)
    found = measure.group_sums(np.ones(500), np.full(500, 2.0), numbers)
    assert len(found) == 100 and np.sum(found, axis=0).tolist() == [500, 1000]
    assert {tuple(group) for group in found} == {(4.0, 8.0), (6.0, 12.0)}


def test_a_document_without_rows_keeps_its_place():
    found = measure.group_sums(np.ones(3), np.full(3, 2.0), np.array([0, 2, 2]))
    assert found == [[1, 2], [0, 0], [2, 4]]


@pytest.mark.parametrize("next_sentence", ["true", "false"])
def test_the_document_of_a_record(tmp_path, next_sentence):
    """A document repeats a word of its own, so compact records show which one they are from."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"y{year}" for year in range(YEARS)]
    (tmp_path / "vocab.txt").write_text("\n".join([*specials, *words]))
    texts = ("\n".join(f"{word} " * 7 for _ in range(20)) for word in words)
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    given = {
        "input_file": tmp_path / "text.txt",
        "output_file": tmp_path / "a.tfrecord",
        "vocab_file": tmp_path / "vocab.txt",
        "max_seq_length": 23,
        "masking": "dynamic",
        "dupe_factor": 2,
        "random_next_sentence": next_sentence,
        "num_processes": 1,
        # Small enough for several blocks.
        "block_megabytes": 0.001,
    }
    create.create_pretraining_data(parse(corpus.CorpusSettings, **given, documents_file="none"))
    spec = compact_spec()
    expected = [
        int(spec.parse(record[None])["token_ids"][0, 0]) - len(specials)
        for record in untuned(tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord")))
    ]
    corpus.main(parse(corpus.CorpusSettings, **given, documents_file=tmp_path / "documents.json"))
    found = json.loads((tmp_path / "documents.json").read_text())
    assert found == expected and set(found) == set(range(YEARS))
