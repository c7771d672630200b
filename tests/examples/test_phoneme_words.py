"""Words' phonemes, PL-BERT's masks and losses, and checkpoints; tests/peers compares with torch."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.kit import tiny

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
SPACE = 1
MASK = 29  # M among the symbols of text_utils.py in github.com/yl4579/PL-BERT.
MODULES = ("phonemes", "phoneme_words")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("phoneme_words")
    for name in MODULES:
        sys.modules.pop(name, None)


def document(count, seed=3):
    """Random words of 4 to 9 phonemes, half of them `a`."""
    rng = np.random.default_rng(seed)
    letters = [*"aaaaeioˈu"]
    words = ["".join(rng.choice(letters, rng.integers(4, 10))) for _ in range(count)]
    return {"phonemes": words, "input_ids": [2 + i % 5 for i in range(count)]}


def write(folder, counts):
    lines = [json.dumps(document(count, seed)) for seed, count in enumerate(counts)]
    for name in ("train", "heldout"):
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    words = ["<unk>", "<formula>", *"abcde"]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words))
    return folder / "train.jsonl"


def near(share, expected, count):
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


def test_shares_of_words(example):
    """Chosen: 0.15; of these masked: 0.8, random: 0.1, kept: 0.1; all phonemes of a word alike."""
    count = 40_000
    symbols, words, numbers = example.encode(**document(count), space=SPACE)
    rng = np.random.default_rng(1)
    given, true, ids, chosen = example.mask_words(symbols, words, numbers, len(symbols), rng)
    np.testing.assert_array_equal([true, ids], [symbols, words])
    is_space = symbols == example.SYMBOLS.index(" ")
    np.testing.assert_array_equal(is_space, words == SPACE)
    np.testing.assert_array_equal(given[chosen == 0], symbols[chosen == 0])
    assert not chosen[is_space].any() and np.count_nonzero(is_space) == count

    starts = np.flatnonzero(np.r_[True, is_space[:-1]])
    of_word = [np.add.reduceat(x.astype(int), starts) for x in (chosen, given == MASK)]
    lengths = np.diff(np.r_[starts, len(symbols)]) - 1
    for found in of_word:
        assert {*np.unique(found / lengths)} == {0, 1}
    words_chosen, masked = (found > 0 for found in of_word)
    assert not (masked & ~words_chosen).any()
    near(words_chosen.mean(), 0.15, count)
    total = words_chosen.sum()
    near(masked.sum() / total, 0.8, total)
    changed = np.add.reduceat((given != symbols).astype(int), starts) > 0
    # A random word of 4 to 9 phonemes equals the original with probability 0.013.
    near((changed & ~masked).sum() / total, 0.1 * 0.987, total)
    # Random phonemes are as frequent as in the document.
    is_random = np.repeat(changed & ~masked, lengths + 1) & ~is_space
    assert {*given[is_random]} == {*symbols[~is_space]}
    frequent = example.SYMBOLS.index("a")
    assert (
        abs((given[is_random] == frequent).mean() - (symbols[~is_space] == frequent).mean()) < 0.06
    )


def test_a_long_document_is_cut_anywhere(example):
    symbols, words, numbers = example.encode(**document(20), space=SPACE)
    length, rng = len(symbols) - 3, np.random.default_rng(2)
    found = [example.mask_words(symbols, words, numbers, length, rng) for _ in range(40)]
    starts = {
        start for row in found for start in range(4) if (row[1] == symbols[start:][:length]).all()
    }
    assert starts == {0, 1, 2}  # Never to the end, as numpy.random.randint has it there.
    assert all(row.shape == (4, length) for row in found)


def test_positions_that_count(example, tmp_path):
    path = write(tmp_path, [3, 9, 2, 30])
    how = {"space": SPACE, "batch_size": 4, "length": 64, "seed": 5}
    for is_exact in (False, True):
        batches = example.Documents(path, is_exact=is_exact, **how)
        batches.steps, seen = range(20), set()
        for inputs, labels, weights in (batches[i] for i in range(20)):
            real = inputs["input_mask"] == 1
            lengths = real.sum(axis=1, keepdims=True)
            # Word losses count everywhere, even at spaces, and each document counts as much.
            np.testing.assert_allclose(weights["words"], real / lengths / 4, rtol=1e-6)
            assert (labels["words"][real] > 0).all() and SPACE in labels["words"]
            # Phoneme losses count where a word was chosen, even if it was kept.
            counts = weights["phonemes"] > 0
            assert counts[real & (inputs["input_ids"] != labels["phonemes"])].all()
            assert not counts[~real | (labels["words"] == SPACE)].any()
            documents = counts.any(axis=1).sum()
            expected = documents / (documents + 1) if not is_exact else min(1, documents)
            np.testing.assert_allclose(weights["phonemes"].sum(), expected, rtol=1e-6)
            of_document = weights["phonemes"].sum(axis=1)[counts.any(axis=1)]
            assert np.ptp(of_document) < 1e-6
            seen.add(int(documents))
        assert len(seen) > 1


def test_a_batch_is_a_function_of_the_step(example, tmp_path):
    path = write(tmp_path, [40, 50, 60, 70, 80])
    batches, other = (example.Documents(path, SPACE, 2, 999, seed=1) for _ in range(2))
    assert len(batches) == 2
    other.steps = range(1, 9)
    for name in ("input_ids", "input_mask"):
        np.testing.assert_array_equal(batches[1][0][name], other[0][0][name])
    lengths = [int(n) for i in range(2) for n in batches[i][0]["input_mask"].sum(axis=1)]
    assert len({*lengths}) == 4  # No document twice in an epoch.
    with pytest.raises(SystemExit, match="5 documents are no batch of 6"):
        example.Documents(path, SPACE, 6, 64, seed=1)


def test_training_learns_and_goes_on(example, tmp_path, monkeypatch, capsys):
    path = write(tmp_path, [9] * 16)
    config = tiny.config(vocab_size=178, max_position_embeddings=32, initializer_range=0.02)
    (tmp_path / "config.json").write_text(config.to_json())

    def run(name, steps, *more):
        flags = {"data_dir": path.parent, "output_dir": tmp_path / name, "num_train_steps": steps}
        flags |= {"albert_config_file": tmp_path / "config.json", "save_checkpoints_steps": 4}
        flags |= {"train_batch_size": 8, "learning_rate": 0.01}
        given = [f"--{flag}={value}" for flag, value in flags.items()]
        monkeypatch.setattr(sys, "argv", ["", *given, *more])
        example.main()
        return tmp_path / name / f"step_{steps}.safetensors"

    whole = load_file(run("whole", 8))
    lines = [line for line in capsys.readouterr().out.splitlines() if "val_loss" in line]
    losses = [float(line.split("val_words_loss: ")[1].split()[0]) for line in lines]
    assert losses[1] < losses[0] < np.log(7)
    first = tmp_path / "whole" / "step_4.safetensors"
    parts = load_file(run("parts", 8, f"--init_checkpoint={first}"))
    assert "step 4; not there: nothing" in capsys.readouterr().out
    assert whole.keys() == parts.keys() and whole["step"] == parts["step"] == 8
    for name, value in whole.items():
        np.testing.assert_allclose(value, parts[name], rtol=0, atol=1e-6, err_msg=name)

    (tmp_path / "words.txt").write_text("<unk>\n<formula>\n")
    with pytest.raises(SystemExit, match=r"module.word_predictor.weight \(7, 15\), here \(2, 15\)"):
        run("other", 8, f"--init_checkpoint={first}")


def test_words_of_a_text(example, tmp_path, monkeypatch, capsys):
    espeak = tmp_path / "espeak-ng"
    script = "s/^[Ll].*/ (en)lˈɔ(fr)/; s/^3$/a\\nb/; s/^ami$//; s/^y$/ˈi/; s/^[,.!]$//"
    espeak.write_text(f"#!/bin/sh\nsed '{script}'\n")
    espeak.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "text.txt").write_text("L'eau, 3 l'eau. Bon!\n\nBon. Bon y (ami)\n")

    def run(*flags):
        arguments = ["", "--voice=fr", f"--output_dir={tmp_path}", str(tmp_path / "text.txt")]
        monkeypatch.setattr(sys, "argv", [*arguments, *flags])
        importlib.import_module("phonemes").main()
        lines = [(tmp_path / f"{name}.jsonl").read_text() for name in ("heldout", "train")]
        return [json.loads(line) for line in lines]

    # A word of two clauses and one that is not spoken leave the others with their own phonemes.
    first, second = run("--num_words=5")
    assert "1 and 1 documents, 12 words; 58.3% are among the 5" in capsys.readouterr().out
    words = tmp_path / "words.txt"
    assert words.read_text().split() == ["<unk>", "<formula>", "bon", "l'eau", "."]
    assert first["phonemes"] == ["lˈɔ", ",", "a b", "lˈɔ", ".", "Bon", "!"]
    assert first["input_ids"] == [3, 0, 0, 3, 4, 2, 0]
    assert second == {"phonemes": ["Bon", ".", "Bon", "ˈi"], "input_ids": [2, 4, 2, 0]}
    words.write_text("bon\n<formula>\n<unk>\n")
    assert run(f"--words_file={words}")[1]["input_ids"] == [0, 2, 0, 2]
    words.write_text("bon\n<unk>\n")
    with pytest.raises(SystemExit, match="expected lines <unk> and <formula>: add them"):
        run(f"--words_file={words}")
