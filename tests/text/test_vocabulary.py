"""Vocabularies beside models: found, checked, written; from tokenizer.json."""

import base64
import json
import random
import re
import shutil
import struct

import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.storage import files, protobuf
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


def test_case_goes_to_hugging_face_and_back(source, tmp_path):
    convert(str(source), "huggingface", str(tmp_path / "a"), do_lower_case=False)
    config = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] is False
    assert config["tokenizer_class"] == "AlbertTokenizer"
    assert (config["cls_token"], config["mask_token"]) == ("[CLS]", "[MASK]")
    convert(str(tmp_path / "a"), "huggingface", str(tmp_path / "b"))
    again = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert again == config


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


@pytest.mark.parametrize("lower", [None, False])
def test_accents_that_should_stay_are_refused(lower, source, golden, tmp_path):
    """As the tokenizer's config of ai4bharat/indic-bert asks for."""
    config = source / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false, "keep_accents": true}')
    for spm in (None, str(golden / "spm" / "en_small.model")):
        with pytest.raises(ValueError, match=f"{config}: keep_accents must be false: .* accents"):
            vocabulary.find(str(source), spm, do_lower_case=lower)
    config.write_text('{"do_lower_case": false, "keep_accents": false}')
    assert not vocabulary.find(str(source)).tokenizer.do_lower_case


def test_words_normalised_in_another_way_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    config = tmp_path / "tokenizer_config.json"
    for said, message in (
        ({"strip_accents": False}, "strip_accents must be null or as do_lower_case"),
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
        assert vocabulary.find(str(tmp_path)).tokenizer.do_lower_case is said.get(
            "do_lower_case", True
        )


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


_CONTROL, _USER_DEFINED = 3, 4


def replace(kind: str, old: str, new: str) -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def steps_of(model: bytes, lower: bool) -> list[dict]:
    """Returns the steps of the normalizer that transformers writes."""
    (normalizer,) = (
        dict(protobuf.fields(value)) for number, value in protobuf.fields(model) if number == 3
    )
    return [
        replace("String", "``", '"'),
        replace("String", "''", '"'),
        {"type": "NFKD"},
        {"type": "StripAccents"},
        *([{"type": "Lowercase"}] if lower else []),
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(normalizer[2]).decode()},
        replace("Regex", " {2,}", " "),
    ]


def fast_tokenizer(model: bytes, lower: bool = True) -> dict:
    """Returns the tokenizer.json that transformers' AlbertConverter makes of a SentencePiece model.

    It takes 100 from the score of a piece that ends in a digit and a comma.
    """
    message = list(protobuf.fields(model))
    pieces = [dict(protobuf.fields(value)) for number, value in message if number == 1]
    texts = [piece[1].decode() for piece in pieces]
    scores = [struct.unpack("<f", piece[2].to_bytes(4, "little"))[0] for piece in pieces]
    kinds = [piece.get(3, 1) for piece in pieces]
    added = [
        {"id": i, "content": text, "special": kind != _USER_DEFINED}
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind != 1
    ]
    rows = zip(texts, scores, strict=True)
    vocab = [[text, score - 100 * bool(re.search(r"\d,$", text))] for text, score in rows]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps_of(model, lower)},
        "model": {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": False},
    }


def written(directory, tokenizer: dict) -> str:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(directory)


@pytest.fixture
def model(golden):
    return (golden / "spm" / "en_small.model").read_bytes()


@pytest.fixture
def fast(model):
    return fast_tokenizer(model)


