"""Each kind in each format: evaluation, NumPy, graph and files agree on odd texts.

JavaScript's answers are in test_web_page.py. Not tested here: whether the evaluation is right;
tests/tasks compares it with the release's.
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
from tests.kit import tolerances
from tests.kit.served_tasks import (
    KINDS,
    TASKS,
    assert_alike,
    assert_same_outputs,
    config_for,
    features,
    in_tensorflow,
    make,
    model,
    rows_of,
)
from tests.model.test_backends import ROOT

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def vocabulary(golden):
    # Cased, which is stored beside the weights: "The" and "the" differ.
    path = str(golden / "spm" / "en_small.model")
    return Vocabulary.read(path, is_word_piece=False, do_lower_case=False)


@pytest.fixture(scope="module")
def served(vocabulary):
    """Returns a function: a kind's name -> a served model and its outputs for odd texts, cached."""

    @functools.cache
    def of(name):
        made = make(name, vocabulary)
        return made, predict.from_model(made).outputs(rows_of(made.kind))

    return of


def example_of(kind, number, row):
    if isinstance(kind, Span):
        return SquadExample(str(number), *row, (), False)
    if kind.takes_many:
        return ChoiceExample(str(number), row[0], tuple(row[1:]), None, "")
    return TextExample(str(number), *(*row, None)[:2], None)


# Taggers are evaluated on the words of a file (test_tagging.py), embedding models on pairs
# (test_embedding.py).
OTHERS = ("tag", "words", "fill_mask", "embed", "vectors", "first")


@pytest.mark.parametrize("name", [n for n in KINDS if n not in OTHERS])
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
    collected = task.collect(table, [(np.arange(len(rows)), outputs)])
    expected = task.predictions(examples, table, collected)
    if not isinstance(kind, Span):
        actual = task.predictions_of(examples, found)
        np.testing.assert_allclose(actual, expected, atol=tolerances.OUTPUT)
        if getattr(kind, "windows", None):
            assert len(rows) > 2 * len(examples)
        return
    for example, each in zip(examples, found, strict=True):
        for text, start in zip(each["answers"], each["starts"], strict=True):
            assert example.paragraph.startswith(text, start)
        texts = [entry["text"] for entry in expected.nbest[example.qas_id]]
        there = [text for text in each["answers"] if text]
        assert there == [text for text in texts if text not in ("", "empty")]
        if kind.may_be_impossible:
            odds = expected.null_odds[example.qas_id]
            np.testing.assert_allclose(each["null_odds"], odds, atol=tolerances.OUTPUT)
            assert each["answer"] == (texts[0] if odds < kind.null_threshold else "")


@pytest.mark.parametrize("name", KINDS)
def test_the_graph_finds_the_same(name, served):
    """It runs eagerly here; the SavedModels below run as graphs."""
    model, expected = served(name)
    assert_same_outputs(in_tensorflow(model).outputs(rows_of(model.kind)), expected)


