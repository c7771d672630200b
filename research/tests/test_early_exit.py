"""The pilot of early exit: which layer answers, and what is compared with fewer layers.

Can't see: whether a model learns; its training is run by hand.
"""

import json

import numpy as np
import pytest

from research.experiments import early_exit
from research.experiments.early_exit import faster

# Three texts, four layers, two classes: settled at once, at the third layer, never sure.
LOGITS = np.array(
    [
        [[5, 0], [5, 0], [5, 0], [5, 0]],
        [[0, 0.1], [0.1, 0], [0, 4], [0, 5]],
        [[0.1, 0], [0, 0.1], [0.1, 0], [0, 0.1]],
    ],
    "float32",
)
LABELS = np.array([0, 1, 1])
# In each half of the examples.
TWICE = np.repeat(LABELS, 2), np.repeat(LOGITS, 2, axis=0)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("confidence", [0, 2, 3]),
        ("entropy", [0, 2, 3]),
        ("patience", [1, 3, 3]),  # One layer that says the same as the layer before it.
    ],
)
def test_the_first_layer_that_has_settled_answers(way, expected):
    assert expected in [place.tolist() for place in early_exit.exits(LOGITS, way)]


@pytest.mark.parametrize("way", early_exit.WAYS)
def test_a_stricter_threshold_never_stops_earlier(way):
    places = list(early_exit.exits(LOGITS, way))
    assert all((later >= earlier).all() for earlier, later in zip(places, places[1:], strict=False))
    assert places[-1].max() <= LOGITS.shape[1] - 1


def test_the_score_within_a_mean_number_of_layers():
    sst, cola = faster.TASKS[:2]
    # 1, 3 and 4 layers: all are right.
    assert early_exit.within(sst, *TWICE, "confidence", 8 / 3) == 100
    assert early_exit.within(cola, *TWICE, "confidence", 8 / 3) == 100
    assert early_exit.within(sst, *TWICE, "confidence", 2.6) < 100
    # With one layer the third text is wrong.
    assert early_exit.within(sst, *TWICE, "confidence", 1) == pytest.approx(200 / 3)
    assert np.isnan(early_exit.within(sst, *TWICE, "patience", 1))


def test_a_threshold_is_judged_where_it_was_not_chosen():
    """In one half the first layer is right, in the other the last one; both are as sure."""
    logits = np.array([[[0, 1], [1, 0]]] * 8, "float32")
    labels = np.arange(8) % 2
    assert early_exit.within(faster.TASKS[0], labels, logits, "confidence", 2) == 0


def test_the_losses_of_layers_are_weighted_by_depth():
    targets = np.array([[1, 0.2, 0.8]], "float32")
    logits = np.array([[[0, 1], [2, 0], [0, 3]]], "float32")
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(shares[0, :, 1]) @ [1 / 6, 2 / 6, 3 / 6]
    found = early_exit.loss_of_layers(is_taught=False)(targets, logits)
    assert float(found) == pytest.approx(expected, rel=1e-6)
    # A teacher's share changes it.
    taught = early_exit.loss_of_layers(is_taught=True)(targets, logits)
    assert float(taught) != pytest.approx(expected, rel=1e-3)


def test_each_row_is_read_once_before_any_is_again_with_rows_of_its_length():
    task = faster.TASKS[0]._replace(train_batch_size=4, train_step=40)
    lengths = np.arange(64) % 4
    batches = list(early_exit._batches(lengths, task, np.random.default_rng(0)))
    assert [len(rows) for rows in batches] == [4] * 40
    epochs = batches[:16], batches[16:32]
    first, second = ({tuple(sorted(rows)) for rows in epoch} for epoch in epochs)
    assert first != second
    for epoch in epochs:
        assert sorted(np.concatenate(epoch)) == list(range(64))
        of_rows = [lengths[rows] for rows in epoch]
        assert all(np.ptp(each) == 0 for each in of_rows)
        assert [each[0] for each in of_rows] != sorted(each[0] for each in of_rows)


def test_a_report_says_where_early_exit_would_win(tmp_path):
    """Two seeds of one task; the models of three layers score 50, those of two 100."""
    plan = faster.Plan("", tmp_path, (4, 3, 2))
    task = faster.TASKS[0]
    for seed in range(2):
        for taught in ("", "-taught"):
            path = tmp_path / f"exit-{task.name}-{seed}{taught}.npz"
            np.savez(path, labels=TWICE[0], logits=TWICE[1])
        for depth, score in ((3, 50.0), (2, 100.0)):
            folder = tmp_path / faster.Run(task, seed, depth, is_taught=True).name
            folder.mkdir()
            (folder / "scores.json").write_text(json.dumps({"onnx": score}))
    text = "\n".join(early_exit.report(plan, [task], 2))
    assert "| sst-2 | 3 | 50.0 | 100.0 / 100.0 |" in text and "+50.0" in text
    assert f"Early exit gains {early_exit.WORTH} points or more on: sst-2." in text
    # Layers that may be the last may take longer; with patience there are two at least.
    text = "\n".join(early_exit.report(plan, [task], 2, layer_times=[2, 1]))
    assert "| sst-2 | 3 | 50.0 | 66.7 / 66.7 |" in text and "nan / nan |" in text
    for path in tmp_path.glob("*/scores.json"):
        path.write_text(json.dumps({"onnx": 100.0}))
    assert "more on: no task." in "\n".join(early_exit.report(plan, [task], 2))
