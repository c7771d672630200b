"""The WordPiece vocabularies of the Chinese releases."""

from __future__ import annotations

import unicodedata

import numpy as np

from albert_tf.text.characters import (
    CLEANED,
    SPLIT_PUNCTUATION,
    WITHOUT_MARKS,
    origins,
    to_unicode,
)
from albert_tf.text.word_starts import CONTINUATION_MARK

# Longer words become [UNK].
MAX_WORD_CHARS = 200
UNKNOWN = "[UNK]"
# Twice as many as the largest vocabularies have.
_MOST_PIECES = 1_000_000


class WordPiece:
    """A WordPiece vocabulary, given by its file's content, with BERT's splitting into words.

    Tokenizer describes the arguments; `path` is for errors.
    """

    special_pieces = (("[PAD]",), (UNKNOWN,), ("[CLS]",), ("[SEP]",), ("[MASK]",))
    words_are_apart = True
    ids_of, one_segment = "release", False

    def __init__(self, content: bytes, path: str, do_lower_case: bool, keep_accents: bool):
        self._lower, self._strips = do_lower_case, do_lower_case and not keep_accents
        if (count := content.count(b"\n")) > _MOST_PIECES:
            raise ValueError(f"{path} has {count:,} pieces, more than {_MOST_PIECES:,}")
        try:
            lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text: give a SentencePiece model as `spm_model_file` instead"
            ) from error
        # The first column of each line; a repeated piece gets no second id.
        self.pieces = list(dict.fromkeys((line.split() or [" "])[0] for line in lines))
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}

    preprocess = staticmethod(to_unicode)

    def tokenize(self, text: str) -> list[str]:
        """Splits raw text into pieces."""
        return self._split(self.normalize(text))

    def normalize(self, text: str) -> str:
        """Prepares raw text for `encode`: everything that is done before words are split."""
        text = text.translate(CLEANED)
        text = text.lower() if self._lower else text
        if self._strips:
            text = unicodedata.normalize("NFD", text).translate(WITHOUT_MARKS)
        return text

    def encode(self, text: str) -> list[int]:
        """Returns the ids of normalised text."""
        return [self.ids[token] for token in self._split(text)]

    def origins(self, text: str) -> np.ndarray:
        """Returns, for each character of normalised text, the index of its origin in raw text."""
        return origins(text, self.normalize)

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of normalised text, and where each one begins and ends in it."""
        ids, spans, begin = [], [], 0
        for word in text.translate(SPLIT_PUNCTUATION).split():
            # Between two words there are only spaces, or nothing where the splitting put one.
            place = begin = text.index(word, begin)
            for piece in self._split_word(word):
                marked = len(CONTINUATION_MARK) if place > begin else 0
                end = place + (len(word) if piece == UNKNOWN else len(piece) - marked)
                ids.append(self.ids[piece])
                spans.append((place, end))
                place = end
            begin = place
        return ids, spans

    def _split(self, text: str) -> list[str]:
        words = text.translate(SPLIT_PUNCTUATION).split()
        return [piece for word in words for piece in self._split_word(word)]

    def _split_word(self, word: str) -> list[str]:
        """Takes the longest matching piece from the left, repeatedly; [UNK] if there is none."""
        pieces = []
        start = 0
        while start < len(word) <= MAX_WORD_CHARS:
            mark = CONTINUATION_MARK if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.ids), None)
            if end is None:
                break
            pieces.append(mark + word[start:end])
            start = end
        return pieces if start == len(word) else [UNKNOWN]

    def join(self, pieces: list[str]) -> str:
        """Returns the text of pieces, with a space between words."""
        return " ".join(pieces).replace(f" {CONTINUATION_MARK}", "")

    def word_starts(self, letters: str) -> np.ndarray:
        """See Tokenizer."""
        return np.array([not p.startswith(CONTINUATION_MARK) for p in self.pieces], dtype=bool)
