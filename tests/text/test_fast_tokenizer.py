"""tokenizer.json: vocabularies read from it and written as it.

tests/peers/test_hugging_face.py compares them with Hugging Face's own tokenizers.
"""

import json
import random

import pytest

from albert_tf.text import fast_tokenizer, vocabulary
from albert_tf.text.sentence_piece import Piece, read_model, without_digit_commas
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tiny
from tests.text.vocabularies import PIECES, their_tokenizer, trained, word_piece, written


@pytest.fixture
def model(golden):
    return (golden / "spm" / "en_small.model").read_bytes()


def assert_same_ids(ours, again) -> None:
    pieces = ours.convert_ids_to_tokens(range(ours.vocab_size))
    assert again.convert_ids_to_tokens(range(again.vocab_size)) == pieces
    assert again.do_lower_case is ours.do_lower_case
    rng = random.Random(2)
    letters = [*map(chr, range(32, 0x3000)), *"etaoin ETAOIN,.-()\"'`$1990éΣ各한 " * 300]
    for text in ["".join(rng.choices(letters, k=40)) for _ in range(400)]:
        assert again.encode(text) == ours.encode(text)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_a_sentence_piece_model(lower, keep, model, golden, tmp_path):
    ours = Tokenizer(golden / "spm" / "en_small.model", None, lower, keep)
    theirs = their_tokenizer(model, lower)
    steps = theirs["normalizer"]["normalizers"]
    steps[2:4] = [] if keep else steps[2:4]
    found = vocabulary.find(written(tmp_path, theirs))
    assert found.form == (lower, keep)
    assert not found.is_word_piece
    assert_same_ids(ours, found.tokenizer)


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


def test_case_is_as_given_or_else_as_a_config_confirms(model, tmp_path):
    path = written(tmp_path, their_tokenizer(model, lower=False))
    tiny.write(tmp_path / "tokenizer_config.json", '{"do_lower_case": true}')
    assert vocabulary.find(path, do_lower_case=True).tokenizer.do_lower_case
    tiny.write(tmp_path / "tokenizer_config.json", '{"do_lower_case": false}')
    assert not vocabulary.find(path).tokenizer.do_lower_case


@pytest.mark.parametrize("form", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("kind", ["release", "unused pieces", "no table", "word pieces"])
def test_what_is_written_is_read_again(kind, form, model, tmp_path):
    is_word_piece = kind == "word pieces"
    if kind == "unused pieces":  # Every second, and any that ends in a digit and a comma.
        changed = read_model(model)
        for piece in changed.pieces[20::2]:
            piece.type = Piece.UNUSED
        model = without_digit_commas(changed.SerializeToString())
    elif kind == "no table":
        model = trained(vocab_size=60, normalization_rule_name="identity")
    elif is_word_piece:
        model = "\n".join([*PIECES, *(c for c in map(chr, range(0x3000)) if c.strip())])
    path = tiny.write(tmp_path / "pieces", model)
    ours = Vocabulary.read(path, is_word_piece, *form).tokenizer
    (tmp_path / "there").mkdir()
    assert fast_tokenizer.write(ours, is_word_piece, str(tmp_path / "there"))
    found = vocabulary.find(str(tmp_path / "there"))
    assert (found.is_word_piece, found.form) == (is_word_piece, form)
    assert_same_ids(ours, found.tokenizer)
    if not is_word_piece:
        # As in transformers: a word's offsets do not include the space before it.
        there = json.loads((tmp_path / "there" / "tokenizer.json").read_text())
        splitters = there["pre_tokenizer"]["pretokenizers"]
        assert [step["type"] for step in splitters] == ["WhitespaceSplit", "Metaspace"]
        # Unused pieces, which SentencePiece never takes, stay unused.
        kinds = [[p.type for p in read_model(t.content).pieces] for t in (ours, found.tokenizer)]
        assert [k == Piece.UNUSED for k in kinds[0]] == [k == Piece.UNUSED for k in kinds[1]]


@pytest.mark.parametrize(
    "options",
    [{"model_type": "bpe"}, {"treat_whitespace_as_suffix": True}, {"add_dummy_prefix": False}],
)
def test_other_models_have_no_fast_tokenizer(options, tmp_path):
    words = Vocabulary.read(tiny.write(tmp_path / "m", trained(vocab_size=50, **options)), False)
    (there := tmp_path / "there").mkdir()
    vocabulary.write_hugging_face(words, str(there), 512)
    config = json.loads((there / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "AlbertTokenizer"
    assert not (there / "tokenizer.json").exists()


@pytest.mark.parametrize(("case", "is_same"), [(None, True), (False, False)])
def test_a_model_of_hugging_face_keeps_its_own(case, is_same, model, tmp_path):
    """Its own files are copied, unless another case than its own was given."""
    folder, there = tmp_path / "theirs", tmp_path / "there"
    tiny.write(folder / "spiece.model", model)
    tiny.write(folder / "tokenizer_config.json", '{"tokenizer_class": "AlbertTokenizer"}')
    words = vocabulary.find(written(folder, their_tokenizer(model)), do_lower_case=case)
    there.mkdir()
    vocabulary.write_hugging_face(words, str(there), 9)
    for name in ("tokenizer_config.json", "tokenizer.json"):
        assert ((there / name).read_bytes() == (folder / name).read_bytes()) is is_same
