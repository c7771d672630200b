"""serving.json tells exports of the same weights with other options apart."""

from __future__ import annotations

import pytest

from albert_tf.serving import description, trained

LENGTHS = {"doc_stride": 8, "max_query_length": 12, "max_answer_length": 9, "n_best_size": 3}
BEAM = {"start_n_top": 3, "end_n_top": 2}
# What albert-finetune exports with -> what it would export with after another command.
OPTIONS = {
    "classify": (
        {"labels": ["a", "b"], "pairs": False, "threshold": 0.7, "multilabel": False},
        {"labels": ["b", "a"], "pairs": True, "threshold": None, "multilabel": True},
    ),
    "tag": ({"labels": ["O", "B-LOC"]}, {"labels": ["O", "B-PER"]}),
    "choose": ({"num_choices": 3, "max_qa_length": 9}, {"num_choices": 4, "max_qa_length": 8}),
    "answer_v1": (LENGTHS, {name: value - 1 for name, value in LENGTHS.items()}),
    "answer_v2": (
        {**LENGTHS, **BEAM, "null_threshold": 0.0},
        {**LENGTHS, "start_n_top": 4, "end_n_top": 4, "null_threshold": -1.5},
    ),
}
SIZES = {"classify": {"num_labels": 2}, "tag": {"num_labels": 2}, "answer_v2": BEAM}


@pytest.mark.parametrize("task", OPTIONS)
def test_exports_with_other_options_are_others(task, config, vocabulary, tmp_path):
    options, others = OPTIONS[task]
    options = {**options, "max_seq_length": 32}
    model_class, served_class = trained.TASKS[task]
    given = {name: value for name, value in options.items() if name not in BEAM}
    served = served_class(model_class(config, **SIZES.get(task, {})), vocabulary, **given)
    description.write(served, str(tmp_path))
    assert description.is_of(str(tmp_path), task, {"windows": None, **options})
    for name, other in {**others, "max_seq_length": 31, "windows": "mean"}.items():
        if other != options.get(name):
            assert not description.is_of(str(tmp_path), task, {**options, name: other}), name
    assert not description.is_of(str(tmp_path), "fill_mask", {})


def test_an_export_without_a_description_is_another(tmp_path):
    assert not description.is_of(str(tmp_path), "tag", {})
    (tmp_path / description.FILE).write_text("{")
    assert not description.is_of(str(tmp_path), "tag", {})
