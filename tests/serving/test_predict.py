"""albert-predict: lines in, answers out; albert-export of the models that it answers with."""

import functools
import io
import itertools
import json
import os
import pickle
import re
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.answers.choose import Choose
from albert_tf.answers.embed import Embed
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import Span
from albert_tf.cli import export as export_command
from albert_tf.cli import predict as predict_command
from albert_tf.serving import predict, saved_model
from albert_tf.serving.settings import PredictionSettings
from albert_tf.storage import checkpoint
from tests.kit import tiny
from tests.kit.files import refused
from tests.kit.served_tasks import KINDS, TASKS, assert_alike, make, store
from tests.kit.tiny import run_main

pytestmark = pytest.mark.usefixtures("eager")
DATA = "variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def trained(vocabulary, tmp_path_factory):
    """Returns a function that stores a model of a kind in KINDS, once, and returns its prefix."""
    folder = tmp_path_factory.mktemp("trained")
    return functools.cache(lambda name: store(folder / name, KINDS[name], vocabulary))


ASKED = Span(max_query_length=9)


def endings(inputs):
    """Chooses the longest ending; "probabilities" are the lengths of context and endings."""
    numbers = [np.array([len(context), *map(len, given)], np.float32) for context, given in inputs]
    return [{"choice": row[1:].argmax(), "probabilities": row} for row in numbers]


def spans(inputs):
    """Answers with the first word of the context."""
    words = [np.array(context.split()[:1] or [""], object) for _, context in inputs]
    return [{"answer": w[0], "answers": w, "probabilities": np.ones(1, "f")} for w in words]


def run(monkeypatch, capsys, text, *arguments, typed=False):
    """Returns the lines printed for a text that a person types, or that is piped."""
    stream = io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    stream.isatty = lambda: typed
    monkeypatch.setattr("sys.stdin", stream)
    run_main(predict_command.main, arguments)
    return capsys.readouterr().out.splitlines()


SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in ("choose", "answer_v2")]


@pytest.mark.parametrize("task", ["classify", "fill_mask", *SLOW])
def test_lines_of_a_trained_model(task, trained, vocabulary, monkeypatch, capsys):
    text = TASKS[task][1]
    expected = predict.from_model(make(task, vocabulary))(text.splitlines())
    given = ("--model", trained(task), "--task", task)
    found = [json.loads(line) for line in run(monkeypatch, capsys, text, *given, "--json")]
    assert [each.pop("input") for each in found] == [line.split("\t") for line in text.splitlines()]
    assert_alike(found, expected)
    said = [line for answer in expected for line in answer.said.split("\n")]
    assert run(monkeypatch, capsys, text, *given) == said


def test_similarities(trained, monkeypatch, capsys):
    given = ("--model", trained("fill_mask"), "--task", "fill_mask", "--json")
    lines = run(monkeypatch, capsys, "a cat\ta cat\na cat\tthe dog\n", *given)
    same, other = (json.loads(line)["similarity"] for line in lines)
    assert same == pytest.approx(1, abs=1e-6) and -1 <= other < 1 - 1e-6


def test_tabs_of_a_single_text_are_white_space(trained, monkeypatch, capsys):
    given = ("--model", trained("words"), "--task", "tag", "--json")
    lines = run(monkeypatch, capsys, "A good\tfilm \t\nA good film\n", *given)
    tabs, spaces = map(json.loads, lines)
    assert tabs.pop("input") == ["A good\tfilm \t"] and spaces.pop("input") == ["A good film"]
    assert tabs == spaces and len(tabs["words"]) == 3


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_terminal_gets_no_controls_of_others(is_typed, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_typed)
    answer = predict.Answer("x\x1b[2J\x9b\tà", {"label": "x\x1b[2J\x9b\tà"})
    predict_command._show(["\x7f"], answer, as_json=False)
    predict_command._show(["\x7f"], answer, as_json=True)
    said, as_json = capsys.readouterr().out.splitlines()
    assert said == ("x\\u001b[2J\\u009b\tà" if is_typed else answer.said)
    assert json.loads(as_json) == {"input": ["\x7f"], **answer}
    assert is_typed == (not {"\x7f", "\x9b"} & {*as_json})


