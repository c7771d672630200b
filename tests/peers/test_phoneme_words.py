"""Training with PL-BERT's two heads, and its checkpoints, beside torch and transformers."""

import importlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from albert_tf import AlbertConfig
from tests.kit import tiny, tolerances

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
NUM_WORDS, LENGTH = 23, 30
POSITION_IDS = ["encoder.embeddings.position_ids"]

pytestmark = pytest.mark.peers


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("phoneme_words")
    for name in ("phonemes", "phoneme_words"):
        sys.modules.pop(name, None)


@pytest.fixture
def batches(example, tmp_path):
    """Seven batches of 4 documents; some are cut, and some have no chosen word."""
    rng = np.random.default_rng(3)
    with open(tmp_path / "train.jsonl", "w") as file:
        for count in (2, 3, 5, 9, 4, 7, 2, 12) * 4:
            words = ["".join(rng.choice([*"abcdeˈ"], rng.integers(1, 6))) for _ in range(count)]
            ids = rng.integers(2, NUM_WORDS, count).tolist()
            file.write(json.dumps({"phonemes": words, "input_ids": ids}) + "\n")
    documents = example.Documents(tmp_path / "train.jsonl", 1, 4, LENGTH, seed=1)
    found = [documents[i] for i in range(7)]
    chosen = np.stack([weights["phonemes"].any(axis=1) for _, _, weights in found])
    assert chosen.any(axis=1).all() and not chosen.all()
    return found


def convert(source, target):
    command = [sys.executable, FOLDER / "plbert_checkpoint.py", source, target]
    subprocess.run(command, check=True)
    return target


def test_their_checkpoint_is_trained_on_and_goes_back(example, batches, hugging_face, tmp_path):
    config = AlbertConfig.from_dict({**tiny.CONFIG, "vocab_size": 178})
    params = example.their_config(config)["model_params"]

    def theirs(steps, source, target):
        """Runs their trainer for some steps; returns what it says, and its outputs and weights."""
        rows = []
        for inputs, labels, weights in batches[steps]:
            symbols, words = labels["phonemes"], labels["words"]
            ends = weights["phonemes"] > 0, inputs["input_mask"]
            rows.append(np.stack([inputs["input_ids"], symbols, words, *ends]))
        np.savez(tmp_path / "batches.npz", *rows)
        how = {"model_params": params, "num_words": NUM_WORDS, "batches": tmp_path / "batches.npz"}
        how |= {"source": source, "target": tmp_path / target, "outputs": tmp_path / "outputs.npz"}
        said = hugging_face("train_with_words", **how)
        with np.load(tmp_path / "outputs.npz") as stored:
            return said, dict(stored)

    def compare_heads(step, expected):
        for head, values in model(batches[step][0]).items():
            tolerances.assert_close(values, expected[head], tolerances.PEER_OUTPUT, head)

    # Their model after three steps, and after six. Loaded here, both heads have the same outputs.
    _, trained = theirs(slice(0, 3), None, "step_3.t7")
    said, expected = theirs(slice(3, 6), tmp_path / "step_3.t7", "step_6.t7")
    assert said["said"] == [[], []]
    model = example.create_model(config, NUM_WORDS)
    example.compile_model(model, 1e-3, 6)
    path = convert(tmp_path / "step_3.t7", tmp_path / "theirs.safetensors")
    assert example.load(model, str(path)) == 3
    compare_heads(3, expected)

    # Saved again at once, every tensor is unchanged; their trainer resumes as from its own file.
    example.save(model, str(tmp_path / "same.safetensors"), 3)
    one, other = load_file(path), load_file(tmp_path / "same.safetensors")
    assert one.keys() == other.keys() > {name for name in trained if name.startswith("module.")}
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    source = convert(tmp_path / "same.safetensors", tmp_path / "same.t7")
    again, same = theirs(slice(3, 6), source, "same_6.t7")
    assert again == {"said": [[], POSITION_IDS], "losses": said["losses"]}
    for name, value in expected.items():
        np.testing.assert_array_equal(value, same[name], err_msg=name)

    # Three more steps here give their losses and weights and, once loaded there, their outputs.
    for (inputs, labels, weights), losses in zip(batches[3:6], said["losses"], strict=True):
        found = model.train_on_batch(inputs, labels, weights, return_dict=True)
        ours = [found["phonemes_loss"], found["words_loss"]]
        tolerances.assert_close(ours, losses, tolerances.TRAJECTORY_LOSS)
        model.reset_metrics()
    example.save(model, str(tmp_path / "ours.safetensors"), 6)
    stored = load_file(tmp_path / "ours.safetensors")
    for name in trained.keys() - {"phonemes", "words"}:
        tolerances.assert_weight(name, stored[name], expected[name], noise=("key.bias",))
    source = convert(tmp_path / "ours.safetensors", tmp_path / "ours.t7")
    there, values = theirs(slice(6, 7), source, "none.t7")
    assert there["said"] == [[], POSITION_IDS]
    compare_heads(6, values)


def test_other_files_are_refused(hugging_face, tmp_path):
    command = [sys.executable, FOLDER / "plbert_checkpoint.py", tmp_path / "b.t7"]
    hugging_face(
        "execute", code=f"import torch; torch.save({{'net': {{'a': 1}}}}, {str(command[-1])!r})"
    )
    done = subprocess.run([*command, tmp_path / "c.safetensors"], capture_output=True, text=True)
    assert done.returncode == 1 and "expected `net` with module.encoder.…, got ['a']" in done.stderr
    assert len(done.stderr.splitlines()) == 1
