"""What each kind of model is served with: run.json, or flags -> serving.json -> page.json -> again.

No value is its default, those of the flags are none of run.json's, and many are false or 0.
"""

import json
import pathlib

import pytest

import albert_tf
from albert_tf.cli import convert
from albert_tf.conversion import labels, settings
from albert_tf.serving import predict, web_page
from albert_tf.serving.settings import ExportSettings, PredictionSettings
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.text import vocabulary as vocabularies
from tests import tiny
from tests.serving.test_text_functions import assert_same_outputs, rows_of, without_graph
from tests.tiny import randomise

SPANS = {"doc_stride": 5, "max_query_length": 6, "max_answer_length": 7, "n_best_size": 3}
BEAM = {"start_n_top": 2, "end_n_top": 4}
NAMES = ("war", "art", "law")
# A kind -> its model and problem_type, what serves it, how run.json says that texts are read, what
# else serving.json has; flags, and what serving.json then has.
KINDS = {
    "texts": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=2),
        *("single_label_classification", "classify"),
        {"max_seq_length": 17, "pairs": False, "windows": "max", "doc_stride": 5},
        {"multilabel": False},
        "--pairs --windows=none --threshold=0 --doc_stride=7 --multilabel",
        {"pairs": True, "threshold": 0.0, "doc_stride": 7, "multilabel": True},
    ),
    "labels": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=3),
        *("multi_label_classification", "classify", {"max_seq_length": 17, "pairs": True}),
        {"multilabel": True, "doc_stride": 128},
        "--nopairs --nomultilabel --windows=mean --doc_stride=6",
        {"pairs": False, "multilabel": False, "windows": "mean", "doc_stride": 6},
    ),
    "number": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=1),
        *("regression", "classify"),
        {"max_seq_length": 17, "pairs": False, "windows": "mean", "doc_stride": 5},
        {"multilabel": False},
        "--windows=max --doc_stride=6",
        {"pairs": False, "multilabel": False, "windows": "max", "doc_stride": 6},
    ),
    "tags": (
        lambda config: albert_tf.AlbertForTokenClassification(config, num_labels=3),
        *("", "tag", {"max_seq_length": 17}, {}, "", {}),
    ),
    "endings": (
        albert_tf.AlbertForMultipleChoice,
        *("", "choose", {"max_seq_length": 17, "num_choices": 3, "max_qa_length": 9}, {}),
        "--num_choices=5 --max_qa_length=7",
        {"num_choices": 5, "max_qa_length": 7},
    ),
    "answers": (
        albert_tf.AlbertForQuestionAnswering,
        *("", "answer_v1", {"max_seq_length": 17, **SPANS}, {}),
        "--doc_stride=6 --max_query_length=7 --max_answer_length=8 --n_best_size=4",
        {"doc_stride": 6, "max_query_length": 7, "max_answer_length": 8, "n_best_size": 4},
    ),
    "answers or none": (
        lambda config: albert_tf.AlbertForQuestionAnsweringV2(config, **BEAM),
        *("", "answer_v2", {"max_seq_length": 17, **SPANS, **BEAM, "null_threshold": -1.5}, {}),
        "--start_n_top=3 --end_n_top=2 --null_threshold=0",
        {**SPANS, "start_n_top": 3, "end_n_top": 2, "null_threshold": 0.0},
    ),
    "linear answers or none": (
        albert_tf.AlbertForQuestionAnswering,
        *("", "answer_v2", {"max_seq_length": 17, **SPANS}, {"null_threshold": 0.0}),
        "--null_threshold=0.5",
        {**SPANS, "null_threshold": 0.5},
    ),
    "masks": (
        albert_tf.AlbertForPreTraining,
        *("", "fill_mask", {}, {"max_seq_length": 31, "top_k": 5}, "--top_k=2", {"top_k": 2}),
    ),
}


def store(kind: str, folder: pathlib.Path, vocabulary) -> tuple[str, ...]:
    """Writes a cased model as its run does; returns its labels, which are in no order."""
    make, problem_type, task, reading, *_ = KINDS[kind]
    model = randomise(make(tiny.config(vocab_size=6000, num_hidden_layers=1)))
    names = NAMES[: getattr(model, "num_labels", 0)]
    names = names if len(names) > 1 else ()
    tiny.store(folder, model, names)
    (folder / "spiece.model").write_bytes(pathlib.Path(vocabulary.path).read_bytes())
    tiny.write(folder / "tokenizer_config.json", '{"do_lower_case": false, "keep_accents": true}')
    record = TaskRecord("own", type(model).__name__, problem_type, names, task, reading)
    RunRecord({}, {}, task=None if task == "fill_mask" else record).write(str(folder))
    return names


@pytest.mark.parametrize("given", [False, True], ids=["as in its run", "as flags say"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_served_as_its_run_and_the_flags_say(kind, given, vocabulary, tmp_path, monkeypatch):
    *_, task, reading, more, flags, changed = KINDS[kind]
    names, there = store(kind, tmp_path / "trained", vocabulary), tmp_path / "there"
    there.mkdir()
    arguments = [f"--model={tmp_path / 'trained'}", f"--task={task}"]
    expected, form = {**reading, **more}, (False, True)
    if given:
        arguments += [*flags.split(), "--max_seq_length=19"]
        arguments += ["--do_lower_case", "--nokeep_accents"]
        expected, form = {**changed, "max_seq_length": 19}, (True, False)
    served = []
    with monkeypatch.context() as patch:
        patch.setattr(predict, "from_text", served.append)
        predict.load(tiny.parse(PredictionSettings, *arguments))
    (served,) = served
    assert served.vocabulary.form == form
    served.describe(str(there))
    written = json.loads((there / "serving.json").read_text())
    assert (written["task"], written["options"]) == (task, expected)
    assert served.labels == labels.stored(str(there)) == names

    # The page has the same; of its ONNX file nothing is needed.
    def write(served, directory, _):
        served.describe(directory)
        vocabularies.copy(served.vocabulary, directory)

    monkeypatch.setattr("albert_tf.serving.other_formats.write", write)
    if task != "choose":
        web_page.save(served, tmp_path / "page")
        page = json.loads((tmp_path / "page" / "page.json").read_text())
        tokenizer = {"wordPiece": False, "lower": form[0], "keepAccents": form[1]}
        assert (page["task"], page["options"]) == (task, expected)
        assert (page["tokenizer"], tuple(page["labels"])) == (tokenizer, names)
    if not given:  # Once is enough.
        return
    # What reads serving.json without TensorFlow answers alike.
    rows = [row[: len(served.text_names) + (task == "choose") * 2] for row in rows_of(task)]
    found = without_graph(served, there).outputs(rows)
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
