"""Vocabularies beside models: found, checked, written."""

import json
import shutil

import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import files
from albert_tf.text import vocabulary
from tests.kit import goldens, tiny
from tests.text.vocabularies import SPECIAL, word_pieces

# Where each layout keeps a SentencePiece model.
PLACES = {"tf1": "en_small.model", "keras": "en_small.model", "huggingface": "spiece.model"}
PLACES["kerashub"] = "assets/tokenizer/vocabulary.spm"
CONFIG = "tokenizer_config.json"


def model_of(size: int, folder):
    config = goldens.config("base", vocab_size=size)
    albert_tf.AlbertModel(config).save(folder / "model.keras")


@pytest.fixture(scope="module")
def encoder(golden, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    model_of(tokenizer.vocab_size, folder)
    shutil.copy(golden / "spm" / "en_small.model", folder)
    return folder


@pytest.fixture
def source(encoder, tmp_path):
    return shutil.copytree(encoder, tmp_path / "source")


def test_case_goes_to_hugging_face_and_back(source, tmp_path, caplog):
    convert(str(source), "huggingface", str(tmp_path / "a"), do_lower_case=False)
    (said,) = caplog.messages
    assert said.startswith(f"5 pieces of {source / 'en_small.model'} end in a digit and a comma")
    config = json.loads((tmp_path / "a" / CONFIG).read_text())
    assert config["do_lower_case"] is False
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (config["cls_token"], config["mask_token"]) == ("[CLS]", "[MASK]")
    convert(str(tmp_path / "a"), "huggingface", str(tmp_path / "b"))
    assert json.loads((tmp_path / "b" / CONFIG).read_text()) == config
    assert len(caplog.messages) == 1  # Copying a tokenizer logs nothing.


@pytest.mark.parametrize("form", [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("layout", PLACES)
def test_a_vocabulary_and_how_its_text_is_read_go_along(layout, form, source, golden, tmp_path):
    """Accents may stay: the tokenizer's config of ai4bharat/indic-bert asks for that."""
    lower, keep = form
    if keep:
        tiny.write(source / CONFIG, '{"do_lower_case": false, "keep_accents": true}')
        for spm in (None, str(golden / "spm" / "en_small.model")):
            assert vocabulary.find(str(source), spm).form == (False, True)
            assert vocabulary.find(str(source), spm, do_lower_case=True).form == (True, True)
            assert vocabulary.find(str(source), spm, keep_accents=False).form == (False, False)
    given = {} if keep else {"do_lower_case": lower}
    said = convert(str(source), layout, str(tmp_path / "target"), **given)
    assert f"; vocabulary: {source / 'en_small.model'}" in said
    found = vocabulary.find(str(tmp_path / "target"))
    assert found.path == str(tmp_path / "target" / PLACES[layout])
    assert files.read_bytes(found.path) == (source / "en_small.model").read_bytes()
    assert found.form == form
    accents = "caf<unk>" if keep else "cafe"
    assert found.tokenizer.decode(found.tokenizer("caf\u00e9 zu")) == f"{accents} zu"
    # KerasHub's own tokenizer doesn't read it.
    hub = layout == "kerashub"
    assert ("normalised (lower-casing, strip" in said) == (hub and lower)
    assert ("stripping of accents, splitting of commas" in said) == (hub and not keep)


@pytest.mark.parametrize("layout", PLACES)
def test_a_vocabulary_of_kerashub_goes_on(layout, source, tmp_path):
    convert(str(source), "kerashub", str(tmp_path / "hub"))
    convert(str(tmp_path / "hub"), layout, str(tmp_path / "target"))
    name = "spiece.model" if layout in ("tf1", "keras") else PLACES[layout]
    assert vocabulary.find(str(tmp_path / "target")).path == str(tmp_path / "target" / name)


@pytest.mark.parametrize(
    ("said", "form"),
    [
        ({"strip_accents": True}, (True, False)),
        ({"do_lower_case": False, "strip_accents": False}, (False, False)),
        ({"keep_accents": True}, (True, False)),
        ({"strip_accents": False}, (True, True)),
    ],
)
def test_a_config_says_how_word_pieces_are_read(said, form, tmp_path):
    word_pieces(tmp_path, "a")
    tiny.write(tmp_path / CONFIG, json.dumps({**said, "tokenize_chinese_chars": True}))
    assert vocabulary.find(str(tmp_path)).form == form


def test_a_word_piece_vocabulary(tmp_path):
    pieces = [*SPECIAL, *map(chr, range(97, 123))]
    word_pieces(tmp_path, *pieces[5:])
    model_of(len(pieces), tmp_path)
    convert(str(tmp_path), "huggingface", str(tmp_path / "there"))
    assert (tmp_path / "there" / "vocab.txt").read_text().split() == pieces
    with pytest.raises(ValueError, match="only takes SentencePiece vocabularies, not .*vocab.txt"):
        convert(str(tmp_path), "kerashub", str(tmp_path / "hub"))
    assert not (tmp_path / "hub").exists()
    # A vocabulary file of any name is found again.
    path = tiny.write(tmp_path / "pieces", "\n".join([*SPECIAL, "a\n"]))
    vocabulary.copy(vocabulary.Vocabulary.read(path, True), tiny.write(tmp_path / "a/b", "")[:-2])
    assert vocabulary.find(str(tmp_path / "a")).path == str(tmp_path / "a/vocab.txt")


@pytest.mark.parametrize("padding", [-1, 0, 8, 1023, 1024])
def test_a_model_may_have_a_few_rows_more_than_there_are_pieces(padding, encoder, caplog):
    words = vocabulary.find(str(encoder))
    config = goldens.config("base", vocab_size=words.tokenizer.vocab_size + padding)
    if padding in (-1, 1024):
        with pytest.raises(ValueError, match=f"vocab_size is {config.vocab_size}"):
            words.check(config)
    else:
        words.check(config)
        assert [f" {padding} more" in said for said in caplog.messages] == [True] * (padding > 0)
