"""One export for several depths: each answers as a model with that many layers does.

Not tested here: whether a model was trained for these depths, and timings (see docs/faster.md).
"""

import json
import pickle

import pytest
import tensorflow as tf

from albert_tf.answers.classify import Classify
from albert_tf.serving import exported_files, other_formats, predict, saved_model, web_page
from albert_tf.serving.settings import PredictionSettings
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tiny
from tests.kit.files import refused
from tests.kit.served_tasks import TASKS, assert_same_outputs, make, rows_of

LAYERS, DEPTHS = 3, (1, 2)
CASES = [("saved_model", "embed"), ("tflite", "classify")]
SLOW = [("saved_model", "answer_v2"), ("tflite", "choose"), ("tflite", "embed")]
# Not "answer_v2": rounding decides which of several equally likely starts its beam holds.
OTHERS = [name for name in TASKS if name != "answer_v2"]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]
CASES += [pytest.param("onnx", name, marks=pytest.mark.peers) for name in OTHERS]


@pytest.fixture(scope="module")
def vocabulary(golden):
    path = str(golden / "spm" / "en_small.model")
    return Vocabulary.read(path, is_word_piece=False, do_lower_case=False)


def save(served, directory, file_format):
    served.depths = DEPTHS
    if file_format == "saved_model":
        saved_model.save(served, directory)
    else:
        other_formats.save(served, directory, file_format)


@pytest.mark.parametrize(("file_format", "name"), CASES)
def test_each_depth_answers_as_a_model_of_so_many_layers(file_format, name, vocabulary, tmp_path):
    directory = str(tmp_path / "exported")
    save(make(name, vocabulary, num_hidden_layers=LAYERS), directory, file_format)
    whole = predict.load_exported(directory)
    assert whole.depths == (LAYERS, *DEPTHS)
    for depth in (LAYERS, *DEPTHS):
        model = predict.from_model(make(name, vocabulary, num_hidden_layers=depth))
        rows = rows_of(model.kind)
        expected = model.outputs(rows)
        shallow = whole.at_depth(depth)
        assert_same_outputs(shallow.outputs(rows), expected)
        # Embedding models also read ids.
        if model.tokenizer:
            most = model.kind.max_seq_length - 2
            encode, prefix = vocabulary.tokenizer.encode, model.kind.prefix
            ids = [[encode(prefix + text)[:most]] for (text,) in rows]
            assert_same_outputs(shallow.outputs(ids), expected)
    # By default all layers are applied.
    assert_same_outputs(whole.outputs(rows), whole.at_depth(LAYERS).outputs(rows))
    # A pickle, as for another process, keeps the depth; albert-predict takes it as a flag.
    given = tiny.parse(PredictionSettings, model=directory, depth=1)
    for again in (pickle.loads(pickle.dumps(whole.at_depth(1))), predict.load(given)):
        assert_same_outputs(again.outputs(rows), whole.at_depth(1).outputs(rows))
    with refused(r"`depth` must be 3 or 1 or 2 for this model, got 4", exception=ValueError):
        predict.load_exported(directory, 4)


def test_an_export_of_one_depth_has_no_other(vocabulary, tmp_path):
    directory = tmp_path / "exported"
    other_formats.save(make("classify", vocabulary), str(directory), "tflite")
    with refused("`depth` must be left out for this model, got 1", exception=ValueError):
        predict.load_exported(directory, 1)
    # A description of depths that the file lacks would give answers of another depth.
    path = directory / exported_files.DESCRIPTION_FILE
    described = json.loads(path.read_text())
    described["config"]["num_hidden_layers"] = LAYERS
    for depths, fault in (
        ([2], "inputs are input_ids"),
        ([LAYERS], "from 1 to 2"),
        (["x"], "got x"),
    ):
        path.write_text(json.dumps({**described, "depths": depths}))
        with refused(fault, exception=ValueError):
            predict.load_exported(directory)


def test_a_page_has_one_depth(vocabulary, tmp_path):
    served = make("labels", vocabulary, num_hidden_layers=LAYERS)
    served.depths = DEPTHS
    with refused("a page answers with all layers: leave `depths` out", exception=ValueError):
        web_page.save(served, tmp_path)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_layers_that_share_their_weights_are_a_loop_in_tflite(vocabulary, tmp_path):
    """If they were unrolled, LiteRT would hold a copy of the weights for each layer."""
    operations = {}
    for layers in (2, 3):
        directory = tmp_path / str(layers)
        served = make(Classify(max_seq_length=16), vocabulary, num_hidden_layers=layers)
        other_formats.save(served, str(directory), "tflite")
        interpreter = tf.lite.Interpreter(str(directory / "model.tflite"))
        operations[layers] = [each["op_name"] for each in interpreter._get_ops_details()]
    assert "WHILE" in operations[2]
    assert operations[2] == operations[3]


def test_the_drift_is_that_of_the_worst_depth(vocabulary, tmp_path, monkeypatch):
    served = make("labels", vocabulary, num_hidden_layers=LAYERS)
    served.depths = DEPTHS
    by_depth = {LAYERS: 0.1, 1: 0.3, 2: 0.2}

    def measured(numbers, run, config, longest, rank, further):
        return other_formats.Drift(by_depth.pop(int(further["depth"])), 1.0)

    runner = exported_files.Runner((), {}, lambda features: features)
    monkeypatch.setattr(other_formats, "to_tflite", lambda *_: b"")
    monkeypatch.setattr(other_formats, "runtime_loader", lambda _: lambda content: runner)
    monkeypatch.setattr(other_formats, "measure_drift", measured)
    assert other_formats.write(served, str(tmp_path), "tflite").largest == 0.3
    assert not by_depth
