"""SentencePiece with the release's rules; reading its model files, and adding pieces to a model."""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from albert_tf.text.characters import WITHOUT_COMBINING, origins, to_unicode
from albert_tf.text.word_starts import SPACE_MARK, find_in_sentencepiece

# A model's file, and a piece in it with `piece` (its text), `score` (its log probability), `type`.
ModelProto = sentencepiece_model_pb2.ModelProto
Piece = ModelProto.SentencePiece
# A tokenizer has the release's ids, or those of a Hugging Face folder.
RELEASE, FOLDER = "release", "folder"
# Names of the character tables that text/folder_ids.py makes, by their tokenizer.json: that of
# transformers 4 splits white space at the end of a text off as a piece; that of version 5 does not,
# and gives both texts of a pair segment 0; the third splits like the second, with two segments.
RULES = ("transformers 4", "transformers 5", "transformers 5 with segments")
# No text has this code point. After a text, it keeps SentencePiece from dropping white space.
END = "\uffff"


def read_model(content: bytes) -> Any:
    """Returns the ModelProto of a file that sentencepiece has loaded; pieces are in id order."""
    return ModelProto.FromString(content)


def is_unigram(model: Any) -> bool:
    """Whether a ModelProto is of the release's type of model."""
    return model.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM


def spaces_end_words(model: Any) -> bool:
    """Whether a ModelProto has spaces at the end of pieces."""
    return model.trainer_spec.treat_whitespace_as_suffix


def preprocess_text(text: str | bytes, lower: bool = True, keep_accents: bool = False) -> str:
    """Normalises text as ALBERT's SentencePiece models expect it.

    Collapses runs of white space, replaces compatibility characters by their plain form (NFKD),
    strips accents and, last, lower-cases. The order matters: NFKD may bring back spaces. With
    `keep_accents`, both are left to the model's own table of characters, as in Hugging Face's
    tokenizer.

    Source: tokenization.py, preprocess_text.
    """
    return _replaced(" ".join(to_unicode(text).split()), lower, keep_accents)


def _replaced(text: str, lower: bool, keep_accents: bool) -> str:
    """Does the part of preprocess_text that replaces single characters."""
    if not (keep_accents or text.isascii()):
        text = unicodedata.normalize("NFKD", text).translate(WITHOUT_COMBINING)
    return text.lower() if lower else text


def ends_in_digit_comma(piece: str) -> bool:
    """Whether the release splits this SentencePiece piece again without its comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def rules_of(model: Any) -> str:
    """Returns which of RULES a ModelProto follows; "" stands for the release's."""
    name = model.normalizer_spec.name
    return name if name in RULES else ""


def without_digit_commas(content: bytes) -> bytes:
    """Marks the pieces that the release splits again as unused, so that SentencePiece avoids them.

    The pieces keep their ids. Programs without the release's rule then split text as it does.
    """
    model = read_model(content)
    for piece in model.pieces:
        if ends_in_digit_comma(piece.piece):
            piece.type = Piece.UNUSED
    return model.SerializeToString()


def pieces_split_again(content: bytes) -> list[str]:
    """Returns the pieces within a word that SentencePiece uses and the release splits again."""
    normal = (each.piece for each in read_model(content).pieces if each.type == Piece.NORMAL)
    return [text for text in normal if ends_in_digit_comma(text) and text[0] != SPACE_MARK]


