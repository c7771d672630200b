"""tokenizer.json: vocabularies read from it and written as it.

Can't see: what Hugging Face's own tokenizers make of it; tests/peers/test_hugging_face.py does.
"""

import base64
import json
import random
import re
import struct

import pytest

import albert_tf
from albert_tf.storage import protobuf
from albert_tf.text import fast_tokenizer, vocabulary
from albert_tf.text.sentence_piece import PIECES as PIECES_FIELD
from albert_tf.text.sentence_piece import UNUSED, read_pieces, without_digit_commas
from albert_tf.text.vocabulary import Vocabulary
from tests.text.test_added_pieces import trained

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


def their_tokenizer(model: bytes, lower: bool = True) -> dict:
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
    return their_tokenizer(model)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_a_sentence_piece_model(lower, keep, model, golden, tmp_path):
    ours = albert_tf.Tokenizer(golden / "spm" / "en_small.model", None, lower, keep)
    theirs = their_tokenizer(model, lower)
    steps = theirs["normalizer"]["normalizers"]
    steps[2:4] = [] if keep else steps[2:4]
    found = vocabulary.find(written(tmp_path, theirs))
    assert found.form == (lower, keep)
    assert not found.is_word_piece
    assert_same_ids(ours, found.tokenizer)


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
    tokenizer["normalizer"]["strip_accents"] = False
    assert vocabulary.find(written(tmp_path, tokenizer)).form == (lower, lower)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lowercase": False, "strip_accents": True}, "strips accents without lowercase"),
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
    missing = [[s for s in steps if s["type"] != kind] for kind in ("NFKD", "StripAccents")]
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
    path = written(tmp_path, their_tokenizer(model, lower=False))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ValueError, match="differ in lower-casing or accents: set `do_low"):
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


IDENTITY = {"normalization_rule_name": "identity"}


def assert_same_ids(ours, again) -> None:
    pieces = ours.convert_ids_to_tokens(range(ours.vocab_size))
    assert again.convert_ids_to_tokens(range(again.vocab_size)) == pieces
    assert again.do_lower_case is ours.do_lower_case
    rng = random.Random(2)
    letters = [*map(chr, range(32, 0x3000)), *"etaoin ETAOIN,.-()\"'`$1990éΣ各한 " * 300]
    for text in ["".join(rng.choices(letters, k=40)) for _ in range(1000)]:
        assert again.encode(text) == ours.encode(text)


@pytest.mark.parametrize("form", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("kind", ["release", "unused pieces", "no table", "word pieces"])
def test_what_is_written_is_read_again(kind, form, golden, tmp_path):
    path, is_word_piece = golden / "spm" / "en_small.model", kind == "word pieces"
    if kind == "unused pieces":  # Digit-comma ones and every second other.
        fields = [*protobuf.fields(path.read_bytes())]
        for i in range(20, len(fields), 2):
            if fields[i][0] == PIECES_FIELD:
                fields[i] = (PIECES_FIELD, fields[i][1] + protobuf.field(3, UNUSED))
        path = tmp_path / "unused.model"
        path.write_bytes(without_digit_commas(b"".join(protobuf.field(*f) for f in fields)))
    elif kind == "no table":
        path = tmp_path / "identity.model"
        symbols = ["[CLS]", "[SEP]", "[MASK]", "<pad>"]
        path.write_bytes(trained(vocab_size=60, control_symbols=symbols, **IDENTITY))
    elif is_word_piece:
        path = tmp_path / "pieces"
        chars = [char for char in map(chr, range(0x3000)) if char.strip()]
        path.write_text("\n".join([*PIECES, *chars]))
    ours = Vocabulary.read(str(path), is_word_piece, *form).tokenizer
    (tmp_path / "there").mkdir()
    assert fast_tokenizer.write(ours, is_word_piece, str(tmp_path / "there"))
    found = vocabulary.find(str(tmp_path / "there"))
    assert (found.is_word_piece, found.form) == (is_word_piece, form)
    assert_same_ids(ours, found.tokenizer)
    if not is_word_piece:
        # As in transformers: no word's offsets begin at the space before it.
        there = json.loads((tmp_path / "there" / "tokenizer.json").read_text())
        splitters = there["pre_tokenizer"]["pretokenizers"]
        assert [step["type"] for step in splitters] == ["WhitespaceSplit", "Metaspace"]
        # Pieces that SentencePiece never takes stay so.
        kinds = [[p.kind for p in read_pieces(t.content)] for t in (ours, found.tokenizer)]
        assert [kind == UNUSED for kind in kinds[0]] == [kind == UNUSED for kind in kinds[1]]


@pytest.mark.parametrize(
    "options",
    [{"model_type": "bpe"}, {"treat_whitespace_as_suffix": True}, {"add_dummy_prefix": False}],
)
def test_other_models_have_no_fast_tokenizer(options, tmp_path):
    path = tmp_path / "spm.model"
    symbols = ["[CLS]", "[SEP]", "[MASK]", "<pad>"]
    path.write_bytes(trained(vocab_size=50, control_symbols=symbols, **options))
    words = Vocabulary.read(str(path), False)
    (tmp_path / "there").mkdir()
    vocabulary.write_hugging_face(words, str(tmp_path / "there"), 512)
    config = json.loads((tmp_path / "there" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "AlbertTokenizer"
    assert not (tmp_path / "there" / "tokenizer.json").exists()


def test_a_model_of_hugging_face_keeps_its_own(model, tmp_path):
    """But not where another case than its own was given."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "spiece.model").write_bytes(model)
    for name, value in (
        ("tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"}),
        ("tokenizer.json", their_tokenizer(model)),
    ):
        (folder / name).write_text(json.dumps(value))
    for case, is_same in ((None, True), (False, False)):
        there = tmp_path / f"there {case}"
        there.mkdir()
        vocabulary.write_hugging_face(
            vocabulary.find(str(folder), do_lower_case=case), str(there), 9
        )
        for name in ("tokenizer_config.json", "tokenizer.json"):
            assert ((there / name).read_bytes() == (folder / name).read_bytes()) is is_same
