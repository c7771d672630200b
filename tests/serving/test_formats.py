"""Each kind of the table in each format: evaluation = NumPy = graph = files, on odd texts.

JavaScript's answers are in test_web_page.py. Can't see: whether the evaluation is right, which
tests/tasks compares with the release's.
"""

import functools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import export
from albert_tf.answers import rows as rows_module
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import Span
from albert_tf.conversion import labels
from albert_tf.serving import exported_files, other_formats, predict, vectors
from albert_tf.serving.settings import FORMATS
from albert_tf.tasks import registry
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.squad_text import SquadExample
from albert_tf.text.vocabulary import Vocabulary
from tests import tolerances
from tests.model.test_backends import ROOT
from tests.served_tasks import (
    KINDS,
    TASKS,
    assert_alike,
    assert_same_outputs,
    config_for,
    in_graph,
    make,
    model,
    rows_of,
)


@pytest.fixture(scope="module")
def vocabulary(golden):
    # Cased, which is stored beside the weights: "The" and "the" differ.
    path = str(golden / "spm" / "en_small.model")
    return Vocabulary.read(path, is_word_piece=False, do_lower_case=False)


@pytest.fixture(scope="module")
def served(vocabulary):
    """Makes what serves a kind, and what it finds in odd texts, once for all formats."""

    @functools.cache
    def of(name):
        made = make(name, vocabulary)
        return made, predict.from_model(made).outputs(rows_of(made.kind))

    return of


# --- evaluation = NumPy ------------------------------------------------------------------------


def example_of(kind, number, row):
    if isinstance(kind, Span):
        return SquadExample(str(number), *row, (), False)
    if kind.takes_many:
        return ChoiceExample(str(number), row[0], tuple(row[1:]), None, "")
    return TextExample(str(number), *(*row, None)[:2], None)


# The words of taggers' evaluation are those of a file: test_tagging.py.
@pytest.mark.parametrize("name", [n for n in KINDS if n not in ("tag", "words", "fill_mask")])
def test_an_evaluation_finds_what_is_served(name, vocabulary, served):
    kind, (_, found) = KINDS[name], served(name)
    examples = [example_of(kind, i, row) for i, row in enumerate(rows_of(kind))]
    row, classes = registry.TASKS[kind.task_name], getattr(kind, "labels", "abc")
    task = row.task(kind, None, vocabulary.tokenizer, classes=classes)
    rows = list(task.rows(examples, is_training=False))
    batch = [{name: row[name] for name in task.inputs} for row in rows]
    features = rows_module.stack(batch, kind.max_seq_length)
    outputs = model(kind, config_for(vocabulary))(features)
    outputs = tf.nest.map_structure(np.asarray, outputs)
    table = FeatureTable.from_rows(rows)
    expected = task.predictions(
        examples, table, task.collect(table, [(np.arange(len(rows)), outputs)])
    )
    if not isinstance(kind, Span):
        actual = task.predictions_of(examples, found)
        np.testing.assert_allclose(actual, expected, atol=tolerances.OUTPUT)
        if getattr(kind, "windows", None):
            assert len(rows) > 2 * len(examples)
        return
    for example, each in zip(examples, found, strict=True):
        texts = [entry["text"] for entry in expected.nbest[example.qas_id]]
        there = [text for text in each["answers"] if text]
        assert there == [text for text in texts if text not in ("", "empty")]
        if kind.may_be_impossible:
            odds = expected.null_odds[example.qas_id]
            np.testing.assert_allclose(each["null_odds"], odds, atol=tolerances.OUTPUT)
            assert each["answer"] == (texts[0] if odds < kind.null_threshold else "")


# --- NumPy = graph -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_the_graph_finds_the_same(name, served):
    model, expected = served(name)
    assert_same_outputs(in_graph(model).outputs(rows_of(model.kind)), expected)


def test_the_graph_finds_the_same_in_word_pieces(tmp_path):
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, ",", "'", "中", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, *(f"##{c}" for c in letters)]))
    words = Vocabulary.read(str(tmp_path / "vocab.txt"), is_word_piece=True)
    for kind in (Span(max_query_length=20, max_seq_length=64), Fill(max_seq_length=64)):
        model, rows = make(kind, words), rows_of(kind)
        assert_same_outputs(in_graph(model).outputs(rows), predict.from_model(model).outputs(rows))


# --- files -------------------------------------------------------------------------------------


