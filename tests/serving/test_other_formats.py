"""TensorFlow Lite and ONNX."""

import io
import json
import shutil
import sys
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.model import encoder
from albert_tf.serving import exported_files, other_formats, predict, test_vectors
from albert_tf.serving.classifying import Classifier
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens, tolerances
from tests.served_tasks import LONG, TASKS, assert_alike, make
from tests.tiny import randomise, run_main


@pytest.fixture(scope="module")
def served(vocabulary):
    # More layers than are unrolled: the converters must take the loop, too.
    config = goldens.config(
        "base",
        vocab_size=vocabulary.tokenizer.vocab_size,
        num_hidden_layers=encoder.MOST_UNROLLED_LAYERS + 1,
    )
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
    return export.Classifier(model, vocabulary, ("a", "b", "c"))


def features(batch, length):
    random = np.random.default_rng(length)
    return {
        "input_ids": random.integers(0, 6000, (batch, length), np.int32),
        "input_mask": (np.arange(length) < [[length - 2]] * batch).astype(np.int32),
        "segment_ids": random.integers(0, 2, (batch, length), np.int32),
    }


def largest_difference(served, run):
    differences = []
    for shape in ((1, 5), (3, 17)):
        batch = features(*shape)
        found = run(batch)
        expected = served.numbers({name: tf.constant(value) for name, value in batch.items()})
        differences.append(np.abs(found - expected["logits"]).max())
    return max(differences)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("tflite", tolerances.OUTPUT), ("tflite_int8", tolerances.INT8_OUTPUT)]
)
def test_tflite(served, tmp_path, name, tolerance):
    drift = other_formats.save(served, tmp_path / "model", name)
    path = tmp_path / "model" / other_formats.FORMATS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    difference = largest_difference(served, lambda batch: runner(**batch)["logits"])
    assert difference < tolerance
    assert drift.largest < tolerance
    assert drift.spread > 0.1
    if name == "tflite_int8":
        # A quarter of the weights' bytes, and the graph.
        assert difference > tolerances.OUTPUT, "the weights are not quantised"
        weights = sum(weight.shape.num_elements() for weight in served.weights)
        assert path.stat().st_size < 2 * weights
    assert (tmp_path / "model" / "en_small.model").exists()


def test_the_drift_of_answers_leaves_out_where_there_can_be_none(tmp_path, vocabulary, config):
    # More starts and ends than a short window has.
    model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=7, end_n_top=7))
    served = export.QuestionAnswerer(model, vocabulary, max_seq_length=32, max_query_length=8)
    drift = other_formats.save(served, tmp_path / "model", "tflite")
    assert drift.largest < tolerances.OUTPUT
    assert 0.1 < drift.spread < 100


def test_numbers_that_are_not_finite_leave_nothing(tmp_path, served, monkeypatch):
    def run(features):
        whole = features["input_mask"].all(axis=1, keepdims=True)
        return {"logits": np.where(whole, np.zeros(3, "f"), np.nan)}

    runner = types.SimpleNamespace(run=run)
    monkeypatch.setattr(other_formats, "_tflite", lambda function, is_int8: b"")
    monkeypatch.setattr(other_formats, "runtime_loader", lambda is_onnx: lambda content: runner)
    with pytest.raises(ValueError, match="the converted model's outputs are NaN .*logits"):
        other_formats.save(served, tmp_path / "model", "tflite")
    assert not (tmp_path / "model").exists()


