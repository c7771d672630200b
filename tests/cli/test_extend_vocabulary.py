"""albert-extend-vocabulary: adds pieces; outputs for texts without new pieces stay the same."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.cli import extend_vocabulary
from albert_tf.conversion import bundles
from albert_tf.serving.graphs import tokenizer as graph_tokenizer
from albert_tf.storage import checkpoint
from albert_tf.text import vocabulary
from tests.kit import goldens, tiny
from tests.kit.files import refused
from tests.kit.tiny import parse, randomise

COUNT = 3
WORDS = ("myocardial", "zeppelins", "harbours", "µscope")
# Texts without the domain's new pieces, and one with some.
SAME = ("The Capital of [MASK], 1990, yes.", "a cat sat", "", "日本 é –", "the word " * 20)
OTHER = "the myocardial harbours of the world"
ROWS, BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"


def run(**given):
    extend_vocabulary.main(parse(extend_vocabulary.ExtensionSettings, **given))


@pytest.fixture(scope="module")
def old(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    shutil.copy(golden / "spm/en_small.model", folder / "spm.model")
    size = albert_tf.Tokenizer(str(folder / "spm.model")).vocab_size
    config = goldens.config("base", vocab_size=size, num_hidden_layers=1)
    model = randomise(albert_tf.AlbertForPreTraining(config))
    values = tiny.weights(model)
    moments = {f"{ROWS}/adam_{name}": np.ones_like(values[ROWS]) for name in "mv"}
    bundles.write(str(folder), config, values | moments)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "domain.txt"
    lines = [f"The {WORDS[i % 4]} of the {WORDS[i % 3]}." for i in range(300)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def new(old, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "out"
    run(init_checkpoint=old, input_file=text, num_pieces=COUNT, output_dir=folder)
    return folder


def read(folder):
    words = vocabulary.find(str(folder))
    config = albert_tf.load_config(folder)
    words.check(config)
    model = albert_tf.AlbertForPreTraining(config)
    report = albert_tf.load_weights(model, folder)
    assert not report.missing and not report.unused
    return words, model


def test_the_directory_is_a_model(old, new):
    names = sorted(path.name for path in new.iterdir())
    best = "model.ckpt-best"
    expected = ["albert_config.json", f"{best}.data-00000-of-00001", f"{best}.index"]
    assert names == [*expected, f"{best}.meta", "spm.model"]
    words, _ = read(new)
    before = vocabulary.find(str(old)).tokenizer
    assert words.tokenizer.vocab_size == before.vocab_size + COUNT
    first = range(before.vocab_size)
    assert words.tokenizer.convert_ids_to_tokens(first) == before.convert_ids_to_tokens(first)


def test_a_new_row_is_the_mean_of_those_it_replaces(old, new):
    before, after = checkpoint.read(old), checkpoint.read(new)
    # A run that starts from these weights is a new one, so the optimizer's moments are dropped.
    moments = [name for name in before if "/adam_" in name]
    assert len(moments) == 2
    for name in moments:
        del before[name]
    tokenizer = vocabulary.find(str(old)).tokenizer
    size = tokenizer.vocab_size
    pieces = vocabulary.find(str(new)).tokenizer.convert_ids_to_tokens(range(size, size + COUNT))
    assert set(pieces) <= {f"▁{word}" for word in WORDS}
    assert set(before) == set(after)
    for name, value in before.items():
        kept = after[name][:size] if value.ndim else after[name]
        assert kept.tobytes() == value.tobytes(), name
    for i, piece in enumerate(pieces, start=size):
        ids = tokenizer.encode(piece[1:])
        assert len(ids) > 1
        np.testing.assert_allclose(after[ROWS][i], np.mean(before[ROWS][ids], axis=0), rtol=1e-6)
        np.testing.assert_allclose(after[BIAS][i], np.mean(before[BIAS][ids]), rtol=1e-6)


def test_new_rows_come_before_padding(old, text, tmp_path):
    padded = shutil.copytree(old, tmp_path / "padded")
    size = vocabulary.find(str(old)).tokenizer.vocab_size
    config = goldens.config("base", vocab_size=size + 5, num_hidden_layers=1)
    values = tiny.weights(randomise(albert_tf.AlbertForPreTraining(config)))
    bundles.write(str(padded), config, values)
    run(init_checkpoint=padded, input_file=text, num_pieces=COUNT, output_dir=tmp_path / "out")
    words, model = read(tmp_path / "out")
    assert words.tokenizer.vocab_size == model.config.vocab_size == size + COUNT
    ids = words.tokenizer.convert_ids_to_tokens([size])[0][1:]
    replaced = vocabulary.find(str(old)).tokenizer.encode(ids)
    rows = tiny.weights(model)[ROWS]
    np.testing.assert_array_equal(rows[:size], values[ROWS][:size])
    np.testing.assert_allclose(rows[size], values[ROWS][replaced].mean(axis=0), rtol=1e-6)


def test_texts_without_new_pieces_are_the_same_to_the_bit(old, new):
    found = []
    for folder in (old, new):
        words, model = read(folder)
        ids = [words.tokenizer.encode(text) for text in SAME]
        inputs = tf.ragged.constant(ids, dtype="int32").to_tensor()
        outputs = model.albert({"input_ids": inputs, "input_mask": tf.cast(inputs > 0, "int32")})
        found.append((ids, [np.array(value).tobytes() for value in tf.nest.flatten(outputs)]))
        found[-1] += (words.tokenizer.encode(OTHER),)
    assert found[0][:2] == found[1][:2]
    assert len(found[1][2]) < len(found[0][2])


def test_the_graph_for_export_reads_the_same_pieces(old, new):
    before, after = (vocabulary.find(str(folder)) for folder in (old, new))
    same = [before.tokenizer.encode(text) for text in SAME]
    for words in (before, after):
        found = graph_tokenizer.build(words)(tf.constant([*SAME, OTHER])).ids.to_list()
        assert found == [*same, words.tokenizer.encode(OTHER)]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_pieces": 1000}, "--num_pieces=1000 is too many"),
        ({"output_dir": "{old}"}, "already exists"),
        ({"input_file": "{old}/no.txt"}, "no.txt does not exist"),
        ({"input_file": "{old}/empty.txt"}, "--input_file: there is no text"),
        ({"init_checkpoint": "{old}/none"}, "no checkpoint .*/none"),
        ({"spm_model_file": "{other}"}, "vocab_size"),
        ({"init_checkpoint": "{chinese}"}, "vocab.txt is a WordPiece vocabulary"),
    ],
)  # fmt: skip
def test_wrong_flags_end_in_one_line(old, text, tmp_path, change, message):
    chinese = tmp_path / "chinese"
    shutil.copytree(old, chinese)
    (chinese / "spm.model").unlink()
    (chinese / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    (old / "empty.txt").write_text("\n\n")
    other = tmp_path / "other.model"
    other.write_bytes((old / "spm.model").read_bytes() + b"\x0a\x07\x0a\x05extra")
    given = {"init_checkpoint": old, "input_file": text, "num_pieces": COUNT}
    given |= {"output_dir": tmp_path / "out", **change}
    paths = {"old": old, "other": other, "chinese": chinese}
    with refused(message, old, tmp_path):
        run(**{name: str(value).format(**paths) for name, value in given.items()})
