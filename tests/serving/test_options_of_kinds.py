"""Options of each kind: run.json or flags -> serving.json and page.json -> read again."""

import json

import pytest

import albert_tf
from albert_tf.answers import kinds
from albert_tf.cli import convert, export
from albert_tf.conversion import labels
from albert_tf.serving import web_page
from albert_tf.serving.settings import ExportSettings, PredictionSettings
from albert_tf.text import vocabulary as vocabularies
from tests.kit import served_tasks, tiny
from tests.kit.served_tasks import KINDS

# A kind as its run stored it -> other values for all of its options, many of them false or 0.
CHANGES = {
    "classify": {"pairs": False, "windows": "max", "threshold": 0.0, "multilabel": True},
    "max": {"multilabel": False, "windows": "mean", "doc_stride": 6},
    "max_number": {"windows": None, "pairs": True, "doc_stride": 6},
    "tag": {},
    "choose": {"num_choices": 5, "max_qa_length": 7},
    "answer_v1": {"max_query_length": 7, "max_answer_length": 8, "n_best_size": 4},
    "answer_v2": {"start_n_top": 2, "end_n_top": 5, "null_threshold": 0.0, "doc_stride": 5},
    "linear": {"null_threshold": -0.5, "n_best_size": 7},
    "fill_mask": {"top_k": 3},
}


def store(name, folder, vocabulary):
    kind = KINDS[name]
    kind = kind.replace(without=()) if name == "fill_mask" else kind  # The weights tell.
    served_tasks.store(folder, kind, vocabulary)
    tiny.write(folder / "tokenizer_config.json", '{"do_lower_case": false, "keep_accents": true}')
    return kind


def flags_of(options):
    """Yields the options' flags; None becomes `none`, and booleans become --NAME or --noNAME."""
    for name, value in options.items():
        if isinstance(value, bool):
            yield f"--{'' if value else 'no'}{name}"
        else:
            yield f"--{name}={'none' if value is None else value}"


@pytest.mark.parametrize("given", [False, True], ids=["as in its run", "as flags say"])
@pytest.mark.parametrize("name", CHANGES)
def test_it_is_served_as_its_run_and_the_flags_say(name, given, vocabulary, tmp_path, monkeypatch):
    kind, page = store(name, tmp_path / "trained", vocabulary), tmp_path / "page"
    arguments = [f"--model={tmp_path / 'trained'}", f"--task={kind.task}", f"--export_dir={page}"]
    form = (False, True)
    if given:
        changes = {**CHANGES[name], "max_seq_length": 19}
        arguments += [*flags_of(changes), "--do_lower_case", "--nokeep_accents"]
        kind, form = kind.replace(**changes), (True, False)
    exported = []
    monkeypatch.setattr("albert_tf.serving.saved_model.save", lambda *args: exported.append(args))
    tiny.run_main(export.main, arguments)
    ((served, _),) = exported
    assert (served.kind, served.vocabulary.form) == (kind, form)
    if not kind.title:
        return

    # These tests need no ONNX file beside the page.
    def write(served, directory, _):
        served.describe(directory)
        vocabularies.copy(served.vocabulary, directory)

    monkeypatch.setattr("albert_tf.serving.other_formats.write", write)
    web_page.save(served, page)
    shown, written = (json.loads((page / f"{n}.json").read_text()) for n in ("page", "serving"))
    asked = {"lower": form[0], "keepAccents": form[1]}
    assert shown["tokenizer"] == {"wordPiece": False, **asked, "added": ""}
    if name == "fill_mask":  # A page shows no vectors.
        kind = kind.replace(without=("pooled", "swapped"))
    for values in (shown["kind"], written["kind"]):
        assert kinds.read(values, "file") == kind
    assert labels.stored(str(page)) == getattr(kind, "labels", ())


SETTINGS = [PredictionSettings, ExportSettings, convert.ConversionSettings]


@pytest.mark.parametrize("cls", SETTINGS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("form", [(False, True), (True, False)])
def test_what_lies_beside_the_weights_is_as_given(cls, form):
    given = {"model": "m", "from": "m", "task": "tag", "export_dir": "e", "to": "tf1"}
    given |= {"output_dir": "o", "albert_config_file": "a", "spm_model_file": "b"}
    given |= {"vocab_file": "c", "do_lower_case": form[0], "keep_accents": form[1]}
    given |= {"ids": "folder"}
    given = {name: value for name, value in given.items() if name in cls.names()}
    stored = tiny.parse(cls, **given).stored("m")
    assert (stored.albert_config_file, *stored.of_vocabulary) == ("a", "b", "c", *form, "folder")


def test_a_converted_model_reads_text_as_given(vocabulary, tmp_path):
    store("classify", tmp_path / "trained", vocabulary)
    given = ["--do_lower_case", "--nokeep_accents", "--to=tf1"]
    where = [f"--from={tmp_path / 'trained'}", f"--output_dir={tmp_path / 'there'}"]
    tiny.run_main(convert.main, [*where, *given])
    form = albert_tf.Preprocessor.from_weights(tmp_path / "there").vocabulary.form
    assert form == (True, False)
