"""albert-inspect agreement: on models whose preference is known."""

import collections
import csv
import itertools

import numpy as np
import pytest

import albert_tf
from albert_tf.cli import inspect as commands
from albert_tf.inspection import agreement
from albert_tf.text.tokenization import Tokenizer
from tests.kit import tolerances
from tests.kit.tiny import randomise, run_main


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Tokenizer:
    """A vocabulary of whole words: those of the templates but "ships", and "seem" in two pieces."""
    found = {
        word
        for each in agreement.sentences()
        for text in (each.left, each.verb, each.right.rstrip("."))
        for word in text.split()
    }
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "see", "##m"]
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join([*special, *sorted(found - {"ships", "seem"})]))
    return Tokenizer(vocab_file=path)


def config(words, layers):
    sizes = {"num_attention_heads": 3, "num_hidden_layers": layers, "intermediate_size": 7}
    return albert_tf.AlbertConfig(words.vocab_size, 5, 6, **sizes)


@pytest.fixture(scope="module")
def model(words):
    """A masked LM that knows only the bias of each piece."""
    model = randomise(albert_tf.AlbertForPreTraining(config(words, 1)))
    weights = model.albert.embeddings.word_embeddings
    weights.assign(np.zeros(weights.shape))
    return model


def prefer(model, words, *verbs):
    bias = np.zeros(words.vocab_size)
    bias[words.convert_tokens_to_ids(verbs)] = 1
    model.predictions.output_bias.assign(bias)


def test_the_templates():
    found = list(agreement.sentences())
    assert len(set(found)) == len(found) == 12 * 2 * 10 * 5
    counts = collections.Counter(each.between for each in found)
    assert counts == {"nothing": 240, "same number": 480, "other number": 480}
    texts = [f"{each.left} {each.verb} {each.right}" for each in found]
    assert "the citizen is old." in texts
    assert "the citizens near the farmer were here." in texts
    assert "the report with the officer has a name." in texts


def test_a_model_that_prefers_the_plural(model, words):
    prefer(model, words, "are", "were", "have", "do", "need", "give", "make", "come", "remain")
    for between, subject, count, left_out, right in agreement.measure(model, words):
        assert right == (subject == "plural"), (between, subject)
        # Without "seem"; "ships" is the subject once, and between once.
        nouns = 11 if between == "nothing" and subject == "plural" else 12
        if between != "nothing":
            plurals = (subject == "plural") + ((subject == "plural") == (between == "same number"))
            nouns = 12 - plurals
        frames = 1 if between == "nothing" else 2
        assert count == nouns * 9 * frames
        assert count + left_out == 12 * 10 * frames
    prefer(model, words)  # A tie is no preference.
    assert {right for *_, right in agreement.measure(model, words)} == {0}


def test_a_sentence_has_masks_for_its_verb(words):
    sentence = agreement.Sentence("nothing", "plural", "the ship", "old.", "are", "is")
    gap = agreement._gap(sentence, words)
    ids = words.convert_tokens_to_ids(["[CLS]", "the", "ship", "[MASK]", "old", ".", "[SEP]"])
    assert gap.row["input_ids"].tolist() == ids
    assert gap.first == 3
    assert [gap.verb, gap.wrong_verb] == [words("are"), words("is")]


def test_gains_are_differences_of_log_probabilities(words, monkeypatch):
    monkeypatch.setattr(agreement, "_BATCH", 3)
    model = randomise(albert_tf.AlbertForPreTraining(config(words, 2)))
    found = [agreement._gap(each, words) for each in agreement.sentences()]
    gaps = [gap for gap in found if gap][::200]
    gains = agreement._gains(model, gaps)
    assert len(gains) == len(gaps) == 5
    for gap, gain in zip(gaps, gains, strict=True):
        row = {name: x[None] for name, x in gap.row.items()}
        positions = np.array([[gap.first]], np.int32)
        logits = np.array(model({**row, "masked_lm_positions": positions})["masked_lm_logits"])
        log_probs = logits[0, 0] - np.log(np.exp(logits[0, 0]).sum())
        expected = log_probs[gap.verb[0]] - log_probs[gap.wrong_verb[0]]
        np.testing.assert_allclose(gain, expected, atol=tolerances.INSPECTED)


def test_the_command_writes_a_table(stored, tmp_path, capsys):
    out = tmp_path / "out"
    run_main(commands.agreement, [f"--model={stored}", f"--output_dir={out}"])
    table = (out / "agreement.csv").read_text()
    assert capsys.readouterr().out == table
    rows = list(csv.DictReader(table.splitlines()))
    expected = list(itertools.product(agreement.BETWEEN, agreement.NUMBERS))
    assert [(row["between"], row["subject"]) for row in rows] == expected
    assert sum(int(row["sentences"]) + int(row["left_out"]) for row in rows) == 1200


def test_a_vocabulary_without_english_leaves_all_out(model, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中"]))
    found = agreement.measure(model, Tokenizer(vocab_file=path))
    assert sum(left_out for *_, left_out, _ in found) == 1200
    assert all(count == 0 and np.isnan(right) for _, _, count, _, right in found)
