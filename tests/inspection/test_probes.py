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
from tests import pretraining_runs as runs
from tests import tolerances
from tests.inspection import numpy_albert
from tests.tasks.test_conll import CONLLU
from tests.tiny import run_main


def test_words_are_at_their_first_piece(tmp_path, tokenizer):
    path = tmp_path / "a.conllu"
    path.write_text((CONLLU + "\n") * 20)
    data = probes.of_words(str(path), "upos", tokenizer, 19, most=48, seed=0)
    # In the order of their names: NOUN, PRON, VERB.
    firsts = {tokenizer.encode(w)[0]: i for w, i in (("dogs", 0), ("I", 1), ("saw", 2))}
    ids = [
        data.rows[row]["input_ids"][position]
        for row, position in zip(data.row_numbers, data.positions, strict=True)
    ]
    assert [firsts[i] for i in ids] == data.labels.tolist()
    # Whole sentences, until there are enough words.
    assert 48 <= len(data.labels) <= 50


def test_words_with_nothing_in_the_column_are_left_out(tmp_path, tokenizer):
    """As punctuation has no features; they stay in the text."""
    path = tmp_path / "a.conllu"
    feats = CONLLU.replace("VERB\t_\t_", "VERB\t_\tTense=Past")
    path.write_text((feats.replace("NOUN\t_\t_", "NOUN\t_\tNumber=Plur") + "\n") * 20)
    data = probes.of_words(str(path), "feats", tokenizer, 19, most=60, seed=0)
    assert np.bincount(data.labels).tolist() == [40, 20]
    # In the order of their values: plural, past.
    firsts = [tokenizer.encode(word)[0] for word in ("dogs", "saw")]
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
    path = tmp_path / "a.tsv"
    path.write_text("text\tera\n" + "old day\tlate\nnew day\tearly\n" * 20)
    data = probes.of_table(str(path), TableSettings(label_column="era"), tokenizer, 19, 40, seed=0)
    assert data.labels.tolist() == [1, 0] * 20
    assert data.rows[1]["input_ids"][1:-1].tolist() == tokenizer.encode("new day")


def test_texts_of_a_group_are_held_out_together(tmp_path, tokenizer):
    path = tmp_path / "table.tsv"
    lines = [f"old day\t{i % 2}\tspeech {i % 7}\n" for i in range(70)]
    path.write_text("text\tlabel\tdocument\n" + "".join(lines))
    given = (str(path), TableSettings(), tokenizer, 9, 63, 1)
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
    noise = np.random.default_rng(4).normal(size=(2, 3, 300, 4))
    model, control = noise
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


def test_words_of_a_row_are_held_out_together():
    numbers = np.repeat(np.arange(25), 2)
    data = probes.Labelled(rows(25, 5), np.arange(50) % 2, numbers, np.ones(50, int))
    test = probes.held_out(data, seed=1)
    assert test.sum() == 10
    assert (test[::2] == test[1::2]).all()


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
    elif task == "neighbours":
        path.write_text("".join(f"number {i} is a long day\n" for i in range(40)))
    elif task == "table":
        path.write_text("text\tlabel\n" + "old day\tlate\nnew day\tearly\n" * 15)
    else:
        words = (("I", "nsubj"), ("saw", "root"))
        rows = [f"{i}\t{w}\t_\t_\t_\t_\t0\t{d}\t_\t_\n" for i, (w, d) in enumerate(words, 1)]
        path.write_text(("".join(rows) + "\n") * 40)
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
    path, measured = tmp_path / "input", []
    path.write_text("".join(f"number {i} is a long day\n" for i in range(40)))

    def measure(*given):
        measured.append(given)
        return np.zeros((3, 2))

    monkeypatch.setattr(probes, "measure", measure)
    for i, seed in enumerate((1, 1, 2)):
        given = [f"--model={stored}", "--task=neighbours", f"--input_file={path}", f"--seed={seed}"]
        run_main(commands.probes, [*given, f"--output_dir={tmp_path / str(i)}"])
    kernels = [
        [np.array(each.embeddings.weights[0]) for each in (model, control)]
        for model, control, _, _ in measured
    ]
    (model, one), (_, again), (_, other) = kernels
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.9 < (one != model).mean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "order"}, "--task=order needs records of pre-training in --input_file"),
        ({"task": "neighbours"}, "least 20 rows for a probe, got 2 of --input_file: .* raise"),
        ({"label_column": "era"}, "expected a header with 'era'"),
        ({"task": "order", "input_file": "b"}, "set --max_seq_length=23"),
    ],
)
def test_bad_input_is_one_line(stored, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("text\tlabel\nold day\tlate\n")
    runs.write_records(tmp_path / "b", runs.examples(1))
    given = {"model": stored, "task": "table", "input_file": "a.tsv", "output_dir": "out"}
    with pytest.raises(SystemExit, match=message):
        arguments = [f"--{name}={value}" for name, value in (given | changes).items()]
        run_main(commands.probes, arguments)
    assert not (tmp_path / "out").exists()
