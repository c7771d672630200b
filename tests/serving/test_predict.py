"""albert-predict: lines in, answers out; the description of what is served."""

import io
import itertools
import json
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.conversion import labels
from albert_tf.serving import export as export_command
from albert_tf.serving import exported_files, predict, saved_model, served_tasks
from albert_tf.storage import checkpoint
from tests import goldens, tiny
from tests.tiny import randomise, run_main

DATA = "variables.data-00000-of-00001"


def standard_input(content, typed=False):
    """Returns what a person types, or what is piped."""
    stream = io.TextIOWrapper(
        io.BytesIO(content if isinstance(content, bytes) else content.encode())
    )
    stream.isatty = lambda: typed
    return stream


@pytest.fixture(scope="module")
def folder(golden, tmp_path_factory):
    """Config and vocabulary of a tiny model."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "spm.model").write_bytes((golden / "spm" / "en_small.model").read_bytes())
    tokenizer = albert_tf.Tokenizer(spm_model_file=folder / "spm.model")
    config = goldens.config("base", vocab_size=tokenizer.vocab_size, num_hidden_layers=1)
    (folder / "albert_config.json").write_text(json.dumps(config.to_dict()))
    return folder


def store_random(folder, model_class, **arguments):
    """Stores a model beside its config and returns where."""
    config = albert_tf.AlbertConfig.from_json_file(folder / "albert_config.json")
    model = randomise(model_class(config, **arguments))
    return tiny.store(folder, model, name=model_class.__name__)


@pytest.fixture(scope="module")
def predictors():
    """What has been loaded so far, by model and options."""
    return {}


@pytest.fixture(autouse=True)
def loaded_once(predictors, monkeypatch):
    """Has predict load a model once, however many lines of whichever tests it answers."""
    load = predict.load

    def load_once(args):
        options = {**vars(args), "input_file": None, "json": None}
        key = repr(sorted(options.items()))
        if key not in predictors:
            predictors[key] = load(args)
        return predictors[key]

    monkeypatch.setattr(predict, "load", load_once)


def run(monkeypatch, capsys, text, *arguments, typed=False):
    monkeypatch.setattr("sys.stdin", standard_input(text, typed))
    run_main(predict.main, arguments)
    return capsys.readouterr().out.splitlines()


def test_a_pretrained_model_fills_and_compares(folder, monkeypatch, capsys):
    arguments = (
        "--model",
        store_random(folder, albert_tf.AlbertForPreTraining),
        "--task",
        "fill_mask",
    )
    text = "the [MASK] of [MASK].\n\nno gap\na cat\ta cat\na cat\tthe dog\n"
    lines = run(monkeypatch, capsys, text, *arguments, "--top_k", "2", "--json")
    filled, whole, same, other = (json.loads(line) for line in lines)
    assert filled["input"] == ["the [MASK] of [MASK]."]
    assert [len(slot) for slot in filled["masks"]] == [2, 2]
    first, second = filled["masks"][0]
    assert 1 > first["probability"] >= second["probability"] > 0
    assert whole["masks"] == []
    assert same["similarity"] == pytest.approx(1, abs=1e-6)
    assert -1 <= other["similarity"] < 1 - 1e-6


def test_an_exported_classifier_answers_as_the_trained_one(
    folder, monkeypatch, capsys, caplog, tmp_path
):
    shutil.copytree(folder, tmp_path / "run")
    prefix = store_random(tmp_path / "run", albert_tf.AlbertForSequenceClassification, num_labels=2)
    task = ("--task", "classify", "--pairs", "--threshold_to_export", "0.25")
    target = str(tmp_path / "exported")
    labels.write(str(tmp_path / "run"), ("no", "yes"))
    run_main(export_command.main, ["--model", prefix, "--export_dir", target, *task])
    # Those that are named come before those beside the weights.
    labels.write(str(tmp_path / "run"), ("bad", "good"))
    task += ("--labels", "no, yes")
    said, hint, following = caplog.messages
    assert said == f"{target}: a SavedModel that takes text_a and text_b"
    assert hint == saved_model.hint(target)
    assert re.fullmatch(rf"next: (.*/)?albert-predict --model={target}", following)
    text = "a cat\ta dog\none\t\n"
    from_export = run(monkeypatch, capsys, text, "--model", target, "--json")
    from_training = run(monkeypatch, capsys, text, "--model", prefix, *task, "--json")
    assert from_export == from_training
    answer = json.loads(from_export[0])
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    assert answer["label"] == ("yes" if answer["probabilities"]["yes"] >= 0.25 else "no")
    assert answer["threshold"] == 0.25

    source = tmp_path / "pairs.txt"
    source.write_text(text)
    run_main(predict.main, ["--model", target, "--input_file", str(source)])
    (first, _) = capsys.readouterr().out.splitlines()
    shares = ", ".join(f"{name} {p:.3f}" for name, p in answer["probabilities"].items())
    assert first == f"{answer['label']} ({shares})"


def test_tabs_of_a_single_text_are_white_space(folder, monkeypatch, capsys):
    model = store_random(folder, albert_tf.AlbertForTokenClassification, num_labels=2)
    given = ("--model", model, "--task", "tag", "--labels", "low,cap", "--json")
    lines = run(monkeypatch, capsys, "A good\tfilm \t\nA good film\n", *given)
    tabs, spaces = map(json.loads, lines)
    assert tabs.pop("input") == ["A good\tfilm \t"] and spaces.pop("input") == ["A good film"]
    assert tabs == spaces and len(tabs["words"]) == 3


def test_a_person_is_answered_line_by_line(folder, monkeypatch, capsys):
    model = store_random(folder, albert_tf.AlbertForQuestionAnswering)
    arguments = ("--model", model, "--task", "answer_v1", "--max_query_length", "12")
    seen = []
    monkeypatch.setattr(predict.Predictor, "__call__", _recorded(seen))
    text = "who?\tthe cat sat\nwhere?\ton the mat\n"
    lines = run(monkeypatch, capsys, text, *arguments, typed=True)
    assert [len(batch) for batch in seen] == [1, 1]
    answer = lines[0].rpartition(" (")[0]
    assert answer
    assert answer in "the cat sat"


def _recorded(seen):
    call = predict.Predictor.__call__

    def recorded(self, lines):
        seen.append(lines)
        return call(self, lines)

    return recorded


@pytest.mark.parametrize("command", [export_command, predict])
def test_models_of_jax_are_served_on_tensorflow(command, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    arguments = ["--model=nowhere", "--task=classify"]
    arguments += ["--export_dir=new"] if command is export_command else ["--input_file=none"]
    with pytest.raises(SystemExit, match="error: .*(nowhere|none)"):
        run_main(command.main, arguments)
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


def test_endings_are_chosen_from(folder, monkeypatch, capsys):
    model = store_random(folder, albert_tf.AlbertForMultipleChoice)
    arguments = ("--model", model, "--task", "choose", "--max_qa_length", "9")
    text = "a story\tone\ttwo\na story\tone\ttwo\tthree\n"
    lines = run(monkeypatch, capsys, text, *arguments, "--json")
    for line, endings in zip(lines, (2, 3), strict=True):
        probabilities = json.loads(line)["probabilities"]
        assert len(probabilities) == endings
        assert json.loads(line)["choice"] == int(np.argmax(probabilities))


def test_a_line_of_another_form_is_named(folder, monkeypatch, capsys):
    model = store_random(folder, albert_tf.AlbertForQuestionAnswering)
    arguments = ("--model", model, "--task", "answer_v1", "--max_query_length", "12")
    for line, message in {
        b"who\n": "expected question and context, .* got 1 fields: 'who'",
        b"who?\t\xff\n": "not UTF-8 text",
    }.items():
        with pytest.raises(SystemExit, match=f"^error: standard input:3: {message}"):
            run(monkeypatch, capsys, b"who?\tthe cat\r\n\n" + line, *arguments)
        assert len(capsys.readouterr().out.splitlines()) == 1
    # A person goes on.
    monkeypatch.setattr("sys.stdin", standard_input("who\nwho?\tthe cat\n", typed=True))
    run_main(predict.main, arguments)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "error: expected question and context" in said.err


def without(prefix, *parts):
    """Stores a model's weights without some; returns where."""
    weights = checkpoint.read(prefix)
    kept = {name: value for name, value in weights.items() if not name.startswith(parts)}
    target = f"{prefix}_without_{len(parts)}"
    checkpoint.write(target, kept)
    return target


