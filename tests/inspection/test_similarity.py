"""albert-inspect similarity against a model in NumPy.

Not tested here: whether the figure is drawn well.
"""

import csv
import dataclasses
import random
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf.cli import inspect as commands
from albert_tf.inspection import models, similarity
from tests.inspection import numpy_albert
from tests.kit import tolerances
from tests.kit.tiny import randomise, run_main, write

LINES = ("The quick brown fox is here.", "One, two.", "It was a long day for the small village.")


def expected_of(states, mask):
    """Means over real positions of the distance and the angle, the latter by the arc cosine."""
    x, y = states[:-1], states[1:]
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    angles = np.degrees(np.arccos((x * y).sum(-1) / norms))
    both = np.stack([np.linalg.norm(y - x, axis=-1), angles], axis=-1)
    return both[:, mask > 0].mean(axis=1)


def rows_of(features):
    return [{n: x[i] for n, x in features.items()} for i in range(len(features["input_ids"]))]


@pytest.mark.parametrize("extra_layers", [0, 2])
def test_distances_and_angles_are_the_formulas(encoder, features, extra_layers):
    longer = models.lengthened(encoder, extra_layers)
    states, _ = numpy_albert.run(encoder, features, layers=5 + extra_layers)
    expected = expected_of(states, features["input_mask"])
    actual = similarity.measure(longer, rows_of(features))
    assert actual.shape == (5 + extra_layers, 2)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.INSPECTED)


def test_batches_do_not_matter(encoder, features, monkeypatch):
    rows = [row for row in rows_of(features) for _ in range(2)]
    expected = similarity.measure(encoder, rows)
    batches = models.batches
    monkeypatch.setattr(models, "batches", lambda rows: batches(rows, size=3))
    found = similarity.measure(encoder, rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.INSPECTED)


def test_a_layer_of_two_blocks_is_one_layer(config):
    model = randomise(albert_tf.AlbertModel(dataclasses.replace(config, inner_group_num=2)))
    features = {"input_ids": np.array([[2, 5, 3]], np.int32)}
    states = models.layer_states(model, features)
    outputs = model(features)["all_encoder_layers"]
    assert len(outputs) == 10 and len(states) == 6
    np.testing.assert_array_equal(states[1], outputs[1])


def test_a_sample_is_even_and_in_order(monkeypatch):
    counts, kind = np.zeros(7), random.Random
    for seed in range(700):
        monkeypatch.setattr(random, "Random", lambda _, seed=seed: kind(seed))
        kept = models.sample(range(7), 3)
        assert kept == sorted(kept) and len(kept) == 3
        counts[kept] += 1
    # Chi-square with 6 degrees of freedom; p = 0.001 is at 22.5.
    assert ((counts - 300) ** 2 / (300 * 4 / 7)).sum() * 6 / 7 < 22.5
    assert models.sample("ab", 3) == ["a", "b"]


def test_the_command_writes_table_and_figure(stored, config, vocabulary, tmp_path, capsys):
    """For two models, one of them named twice."""
    shallow, out = tmp_path / "shallow.keras", tmp_path / "out"
    model = albert_tf.AlbertModel(dataclasses.replace(config, num_hidden_layers=3))
    randomise(model).save(shallow)
    shutil.copy(vocabulary.path, tmp_path / "spiece.model")
    text_file = write(tmp_path / "text.txt", "\n".join([*LINES, "", ""]))
    arguments = [f"--input_file={text_file}", f"--output_dir={out}", "--extra_layers=1"]
    run_main(commands.similarity, [f"--model={stored},{stored},{shallow}", *arguments])
    table = (out / "similarity.csv").read_text()
    assert capsys.readouterr().out == table
    rows = list(csv.DictReader(table.splitlines()))
    names = [(row["model"], row["layer"], row["is_extra"]) for row in rows]
    expected = [(stored, layer, int(layer > 5)) for layer in range(1, 7)]
    expected += [(shallow, layer, int(layer > 3)) for layer in range(1, 5)]
    assert names == [tuple(map(str, row)) for row in expected]
    assert (out / "similarity.png").read_bytes().startswith(b"\x89PNG")
    # By hand: the same lines, through the public interface.
    model = albert_tf.AlbertModel.from_weights(stored)
    features = albert_tf.Preprocessor.from_weights(stored)(list(LINES))
    states, _ = numpy_albert.run(model, features, layers=6)
    expected = expected_of(states, features["input_mask"])
    actual = [[float(row[name]) for name in similarity.COLUMNS[-2:]] for row in rows[:6]]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.INSPECTED)
