"""albert-inspect probes: what it reads, and on features whose content is known.

Can't see: whether the figure is drawn well.
"""

import csv
import dataclasses

import numpy as np
import pytest

from albert_tf.cli import inspect as commands
from albert_tf.inspection import probes
from albert_tf.tasks.table import TableSettings
from tests.inspection import numpy_albert
from tests.kit import pretraining_runs as runs
from tests.kit import tolerances
from tests.kit.tiny import run_main, write
from tests.tasks.test_conll import CONLLU

FEATURES = {"VERB\t_\t_": "VERB\t_\tTense=Past", "NOUN\t_\t_": "NOUN\t_\tNumber=Plur"}


@pytest.mark.parametrize(
    ("changes", "column", "words", "fewest", "most"),
    [
        ({}, "upos", ["dogs", "I", "saw"], 48, 50),  # Whole sentences, until there are enough.
        (FEATURES, "feats", ["dogs", "saw"], 60, 60),  # "I" has no feature, but stays in the text.
    ],
)
def test_words_are_at_their_first_piece(changes, column, words, fewest, most, tmp_path, tokenizer):
    """`words` are in the order of their labels."""
    text = CONLLU
    for old, new in changes.items():
        text = text.replace(old, new)
    path = write(tmp_path / "a.conllu", (text + "\n") * 20)
    data = probes.of_words(path, column, tokenizer, 19, fewest, seed=0)
    assert fewest <= len(data.labels) <= most
    firsts = [tokenizer.encode(word)[0] for word in words]
    for row, position, label in zip(data.row_numbers, data.positions, data.labels, strict=True):
        assert data.rows[row]["input_ids"][position] == firsts[label]
    assert any(tokenizer.encode("I")[0] in row["input_ids"] for row in data.rows)


def test_neighbours_are_exchanged_in_every_other_text(tokenizer):
    lines = [f"number {i} is a long day for the village" for i in range(40)] + ["the"]
    data = probes.of_neighbours(lines, tokenizer, 19, most=41, seed=0)
    assert data.labels.tolist() == [0, 1] * 20
    for line, row, label in zip(lines[:40], data.rows, data.labels, strict=True):
        ids = [tokenizer.cls_id, *tokenizer.encode(line)[:17], tokenizer.sep_id]
        differ = np.flatnonzero(row["input_ids"] != ids)
        assert len(differ) == 2 * label
        if label:
            assert differ[1] == differ[0] + 1
            exchanged = np.array(ids)
            exchanged[differ] = exchanged[differ[::-1]]
            np.testing.assert_array_equal(row["input_ids"], exchanged)


def test_a_table_gives_texts_and_labels(tmp_path, tokenizer):
    path = write(tmp_path / "a.tsv", "text\tera\n" + "old day\tlate\nnew day\tearly\n" * 20)
    data = probes.of_table(path, TableSettings(label_column="era"), tokenizer, 19, 40, seed=0)
    assert data.labels.tolist() == [1, 0] * 20
    assert data.rows[1]["input_ids"][1:-1].tolist() == tokenizer.encode("new day")


def test_texts_of_a_group_are_held_out_together(tmp_path, tokenizer):
    lines = [f"old day\t{i % 2}\tspeech {i % 7}\n" for i in range(70)]
    path = write(tmp_path / "table.tsv", "text\tlabel\tdocument\n" + "".join(lines))
    given = (path, TableSettings(), tokenizer, 9, 63, 1)
    data = probes.of_table(*given, group_column="document")
    held_out = probes.held_out(data, 3)
    # One of seven documents; the sample leaves out a few rows.
    assert len(data.rows) == 63 and len(set(data.groups[held_out])) == 1
    assert not set(data.groups[held_out]) & set(data.groups[~held_out])
    assert len(set(probes.held_out(probes.of_table(*given), 3).nonzero()[0])) == 12
    few = dataclasses.replace(data, groups=data.groups % 4)
    with pytest.raises(ValueError, match="too few labels, or groups"):
        probes.held_out(few, 3)
    with pytest.raises(ValueError, match="expected a header with 'where'"):
        probes.of_table(*given, group_column="where")


def rows(count, length, seed=0):
    ids = np.random.default_rng(seed).integers(5, 6000, (count, length)).astype(np.int32)
    ones, zeros = np.ones(length, np.int32), np.zeros(length, np.int32)
    return [{"input_ids": x, "input_mask": ones, "segment_ids": zeros} for x in ids]


def test_features_are_those_of_numpy(encoder):
    short, long = rows(2, 7), rows(33, 13)
    data = probes.Labelled([*long, *short], np.arange(35) % 2, np.arange(35))
    found = probes.features(encoder, data)
    assert found.shape == (6, 35, 2 * 21)
    batch = {name: np.stack([row[name] for row in short]) for name in short[0]}
    states, _ = numpy_albert.run(encoder, batch, layers=5)
    expected = np.concatenate([states[:, :, 0], states.mean(axis=2)], axis=-1)
    np.testing.assert_allclose(found[:, 33:], expected, atol=tolerances.INSPECTED)
    words = probes.Labelled([*long, *short], np.array([0, 1]), np.array([33, 34]), np.array([2, 5]))
    expected = np.stack([states[:, 0, 2], states[:, 1, 5]], axis=1)
    found = probes.features(encoder, words)
    np.testing.assert_allclose(found, expected, atol=tolerances.INSPECTED)