def test_a_model_of_masked_words_alone_fills_and_compares(
    folder, predictors, monkeypatch, capsys, caplog, tmp_path
):
    """Hugging Face's has neither a pooler nor the sentence-order head."""
    whole = store_random(folder, albert_tf.AlbertForPreTraining)
    text, task = "the [MASK].\na cat\ta dog\n", ("--task", "fill_mask", "--top_k", "2")
    expected = run(monkeypatch, capsys, text, "--model", whole, *task)
    for parts, left in ((("cls/seq",), {"pooled"}), (("bert/pooler/", "cls/seq"), set())):
        stored = without(whole, *parts)
        assert run(monkeypatch, capsys, text, "--model", stored, *task) == expected
        predictor = list(predictors.values())[-1]
        assert set(predictor.outputs([["a"]])) == {"pieces", "probabilities", "mean"} | left
    target = str(tmp_path / "exported")
    run_main(export_command.main, ["--model", stored, "--export_dir", target, *task])
    assert any(message.startswith(target) for message in caplog.messages)
    answers = tf.saved_model.load(target).signatures["serving_default"].structured_outputs
    assert set(answers) == {"pieces", "probabilities", "mean"}


def test_answers_need_no_pooler(folder, monkeypatch, capsys):
    model = store_random(folder, albert_tf.AlbertForQuestionAnswering)
    arguments = ("--task", "answer_v1", "--max_query_length", "12")
    text = "who?\tthe cat sat\n"
    expected = run(monkeypatch, capsys, text, "--model", model, *arguments)
    stored = without(model, "bert/pooler/")
    assert run(monkeypatch, capsys, text, "--model", stored, *arguments) == expected
    stored = without(store_random(folder, albert_tf.AlbertForMultipleChoice), "bert/pooler/")
    with pytest.raises(SystemExit, match="is not trained for choose: it lacks bert/pooler/"):
        run_main(predict.main, ["--model", stored, "--task", "choose"])