class SentencePiece:
    """A SentencePiece model, given by its file's content, with the release's digit-comma rule.

    Tokenizer describes the arguments; `path` is for errors.
    """

    ids_of = RELEASE
    special_pieces = (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("[CLS]",), ("[SEP]",), ("[MASK]",))

    def __init__(self, content: bytes, path: str, do_lower_case: bool, keep_accents: bool):
        self._form = do_lower_case, keep_accents
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
            self.pieces: list[str] = self._processor.id_to_piece(list(range(len(self._processor))))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged (a piece is not UTF-8): copy it again") from error
        except RuntimeError as error:
            raise ValueError(
                f"{path} is not a SentencePiece model: give a WordPiece vocabulary as `vocab_file`"
            ) from error
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        # Byte-fallback pieces, <0x00> to <0xFF>, spell characters that have no piece.
        bytes_of = filter(self._processor.is_byte, range(len(self.pieces)))
        self._bytes = {self.pieces[i]: int(self.pieces[i][3:5], 16) for i in bytes_of}
        model = read_model(content)
        self._path, self._spaces_end_words = path, spaces_end_words(model)
        self.rules = rules_of(model)
        # Whether both texts of a pair have segment 0, and what is appended to a text to split.
        self.one_segment = self.rules == RULES[1]
        self._end = END if self.rules == RULES[0] else ""
        # Whether the best split always has a boundary before a space.
        self.words_are_apart = not any(SPACE_MARK in piece[1:] for piece in self.pieces)
        # The ids that `encode` puts in place of an id; None means that it must look at the text.
        self._split_ids: dict[int, list[int] | None] = {
            i: [self._processor.piece_to_id(token) for token in self._split_comma(piece)]
            for i, piece in enumerate(self.pieces)
            if ends_in_digit_comma(piece)
        }
        if "," not in self.ids:
            self._split_ids[self._processor.unk_id()] = None

    def normalize(self, text: str | bytes) -> str:
        """Normalises raw text."""
        return preprocess_text(text, *self._form)

    preprocess = normalize

    def origins(self, text: str) -> np.ndarray:
        """Returns, for each character of normalised text, the index of its origin in raw text."""
        is_space = np.array([char.isspace() for char in text], bool)
        # White space between two words is reduced to its first character.
        kept = ~is_space
        kept[1:] |= is_space[1:] & ~is_space[:-1]
        kept[len(text.rstrip()) :] = False
        found = origins(" ".join(text.split()), lambda char: _replaced(char, *self._form))
        return np.flatnonzero(kept)[found]

    def tokenize(self, text: str) -> list[str]:
        """Splits normalised text into pieces."""
        tokens: list[str] = []
        for piece in self._processor.encode(text, out_type=str):
            tokens += self._split_comma(piece) if ends_in_digit_comma(piece) else [piece]
        return tokens

    def encode(self, text: str) -> list[int]:
        """Returns the ids of normalised text."""
        ids = self._processor.encode(text)
        # Most texts have no piece that is split again, and in most others its parts' ids are known.
        if self._split_ids.keys().isdisjoint(ids):
            return ids
        parts = [self._split_ids.get(i, [i]) for i in ids]
        if None in parts:
            return [self._processor.piece_to_id(token) for token in self.tokenize(text)]
        return [i for part in parts for i in part]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See WordPiece."""
        ids, spans = [], []
        for found in self._processor.encode(text, out_type="immutable_proto").pieces:
            if found.id not in self._split_ids or not ends_in_digit_comma(found.piece):
                ids.append(found.id)
                spans.append((found.begin, found.end))
                continue
            # Split a number from its comma: each part ends where the characters after it begin.
            parts, begin = self._split_comma(found.piece), found.begin
            following = sum(len(part.replace(SPACE_MARK, "")) for part in parts)
            for part in parts:
                following -= len(part.replace(SPACE_MARK, ""))
                ids.append(self._processor.piece_to_id(part))
                spans.append((begin, found.end - following))
                begin = found.end - following
        return ids, spans

    def _split_comma(self, piece: str) -> list[str]:
        number = piece[:-1].replace(SPACE_MARK, "")
        return [*self._processor.encode(number, out_type=str), ","]

    def join(self, pieces: list[str]) -> str:
        """Returns the text of pieces."""
        parts = (bytes([self._bytes[p]]) if p in self._bytes else p.encode() for p in pieces)
        return b"".join(parts).decode(errors="replace").replace(SPACE_MARK, " ").strip()

    def word_starts(self, letters: str) -> np.ndarray:
        """See Tokenizer."""
        if self._spaces_end_words:
            raise ValueError(
                f"{self._path} ends words with a space (treat_whitespace_as_suffix), so that no "
                "piece tells whether it starts a word: give a model that begins words with it"
            )
        starts = find_in_sentencepiece(self.pieces, letters)
        # Only the first byte of a character may start a word.
        starts[[self.ids[p] for p, byte in self._bytes.items() if 0x80 <= byte < 0xC0]] = False
        return starts


class FolderPiece(SentencePiece):
    """A SentencePiece model that text/folder_ids.py made of a tokenizer.json.

    The model itself normalises the raw text between two added tokens. That text is never empty.
    """

    ids_of = FOLDER

    def normalize(self, text: str | bytes) -> str:
        return to_unicode(text)

    preprocess = normalize

    def origins(self, text: str) -> np.ndarray:
        return np.arange(len(text))

    def tokenize(self, text: str) -> list[str]:
        pieces = self._processor.encode(text + self._end, out_type=str)
        return pieces[: len(pieces) - len(self._end)]

    def encode(self, text: str) -> list[int]:
        ids = self._processor.encode(text + self._end)
        return ids[: len(ids) - len(self._end)]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # The pieces exist only as long as the object that holds them.
        split = self._processor.encode(text + self._end, out_type="immutable_proto")
        found = [*split.pieces][: len(split.pieces) - len(self._end)]
        # All pieces made of one character span it; a space that is not in the text spans nothing.
        widths = [piece.piece != SPACE_MARK for piece in found]
        spans = [(p.begin, max(p.end, p.begin + n)) for p, n in zip(found, widths, strict=True)]
        return [piece.id for piece in found], spans


def load(content: bytes, path: str, do_lower_case: bool, keep_accents: bool) -> SentencePiece:
    """Returns the SentencePiece, or FolderPiece, of a model's content; see SentencePiece."""
    found = SentencePiece(content, path, do_lower_case, keep_accents)
    return FolderPiece(content, path, do_lower_case, keep_accents) if found.rules else found


