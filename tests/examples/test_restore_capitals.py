"""The example's own functions; what it runs, the scripts' tests run."""

import pathlib
import shutil
import sys

import pytest

from albert_tf.storage import eval_results
from albert_tf.text.word_splitting import split_words

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import restore_capitals

    yield restore_capitals
    for name in ("restore_capitals", "demo"):
        sys.modules.pop(name, None)


def test_what_is_taken_off_a_text_is_what_tags_say(example):
    found = example.tag_words("The Union's House, in 1990. It met. ...")
    pairs = list(zip(found["tokens"], found["labels"], strict=True))
    assert pairs == [
        ("the", "Cap"),
        ("union", "Cap"),
        ("'s", "low"),
        ("house", "Cap"),
        (",", "low"),
        ("in", "low"),
        ("1990", "low."),
        ("it", "Cap"),
        ("met", "low."),
    ]
    assert {tag for _, tag in pairs} <= set(example.TAGS)


def test_it_can_be_put_on_again(example):
    text = "The Union's House met in 1990. It was May."
    bare = text.lower().replace(".", "")
    tags = example.tag_words(text)["labels"]
    spans = [(*place, tag) for place, tag in zip(split_words(bare), tags, strict=True)]
    assert example.restore(bare, spans) == text
    assert example.restore(bare, []) == bare


def test_printed_scores_are_those_of_what_is_exported(example, tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    for step, score in ((5, 0.5), (6, 0.25)):
        metrics = {"accuracy": score, "macro_f1": score}
        found = eval_results.Evaluation(step, "macro_f1", metrics, is_best=step == 5)
        eval_results.add(str(model), found, [])
    tagged = tmp_path / "tagged.jsonl"
    tagged.write_text('{"tokens": ["the", "union"], "labels": ["low", "Cap"]}\n')
    example.print_scores(str(tmp_path), [str(tagged), str(tagged)])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "ALBERT" in line)
    assert row.split() == ["ALBERT", "0.500", "0.500"]


def test_weights_bring_their_vocabulary(example, golden, tmp_path, monkeypatch):
    """Those of `make demo` have it in the folder above."""
    given = {}
    monkeypatch.setattr(example, "run", lambda *_, **arguments: given.update(arguments))
    weights = tmp_path / "weights"
    weights.mkdir()
    example.train("out", ("train", "dev"), 1, f"{weights}/")
    assert given["init_checkpoint"] == f"{weights}/"
    assert given["spm_model_file"] == str(tmp_path / "spm.model")
    given.clear()
    shutil.copy(golden / "spm" / "en_small.model", weights / "spiece.model")
    example.train("out", ("train", "dev"), 1, str(weights))
    assert given["init_checkpoint"] == str(weights) and "spm_model_file" not in given
    given.clear()
    example.train("out", ("train", "dev"), 1, None)
    assert given["spm_model_file"] == "out/spm.model" and given["from_scratch"]