def test_a_named_config_replaces_a_damaged_one(folder, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    model = store_random(tmp_path, albert_tf.AlbertForMultipleChoice)
    (tmp_path / "albert_config.json").write_text("{")
    arguments = ("--model", model, "--task", "choose", "--max_qa_length", "9")
    with pytest.raises(SystemExit, match="^error: .*albert_config.json is not JSON"):
        run_main(predict.main, arguments)
    elsewhere = "ram://predict/config.json"  # Not a file of this disk.
    tf.io.gfile.copy(str(folder / "albert_config.json"), elsewhere, overwrite=True)
    arguments += ("--albert_config_file", elsewhere)
    assert run(monkeypatch, capsys, "a story\tone\ttwo\n", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "is not an exported model .*: .* set --task"),
        (("--task", "classify", "--labels", "a,b,c"), "has 2 classes: give 2 labels"),
        (("--task", "classify", "--labels", "a,a"), "must be distinct names.*, got 'a', 'a'"),
        (("--task", "classify", "--labels", "a,"), "none empty, got 'a', ''"),
        (("--task", "classify"), "has 2 classes: give 2 labels, a name for each, not 0"),
        (("--task", "choose"), "has other shapes than the model .output_weights .2, 32. in the"),
        (("--task", "fill_mask"), "is not trained for fill_mask: it lacks .*predictions"),
        (
            ("--task", "classify", "--spm_model_file", "a", "--vocab_file", "b"),
            "--spm_model_file and --vocab_file exclude each other",
        ),
        (("--input_file", "nowhere.txt"), "--input_file nowhere.txt does not exist"),
    ],
)
def test_what_does_not_fit_is_one_line(folder, arguments, message):
    model = store_random(folder, albert_tf.AlbertForSequenceClassification, num_labels=2)
    with pytest.raises(SystemExit, match=message) as error:
        run_main(predict.main, ["--model", model, *arguments])
    assert str(error.value).startswith("error: ")
    assert "\n" not in str(error.value)


def of_another_kind(path):
    """Writes a SavedModel from text to something that nobody here answers."""
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([64, 64]))
    spec = tf.TensorSpec([None], tf.string, "text")
    module.length = tf.function(lambda text: {"length": tf.strings.length(text)}, [spec])
    tf.saved_model.save(module, str(path), {"serving_default": module.length})


def test_a_model_of_another_kind_is_named(tmp_path):
    of_another_kind(tmp_path / "other")
    message = f"^error: {tmp_path}/other was not written by albert-export: export"
    with pytest.raises(SystemExit, match=message):
        run_main(predict.main, ["--model", str(tmp_path / "other")])


