"""The notebook, as the program that it is: offline, with a small model and a few texts."""

import json
import pathlib
import warnings

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.cli import predict as predict_command
from albert_tf.conversion.convert import convert
from tests import tiny
from tests.tiny import run_main

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "finetune_keras.ipynb"
WEIGHTS = '"hf://albert/albert-base-v2"'
# Without imports.
MOST_LINES = 15


def test_the_notebook_runs(tmp_path, golden, monkeypatch, capsys):
    pytest.importorskip("pandas")
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=128)
    albert_tf.AlbertModel(config).save(tmp_path / "tiny.keras")
    spm = str(golden / "spm" / "en_small.model")
    convert(str(tmp_path / "tiny.keras"), "huggingface", str(tmp_path / "tiny"), spm_model_file=spm)
    bad, good = classes = ("0", "1")  # Which pandas reads as numbers.
    rows = [("the heaven was good", good), ("darkness, and void", bad)] * 16
    lines = ["text,label", *(f'"{text}",{label}' for text, label in rows)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))

    cells = json.loads(NOTEBOOK.read_text())["cells"]
    source = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    install, *lines = [line for line in source.splitlines() if line.strip()]
    assert install.startswith("%pip install")
    assert len([line for line in lines if not line.startswith("import ")]) <= MOST_LINES
    program = "\n".join(lines)
    assert program.count(WEIGHTS) == 1
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # Keras says so of every tf.data.Dataset.
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored")
        names = {"__name__": "__main__"}
        exec(compile(program.replace(WEIGHTS, '"tiny"'), str(NOTEBOOK), "exec"), names)
    printed = capsys.readouterr().out
    assert "'accuracy': " in printed and "\n[" in printed

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
