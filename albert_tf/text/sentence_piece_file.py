"""The file of a SentencePiece model: a protocol buffer, read and written without its classes.

Source: sentencepiece_model.proto.
"""

from __future__ import annotations

import dataclasses
import struct

from albert_tf import wire

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
# Fields of the file, and the trainer's model_type and vocab_size.
PIECES, TRAINER, NORMALIZER, SELF_TEST = 1, 2, 3, 4
MODEL_TYPE, VOCAB_SIZE = 3, 4
UNIGRAM = 1
_FLOAT = struct.Struct("<f")


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a model.

    Attributes:
      text: Its text; a space is SPACE_MARK.
      score: Its log probability.
      kind: What it is for, such as NORMAL.
    """

    text: str
    score: float
    kind: int = NORMAL

    def encode(self) -> bytes:
        """Returns it as a field of the file."""
        score = b"\x15" + _FLOAT.pack(self.score)
        return wire.field(
            PIECES, wire.field(1, self.text.encode()) + score + wire.field(3, self.kind)
        )


def read_pieces(content: bytes) -> list[Piece]:
    """Returns the pieces of a file that sentencepiece has loaded, by id."""
    found = []
    for number, value in wire.fields(content):
        if number == PIECES:
            piece = dict(wire.fields(value))
            (score,) = _FLOAT.unpack(piece.get(2, 0).to_bytes(4, "little"))
            found.append(Piece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
    return found


def model_type(content: bytes) -> int:
    """Returns the type of model of a file that sentencepiece has loaded."""
    trainers = [value for number, value in wire.fields(content) if number == TRAINER]
    return dict(wire.fields(b"".join(trainers))).get(MODEL_TYPE, UNIGRAM)