@pytest.mark.parametrize("lower", [True, False])
def test_a_sentence_piece_model(lower, model, golden, tmp_path):
    ours = albert_tf.Tokenizer(golden / "spm" / "en_small.model", do_lower_case=lower)
    found = vocabulary.find(written(tmp_path, fast_tokenizer(model, lower)))
    assert not found.is_word_piece
    assert found.tokenizer.do_lower_case is lower
    pieces = ours.convert_ids_to_tokens(range(ours.vocab_size))
    assert found.tokenizer.convert_ids_to_tokens(range(ours.vocab_size)) == pieces
    rng = random.Random(1)
    letters = [chr(rng.randrange(32, 0x3000)) for _ in range(300)]
    letters += list("etaoin ETAOIN ,.()$1990é") * 60
    for _ in range(3000):
        text = "".join(rng.choices(letters, k=40))
        assert found.tokenizer.encode(text) == ours.encode(text)


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "a", "##b", "中", "A"]
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def word_piece(**normalizer) -> dict:
    """Returns the tokenizer.json that transformers makes of a WordPiece vocabulary."""
    model = {"type": "WordPiece", "continuing_subword_prefix": "##"}
    vocab = {piece: i for i, piece in reversed(list(enumerate(PIECES)))}
    return {"model": {**model, "vocab": vocab}, "normalizer": {**BERT, **normalizer}}


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strips", [False, True])
def test_a_fast_tokenizer_of_word_pieces(lower, strips, tmp_path):
    tokenizer = word_piece(lowercase=lower, strip_accents=lower if strips else None)
    found = vocabulary.find(written(tmp_path, tokenizer))
    assert found.is_word_piece
    assert found.tokenizer.convert_ids_to_tokens(range(10)) == PIECES
    assert found.tokenizer.encode("ab 中 b A") == [6, 7, 8, 5, 6 if lower else 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lowercase": False, "strip_accents": True}, "strip_accents differs from lowercase"),
        ({"strip_accents": False}, "strip_accents differs from lowercase"),
        ({"handle_chinese_chars": False}, "lacks clean_text or handle_chinese_chars"),
        ({"clean_text": False}, "lacks clean_text or handle_chinese_chars"),
        ({"lowercase": None}, "not a BertNormalizer"),
        ({"type": "Lowercase"}, "not a BertNormalizer"),
    ],
)
def test_a_fast_tokenizer_that_normalises_in_another_way_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=f"tokenizer.json can't be used .*{message}"):
        vocabulary.find(written(tmp_path, word_piece(**change)))


def test_other_steps_are_refused(model, fast, tmp_path):
    steps = steps_of(model, True)
    missing = [
        [s for s in steps if s["type"] != t] for t in ("NFKD", "StripAccents", "Precompiled")
    ]
    further = [[s, *steps] for s in ({"type": "NFC"}, replace("String", "a", "b"), 3)]
    for changed in missing + further:
        fast["normalizer"]["normalizers"] = changed
        with pytest.raises(ValueError, match="its normalizer is not NFKD, StripAccents, Lowercase"):
            vocabulary.find(written(tmp_path, fast))
    for table, message in (("?", "damaged"), (None, "no precompiled")):
        steps[-2]["precompiled_charsmap"] = table
        fast["normalizer"]["normalizers"] = steps
        with pytest.raises(ValueError, match=message):
            vocabulary.find(written(tmp_path, fast))


def test_a_config_that_contradicts_it_is_refused(model, tmp_path):
    path = written(tmp_path, fast_tokenizer(model, lower=False))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ValueError, match="differ in lower-casing: set `do_lower_case`"):
        vocabulary.find(path)
    assert vocabulary.find(path, do_lower_case=True).tokenizer.do_lower_case
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not vocabulary.find(path).tokenizer.do_lower_case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": None}, "its normalizer is not NFKD"),
        ({"normalizer": {"type": "Sequence", "normalizers": 3}}, "its normalizer is not NFKD"),
        ({"model": {"type": "BPE"}}, "neither WordPiece nor Unigram"),
        ({"model": {"type": "Unigram", "vocab": [["a", float("nan")]]}}, "no scores"),
        ({"model": {"type": "Unigram", "vocab": [["a", -1e300]]}}, "no scores"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 1}}}, "not consecutive from 0"),
        (
            {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
            "continuing_subword_prefix is not ##",
        ),
    ],
)
def test_what_would_not_be_exact_is_refused(change, message, fast, tmp_path):
    with pytest.raises(ValueError, match=f"tokenizer.json can't be used .*{message}"):
        vocabulary.find(written(tmp_path, {**fast, **change}))
