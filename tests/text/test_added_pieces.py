"""Pieces added to a SentencePiece model: preferred where they fit, and unseen elsewhere."""

import pytest
import sentencepiece

from albert_tf.text.sentence_piece import ExtensibleModel, Piece, is_unigram, read_model
from albert_tf.text.tokenization import Tokenizer
from tests.kit import tiny
from tests.text.vocabularies import trained

# "myocardial" contains "cardial"; the letters of "qzjx" are rare, so its split has a lower score
# than any piece; the small model knows neither "µ" nor Greek letters.
NEW = ["▁myocardial", "cardial", "▁qzjxqzjxvvq", "βλ", "▁harbour", "ographic"]


@pytest.fixture(scope="module")
def content(golden):
    return (golden / "spm/en_small.model").read_bytes()


@pytest.fixture(scope="module")
def model(content):
    return ExtensibleModel(content, "spm.model")


@pytest.fixture(scope="module")
def tokenizers(tokenizer, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("extended") / "spm.model"
    return tokenizer, Tokenizer(tiny.write(path, model.add(NEW)))


def test_pieces_are_read_as_sentencepiece_does(content):
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = read_model(content).pieces
    ids = range(len(processor))
    assert [piece.piece for piece in pieces] == [processor.id_to_piece(i) for i in ids]
    assert [piece.score for piece in pieces] == [processor.get_score(i) for i in ids]
    control = [piece.type == Piece.CONTROL for piece in pieces]
    assert control == [processor.is_control(i) for i in ids]


def test_old_pieces_keep_their_ids_and_new_ones_follow(tokenizers):
    old, new = tokenizers
    ids = range(old.vocab_size)
    assert new.convert_ids_to_tokens(ids) == old.convert_ids_to_tokens(ids)
    assert new.convert_tokens_to_ids(NEW) == list(range(old.vocab_size, new.vocab_size))
    assert len(NEW) == new.vocab_size - old.vocab_size


def test_text_changes_only_where_a_new_piece_is(tokenizers, golden):
    """A line (of 4,592) whose split changed has a new piece in it, and fewer pieces."""
    old, new = tokenizers
    lines = (golden / "pretrain_data/text.txt").read_text(encoding="utf-8").splitlines()
    odd = ["日本 (1990, $5) – ℵ", "λβ é ★", "[MASK] <pad> q z j x", "a" * 3000, ""]
    lines += [*(f"{line} the harbour" for line in lines[:50]), *odd]
    changed = [line for line in lines if new.encode(line) != old.encode(line)]
    assert 50 <= len(changed) < len(lines) / 2
    for line in changed:
        assert max(new.encode(line)) >= old.vocab_size
        assert len(new.encode(line)) < len(old.encode(line))
        assert "harbour" in old.preprocess(line) or "ographic" in old.preprocess(line)


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("Myocardial", ["▁myocardial"]),
        ("the myocardial ship", ["▁the", "▁myocardial", "▁ship"]),
        ("qzjxqzjxvvq", ["▁qzjxqzjxvvq"]),
        # An unknown piece keeps its text; [UNK] is its id.
        ("aβλa", ["▁a", "βλ", "a"]),
        ("the harbour, 1990,", ["▁the", "▁harbour", ",", "▁1990", ","]),
    ],
)
def test_a_whole_piece_is_preferred(tokenizers, text, pieces):
    old, new = tokenizers
    assert new.tokenize(new.preprocess(text)) == pieces
    assert len(new.encode(text)) < len(old.encode(text)) or "β" in text


def test_scores_lie_among_those_that_were(model, content):
    """Scores beyond them would change how unknown and user-defined pieces count."""
    old = read_model(content).pieces
    scores = [piece.score for piece in old if piece.type == Piece.NORMAL]
    added = {p.piece: p.score for p in read_model(model.add([*NEW, "inging"])).pieces}
    # Better than its split, "ing" twice, but not by much.
    split = sum(old[i].score for i in model.replaced("inging"))
    assert split < added["inging"] < split + 0.5
    assert min(scores) < added["inging"] < max(scores)
    assert all(added[piece] == min(scores) for piece in NEW)


def test_what_a_piece_replaces(model, tokenizer):
    assert model.replaced("▁harbour") == tokenizer.encode("harbour")
    # Not at the start of a word.
    split = tokenizer.convert_ids_to_tokens(model.replaced("ographic"))
    assert "".join(split) == "ographic" and len(split) > 1
    assert model.replaced("βλ") == [tokenizer.unk_id]


@pytest.mark.parametrize(
    "piece, accepted",
    [
        (Piece(piece="▁myocardial", score=-9.0), True),
        (Piece(piece="▁myocardial", score=0.0, type=Piece.CONTROL), False),
        (Piece(piece="▁the", score=-3.0), False),
        (Piece(piece="▁of▁the", score=-3.0), False),
        (Piece(piece="▁1990,", score=-9.0), False),
        (Piece(piece="▁x-ray", score=-9.0), False),
    ],
)
def test_candidates(model, piece, accepted):
    assert model.accepts(piece) == accepted


def test_the_pieces_chosen_are_those_that_save_most(model):
    pieces = ["▁harbour", "▁myocardial", "βλ", "▁unused"]
    saved = [len(model.replaced(piece)) - 1 for piece in pieces[:2]]
    texts = ["the harbour"] * 2 + ["myocardial"] * (3 * max(saved)) + ["aβλ"]
    candidates = model.add(pieces)
    assert model.choose(candidates, texts, 9) == ["▁myocardial", "▁harbour", "βλ"]
    assert model.choose(candidates, texts, 1) == ["▁myocardial"]


def test_a_model_that_tests_itself_is_extended():
    content = trained(vocab_size=40, self_test_sample_size=20)
    model = ExtensibleModel(content, "spm.model")
    extended = sentencepiece.SentencePieceProcessor(model_proto=model.add(["▁harbour", "▁theship"]))
    assert extended.encode("the harbour")[-1] == len(model)
    assert is_unigram(read_model(content))
