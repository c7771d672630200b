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
from albert_tf.serving import description, other_formats, predict
from albert_tf.serving.classifying import Classifier
from albert_tf.text.vocabulary import Vocabulary
from tests.served_tasks import LONG, TASKS, assert_alike, make
from tests.tiny import randomise

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
    expected = predict.Predictor(served.text_signature(), served)(lines)
    other_formats.save(served, tmp_path / "model", file_format)
    # A directory, or the file in it.
    path = tmp_path / "model" / (other_formats.FORMATS[file_format] if task == "classify" else "")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    predict.main(["--model", str(path), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.pop("input") for answer in found] == [line.split("\t") for line in lines]
    assert_alike(found, expected)


@pytest.mark.peers
def test_windows_and_several_labels_are_described(vocabulary, config, tmp_path):
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
    options = {"multilabel": True, "windows": "max", "doc_stride": 5, "max_seq_length": 16}
    served = Classifier(model, vocabulary, ("a", "b", "c"), **options)
    other_formats.save(served, tmp_path / "model", "tflite")
    found = other_formats.load(str(tmp_path / "model" / other_formats.FORMATS["tflite"]))
    assert {name: getattr(found, name) for name in options} == options
    predictors = [predict.Predictor(each.text_signature(), each) for each in (found, served)]
    assert_alike(*(predictor([LONG, "a cat"]) for predictor in predictors))


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "classifier"
    other_formats.save(make("classify", vocabulary), directory, "tflite")
    return directory


def edit(directory, **members):
    path = directory / description.FILE
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
        (lambda d: cut(d, 0), "model.tflite can't be loaded; it may be damaged"),
        (lambda d: cut(d, 0.5), "model.tflite can't be loaded; it may be damaged"),
        (lambda d: cut(d, 0.99), "model.tflite can't be loaded; it may be damaged"),
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
    with pytest.raises(SystemExit, match="--top_k applies only to trained models, .* leave it out"):
        predict.main(["--model", str(exported), "--top_k", "3"])


@pytest.mark.peers
def test_a_damaged_onnx_file_is_one_line(exported, tmp_path):
    pytest.importorskip("onnxruntime")
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "model.tflite").rename(directory / "model.onnx")
    with pytest.raises(SystemExit, match=r"^error: .*model.onnx can't be loaded") as error:
        predict.main(["--model", str(directory)])
    assert "\n" not in error.value.code
