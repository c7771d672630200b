"""`predict` on TFLite and ONNX exports, which answers as it does on the models they are of.

That SavedModels answer so, too, is in test_predict.py.
"""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

import albert_tf
from albert_tf import export
from albert_tf.serving import converted, converted_models, predict
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens, tolerances
from tests.random_weights import randomise

LONG = "the cat sat on the mat, and " * 20
# A task -> its model, the class that serves it with options, and lines to answer.
TASKS = {
    "classify": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=2),
        lambda *model: export.Classifier(
            *model, ("no", "yes"), pairs=True, threshold=0.25, max_seq_length=16
        ),
        f"a cat\ta dog\none\t\n{LONG}\t{LONG}\n",
    ),
    "choose": (
        albert_tf.AlbertForMultipleChoice,
        lambda *model: export.Chooser(*model, num_choices=3, max_qa_length=9),
        "a story\tone\ttwo\na story\tone\ttwo\tthree\n",
    ),
    "answer_v1": (
        albert_tf.AlbertForQuestionAnswering,
        lambda *model: export.QuestionAnswerer(
            *model, max_seq_length=32, max_query_length=12, doc_stride=8, n_best_size=3
        ),
        f"who?\tThe Cat sat\nwhere?\t{LONG}\nwho?\t\n",
    ),
    "answer_v2": (
        lambda config: albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=3, end_n_top=4),
        lambda *model: export.QuestionAnswerer(
            *model, max_seq_length=32, max_query_length=12, null_threshold=0.5
        ),
        f"who?\tThe Cat sat\nwhere?\t{LONG}\nwho?\t\n",
    ),
    "fill_mask": (
        albert_tf.AlbertForPreTraining,
        lambda *model: export.MaskFiller(*model, top_k=2, without=("swapped",)),
        "the [MASK] of [MASK].\nno gap\na cat\tthe dog\n",
    ),
}
FORMATS = ["tflite", pytest.param("onnx", marks=pytest.mark.peers)]


@pytest.fixture(scope="module")
def vocabulary(golden):
    # Cased, which is stored beside the weights: "The" and "the" differ.
    path = str(golden / "spm" / "en_small.model")
    return Vocabulary.read(path, is_word_piece=False, do_lower_case=False)


def make(task, vocabulary):
    config = goldens.config("base", vocab_size=vocabulary.tokenizer.vocab_size, num_hidden_layers=1)
    model_class, serve, _ = TASKS[task]
    return serve(randomise(model_class(config)), vocabulary)


def assert_alike(found, expected):
    """Compares answers, their numbers within a tolerance."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for values in zip(found, expected, strict=True):
            assert_alike(*values)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerances.OUTPUT)
    else:
        assert found == expected


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_the_models_own(vocabulary, tmp_path, monkeypatch, capsys, task, file_format):
    if file_format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    served, text = make(task, vocabulary), TASKS[task][2]
    lines = text.splitlines()
    expected = predict.Predictor(served.text_signature(), served)(lines)
    converted.save(served, tmp_path / "model", file_format)
    # A directory, or the file in it.
    path = tmp_path / "model" / (converted.FORMATS[file_format] if task == "classify" else "")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    predict.main(["--model", str(path), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.pop("input") for answer in found] == [line.split("\t") for line in lines]
    assert_alike(found, expected)


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "classifier"
    converted.save(make("classify", vocabulary), directory, "tflite")
    return directory


def edit(directory, **members):
    path = directory / converted_models.DESCRIPTION_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def cut(directory, part):
    path = directory / "model.tflite"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "serving.json").unlink(), "serving.json does not exist: it tells what"),
        (lambda d: (d / "serving.json").write_text("{"), "serving.json is not JSON"),
        (lambda d: edit(d, task="tag_"), "serving.json: task 'tag_' is none of fill_mask, "),
        (lambda d: edit(d, options={"top_k": 2}), "classify has no option 'top_k': it has pairs"),
        (lambda d: edit(d, options={"pairs": 1}), "whose 'pairs' is true or false, got 1"),
        (lambda d: edit(d, options={"max_seq_length": 2}), "max_seq_length must be from 4 to"),
        (lambda d: edit(d, config={"vocab_size": -1}), "serving.json: .*vocab_size"),
        (lambda d: (d / "en_small.model").unlink(), "no vocabulary is beside .*model.tflite"),
        (lambda d: (d / "labels.jsonl").unlink(), "labels.jsonl does not exist"),
        (lambda d: (d / "labels.jsonl").write_text('"a"\n'), "are 1, and the model has 2 classes"),
        (lambda d: shutil.copy(d / "model.tflite", d / "b.tflite"), "holds several models"),
        (lambda d: cut(d, 0), "model.tflite can't be loaded, as if it were damaged"),
        (lambda d: cut(d, 0.5), "model.tflite can't be loaded, as if it were damaged"),
        (lambda d: cut(d, 0.99), "model.tflite can't be loaded, as if it were damaged"),
    ],
)
def test_what_is_damaged_or_missing_is_one_line(exported, tmp_path, damage, message):
    directory = shutil.copytree(exported, tmp_path / "copy")
    damage(directory)
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as error:
        predict.main(["--model", str(directory)])
    assert "\n" not in error.value.code


def test_a_missing_runtime_is_one_line(exported, tmp_path, monkeypatch):
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit, match=r"^error: .*onnxruntime.* install 'albert_tf\[onnx\]'"):
        predict.main(["--model", str(directory)])


def test_options_are_for_trained_models(exported):
    with pytest.raises(SystemExit, match="--top_k is for trained models, .* leave it out"):
        predict.main(["--model", str(exported), "--top_k", "3"])


@pytest.mark.peers
def test_a_damaged_onnx_file_is_one_line(exported, tmp_path):
    pytest.importorskip("onnxruntime")
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    with pytest.raises(SystemExit, match=r"^error: .*model.onnx can't be loaded") as error:
        predict.main(["--model", str(directory)])
    assert "\n" not in error.value.code