@pytest.mark.peers
def test_onnx(served, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    onnx = pytest.importorskip("onnx")
    drift = other_formats.save(served, tmp_path / "model", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    difference = largest_difference(served, lambda batch: session.run(["logits"], batch)[0])
    assert difference < tolerances.OUTPUT
    assert drift.largest < tolerances.OUTPUT
    for tensor in session.get_inputs():
        assert tensor.shape == ["batch", "length"], tensor.name
    assert [output.shape for output in session.get_outputs()] == [["batch", 3]]
    # One of the embeddings, two in the body of the loop, two in the last layer.
    names = operations(onnx.load(tmp_path / "model" / "model.onnx").graph)
    assert (names.count("LayerNormalization"), names.count("Reciprocal")) == (5, 0)


def operations(graph):
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return [node.op_type for node in graph.node] + sum(map(operations, inner), [])


@pytest.mark.peers
def test_onnx_int8(served, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    drift = other_formats.save(served, tmp_path / "model", "onnx_int8")
    path = tmp_path / "model" / other_formats.FORMATS["onnx_int8"]
    session = onnxruntime.InferenceSession(str(path))
    difference = largest_difference(served, lambda batch: session.run(["logits"], batch)[0])
    assert tolerances.OUTPUT < difference < tolerances.INT8_OUTPUT
    assert tolerances.OUTPUT < drift.largest < tolerances.INT8_OUTPUT
    # In a loop, some weights also stay in 32 bits.
    weights = sum(weight.shape.num_elements() for weight in served.weights)
    assert path.stat().st_size < 3.5 * weights
    # An answer of 8 bits depends on the texts beside it, so that a server asks for each alone.
    assert predict.load_exported(path).depends_on_batch


@pytest.mark.peers
@pytest.mark.parametrize("name", ["onnx", "onnx_int8"])
def test_onnx_has_the_piece_table_once(vocabulary, tmp_path, name):
    """For embeddings and for logits; the answers are compared below and in test_formats.py."""
    onnx = pytest.importorskip("onnx")
    served = make("fill_mask", vocabulary)
    other_formats.save(served, tmp_path / "model", name)
    graph = onnx.load(tmp_path / "model" / other_formats.FORMATS[name]).graph
    table = served.config.vocab_size * served.config.embedding_size
    assert sum(np.prod(each.dims) >= table for each in graph.initializer) == 1


@pytest.mark.parametrize("package", ["onnxruntime", "tf2onnx"])
def test_a_missing_package_is_named_first(monkeypatch, package, tmp_path):
    for name in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, name, None if name == package else sys)
    given = ["--model=nowhere", "--task=tag", "--format=onnx_int8", f"--export_dir={tmp_path}"]
    with pytest.raises(SystemExit, match=rf"'{package}', .* pip install 'albert_tf\[onnx\]'"):
        run_main(export.main, given)


QUICK = ("tag", "tflite")
CASES = [
    pytest.param(task, form, marks=() if (task, form) == QUICK else pytest.mark.peers)
    for form in ("tflite", "onnx")
    for task in TASKS
]


@pytest.fixture(scope="module")
def vocabulary(golden):
    # Cased, which is stored beside the weights: "The" and "the" differ.
    path = str(golden / "spm" / "en_small.model")
    return Vocabulary.read(path, is_word_piece=False, do_lower_case=False)


@pytest.mark.parametrize(("task", "file_format"), CASES)
def test_answers_are_the_models_own(vocabulary, tmp_path, monkeypatch, capsys, task, file_format):
    if file_format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    served, text = make(task, vocabulary), TASKS[task][2]
    lines = text.splitlines()
    expected = predict.from_text(served)(lines)
    other_formats.save(served, tmp_path / "model", file_format)
    # A directory, or the file in it.
    path = tmp_path / "model" / (other_formats.FORMATS[file_format] if task == "classify" else "")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    run_main(predict.main, ["--model", str(path), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.pop("input") for answer in found] == [line.split("\t") for line in lines]
    assert_alike(found, expected)


@pytest.mark.peers
def test_windows_and_several_labels_are_described(vocabulary, config, tmp_path):
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
    options = {"multilabel": True, "windows": "max", "doc_stride": 5, "max_seq_length": 16}
    served = Classifier(model, vocabulary, ("a", "b", "c"), **options)
    other_formats.save(served, tmp_path / "model", "tflite")
    predictors = [predict.load_exported(tmp_path / "model"), predict.from_text(served)]
    assert_alike(*(predictor([LONG, "a cat"]) for predictor in predictors))


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "classifier"
    other_formats.save(make("classify", vocabulary), directory, "tflite")
    return directory


def test_vectors_are_what_the_file_is_fed_and_answers(exported, vocabulary):
    vectors = json.loads((exported / test_vectors.FILE).read_text())
    rows = [vector["texts"] for vector in vectors]
    answers = predict.load_exported(exported)(rows)
    assert_alike(answers, [vector["answer"] for vector in vectors])
    features = albert_tf.Preprocessor(vocabulary, max_seq_length=16)(*zip(*rows, strict=True))
    for i, vector in enumerate(vectors):
        assert {name: vector[name][0] for name in features} == {
            name: value[i].tolist() for name, value in features.items()
        }
        assert len(vector["outputs"]["logits"]) == 2


def edit(directory, **members):
    path = directory / exported_files.DESCRIPTION_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def cut(directory, part):
    path = directory / "model.tflite"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "serving.json").unlink(), "serving.json, which describes .*, does not"),
        (lambda d: (d / "serving.json").write_text("{"), "serving.json is not JSON"),
        (lambda d: edit(d, task="tag_"), "serving.json: task must be one of fill_mask, "),
        (lambda d: edit(d, options={"top_k": 2}), "unknown option 'top_k': classify has pairs"),
        (lambda d: edit(d, options={"pairs": 1}), "whose 'pairs' is true or false, got 1"),
        (lambda d: edit(d, options={"max_seq_length": 2}), "max_seq_length must be from 4 to"),
        *(
            (
                lambda d, task=task: edit(d, task=task, options={}),
                f"tflite is of another task than {task}, .* outputs are logits .None, 2.; copy",
            )
            for task in TASKS
            if task != "classify"
        ),
        (lambda d: edit(d, config={"vocab_size": -1}), "serving.json: .*vocab_size"),
        (lambda d: (d / "en_small.model").unlink(), "no vocabulary is beside .*model.tflite"),
        (lambda d: (d / "labels.jsonl").unlink(), "labels.jsonl does not exist"),
        (lambda d: (d / "labels.jsonl").write_text('"a"\n'), "expected 2 labels .*, got 1"),
        (lambda d: shutil.copy(d / "model.tflite", d / "b.tflite"), "contains several models"),
        (lambda d: cut(d, 0.5), "model.tflite can't be loaded; it may be damaged"),
        (lambda d: cut(d, 0.99), "model.tflite can't be loaded; it may be damaged"),
    ],
)
def test_what_is_damaged_or_missing_is_one_line(exported, tmp_path, damage, message):
    directory = shutil.copytree(exported, tmp_path / "copy")
    damage(directory)
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as error:
        run_main(predict.main, ["--model", str(directory)])
    assert "\n" not in error.value.code


def test_a_missing_runtime_is_one_line(exported, tmp_path, monkeypatch):
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit, match=r"^error: .*onnxruntime.* install 'albert_tf\[serve\]'"):
        run_main(predict.main, ["--model", str(directory)])


def test_a_missing_runtime_for_tflite_is_one_line(exported, monkeypatch):
    for package in ("tensorflow", "ai_edge_litert"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^error: .*neither is installed: pip install ai-edge"):
        run_main(predict.main, ["--model", str(exported)])


@pytest.mark.peers
def test_a_damaged_onnx_file_is_one_line(exported, tmp_path):
    pytest.importorskip("onnxruntime")
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    with pytest.raises(SystemExit, match=r"^error: .*model.onnx can't be loaded") as error:
        run_main(predict.main, ["--model", str(directory)])
    assert "\n" not in error.value.code
