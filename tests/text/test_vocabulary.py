"""Vocabularies beside models: found, checked, written."""

import json
import shutil

import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import files
from albert_tf.text import vocabulary
from tests import goldens

# Where each layout keeps a SentencePiece model.
PLACES = {
    "tf1": "en_small.model",
    "keras": "en_small.model",
    "huggingface": "spiece.model",
    "kerashub": "assets/tokenizer/vocabulary.spm",
}


@pytest.fixture
def source(golden, tmp_path):
    """An encoder whose vocabulary lies beside it."""
    spm = golden / "spm" / "en_small.model"
    size = albert_tf.Tokenizer(spm_model_file=str(spm)).vocab_size
    config = goldens.config("base", vocab_size=size)
    folder = tmp_path / "source"
    folder.mkdir()
    albert_tf.AlbertModel(config).save(folder / "model.keras")
    shutil.copy(spm, folder)
    return folder


def test_case_goes_to_hugging_face_and_back(source, tmp_path, caplog):
    convert(str(source), "huggingface", str(tmp_path / "a"), do_lower_case=False)
    (said,) = caplog.messages
    assert said.startswith(f"5 pieces of {source / 'en_small.model'} end in a digit and a comma")
    config = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] is False
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (config["cls_token"], config["mask_token"]) == ("[CLS]", "[MASK]")
    convert(str(tmp_path / "a"), "huggingface", str(tmp_path / "b"))
    again = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert again == config
    assert len(caplog.messages) == 1  # What is copied is Hugging Face's own.


@pytest.mark.parametrize("layout", PLACES)
def test_a_vocabulary_of_kerashub_goes_on(layout, source, tmp_path):
    convert(str(source), "kerashub", str(tmp_path / "hub"))
    convert(str(tmp_path / "hub"), layout, str(tmp_path / "target"))
    name = "spiece.model" if layout in ("tf1", "keras") else PLACES[layout]
    assert vocabulary.find(str(tmp_path / "target")).path == str(tmp_path / "target" / name)


def test_a_vocabulary_of_any_name_is_found_again(tmp_path):
    (tmp_path / "pieces").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    vocabulary.copy(vocabulary.Vocabulary.read(str(tmp_path / "pieces"), True), str(tmp_path))
    assert vocabulary.find(str(tmp_path)).path == str(tmp_path / "vocab.txt")


@pytest.mark.parametrize("do_lower_case", [False, True])
@pytest.mark.parametrize("layout", PLACES)
def test_a_vocabulary_and_its_case_go_along(layout, do_lower_case, source, tmp_path):
    said = convert(str(source), layout, str(tmp_path / "target"), do_lower_case=do_lower_case)
    assert f"; vocabulary: {source / 'en_small.model'}" in said
    found = vocabulary.find(str(tmp_path / "target"))
    assert found.path == str(tmp_path / "target" / PLACES[layout])
    assert files.read_bytes(found.path) == (source / "en_small.model").read_bytes()
    assert found.tokenizer.do_lower_case is do_lower_case
    # KerasHub's own tokenizer doesn't read it.
    assert ("normalised (lower-casing, strip" in said) == (layout == "kerashub" and do_lower_case)
    assert ("stripping of accents, splitting of commas" in said) == (layout == "kerashub")


def test_case_that_is_no_truth_value(source):
    (source / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(ValueError, match="do_lower_case must be true or false, not 'no'"):
        vocabulary.find(str(source))


@pytest.mark.parametrize("layout", PLACES)
def test_accents_that_stay_do_so_everywhere(layout, source, golden, tmp_path):
    """As the tokenizer's config of ai4bharat/indic-bert asks for."""
    config = source / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false, "keep_accents": true}')
    for spm in (None, str(golden / "spm" / "en_small.model")):
        assert vocabulary.find(str(source), spm).form == (False, True)
        assert vocabulary.find(str(source), spm, do_lower_case=True).form == (True, True)
        assert vocabulary.find(str(source), spm, keep_accents=False).form == (False, False)
    said = convert(str(source), layout, str(tmp_path / "there"))
    found = vocabulary.find(str(tmp_path / "there"))
    assert found.form == (False, True) and "stripping of accents" not in said
    assert found.tokenizer.decode(found.tokenizer("caf\u00e9 zu")) == "caf<unk> zu"
    config.write_text('{"do_lower_case": false, "keep_accents": false}')
    assert not vocabulary.find(str(source)).tokenizer.do_lower_case


def test_words_normalised_in_another_way_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    config = tmp_path / "tokenizer_config.json"
    for said, message in (
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents must be null or as"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be true"),
    ):
        config.write_text(json.dumps(said))
        with pytest.raises(ValueError, match=f"{config}: {message}"):
            vocabulary.find(str(tmp_path))
    for said in (
        {"strip_accents": True},
        {"do_lower_case": False, "strip_accents": False},
        {"keep_accents": True},
    ):
        config.write_text(json.dumps({**said, "tokenize_chinese_chars": True}))
        assert vocabulary.find(str(tmp_path)).form == (said.get("do_lower_case", True), False)
    config.write_text('{"strip_accents": false}')
    assert vocabulary.find(str(tmp_path)).form == (True, True)


def test_a_word_piece_vocabulary(golden, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    albert_tf.AlbertModel(goldens.config("base", vocab_size=len(pieces))).save(
        tmp_path / "model.keras"
    )
    convert(str(tmp_path), "huggingface", str(tmp_path / "there"))
    assert (tmp_path / "there" / "vocab.txt").read_text().split() == pieces
    with pytest.raises(ValueError, match="only takes SentencePiece vocabularies, not .*vocab.txt"):
        convert(str(tmp_path), "kerashub", str(tmp_path / "hub"))
    assert not (tmp_path / "hub").exists()


def test_several_vocabularies_are_no_guess(source):
    shutil.copy(source / "en_small.model", source / "other.model")
    with pytest.raises(ValueError, match="several vocabularies .*: name one with `spm_model_file`"):
        convert(str(source), "tf1", str(source / "target"))


def test_a_model_has_one_vocabulary(source):
    with pytest.raises(ValueError, match="`spm_model_file` and `vocab_file` exclude each other"):
        convert(
            str(source), "tf1", str(source / "target"), spm_model_file="a.model", vocab_file="b.txt"
        )
