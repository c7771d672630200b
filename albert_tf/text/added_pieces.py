"""Adds pieces to a SentencePiece model without changing what it does to texts without them."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import sentencepiece

from albert_tf import wire
from albert_tf.text import sentence_piece_file as file_format
from albert_tf.text.sentence_piece import ends_in_digit_comma
from albert_tf.text.sentence_piece_file import Piece
from albert_tf.text.word_starts import SPACE_MARK

# A new piece of n characters is better than its best split by n * n times this. The square of a sum
# is more than the sum of squares: so the piece is better than any split of it into new pieces, too.
_MARGIN = 0.01
# No initial space, none removed, no character replaced: a piece is split as it stands.
_AS_IT_STANDS = wire.field(
    file_format.NORMALIZER, wire.field(2, b"") + wire.field(3, 0) + wire.field(4, 0)
)


class ExtensibleModel:
    """A Unigram SentencePiece model to which pieces can be added, after its own.

    SentencePiece chooses the split with the highest sum of scores. What it gives an unknown
    character depends on the lowest score of all pieces, and what it gives a user-defined piece on
    the highest: new scores lie between the two, so a text that contains no new piece keeps its
    split.

    Args:
      content: Content of the model's file, which Tokenizer has accepted.
      path: Its name, for errors.

    Raises:
      ValueError: If the model is of another type.
    """

    def __init__(self, content: bytes, path: str) -> None:
        # Samples of splits, which SentencePiece compares with its own, need not be the new model's.
        self._content = b"".join(
            wire.field(number, value)
            for number, value in wire.fields(content)
            if number != file_format.SELF_TEST
        )
        self._pieces = file_format.read_pieces(content)
        kinds = {piece.kind for piece in self._pieces}
        is_unigram = file_format.model_type(content) == file_format.UNIGRAM
        if not is_unigram or file_format.BYTE in kinds:
            raise ValueError(
                f"{path} is not a Unigram model without byte fallback: pieces can only be added to "
                "a model like the release's, as `albert-train-sentencepiece` makes it"
            )
        self._known = {piece.text for piece in self._pieces}
        self._fixed = [p.text for p in self._pieces if p.kind == file_format.USER_DEFINED]
        scores = [piece.score for piece in self._pieces if piece.kind == file_format.NORMAL]
        self._lowest, self._highest = min(scores), max(scores)
        self._splitter = _load(self._content + _AS_IT_STANDS)

    def __len__(self) -> int:
        return len(self._pieces)

    def replaced(self, piece: str) -> list[int]:
        """Returns the ids of the pieces that a new piece replaces: its split by this model."""
        return self._splitter.encode(piece)

    def score(self, piece: str) -> float:
        """Returns the score that a new piece gets."""
        ids = self.replaced(piece)
        if self._splitter.unk_id() in ids:
            return self._lowest
        split = sum(self._pieces[i].score for i in ids)
        return max(self._lowest, split + _MARGIN * len(piece) ** 2)

    def accepts(self, piece: Piece) -> bool:
        """Returns whether a piece of another model can be added."""
        text = piece.text
        return (
            piece.kind == file_format.NORMAL
            and text not in self._known
            # Between words, and before a number's comma, texts are always split.
            and SPACE_MARK not in text[1:]
            and not ends_in_digit_comma(text)
            and not any(fixed in text for fixed in self._fixed)
            and self.score(text) <= self._highest
        )

    def add(self, pieces: Sequence[str]) -> bytes:
        """Returns the content of the model's file with these pieces after its own."""
        size = wire.field(file_format.VOCAB_SIZE, len(self) + len(pieces))
        added = [Piece(piece, self.score(piece)).encode() for piece in pieces]
        # In a protocol buffer a later value of a field replaces an earlier one.
        return b"".join([self._content, *added, wire.field(file_format.TRAINER, size)])

    def choose(self, candidates: bytes, texts: Iterable[str], count: int) -> list[str]:
        """Chooses the pieces that shorten texts most.

        Args:
          candidates: Content of another model's file, whose pieces are considered.
          texts: Normalised texts.
          count: How many pieces to choose.

        Returns:
          At most `count` pieces, the most useful first: by the ids that they save, where an
          unknown piece counts as one more.
        """
        found = [p.text for p in file_format.read_pieces(candidates) if self.accepts(p)]
        processor = _load(self.add(found))
        uses: collections.Counter[int] = collections.Counter()
        for text in texts:
            uses.update(processor.encode(text))
        saved = {}
        for i, piece in enumerate(found, start=len(self)):
            ids = self.replaced(piece)
            each = len(ids) - 1 + ids.count(self._splitter.unk_id())
            if uses[i] and each:
                saved[piece] = uses[i] * each
        return sorted(saved, key=lambda piece: (-saved[piece], piece))[:count]


def _load(content: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=content)
