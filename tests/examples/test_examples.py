"""The notebook as the program that it is, and the functions of the other examples.

The notebook runs offline, with a small model and a few texts; espeak-ng has a stand-in.
"""

import importlib
import json
import pathlib
import shutil
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.cli import predict as predict_command
from albert_tf.conversion.convert import convert
from albert_tf.serving import exported_files
from albert_tf.storage import eval_results
from albert_tf.text.word_splitting import split_words
from tests.kit import tiny
from tests.kit.tiny import run_main

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
NOTEBOOK = FOLDER / "finetune_keras.ipynb"
WEIGHTS = '"hf://albert/albert-base-v2"'
# The notebook's lines of code, without imports.
MOST_LINES = 17


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in ("phonemes", "restore_capitals", "demo"):
        sys.modules.pop(name, None)


@pytest.fixture
def phonemes(load):
    return load("phonemes")


@pytest.fixture
def capitals(load):
    return load("restore_capitals")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, golden, monkeypatch, capsys):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "agg")
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=128)
    albert_tf.AlbertModel(config).save(tmp_path / "tiny.keras")
    spm = str(golden / "spm" / "en_small.model")
    convert(str(tmp_path / "tiny.keras"), "huggingface", str(tmp_path / "tiny"), spm_model_file=spm)
    bad, good = classes = ("0", "1")  # Pandas reads these as numbers.
    rows = [("the heaven was good", good), ("darkness, and void", bad)] * 16
    lines = ["text,label", *(f'"{text}",{label}' for text, label in rows)]
    (tmp_path / "reviews").mkdir()
    for name in ("train", "dev"):
        assert (FOLDER / f"reviews/{name}.csv").exists()
        (tmp_path / f"reviews/{name}.csv").write_text("\n".join(lines))

    cells = json.loads(NOTEBOOK.read_text())["cells"]
    source = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    install, *lines = [line for line in source.splitlines() if line.strip()]
    assert install.startswith("%pip install")
    assert len([line for line in lines if not line.startswith("import ")]) <= MOST_LINES
    program = "\n".join(lines)
    assert program.count(WEIGHTS) == 1
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # Keras warns so about every tf.data.Dataset.
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored")
        names = {"__name__": "__main__"}
        exec(compile(program.replace(WEIGHTS, '"tiny"'), str(NOTEBOOK), "exec"), names)
    printed = capsys.readouterr().out
    assert "'accuracy': " in printed and "\n[" in printed
    assert len(names["history"].history["val_loss"]) in range(1, 6)

    model = albert_tf.AlbertForSequenceClassification.from_weights("sentiment")
    texts = ["darkness", "the heaven"]
    inputs = albert_tf.Preprocessor.from_weights("sentiment", 128)(texts)
    expected = names["model"].predict(inputs, verbose=0)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), expected)
    served = tf.saved_model.load("served").signatures["serving_default"](text=tf.constant(texts))
    np.testing.assert_allclose(served["logits"], expected, rtol=0, atol=1e-5)
    labels = [classes[row.argmax()] for row in expected]
    assert [label.decode() for label in served["label"].numpy()] == labels
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    run_main(predict_command.main, ["--model=served", "--input_file=lines.txt"])
    answers = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert answers == labels


def test_ids_are_pl_berts(phonemes, tmp_path):
    path = str(tmp_path / "spiece.model")
    phonemes.write_vocabulary(path, phonemes.SYMBOLS)
    tokenizer = albert_tf.Tokenizer(path, do_lower_case=False, keep_accents=True)
    assert tokenizer.vocab_size == len(phonemes.SYMBOLS) == 178
    special = [tokenizer.pad_id, tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id]
    assert special == [phonemes.SYMBOLS.index(symbol) for symbol in "$MCE"]
    # Its dictionary has the last of the two places of a repeated symbol.
    theirs = {symbol: i for i, symbol in enumerate(phonemes.SYMBOLS)}
    text = "".join(set(phonemes.SYMBOLS) - set(phonemes.SPECIAL) - {" "})
    text = f"ˈn\u0329 {text} a"
    assert tokenizer.encode(text) == [theirs[symbol] for symbol in f" {text}"]
    assert tokenizer.encode("aß") == [theirs[symbol] for symbol in " aU"]
    # A word begins with its space.
    starts = tokenizer.word_starts("unicode")[tokenizer.encode("ˈaɪn̩ ə")]
    np.testing.assert_array_equal(starts, [True, *[False] * 5, True, False])


