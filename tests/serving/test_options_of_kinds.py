"""What each kind of model is served with: run.json, or flags -> serving.json -> page.json -> again.

No value is its default, those of the flags are none of run.json's, and many are false or 0.
"""

import json
import pathlib

import pytest

import albert_tf
from albert_tf.cli import convert
from albert_tf.conversion import labels, settings
from albert_tf.serving import export, predict, web_page
from albert_tf.serving.settings import ExportSettings, PredictionSettings
from albert_tf.text import vocabulary as vocabularies
from tests import tiny
from tests.serving.test_text_functions import assert_same_outputs, rows_of, without_graph
from tests.tiny import randomise

SPANS = {"doc_stride": 5, "max_query_length": 6, "max_answer_length": 7, "n_best_size": 3}
BEAM = {"start_n_top": 2, "end_n_top": 4}
NAMES = ("war", "art", "law")
# A kind -> its model, what serves it, and in run.json the task, its problem_type and how texts
# are read; then what serving.json has besides; flags, and what serving.json has by them.
KINDS = {
    "texts": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=2),
        *("classify", "classification", "single_label_classification"),
        {"max_seq_length": 17, "pairs": False, "windows": "max", "doc_stride": 5},
        {"multilabel": False, "threshold": None},
        "--pairs --windows=none --threshold=0 --doc_stride=7 --multilabel",
        {"pairs": True, "windows": None, "threshold": 0.0, "doc_stride": 7, "multilabel": True},
    ),
    "labels": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=3),
        *("classify", "multilabel", "multi_label_classification"),
        {"max_seq_length": 17, "pairs": True},
        {"multilabel": True, "windows": None, "threshold": None},
        "--nopairs --nomultilabel --windows=mean --doc_stride=6",
        {"pairs": False, "multilabel": False, "windows": "mean", "doc_stride": 6},
    ),
    "number": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=1),
        *("classify", "regression", "regression"),
        {"max_seq_length": 17, "pairs": False, "windows": "mean", "doc_stride": 5},
        {"multilabel": False},
        "--windows=max --doc_stride=6",
        {"pairs": False, "multilabel": False, "windows": "max", "doc_stride": 6},
    ),
    "tags": (
        lambda config: albert_tf.AlbertForTokenClassification(config, num_labels=3),
        *("tag", "token_classification", "", {"max_seq_length": 17}, {}, "", {}),
    ),
    "endings": (
        albert_tf.AlbertForMultipleChoice,
        *("choose", "choice", "", {"max_seq_length": 17, "num_choices": 3, "max_qa_length": 9}),
        {},
        "--num_choices=5 --max_qa_length=7",
        {"num_choices": 5, "max_qa_length": 7},
    ),
    "answers": (
        albert_tf.AlbertForQuestionAnswering,
        *("answer_v1", "squad_v1", "", {"max_seq_length": 17, **SPANS}, {"null_threshold": None}),
        "--doc_stride=6 --max_query_length=7 --max_answer_length=8 --n_best_size=4",
        {"doc_stride": 6, "max_query_length": 7, "max_answer_length": 8, "n_best_size": 4},
    ),
    "answers or none": (
        lambda config: albert_tf.AlbertForQuestionAnsweringV2(config, **BEAM),
        *("answer_v2", "squad_v2", ""),
        {"max_seq_length": 17, **SPANS, **BEAM, "null_threshold": -1.5},
        {},
        "--start_n_top=3 --end_n_top=2 --null_threshold=0",
        {**SPANS, "start_n_top": 3, "end_n_top": 2, "null_threshold": 0.0},
    ),
    "linear answers or none": (
        albert_tf.AlbertForQuestionAnswering,
        *("answer_v2", "squad_v2", "", {"max_seq_length": 17, **SPANS}, {"null_threshold": 0.0}),
        "--null_threshold=0.5",
        {**SPANS, "null_threshold": 0.5},
    ),
    "masks": (
        albert_tf.AlbertForPreTraining,
        *("fill_mask", "", "", {}, {"max_seq_length": 31, "top_k": 5}, "--top_k=2", {"top_k": 2}),
    ),
}


