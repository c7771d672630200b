"""Normalisation and SentencePiece vocabularies of the English releases."""

from __future__ import annotations

import itertools
import unicodedata

import numpy as np
import sentencepiece

from albert_tf.text import word_starts
from albert_tf.text.characters import WITHOUT_COMBINING, to_unicode
from albert_tf.text.word_starts import SPACE_MARK


def preprocess_text(text: str | bytes, lower: bool = True) -> str:
    """Normalises text as ALBERT's SentencePiece models expect it.

    Collapses runs of white space, replaces compatibility characters by their plain form (NFKD),
    strips accents and, last, lower-cases. The order matters: NFKD may bring back spaces.

    Args:
      text: Any text; bytes are read as UTF-8.
      lower: Whether to lower-case.

    Raises:
      ValueError: If `text` is neither str nor bytes.

    Source: tokenization.py, preprocess_text.
    """
    text = " ".join(to_unicode(text).split())
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).translate(WITHOUT_COMBINING)
    return text.lower() if lower else text


class SentencePiece:
    """A SentencePiece model with the release's digit-comma rule; see Tokenizer.

    Args:
      content: Content of the model's file.
      path: Its name, for errors.
      do_lower_case: Whether to lower-case.

    Raises:
      ValueError: If the file is not such a model, or damaged.
    """

    special_pieces = (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("[CLS]",), ("[SEP]",), ("[MASK]",))

    def __init__(self, content: bytes, path: str, do_lower_case: bool):
        self._lower = do_lower_case
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
            self.pieces: list[str] = self._processor.id_to_piece(list(range(len(self._processor))))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged (a piece is not UTF-8): copy it again") from error
        except RuntimeError as error:
            mend = "give a WordPiece vocabulary as `vocab_file` instead"
            if path.endswith(".vocab"):  # SentencePiece's list of pieces, for people.
                mend = f"give {path.removesuffix('.vocab')}.model"
            raise ValueError(f"{path} is not a SentencePiece model: {mend}") from error
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        # Whether the best split always has a boundary before a space.
        self.words_are_apart = not any(SPACE_MARK in piece[1:] for piece in self.pieces)
        # The ids that `encode` puts in place of an id; None: it must look at the text.
        self._split_ids: dict[int, list[int] | None] = {
            i: [self._processor.piece_to_id(token) for token in self._split_comma(piece)]
            for i, piece in enumerate(self.pieces)
            if ends_in_digit_comma(piece)
        }
        if "," not in self.ids:
            self._split_ids[self._processor.unk_id()] = None

    def preprocess(self, text: str | bytes) -> str:
        """Normalises raw text."""
        return preprocess_text(text, self._lower)

    normalize = preprocess

    def tokenize(self, text: str) -> list[str]:
        """Splits normalised text into pieces."""
        tokens = []
        for piece in self._processor.encode(text, out_type=str):
            if ends_in_digit_comma(piece):
                tokens.extend(self._split_comma(piece))
            else:
                tokens.append(piece)
        return tokens

    def encode(self, text: str) -> list[int]:
        """Returns the ids of normalised text."""
        ids = self._processor.encode(text)
        if self._split_ids.keys().isdisjoint(ids):
            return ids
        parts = [self._split_ids.get(i, [i]) for i in ids]
        if None in parts:
            return [self._processor.piece_to_id(token) for token in self.tokenize(text)]
        return [i for part in parts for i in part]

    def encode_places(self, text: str) -> tuple[list[int], list[int]]:
        """See WordPiece."""
        before = [0, *itertools.accumulate(not char.isspace() for char in text)]
        ids, places = [], []
        for found in self._processor.encode(text, out_type="immutable_proto").pieces:
            place = before[found.begin]
            if found.id not in self._split_ids or not ends_in_digit_comma(found.piece):
                ids.append(found.id)
                places.append(place)
                continue
            for part in self._split_comma(found.piece):
                ids.append(self._processor.piece_to_id(part))
                places.append(place)
                place += len(part.replace(SPACE_MARK, ""))
        return ids, places

    def _split_comma(self, piece: str) -> list[str]:
        number = piece[:-1].replace(SPACE_MARK, "")
        return [*self._processor.encode(number, out_type=str), ","]

    def join(self, pieces: list[str]) -> str:
        """Returns the text of pieces."""
        return "".join(pieces).replace(SPACE_MARK, " ").strip()

    def word_starts(self, letters: str) -> np.ndarray:
        """See Tokenizer."""
        return word_starts.find_in_sentencepiece(self.pieces, letters)


def ends_in_digit_comma(piece: str) -> bool:
    """Whether the release splits this SentencePiece piece again without its comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