def test_marks_and_clauses_stay_where_they_were(phonemes, monkeypatch, tmp_path, capsys):
    espeak = tmp_path / "espeak-ng"
    espeak.write_text("#!/bin/sh\ntr 'A-Z ' 'a-z\\n' | sed 's/bonjour/(fr)bɔ̃ʒuʁ(en)/'\n")
    espeak.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert phonemes.pronounce('He said "Bonjour,  Anna": no!', "en") == 'he said "bɔ̃ʒuʁ, anna": no!'
    text = tmp_path / "text.txt"
    text.write_text("One. Two, then.\n\nalone\n\nThree four? Five\n")
    arguments = ["--voice=en", f"--output_dir={tmp_path}/out", "--own_symbols", str(text)]
    monkeypatch.setattr(sys, "argv", ["", *arguments])
    phonemes.main()
    lines = (tmp_path / "out" / "phonemes.txt").read_text()
    assert lines == "one.\ntwo, then.\n\nthree four?\nfive\n\n"
    assert "0 unknown" in capsys.readouterr().out
    path = str(tmp_path / "out" / "spiece.model")
    assert albert_tf.Tokenizer(path, do_lower_case=False).vocab_size == 5 + len({*lines} - {"\n"})


@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="needs Debian's espeak-ng")
def test_espeak_pronounces(phonemes):
    assert phonemes.pronounce("Guten Tag, Anna!", "de") == "ɡˈuːtən tˈɑːk, ˈanɑː!"


def test_what_is_taken_off_a_text_is_what_tags_say(capitals):
    found = capitals.tag_words("The Union's House, in 1990. It met. ...")
    assert found["tokens"] == ["the", "union", "'s", "house", ",", "in", "1990", "it", "met"]
    tags = ["Cap", "Cap", "low", "Cap", "low", "low", "low.", "Cap", "low."]
    assert found["labels"] == tags and {*tags} <= {*capitals.TAGS}


def test_it_can_be_put_on_again(capitals):
    text = "The Union's House met in 1990. It was May."
    bare = text.lower().replace(".", "")
    tags = capitals.tag_words(text)["labels"]
    spans = [(*place, tag) for place, tag in zip(split_words(bare), tags, strict=True)]
    assert capitals.restore(bare, spans) == text
    assert capitals.restore(bare, []) == bare


def test_printed_scores_are_those_of_what_is_exported(capitals, tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    for step, score in ((5, 0.5), (6, 0.25)):
        metrics = {"accuracy": score, "macro_f1": score}
        found = eval_results.Evaluation(step, "macro_f1", metrics, is_best=step == 5)
        eval_results.add(str(model), found, [])
    tagged = tmp_path / "tagged.jsonl"
    tagged.write_text('{"tokens": ["the", "union"], "labels": ["low", "Cap"]}\n')
    capitals.print_scores(str(tmp_path), [str(tagged), str(tagged)])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "ALBERT" in line)
    assert row.split() == ["ALBERT", "0.500", "0.500"]


def test_weights_bring_their_vocabulary(capitals, golden, tmp_path, monkeypatch):
    """The weights of `make demo` have it in the folder above."""
    given = {}
    monkeypatch.setattr(capitals, "run", lambda *_, **arguments: given.update(arguments))
    weights = tmp_path / "weights"
    weights.mkdir()
    capitals.train("out", ("train", "dev"), 1, f"{weights}/")
    assert given["init_checkpoint"] == f"{weights}/"
    assert given["spm_model_file"] == str(tmp_path / "spm.model")
    given.clear()
    shutil.copy(golden / "spm" / "en_small.model", weights / "spiece.model")
    capitals.train("out", ("train", "dev"), 1, str(weights))
    assert given["init_checkpoint"] == str(weights) and "spm_model_file" not in given
    given.clear()
    capitals.train("out", ("train", "dev"), 1, None)
    assert given["spm_model_file"] == "out/spm.model" and given["from_scratch"]


def test_the_export_of_the_first_minute_can_be_read():
    """README.md uses this export; tests/peers also runs it."""
    assert exported_files.read_description(str(FOLDER / "web")).kind.task == "classify"