# A new piece of n characters scores n * n times this more than its best split. The square of a sum
# exceeds the sum of squares, so the piece scores more than any split of it into new pieces, too.
_MARGIN = 0.01


class ExtensibleModel:
    """A Unigram SentencePiece model to which pieces can be added, after its own.

    SentencePiece chooses the split with the highest sum of scores. Its score of an unknown
    character depends on the lowest score of all pieces, and its score of a user-defined piece on
    the highest. New scores lie between the two, so that a text without new pieces keeps its split.

    Args:
      content: Content of the model's file, which Tokenizer has accepted.
      path: Its name, for errors.
    """

    def __init__(self, content: bytes, path: str) -> None:
        self._model = read_model(content)
        # SentencePiece checks how it splits these samples, which the new pieces may change.
        self._model.ClearField("self_test_data")
        self._pieces = list(self._model.pieces)
        odd = any(p.type == Piece.BYTE for p in self._pieces) or rules_of(self._model)
        if odd or not is_unigram(self._model):
            raise ValueError(
                f"{path} is not a Unigram model without byte fallback, with the release's ids: "
                "pieces can only be added to a model like the release's, as "
                "`albert-train-sentencepiece` makes it"
            )
        self._known = {piece.piece for piece in self._pieces}
        self._fixed = [p.piece for p in self._pieces if p.type == Piece.USER_DEFINED]
        scores = [piece.score for piece in self._pieces if piece.type == Piece.NORMAL]
        self._lowest, self._highest = min(scores), max(scores)
        # Splits a piece as it stands: adds no initial space, removes none, replaces no character.
        splitter = ModelProto()
        splitter.CopyFrom(self._model)
        spec = splitter.normalizer_spec
        spec.precompiled_charsmap = b""
        spec.add_dummy_prefix = spec.remove_extra_whitespaces = False
        self._splitter = _load(splitter.SerializeToString())

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

    def accepts(self, piece: Any) -> bool:
        """Returns whether a Piece of another model can be added."""
        text = piece.piece
        return (
            piece.type == Piece.NORMAL
            and text not in self._known
            # Between words, and before a number's comma, texts are always split.
            and SPACE_MARK not in text[1:]
            and not ends_in_digit_comma(text)
            and not any(fixed in text for fixed in self._fixed)
            and self.score(text) <= self._highest
        )

    def add(self, pieces: Sequence[str]) -> bytes:
        """Returns the content of the model's file with `pieces` after its own."""
        model = ModelProto()
        model.CopyFrom(self._model)
        model.pieces.extend(Piece(piece=piece, score=self.score(piece)) for piece in pieces)
        model.trainer_spec.vocab_size = len(model.pieces)
        return model.SerializeToString()

    def choose(self, candidates: bytes, texts: Iterable[str], count: int) -> list[str]:
        """Chooses the pieces of another model's file that shorten normalised texts most.

        Returns:
          At most `count` pieces, the most useful first: those that save most ids, where replacing
          an unknown piece counts as one more.
        """
        # The texts are split once, by a model that has all candidates.
        found = [p.piece for p in read_model(candidates).pieces if self.accepts(p)]
        processor = _load(self.add(found))
        uses: collections.Counter[int] = collections.Counter()
        for text in texts:
            uses.update(processor.encode(text))
        saved = {}
        for i, piece in enumerate(found, start=len(self)):
            ids = self.replaced(piece)
            # One id replaces these, each time that the piece is used.
            each = len(ids) - 1 + ids.count(self._splitter.unk_id())
            if uses[i] and each:
                saved[piece] = uses[i] * each
        return sorted(saved, key=lambda piece: (-saved[piece], piece))[:count]


def _load(content: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=content)