def save(model, directory, file_format):
    if file_format.startswith("onnx"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    tf.config.run_functions_eagerly(False)
    if file_format == "saved_model":
        export.save(model, directory)
    else:
        other_formats.save(model, directory, file_format)
    tf.config.run_functions_eagerly(True)


@pytest.fixture(scope="module")
def exported(served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def of(name, file_format):
        directory = folder / f"{name}_{file_format}"
        save(served(name)[0], directory, file_format)
        return predict.load_exported(directory), directory

    return of


# A SavedModel of "classify", with word pieces, is tested below; "answer_v2" covers "answer_v1".
CASES = [("saved_model", "answer_v2"), ("saved_model", "embed"), ("tflite", "tag")]
SLOW = [("saved_model", name) for name in ("tag", "choose", "fill_mask")]
SLOW += [("tflite", name) for name in TASKS if name != "tag"]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]
CASES += [pytest.param("onnx", name, marks=pytest.mark.peers) for name in KINDS]


@pytest.mark.parametrize(("file_format", "name"), CASES)
def test_a_file_finds_the_same(name, file_format, served, exported):
    (model, expected), (predictor, directory) = served(name), exported(name, file_format)
    assert predictor.kind == model.kind
    assert_same_outputs(predictor.outputs(rows_of(model.kind)), expected)
    assert labels.stored(str(directory)) == getattr(model.kind, "labels", ())
    if file_format == "saved_model":
        ranks = model.kind.text_ranks.items()
        nothing = {name: tf.zeros([0, 2][:rank], tf.string) for name, rank in ranks}
        found = predictor._find._exported.signatures["serving_default"](**nothing)
        assert {len(value) for value in found.values()} == {0}


@pytest.mark.parametrize(
    "file_format", ["saved_model", "tflite", pytest.param("onnx", marks=pytest.mark.peers)]
)
def test_ids_are_read_as_they_are(file_format, vocabulary, served, exported):
    (model, found), (predictor, _) = served("embed"), exported("embed", file_format)
    encode, most = vocabulary.tokenizer.encode, model.kind.max_seq_length - 2
    ids = [[encode(model.kind.prefix + text)[:most]] for (text,) in rows_of(model.kind)]
    assert_same_outputs(predictor.outputs(ids), found)
    assert predictor.tokenizer.vocab_size == vocabulary.tokenizer.vocab_size


def test_a_pickle_of_a_file_finds_the_same(exported):
    predictor, _ = exported("classify", "tflite")
    again, rows = pickle.loads(pickle.dumps(predictor)), rows_of(predictor.kind)
    assert_same_outputs(again.outputs(rows), predictor.outputs(rows))


NO_SCORE = -1e29
# Quantised weights may change the order of the spans, and thereby which of them have scores.
UNORDERED = {"start_top_index", "end_top_index", "end_top_log_probs"}


# Outputs of the other kinds are made like these.
INT8 = [("tflite_int8", name) for name in ("answer_v2", "fill_mask")]
INT8 += [pytest.param("onnx_int8", name, marks=pytest.mark.peers) for name in TASKS]


@pytest.mark.slow
@pytest.mark.parametrize(("file_format", "name"), INT8)
def test_numbers_of_8_bits_are_close(name, file_format, served, exported):
    (model, _), (_, directory) = served(name), exported(name, file_format)
    batch = features((2, 17) if model.feature_rank == 2 else (2, 3, 17))
    found = exported_files.load(str(directory / FORMATS[file_format])).runner.run(batch)
    expected = model.run_numbers(batch)
    assert set(found) == set(expected)
    for name in expected.keys() - UNORDERED:
        actual, right = (np.maximum(each[name], NO_SCORE) for each in (found, expected))
        np.testing.assert_allclose(actual, right, atol=tolerances.INT8_OUTPUT, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["choose", "fill_mask"])
def test_features_and_examples_are_answered_as_texts(task, served, vocabulary, exported):
    """Examples of different lengths, each with its choices one after the other."""
    (model, found), (predictor, _) = served(task), exported(task, "saved_model")
    signatures = predictor._find._exported.signatures
    serialized, kind = [], model.kind
    for row, right in zip(rows_of(kind), found, strict=True):
        texts = [row[0], row[1:]] if kind.takes_many else row
        (sequence,) = kind.rows(vocabulary.tokenizer, *texts)
        batch = {name: tf.constant(sequence[name][None]) for name in rows_module.FEATURES}
        of_features = signatures["features"](**batch)
        decoded = {name: predict._decoded(x[0].numpy()) for name, x in of_features.items()}
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


WITH_TENSORFLOW_ALONE = """
import json, sys
# Others, whose import takes half of the time, are not needed either.
for name in ("jax", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn"):
    sys.modules[name] = None
import tensorflow as tf
import tensorflow_text
path, texts = json.loads(sys.stdin.read())
signature = tf.saved_model.load(path).signatures["serving_default"]
answers = signature(**{name: tf.constant(column) for name, column in texts.items()})
assert not any(name.split(".")[0] == "albert_tf" for name in sys.modules)
label, probabilities = (answers[name].numpy() for name in ("label", "probabilities"))
print(json.dumps([[name.decode() for name in label], probabilities.tolist()]))
"""
WITHOUT_TENSORFLOW = """
import sys
# These packages are not installed if one follows docs/serving.md.
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


def lines_of(given, *command):
    more = {"capture_output": True, "text": True, "timeout": 300}
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, input=given, **more)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
def test_a_saved_model_needs_tensorflow_and_its_text_operations_alone(tmp_path):
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, ",", "'", "中", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, *(f"##{c}" for c in letters)]))
    words = Vocabulary.read(str(tmp_path / "vocab.txt"), is_word_piece=True)
    model, directory = make("classify", words), tmp_path / "exported"
    found = predict.from_model(model).outputs(rows_of(model.kind))
    save(model, directory, "saved_model")
    texts = dict(zip(model.kind.text_names, zip(*rows_of(model.kind), strict=True), strict=True))
    # -I: Python searches neither this directory nor PYTHONPATH.
    given = json.dumps([str(directory), texts])
    ((labels, probabilities),) = lines_of(given, "-I", "-c", WITH_TENSORFLOW_ALONE)
    assert labels == [each["label"] for each in found]
    expected = [each["probabilities"] for each in found]
    np.testing.assert_allclose(probabilities, expected, atol=tolerances.OUTPUT)
    (asset,) = (directory / "assets").iterdir()
    assert asset.read_bytes() == (tmp_path / "vocab.txt").read_bytes()


@pytest.mark.peers
@pytest.mark.parametrize("file_format", ["onnx", "tflite"])
def test_files_in_a_process_without_tensorflow(served, exported, file_format):
    pytest.importorskip("onnxruntime" if file_format == "onnx" else "ai_edge_litert")
    expected, asked = [], []
    for task, (_, text) in TASKS.items():
        _, directory = exported(task, file_format)
        asked.append(json.dumps([str(directory), text.splitlines()]))
        model = predict.from_model(served(task)[0])
        expected.append(model(text.splitlines()))
        stored = json.loads((directory / vectors.FILE).read_text())
        expected.append([vector["answer"] for vector in stored])
        if task == "fill_mask":
            expected.append(model.embed(["one", "two words"]).tolist())
    assert_alike(lines_of("\n".join(asked), "-c", WITHOUT_TENSORFLOW), expected)