def test_a_probe_reads_what_is_there_and_no_more(monkeypatch):
    """The model's second layer holds the label, the control's none."""
    labels = np.random.default_rng(3).integers(0, 2, 300)
    data = probes.Labelled(rows(300, 5), labels, np.arange(300))
    model, control = np.random.default_rng(4).normal(size=(2, 3, 300, 4))
    model[1, :, 2] = labels
    found = {"model": model, "control": control}
    monkeypatch.setattr(probes, "features", lambda name, _: found[name])
    accuracies = probes.measure("model", "control", data, seed=0)
    assert accuracies.shape == (3, 2)
    assert accuracies[1, 0] == 1
    # 60 held-out rows: by chance within four standard deviations of 1/2.
    chance = np.delete(accuracies.ravel(), 2)
    assert np.abs(chance - 0.5).max() < 4 * 0.5 / np.sqrt(60)
    test = probes.held_out(data, 0)
    assert test.sum() == 60
    most = round(labels[~test].mean())
    assert probes.majority(data, 0) == (labels[test] == most).mean()
    # Words of a row are held out together.
    numbers = np.repeat(np.arange(25), 2)
    data = probes.Labelled(rows(25, 5), np.arange(50) % 2, numbers, np.ones(50, int))
    test = probes.held_out(data, seed=1)
    assert test.sum() == 10 and (test[::2] == test[1::2]).all()


def test_labels_of_order_are_those_of_the_records(config, tmp_path):
    examples = runs.examples(30)
    path = runs.write_records(tmp_path / "records", examples)
    data = probes.of_order([str(path)], config, runs.LENGTH, most=25, seed=0)
    known = {tuple(row["input_ids"]): int(row["sentence_order_labels"]) for row in examples}
    assert len(known) == 30 and len(data.labels) == 25
    found = [known[tuple(row["input_ids"])] for row in data.rows]
    assert found == data.labels.tolist()
    other = probes.of_order([str(path)], config, runs.LENGTH, most=25, seed=1)
    sampled = [{tuple(row["input_ids"]) for row in each.rows} for each in (data, other)]
    assert sampled[0] != sampled[1]


NUMBERED = "".join(f"number {i} is a long day\n" for i in range(40))
_BLANKS = "_\t" * 4
TEXTS = {
    "neighbours": NUMBERED,
    "table": "text\tlabel\n" + "old day\tlate\nnew day\tearly\n" * 15,
    "conllu": f"1\tI\t{_BLANKS}0\tnsubj\t_\t_\n2\tsaw\t{_BLANKS}0\troot\t_\t_\n\n" * 40,
}


@pytest.mark.parametrize(
    "task, given, train, test, solved",
    [
        ("order", ["--max_seq_length=19"], 32, 8, False),
        ("neighbours", [], 32, 8, False),
        # Each word has one label, and each label a piece of its own.
        ("conllu", ["--column=deprel"], 64, 16, True),
        ("table", [], 24, 6, True),
    ],
)
def test_the_command_for_each_task(stored, tmp_path, capsys, task, given, train, test, solved):
    out, path = tmp_path / "out", tmp_path / "input.tsv"
    if task == "order":
        runs.write_records(path, runs.examples(40, length=19))
    else:
        write(path, TEXTS[task])
    given = [*given, f"--model={stored}", f"--task={task}", f"--input_file={path}"]
    run_main(commands.probes, [*given, f"--output_dir={out}"])
    assert capsys.readouterr().out == (out / "probes.csv").read_text()
    assert (out / "probes.png").read_bytes().startswith(b"\x89PNG")
    found = list(csv.DictReader((out / "probes.csv").read_text().splitlines()))
    assert {(row["train"], row["test"]) for row in found} == {(str(train), str(test))}
    assert [row["layer"] for row in found] == ["0", "1", "2", "3", "4", "5"]
    if solved:
        assert {row["accuracy"] for row in found} == {"1.0000"}


def test_the_control_has_random_weights_that_follow_the_seed(stored, tmp_path, monkeypatch):
    path, found = write(tmp_path / "input", NUMBERED), []

    def measure(*given):
        found.append([np.array(model.embeddings.weights[0]) for model in given[:2]])
        return np.zeros((3, 2))

    monkeypatch.setattr(probes, "measure", measure)
    for i, seed in enumerate((1, 1, 2)):
        given = [f"--model={stored}", "--task=neighbours", f"--input_file={path}", f"--seed={seed}"]
        run_main(commands.probes, [*given, f"--output_dir={tmp_path / str(i)}"])
    (model, one), (_, again), (_, other) = found
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.9 < (one != model).mean()