@pytest.mark.parametrize("name", ["OUT [lr=1e-5]", "a*", "b?", "c\\d"])
def test_a_directory_that_tensorflow_takes_for_a_pattern_is_named(name, tmp_path):
    """It would find no weights, or those of a neighbour."""
    message = r"in the path of a SavedModel for a pattern: give a directory without them"
    given = ["--model=nowhere", "--task=fill_mask", f"--export_dir={tmp_path / name}"]
    with pytest.raises(SystemExit, match=message):
        run_main(export_command.main, given)
    with pytest.raises(ValueError, match=message):
        saved_model.save(None, tmp_path / name)
    of_another_kind(tmp_path / name)
    with pytest.raises(SystemExit, match=message):
        run_main(predict.main, [f"--model={tmp_path / name}"])


def test_an_export_that_was_not_copied_whole_is_one_line(tmp_path):
    of_another_kind(tmp_path / "whole")
    files = ("saved_model.pb", "variables/variables.index", f"variables/{DATA}")
    for file, part in itertools.product(files, (0, 0.5, 0.99)):
        damaged = shutil.copytree(tmp_path / "whole", tmp_path / "damaged", dirs_exist_ok=True)
        content = (damaged / file).read_bytes()
        (damaged / file).write_bytes(content[: int(part * len(content))])
        with pytest.raises(
            SystemExit, match=f"^error: {damaged} can't be loaded; a file may"
        ) as error:
            run_main(predict.main, ["--model", str(damaged)])
        assert "\n" not in error.value.code
    (damaged / file).unlink()
    with pytest.raises(SystemExit, match="can't be loaded; .*: copy the directory again"):
        run_main(predict.main, ["--model", str(damaged)])


@pytest.mark.parametrize(
    ("outputs", "name"),
    [
        (
            {"labels": [b"a", b"b"], "label": b"a", "probabilities": [np.nan, np.nan]},
            "probabilities",
        ),
        ({"score": np.inf}, "score"),
        (
            {"answer": b"", "answers": [b""], "probabilities": [0.0], "null_odds": np.nan},
            "null_odds",
        ),
        ({"pieces": [[b"a"]], "probabilities": [[0.5]], "mean": [np.nan]}, "mean"),
    ],
)
def test_no_answer_is_no_number(outputs, name, tmp_path, monkeypatch, capsys):
    """NaN is not JSON, and of an answer's scores it leaves nothing but "no answer"."""
    module = tf.Module()
    module.answer = tf.function(
        lambda text: {
            name: tf.repeat(tf.constant(value)[None], tf.size(text), axis=0)
            for name, value in outputs.items()
        },
        [tf.TensorSpec([None], tf.string, "text")],
    )
    tf.saved_model.save(module, str(tmp_path / "model"), {"serving_default": module.answer})
    message = rf"^error: the model's outputs for 'a cat' are NaN or infinite \({name}\)"
    with pytest.raises(SystemExit, match=message) as error:
        run(monkeypatch, capsys, "a cat\n", "--model", str(tmp_path / "model"), "--json")
    assert "\n" not in error.value.code
    assert capsys.readouterr().out == ""


def test_a_taken_export_dir_is_refused_first(folder):
    with pytest.raises(SystemExit, match="already exists"):
        run_main(
            export_command.main,
            ["--model", "nowhere", "--task", "fill_mask", "--export_dir", str(folder)],
        )


LENGTHS = {"doc_stride": 8, "max_query_length": 12, "max_answer_length": 9, "n_best_size": 3}
BEAM = {"start_n_top": 3, "end_n_top": 2}
OPTIONS = {
    "classify": {"labels": ["a", "b"], "pairs": True, "threshold": 0.7, "multilabel": True},
    "tag": {"labels": ["O", "B-LOC"]},
    "choose": {"num_choices": 3, "max_qa_length": 9},
    "answer_v1": LENGTHS,
    "answer_v2": {**LENGTHS, **BEAM, "null_threshold": -1.5},
}
SIZES = {"classify": {"num_labels": 2}, "tag": {"num_labels": 2}, "answer_v2": BEAM}


@pytest.mark.parametrize("task", OPTIONS)
def test_a_description_says_all_options(task, config, vocabulary, tmp_path):
    options = {**OPTIONS[task], "max_seq_length": 32}
    model_class, served_class = served_tasks.SERVED[task]
    given = {name: value for name, value in options.items() if name not in BEAM}
    served = served_class(model_class(config, **SIZES.get(task, {})), vocabulary, **given)
    served.describe(str(tmp_path))
    found = exported_files.read_description(str(tmp_path / exported_files.DESCRIPTION_FILE))
    classes = options.pop("labels", ())
    assert labels.stored(str(tmp_path)) == tuple(classes)
    assert (found[0], found[1]) == (task, served.config)
    assert options.items() <= found[2].items()