def test_inputs_are_lines_or_rows_in_batches():
    answers = predict.Predictor(Choose(), endings)
    with pytest.raises(TypeError, match="load_exported"):
        pickle.dumps(answers)
    rows = [["a story", "one", "two"], ["a\tstory", "three", "four", "five"]] * 40
    lines = ["a story\tone\ttwo", "a story\tthree\tfour\tfive"] * 40
    assert answers(rows) == answers(lines)
    two = [{"choice": 0, "probabilities": numbers} for numbers in ([7, 3, 3], [7, 5, 4, 4])]
    assert answers(rows)[:2] == two and answers([]) == []
    objects = [{"context": context, "endings": endings} for context, *endings in rows]
    columns = {name: [each[name] for each in objects] for name in objects[0]}
    for given in (iter(rows), columns, objects, map(tuple, rows)):
        assert answers(given) == answers(rows)
    for wrong, noun in (
        ([rows[0], None], "index 1.* None"),
        ([rows[0], float("nan")], "index 1.* nan"),
        ([rows[0], ["a", 1, "b"]], "index 1.* 1"),
        ([{"context": "a"}], "index 0"),
        ([["a story", "one"]], "index 0.* context and endings"),
        ({"context": ["a"]}, "endings"),
        ("a story\tone\ttwo", "list of texts"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"`inputs`.*{noun}"):
            answers(wrong)


def test_vectors_are_of_a_list_of_texts():
    def vectors(inputs):
        return [{"embedding": np.full(3, len(text), np.float32)} for (text,) in inputs]

    model = predict.Predictor(Embed(query_prompt="q: "), vectors)
    assert model.embed([]).shape == (0, 3)
    for given in (["a", "bcd"], np.array(["a", "bcd"]), iter(["a", "bcd"])):
        assert model.embed(given, "query")[:, 0].tolist() == [4, 6]
    for wrong in ("one", [b"one"], [None], [["a", "b"]], {"text": ["a"]}):
        with pytest.raises(TypeError, match="`texts` must be a list of texts"):
            model.embed(wrong)
    with pytest.raises(ValueError, match="`prompt` must be query or document, got 'passage'"):
        model.embed(["a"], "passage")
    with pytest.raises(ValueError, match="from 1 to 3, got 4"):
        model.embed(["a"], dimensions=4)


@pytest.mark.parametrize("depends_on_batch", [False, True])
def test_texts_of_alike_numbers_of_pieces_share_a_batch(depends_on_batch):
    batches = []

    def vectors(inputs):
        batches.append([text for (text,) in inputs])
        return [{"embedding": np.full(3, len(text), np.float32)} for (text,) in inputs]

    # Its pieces are words. With [CLS] and [SEP], 7 and 8 of them are padded to 8, and 9 to 16.
    pieces = types.SimpleNamespace(
        **{"cls_id": 2, "sep_id": 3, "one_segment": False},
        encode=lambda text, most: [5] * len(text.split()),
    )
    kind = Embed(max_seq_length=128)
    model = predict.Predictor(kind, vectors, depends_on_batch, tokenizer=pieces)
    seven, eight, nine = "a long word counts once", "1 2 3 4 5 6", "1 2 3 4 5 6 7"
    texts = [nine, seven, *[eight] * 32]
    assert model.embed(texts)[:, 0].tolist() == [len(text) for text in texts]
    if depends_on_batch:
        assert batches == [[text] for text in texts]
    else:
        assert batches == [[seven, *[eight] * 31], [eight], [nine]]


def test_a_person_is_answered_line_by_line(monkeypatch, capsys):
    sizes = []

    def find(inputs):
        sizes.append(len(inputs))
        return spans(inputs)

    monkeypatch.setattr(predict_command, "load", lambda _: predict.Predictor(ASKED, find))
    text = "who?\tThe cat\n\nwho\nwhere?\t\n"
    found = run(monkeypatch, capsys, text, "--model=here", "--task=answer_v1", typed=True)
    assert (found, sizes) == (["The (1.000)", "no answer"], [1, 1])


@pytest.mark.parametrize(("depends_on_batch", "expected"), [(False, [3]), (True, [1, 1, 1])])
def test_answers_do_not_depend_on_their_neighbours(depends_on_batch, expected):
    sizes = []

    def find(inputs):
        sizes.append(len(inputs))
        return spans(inputs)

    model = predict.Predictor(ASKED, find, depends_on_batch)
    assert len(model(["who?\tThe cat"] * 3)) == 3 and sizes == expected


@pytest.mark.parametrize("command", [export_command, predict_command])
def test_models_of_jax_are_served_on_tensorflow(command, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    arguments = ["--model=nowhere", "--task=classify"]
    arguments += ["--export_dir=new"] if command is export_command else ["--input_file=none"]
    with pytest.raises(SystemExit, match="error: .*(nowhere|none)"):
        run_main(command.main, arguments)
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize(
    ("line", "noun"), [(b"who\n", "question and context"), (b"who?\t\xff\n", "UTF-8")]
)
def test_a_line_of_another_form_is_named(line, noun, monkeypatch, capsys):
    monkeypatch.setattr(predict_command, "load", lambda _: predict.Predictor(ASKED, spans))
    with refused(f"standard input:3: .*{noun}"):
        text = b"who?\tthe cat\r\n\n" + line
        run(monkeypatch, capsys, text, "--model=here", "--task=answer_v1")
    assert capsys.readouterr().out == "the (1.000)\n"


@pytest.mark.parametrize("number", ["answers", "probabilities"])
def test_no_answer_is_no_number(number, monkeypatch, capsys):
    """NaN is not valid JSON, and with scores of NaN, the answer would be "no answer"."""
    found = {"answer": "", "answers": np.array([""], object), "probabilities": np.ones(1, "f")}
    found |= {number: np.array([np.inf, np.nan], "f")}
    predictor = predict.Predictor(ASKED, lambda inputs: [found])
    monkeypatch.setattr(predict_command, "load", lambda _: predictor)
    with refused(rf"'who\?' are NaN or infinite \({number}\)"):
        run(monkeypatch, capsys, "who?\tthe cat", "--model=here", "--task=answer_v1", "--json")
    assert capsys.readouterr().out == ""


def without(prefix, *parts):
    """Stores a model's weights without those of some prefixes; returns the new path."""
    weights = checkpoint.read(prefix)
    kept = {name: value for name, value in weights.items() if not name.startswith(parts)}
    target = f"{prefix}_without_{len(parts)}"
    checkpoint.write(target, kept)
    return target


def test_a_masked_lm_fills_and_compares(vocabulary, monkeypatch, capsys, caplog, tmp_path):
    """Hugging Face's masked LM has neither a pooler nor the sentence-order head."""
    whole = store(tmp_path, Fill(top_k=2, max_seq_length=64), vocabulary)
    text, task = "the [MASK].\na cat\ta dog\n", ("--task", "fill_mask")
    expected = run(monkeypatch, capsys, text, "--model", whole, *task)
    for parts, left in ((("cls/seq",), {"pooled"}), (("bert/pooler/", "cls/seq"), set())):
        stored = without(whole, *parts)
        assert run(monkeypatch, capsys, text, "--model", stored, *task) == expected
        predictor = predict.load(tiny.parse(PredictionSettings, model=stored, task="fill_mask"))
        assert set(predictor.outputs([["a"]])[0]) == {"pieces", "probabilities", "mean"} | left
    target, exported = str(tmp_path / "exported"), []
    monkeypatch.setattr(saved_model, "save", lambda served, _: exported.append(served.kind))
    run_main(export_command.main, ["--model", stored, "--export_dir", target, *task])
    said, hint, following = caplog.messages[-3:]
    assert said == f"{target}: a SavedModel that takes text"
    assert hint == saved_model.hint(target)
    assert re.fullmatch(rf"next: (.*/)?albert-predict --model={target}", following)
    assert {*exported[0].without} == {"pooled", "swapped"}


def test_answers_need_no_pooler(trained, monkeypatch, capsys):
    model, arguments, text = trained("answer_v1"), ("--task", "answer_v1"), "who?\tthe cat sat\n"
    expected = run(monkeypatch, capsys, text, "--model", model, *arguments)
    stored = without(model, "bert/pooler/")
    assert run(monkeypatch, capsys, text, "--model", stored, *arguments) == expected
    stored = without(trained("choose"), "bert/pooler/")
    with pytest.raises(SystemExit, match="is not trained for choose: it lacks bert/pooler/"):
        run_main(predict_command.main, ["--model", stored, "--task", "choose"])


def test_a_named_config_replaces_a_damaged_one(vocabulary, monkeypatch, capsys, tmp_path):
    model = store(tmp_path, KINDS["choose"], vocabulary)
    elsewhere = "ram://predict/config.json"  # Not a file of this disk.
    tf.io.gfile.copy(str(tmp_path / "albert_config.json"), elsewhere, overwrite=True)
    (tmp_path / "albert_config.json").write_text("{")
    arguments = ("--model", model, "--task", "choose")
    with refused("albert_config.json"):
        run_main(predict_command.main, arguments)
    arguments += ("--albert_config_file", elsewhere)
    assert run(monkeypatch, capsys, "a story\tone\ttwo\n", *arguments)


TWO = ("--task=classify", "--spm_model_file=a", "--vocab_file=b")


@pytest.mark.parametrize(
    ("arguments", "noun"),
    [
        ((), "not an exported model.* --task"),
        (("--model=no/where",), "no/where"),
        (("--task=choose",), "trained for classify.* --task"),
        (TWO, "--spm_model_file and --vocab_file"),
        (("--input_file=nowhere.txt",), "--input_file nowhere.txt"),
    ],
)
def test_what_does_not_fit_is_one_line(trained, arguments, noun):
    with refused(noun):
        run_main(predict_command.main, ["--model", trained("classify"), *arguments])


def of_another_kind(path):
    """Writes a SavedModel whose outputs are not those of any of our kinds."""
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([64, 64]))
    spec = tf.TensorSpec([None], tf.string, "text")
    module.length = tf.function(lambda text: {"length": tf.strings.length(text)}, [spec])
    tf.saved_model.save(module, str(path), {"serving_default": module.length})


def test_a_model_of_another_kind_is_named(vocabulary, tmp_path):
    of_another_kind(tmp_path / "other")
    with refused("serving.json"):
        run_main(predict_command.main, [f"--model={tmp_path / 'other'}"])
    make("classify", vocabulary).describe(str(tmp_path / "other"))
    with refused("other was not written by albert-export"):
        run_main(predict_command.main, [f"--model={tmp_path / 'other'}"])


@pytest.mark.parametrize("name", ["OUT [lr=1e-5]", "a*", "b?", "c\\d"])
def test_a_directory_that_tensorflow_takes_for_a_pattern_is_named(name, tmp_path):
    """TensorFlow would find no weights, or those of a neighbouring directory."""
    given = ["--model=nowhere", "--task=fill_mask", f"--export_dir={tmp_path / name}"]
    with refused("pattern", tmp_path):
        run_main(export_command.main, given)
    with refused("pattern", tmp_path, exception=ValueError):
        saved_model.save(None, tmp_path / name)
    of_another_kind(tmp_path / name)
    with refused("pattern"):
        run_main(predict_command.main, [f"--model={tmp_path / name}"])


def test_an_export_that_was_not_copied_whole_is_one_line(tmp_path):
    of_another_kind(tmp_path / "whole")
    files = ("saved_model.pb", "variables/variables.index", f"variables/{DATA}")
    for file, part in itertools.product(files, (0, 0.5, 0.99)):
        damaged = shutil.copytree(tmp_path / "whole", tmp_path / "damaged", dirs_exist_ok=True)
        content = (damaged / file).read_bytes()
        (damaged / file).write_bytes(content[: int(part * len(content))])
        with refused(f"{damaged} can't be loaded"):
            run_main(predict_command.main, [f"--model={damaged}"])
    (damaged / file).unlink()
    with refused(f"{damaged} can't be loaded"):
        run_main(predict_command.main, [f"--model={damaged}"])


def test_an_export_takes_no_task():
    with refused("web is an export, which knows its task"):
        run_main(predict_command.main, ["--model=examples/web", "--task=classify"])


def test_a_taken_export_dir_is_refused_first(tmp_path):
    given = ["--model=nowhere", "--task=fill_mask", f"--export_dir={tmp_path.parent}"]
    with refused("already exists"):
        run_main(export_command.main, given)
