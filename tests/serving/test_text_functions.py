"""Texts are answered without TensorFlow as they are in the graph.

Files of each task are asked in test_other_formats.py, too, in a process with TensorFlow.
"""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.serving import exported_files, other_formats, predict, test_vectors, text_functions
from albert_tf.serving.settings import FEATURES
from albert_tf.text.vocabulary import Vocabulary
from tests.model.test_backends import ROOT
from tests.served_tasks import LONG, TASKS, assert_alike, make
from tests.tiny import randomise

# Accents, digits before commas, other scripts, white space, marks alone, nothing.
ODD = [
    *("In 1990, Zoë's café — 3,000 ℃ ﬁsh!", "  two\t spaces \n", "", "\u0301", "中文字 ΟΔΟΣ हिन्दी"),
    *(
        "the [MASK]ing [MASK] of[MASK]",
        "[MASK]",
        "😀 emoji's a\u00a0b",
        "\0x\0",
        LONG.replace(" ", ""),
        LONG,
    ),
]


def rows_of(task):
    """Returns rows of odd texts, as many as the task takes."""
    count = {"classify": 2, "choose": 4, "answer_v1": 2, "answer_v2": 2}.get(task, 1)
    return [[ODD[(i + k * 3) % len(ODD)] for k in range(count)] for i in range(len(ODD))]


def without_graph(served, directory):
    """Returns what answers as with a file, whose numbers are the model's own."""
    served.describe(str(directory))
    task, _, options = exported_files.read_description(str(directory / "serving.json"))

    def run(features):
        assert sorted(features) == sorted(FEATURES)
        found = served.numbers({name: tf.constant(value) for name, value in features.items()})
        return {name: value.numpy() for name, value in found.items()}

    runner = exported_files.Runner(FEATURES, {}, run)
    file = exported_files.ExportedFile(task, options, served.vocabulary, served.labels, runner)
    return predict.Predictor(text_functions.FUNCTIONS[task](file))


def assert_same_outputs(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype, name
        if value.dtype == object:
            assert found[name].tolist() == value.tolist(), name
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("task", TASKS)
def test_outputs_are_the_graphs(vocabulary, tmp_path, task):
    served, rows = make(task, vocabulary), rows_of(task)
    expected = predict.from_text(served).outputs(rows)
    assert_same_outputs(without_graph(served, tmp_path).outputs(rows), expected)


def test_texts_of_word_pieces(tmp_path, config):
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, ",", "'", "中", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces, *(f"##{c}" for c in letters)]))
    vocabulary = Vocabulary.read(str(tmp_path / "vocab.txt"), is_word_piece=True)
    config = dataclasses.replace(config, vocab_size=vocabulary.tokenizer.vocab_size)
    answerer = export.QuestionAnswerer(
        randomise(albert_tf.AlbertForQuestionAnswering(config)), vocabulary, max_query_length=20
    )
    filler = export.MaskFiller(randomise(albert_tf.AlbertForPreTraining(config)), vocabulary)
    for served, task in ((answerer, "answer_v1"), (filler, "fill_mask")):
        expected = predict.from_text(served).outputs(rows_of(task))
        assert_same_outputs(without_graph(served, tmp_path).outputs(rows_of(task)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"windows": "max", "doc_stride": 5, "max_seq_length": 16},
        {"windows": "mean", "doc_stride": 9, "max_seq_length": 16},
        {"multilabel": True},
        {"multilabel": True, "threshold": 0.3},
    ],
)
def test_kinds_of_classifiers(vocabulary, classifier, tmp_path, options):
    served = export.Classifier(classifier, vocabulary, ("a", "b", "c"), **options)
    rows = [[text] for text in ODD]
    expected = predict.from_text(served).outputs(rows)
    assert_same_outputs(without_graph(served, tmp_path).outputs(rows), expected)


@pytest.mark.parametrize("options", [{}, {"windows": "mean", "max_seq_length": 16}])
def test_regression(vocabulary, config, tmp_path, options):
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=1))
    served, rows = export.Classifier(model, vocabulary, **options), [[text] for text in ODD]
    expected = predict.from_text(served).outputs(rows)
    assert_same_outputs(without_graph(served, tmp_path).outputs(rows), expected)


def test_plain_tags(vocabulary, config, tmp_path):
    model = randomise(albert_tf.AlbertForTokenClassification(config, num_labels=3))
    served = export.Tagger(model, vocabulary, ("ADJ", "NOUN", "X"), max_seq_length=16)
    rows = [[text] for text in ODD]
    expected = predict.from_text(served).outputs(rows)
    assert_same_outputs(without_graph(served, tmp_path).outputs(rows), expected)


def test_inputs_are_lines_or_rows_in_batches(vocabulary, tmp_path):
    answers = without_graph(make("choose", vocabulary), tmp_path)
    rows = [["a story", "one", "two"], ["a\tstory", "three", "four", "five"]] * 40
    lines = ["a story\tone\ttwo", "a story\tthree\tfour\tfive"] * 40
    assert_alike(answers(rows), answers(lines))
    assert answers([]) == []
    with pytest.raises(TypeError, match="`inputs` must be a list of texts"):
        answers("a story\tone\ttwo")


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
def test_files_in_a_process_without_tensorflow(vocabulary, tmp_path, file_format):
    pytest.importorskip("onnxruntime" if file_format == "onnx" else "ai_edge_litert")
    if file_format == "onnx":
        pytest.importorskip("tf2onnx")
    expected, asked = [], []
    for task in TASKS:
        served, lines = make(task, vocabulary), TASKS[task][2].splitlines()
        other_formats.save(served, tmp_path / task, file_format)
        asked.append(json.dumps([str(tmp_path / task), lines]))
        model = predict.from_text(served)
        expected.append(model(lines))
        vectors = json.loads((tmp_path / task / test_vectors.FILE).read_text())
        expected.append([vector["answer"] for vector in vectors])
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


def test_the_documented_installation_is_what_the_package_needs():
    """Without TensorFlow, what comes with it, and the bar of the scripts; and with onnxruntime.

    docker/ installs all that a server needs.
    """
    command = re.search(r"^pip install .*\n.*no-deps", (ROOT / "docs/serving.md").read_text(), re.M)
    tomllib = pytest.importorskip("tomllib")  # Of Python 3.11.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left_out = ("keras", "tensorboard", "tensorflow", "tqdm")
    needed = [each for each in project["dependencies"] if not each.startswith(left_out)]
    serve = project["optional-dependencies"]["serve"]
    runtime = [each for each in serve if each.startswith("onnxruntime")]
    assert sorted(re.findall(r"'(.*?)'", command[0])) == sorted(needed + runtime)
    lines = (ROOT / "docker/requirements.txt").read_text().splitlines()
    assert sorted(lines[1:]) == sorted(needed + serve)