def store(kind: str, folder: pathlib.Path, vocabulary) -> tuple[str, ...]:
    """Writes a cased model as its run does; returns its labels, which are in no order."""
    make, _, name, problem_type, reading, *_ = KINDS[kind]
    model = randomise(make(tiny.config(vocab_size=6000, num_hidden_layers=1)))
    names = NAMES[: getattr(model, "num_labels", 0)]
    names = names if len(names) > 1 else ()
    tiny.store(folder, model, names)
    (folder / "spiece.model").write_bytes(pathlib.Path(vocabulary.path).read_bytes())
    tiny.write(folder / "tokenizer_config.json", '{"do_lower_case": false, "keep_accents": true}')
    if name:
        tiny.fine_tuned(name, problem_type, reading=reading).write(str(folder))
    return names


@pytest.mark.parametrize("given", [False, True], ids=["as in its run", "as flags say"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_served_as_its_run_and_the_flags_say(kind, given, vocabulary, tmp_path, monkeypatch):
    _, task, *_, reading, more, flags, changed = KINDS[kind]
    names, page = store(kind, tmp_path / "trained", vocabulary), tmp_path / "page"
    arguments = [f"--model={tmp_path / 'trained'}", f"--task={task}", f"--export_dir={page}"]
    expected, form = {**reading, **more}, (False, True)
    if given:
        arguments += [*flags.split(), "--max_seq_length=19"]
        arguments += ["--do_lower_case", "--nokeep_accents"]
        expected, form = {**changed, "max_seq_length": 19}, (True, False)
    exported = []
    monkeypatch.setattr("albert_tf.serving.saved_model.save", lambda *args: exported.append(args))
    tiny.run_main(export.main, arguments)
    ((served, _),) = exported
    assert served.vocabulary.form == form

    # Of a page's ONNX file nothing is needed here.
    def write(served, directory, _=None):
        served.describe(directory)
        vocabularies.copy(served.vocabulary, directory)

    monkeypatch.setattr("albert_tf.serving.other_formats.write", write)
    if task == "choose":  # It has no page.
        page.mkdir()
        write(served, str(page))
    else:
        web_page.save(served, page)
        shown = json.loads((page / "page.json").read_text())
        assert {name: shown["options"].get(name) for name in expected} == expected
        tokenizer = {"wordPiece": False, "lower": form[0], "keepAccents": form[1]}
        assert (shown["tokenizer"], tuple(shown["labels"])) == (tokenizer, names)
    written = json.loads((page / "serving.json").read_text())
    assert {name: written["options"].get(name) for name in expected} == expected
    assert written["task"] == task and served.labels == labels.stored(str(page)) == names
    if not given:  # Once is enough.
        return
    # What reads serving.json without TensorFlow answers alike.
    rows = [row[: len(served.text_names) + (task == "choose") * 2] for row in rows_of(task)]
    found = without_graph(served, page).outputs(rows)
    assert_same_outputs(found, predict.from_text(served).outputs(rows))


@pytest.mark.parametrize(
    "cls",
    [PredictionSettings, ExportSettings, settings.ConversionSettings],
    ids=lambda c: c.__name__,
)
@pytest.mark.parametrize("form", [(False, True), (True, False)])
def test_what_lies_beside_the_weights_is_as_given(cls, form):
    given = {"model": "m", "from": "m", "task": "tag", "export_dir": "e", "to": "tf1"}
    given |= {"output_dir": "o", "albert_config_file": "a", "spm_model_file": "b"}
    given |= {"vocab_file": "c", "do_lower_case": form[0], "keep_accents": form[1]}
    given = {name: value for name, value in given.items() if name in cls.names()}
    stored = tiny.parse(cls, **given).stored("m")
    assert (stored.albert_config_file, *stored.of_vocabulary) == ("a", "b", "c", *form)


@pytest.mark.parametrize("form", [(False, True), (True, False)])
def test_a_converted_model_reads_text_as_given(form, vocabulary, tmp_path):
    store("texts", tmp_path / "trained", vocabulary)
    given = [f"--do_lower_case={form[0]}", f"--keep_accents={form[1]}", "--to=tf1"]
    where = [f"--from={tmp_path / 'trained'}", f"--output_dir={tmp_path / 'there'}"]
    tiny.run_main(convert.main, [*where, *given])
    assert albert_tf.Preprocessor.from_weights(tmp_path / "there").vocabulary.form == form
