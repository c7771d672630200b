"""What each kind of model is served with: run.json, or flags -> serving.json -> page.json -> again.

No value is its default, those of the flags are none of run.json's, and many are false or 0.
"""

import json

import pytest

import albert_tf
from albert_tf.answers import kinds
from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.cli import convert, export
from albert_tf.conversion import labels
from albert_tf.serving import web_page
from albert_tf.serving.settings import ExportSettings, PredictionSettings
from albert_tf.text import vocabulary as vocabularies
from tests import served_tasks, tiny

SPANS = {"doc_stride": 5, "max_query_length": 6, "max_answer_length": 7, "n_best_size": 3}
NAMES = ("war", "art", "law")
# A kind as its run stored it, flags, and what these change.
KINDS = {
    "texts": (
        Classify(labels=NAMES[:2], windows="max", doc_stride=5, max_seq_length=17),
        "--pairs --windows=none --threshold=0 --doc_stride=7 --multilabel",
        {"pairs": True, "windows": None, "threshold": 0.0, "doc_stride": 7, "multilabel": True},
    ),
    "labels": (
        Classify(labels=NAMES, multilabel=True, pairs=True, max_seq_length=17),
        "--nopairs --nomultilabel --windows=mean --doc_stride=6",
        {"pairs": False, "multilabel": False, "windows": "mean", "doc_stride": 6},
    ),
    "number": (
        Classify(windows="mean", doc_stride=5, max_seq_length=17),
        "--windows=max --doc_stride=6",
        {"windows": "max", "doc_stride": 6},
    ),
    "tags": (Tag(labels=NAMES, max_seq_length=17), "", {}),
    "endings": (
        Choose(num_choices=3, max_qa_length=9, max_seq_length=17),
        "--num_choices=5 --max_qa_length=7",
        {"num_choices": 5, "max_qa_length": 7},
    ),
    "answers": (
        Span(max_seq_length=17, **SPANS),
        "--doc_stride=6 --max_query_length=7 --max_answer_length=8 --n_best_size=4",
        {"doc_stride": 6, "max_query_length": 7, "max_answer_length": 8, "n_best_size": 4},
    ),
    "answers or none": (
        BeamSpan(max_seq_length=17, start_n_top=2, end_n_top=4, null_threshold=-1.5, **SPANS),
        "--start_n_top=3 --end_n_top=2 --null_threshold=0",
        {"start_n_top": 3, "end_n_top": 2, "null_threshold": 0.0},
    ),
    "linear answers or none": (
        SpanOrNone(max_seq_length=17, null_threshold=-1.5, **SPANS),
        "--null_threshold=0.5",
        {"null_threshold": 0.5},
    ),
    "masks": (Fill(max_seq_length=17, top_k=3), "--top_k=2", {"top_k": 2}),
}


def store(name, folder, vocabulary):
    """Writes a cased model as its run does."""
    kind, *_ = KINDS[name]
    served_tasks.store(folder, kind, vocabulary)
    tiny.write(folder / "tokenizer_config.json", '{"do_lower_case": false, "keep_accents": true}')
    return kind


@pytest.mark.parametrize("given", [False, True], ids=["as in its run", "as flags say"])
@pytest.mark.parametrize("name", KINDS)
def test_it_is_served_as_its_run_and_the_flags_say(name, given, vocabulary, tmp_path, monkeypatch):
    kind, page = store(name, tmp_path / "trained", vocabulary), tmp_path / "page"
    arguments = [f"--model={tmp_path / 'trained'}", f"--task={kind.task}", f"--export_dir={page}"]
    form = (False, True)
    if given:
        _, flags, changed = KINDS[name]
        arguments += [*flags.split(), "--max_seq_length=19"]
        arguments += ["--do_lower_case", "--nokeep_accents"]
        kind, form = kind.replace(**changed, max_seq_length=19), (True, False)
    exported = []
    monkeypatch.setattr("albert_tf.serving.saved_model.save", lambda *args: exported.append(args))
    tiny.run_main(export.main, arguments)
    ((served, _),) = exported
    assert (served.kind, served.vocabulary.form) == (kind, form)

    # Of a page's ONNX file nothing is needed here.
    def write(served, directory, _=None):
        served.describe(directory)
        vocabularies.copy(served.vocabulary, directory)

    monkeypatch.setattr("albert_tf.serving.other_formats.write", write)
    if kind.title:
        web_page.save(served, page)
        shown = json.loads((page / "page.json").read_text())
        tokenizer = {"wordPiece": False, "lower": form[0], "keepAccents": form[1]}
        assert shown["tokenizer"] == tokenizer
        if name == "masks":  # A page shows no vectors.
            kind = kind.replace(without=("pooled", "swapped"))
        assert kinds.read(shown["kind"], "page.json") == kind
    else:
        page.mkdir()
        write(served, str(page))
    written = json.loads((page / "serving.json").read_text())
    assert kinds.read(written["kind"], "serving.json") == kind
    assert labels.stored(str(page)) == getattr(kind, "labels", ())


@pytest.mark.parametrize(
    "cls",
    [PredictionSettings, ExportSettings, convert.ConversionSettings],
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
