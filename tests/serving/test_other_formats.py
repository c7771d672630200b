"""TensorFlow Lite and ONNX: sizes, drift, graphs, and damage; test_formats.py compares answers."""

import json
import shutil
import sys

import numpy as np
import pytest

import albert_tf
from albert_tf import export
from albert_tf.answers.rows import FEATURES
from albert_tf.answers.span import BeamSpan
from albert_tf.cli import predict as predict_command
from albert_tf.model import encoder
from albert_tf.serving import exported_files, other_formats, predict, vectors
from tests.kit import tolerances
from tests.kit.files import refused
from tests.kit.served_tasks import KINDS, assert_alike, features, make
from tests.kit.tiny import run_main


@pytest.fixture(scope="module")
def served(vocabulary):
    # More layers than are unrolled, so that the converters must handle the loop, too.
    return make("labels", vocabulary, num_hidden_layers=encoder.MOST_UNROLLED_LAYERS + 1)


ONNX = [pytest.param(name, marks=pytest.mark.peers) for name in ("onnx", "onnx_int8")]


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["tflite", "tflite_int8", *ONNX])
def test_numbers_and_sizes_of_a_deep_model(file_format, served, tmp_path):
    if file_format.startswith("onnx"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    drift = other_formats.save(served, tmp_path / "model", file_format)
    path = tmp_path / "model" / other_formats.FORMATS[file_format]
    run = exported_files.load(str(path)).runner.run
    batches = features((1, 5)), features((3, 17))
    pairs = [(run(batch), served.run_numbers(batch)) for batch in batches]
    difference = max(np.abs(found["logits"] - right["logits"]).max() for found, right in pairs)
    is_int8 = file_format.endswith("int8")
    tolerance = tolerances.INT8_OUTPUT if is_int8 else tolerances.OUTPUT
    assert difference < tolerance and drift.largest < tolerance and drift.spread > 0.1
    if is_int8:
        assert difference > tolerances.OUTPUT, "the weights are not quantised"
        weights = sum(weight.shape.num_elements() for weight in served.weights)
        assert path.stat().st_size < 2 * weights  # Bytes.
    if file_format == "onnx":
        assert_graph(path)
    if file_format == "onnx_int8":
        # Only products of two activations stay in float32: in the loop's layer and in the last one.
        graph = pytest.importorskip("onnx").load(path).graph
        assert operations(graph).count("MatMul") == 4
    assert (tmp_path / "model" / "en_small.model").exists()


def assert_graph(path):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(path).graph
    for tensors, names in ((graph.input, ["batch", "length"]), (graph.output, ["batch", 3])):
        for tensor in tensors:
            sizes = tensor.type.tensor_type.shape.dim
            assert [size.dim_param or size.dim_value for size in sizes] == names, tensor.name
    # Normalisations: one of the embeddings, two in the loop's body, two in the last layer.
    names = operations(graph)
    assert (names.count("LayerNormalization"), names.count("Reciprocal")) == (5, 0)
    # Inputs: the trip count, a condition, and the iteration's number and states, passed on.
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    assert len(loop.input) == 4


def operations(graph):
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return [node.op_type for node in graph.node] + sum(map(operations, inner), [])


def test_the_drift_of_answers_leaves_out_where_there_can_be_none(vocabulary):
    # Beams with more starts and ends than a short window has positions.
    kind = BeamSpan(max_seq_length=32, max_query_length=8, start_n_top=7, end_n_top=7)
    served = make(kind, vocabulary)

    def run(features):
        return {name: value + 1 for name, value in served.run_numbers(features).items()}

    drift = other_formats.measure_drift(served.numbers, run, served.config, 32, 2)
    assert drift.largest == pytest.approx(1, abs=tolerances.OUTPUT)
    assert 0.1 < drift.spread < 100


@pytest.fixture
def unconverted(vocabulary, monkeypatch):
    """Returns a model, and a function that sets what running its converted files computes."""

    def replace(run):
        runner = exported_files.Runner(FEATURES, {"logits": [None, 3]}, run)
        for module in (other_formats, exported_files):
            monkeypatch.setattr(module, "runtime_loader", lambda is_onnx: lambda content: runner)
        for name in ("to_tflite", "to_onnx"):
            monkeypatch.setattr(other_formats, name, lambda function, is_int8: b"")

    return make("labels", vocabulary), replace


def test_numbers_of_onnx_int8_alone_depend_on_their_batch(tmp_path, unconverted):
    served, replace = unconverted
    replace(served.run_numbers)
    for file_format in other_formats.FORMATS:
        directory = tmp_path / file_format
        directory.mkdir()
        other_formats.write(served, str(directory), file_format)
        depends = predict.load_exported(directory).depends_on_batch
        assert depends == (file_format == "onnx_int8")


def test_numbers_that_are_not_finite_leave_nothing(tmp_path, unconverted):
    def run(features):
        whole = features["input_mask"].all(axis=1, keepdims=True)
        return {"logits": np.where(whole, np.zeros(3, "f"), np.nan)}

    served, replace = unconverted
    replace(run)
    with refused("NaN.*logits", tmp_path, exception=ValueError):
        other_formats.save(served, tmp_path / "model", "tflite")


@pytest.mark.peers
@pytest.mark.parametrize("name", ["onnx", "onnx_int8"])
def test_onnx_has_the_piece_table_once(vocabulary, tmp_path, name):
    """Embeddings and logits share it; the answers are compared below and in test_formats.py."""
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


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "classifier"
    other_formats.save(make("classify", vocabulary), directory, "tflite")
    return directory


def test_vectors_are_what_the_file_is_fed_and_answers(exported, vocabulary):
    stored = json.loads((exported / vectors.FILE).read_text())
    rows = [vector["texts"] for vector in stored]
    answers = predict.load_exported(exported)(rows)
    assert_alike(answers, [vector["answer"] for vector in stored])
    features = albert_tf.Preprocessor(vocabulary, max_seq_length=16)(*zip(*rows, strict=True))
    for i, vector in enumerate(stored):
        for name, value in features.items():
            assert vector[name][0] == value[i].tolist(), name
        assert len(vector["outputs"]["logits"]) == 2


def edit(directory, **members):
    """Replaces members of the description; members that it lacks are those of its kind."""
    path = directory / exported_files.DESCRIPTION_FILE
    values = json.loads(path.read_text())
    of_kind = {name: value for name, value in members.items() if name not in values}
    values["kind"].update(of_kind)
    path.write_text(json.dumps({**values, **members}))


def cut(directory, part):
    path = directory / "model.tflite"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


@pytest.mark.parametrize(
    ("damage", "noun"),
    [
        (lambda d: (d / "serving.json").unlink(), "serving.json"),
        (lambda d: (d / "serving.json").write_text("{"), "serving.json is not JSON"),
        (lambda d: edit(d, labels=["a"], threshold=None), "outputs are logits"),
        (lambda d: edit(d, quantized=0), "serving.json.*'quantized'"),
        *(
            (lambda d, kind=kind: edit(d, kind=kind.to_json()), f"{kind.task}.* outputs are logits")
            for kind in KINDS.values()
            if kind.model != KINDS["classify"].model
        ),
        (lambda d: edit(d, config={"vocab_size": -1}), "serving.json: .*vocab_size"),
        (lambda d: (d / "en_small.model").unlink(), "no vocabulary is beside .*model.tflite"),
        (lambda d: shutil.copy(d / "model.tflite", d / "b.tflite"), "b.tflite"),
        (lambda d: cut(d, 0.5), "model.tflite can't be loaded"),
        (lambda d: cut(d, 0.99), "model.tflite can't be loaded"),
    ],
)
def test_what_is_damaged_or_missing_is_one_line(exported, tmp_path, damage, noun):
    directory = shutil.copytree(exported, tmp_path / "copy")
    damage(directory)
    with refused(noun, directory):
        run_main(predict_command.main, [f"--model={directory}"])


@pytest.mark.parametrize(
    ("ending", "lacking", "remedy"),
    [
        (".onnx", ["onnxruntime"], r"'albert_tf\[serve\]'"),
        (".tflite", ["tensorflow", "ai_edge_litert"], "ai-edge-litert"),
    ],
)
def test_a_missing_runtime_is_one_line(exported, tmp_path, monkeypatch, ending, lacking, remedy):
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / f"model{ending}")
    for package in lacking:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(f"install {remedy}"):
        run_main(predict_command.main, [f"--model={directory}"])


@pytest.mark.peers
def test_a_damaged_onnx_file_is_one_line(exported, tmp_path):
    pytest.importorskip("onnxruntime")
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    with pytest.raises(SystemExit, match=r"^error: .*model.onnx can't be loaded"):
        run_main(predict_command.main, ["--model", str(directory)])