def export_to(directory, model, file_format):
    if file_format.startswith("onnx"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    if file_format == "saved_model":
        export.save(model, directory)
    else:
        other_formats.save(model, directory, file_format)


CASES = [("saved_model", name) for name in TASKS] + [("tflite", name) for name in TASKS]
CASES += [pytest.param("onnx", name, marks=pytest.mark.peers) for name in KINDS]


@pytest.mark.parametrize(("file_format", "name"), CASES)
def test_a_file_finds_the_same(name, file_format, served, tmp_path):
    model, expected = served(name)
    export_to(tmp_path / "exported", model, file_format)
    predictor = predict.load_exported(tmp_path / "exported")
    assert predictor.kind == model.kind
    assert_same_outputs(predictor.outputs(rows_of(model.kind)), expected)
    again = pickle.loads(pickle.dumps(predictor))
    assert_same_outputs(again.outputs(rows_of(model.kind)), predictor.outputs(rows_of(model.kind)))
    names = getattr(model.kind, "labels", ())
    assert labels.stored(str(tmp_path / "exported")) == names


def features(rank):
    shape = (2, 17) if rank == 2 else (2, 3, 17)
    ids = np.random.default_rng(7).integers(5, 6000, shape, np.int32)
    ids[..., 12] = 3  # [SEP]
    segments = np.broadcast_to(np.arange(17) > 6, shape).astype(np.int32)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}


NO_SCORE = -1e29
# Of which spans there are scores depends on their order, which quantised weights may change.
UNORDERED = {"start_top_index", "end_top_index", "end_top_log_probs"}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "file_format", ["tflite_int8", pytest.param("onnx_int8", marks=pytest.mark.peers)]
)
def test_numbers_of_8_bits_are_close(task, file_format, served, tmp_path):
    model, _ = served(task)
    export_to(tmp_path, model, file_format)
    batch = features(model.feature_rank)
    found = exported_files.load(str(tmp_path / FORMATS[file_format])).runner.run(batch)
    expected = model.run_numbers(batch)
    assert set(found) == set(expected)
    for name in expected.keys() - UNORDERED:
        actual, right = (np.maximum(each[name], NO_SCORE) for each in (found, expected))
        np.testing.assert_allclose(actual, right, atol=tolerances.INT8_OUTPUT, err_msg=name)


@pytest.mark.parametrize("task", ["choose", "fill_mask"])
def test_features_and_examples_are_answered_as_texts(task, served, vocabulary, tmp_path):
    """Examples of different lengths, each with its choices one after the other."""
    model, found = served(task)
    export.save(model, tmp_path / "exported")
    signatures = tf.saved_model.load(str(tmp_path / "exported")).signatures
    serialized, kind = [], model.kind
    for row, right in zip(rows_of(kind), found, strict=True):
        texts = [row[0], row[1:]] if kind.takes_many else row
        (sequence,) = kind.rows(vocabulary.tokenizer, *texts)
        batch = {name: tf.constant(sequence[name][None]) for name in rows_module.FEATURES}
        of_features = {
            name: value[0].numpy() for name, value in signatures["features"](**batch).items()
        }
        decoded = {name: predict._decoded(value) for name, value in of_features.items()}
        assert_same_outputs([decoded], [right])
        example = tf.train.Example()
        for name in rows_module.FEATURES:
            values = sequence[name].ravel().tolist()
            example.features.feature[name].int64_list.value.extend(values)
        serialized.append(example.SerializeToString())
    outputs = signatures["examples"](examples=tf.constant(serialized))
    arrays = {name: predict._decoded(value.numpy()) for name, value in outputs.items()}
    rows = [{name: value[i] for name, value in arrays.items()} for i in range(len(found))]
    assert_same_outputs(rows, found)


# --- a process without TensorFlow --------------------------------------------------------------

PROGRAM = """
import sys
# What docs/serving.md leaves out.
for name in ("tensorflow", "tensorflow_text", "keras", "tensorboard", "tqdm"):
    sys.modules[name] = None
import json
import threading
import albert_tf

def ask(i):
    found[i] = [answers(lines) for _ in range(3)]

for line in sys.stdin:
    path, lines = json.loads(line)
    answers = albert_tf.load_exported(path)
    found = {}
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(answer == found[0][0] for each in found.values() for answer in each)
    print(json.dumps(found[0][0]))
    vectors = json.load(open(f"{path}/test_vectors.json"))
    print(json.dumps([answers([vector["texts"]])[0] for vector in vectors]))
    if "fill_mask" in path:
        print(json.dumps(answers.embed(["one", "two words"]).tolist()))
"""


@pytest.mark.peers
@pytest.mark.parametrize("file_format", ["onnx", "tflite"])
def test_files_in_a_process_without_tensorflow(served, tmp_path, file_format):
    pytest.importorskip("onnxruntime" if file_format == "onnx" else "ai_edge_litert")
    expected, asked = [], []
    for task, (_, text) in TASKS.items():
        export_to(tmp_path / task, served(task)[0], file_format)
        asked.append(json.dumps([str(tmp_path / task), text.splitlines()]))
        model = predict.from_model(served(task)[0])
        expected.append(model(text.splitlines()))
        stored = json.loads((tmp_path / task / vectors.FILE).read_text())
        expected.append([vector["answer"] for vector in stored])
        if task == "fill_mask":
            expected.append(model.embed(["one", "two words"]).tolist())
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        input="\n".join(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert_alike([json.loads(line) for line in ended.stdout.splitlines()], expected)
