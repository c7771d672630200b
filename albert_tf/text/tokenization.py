"""Tokenizer: text to ids and back, with either of ALBERT's vocabularies."""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from albert_tf.storage import files
from albert_tf.text.characters import is_mark, to_unicode
from albert_tf.text.sentence_piece import SentencePiece, load
from albert_tf.text.word_piece import WordPiece
from albert_tf.text.word_starts import find_in_words

# Characters to read of a long text per wanted piece, and the factor to grow by if too few.
CHARACTERS_PER_PIECE, GROWTH = 8, 4
# If only the first pieces are wanted, a longer word is cut here, and the text ends. The best split
# of a word may depend on its last character, however far away that is, and SentencePiece takes
# quadratic time for a word of unknown characters.
LONGEST_WORD = 1 << 16


class Tokenizer:
    r"""Turns text into the pieces and ids that an ALBERT model was trained on, and ids into text.

    Args:
      spm_model_file: A SentencePiece model, as in the English releases.
      vocab_file: A WordPiece vocabulary, one piece per line, as in the Chinese releases.
      do_lower_case: Whether the model is uncased. With SentencePiece, `preprocess` lower-cases;
        with WordPiece, `tokenize` does, and then also strips accents.
      keep_accents: Whether accents, vowel signs and tone marks stay, as with Hugging Face's
        keep_accents (strip_accents=False with WordPiece). The release always strips them with
        SentencePiece, and with WordPiece if it lower-cases.
      added_tokens: Pieces such as [unused1] that `encode` finds verbatim in raw text; it encodes
        the text between them separately, as Hugging Face's tokenizers do with added tokens.
      content: The vocabulary to use instead of the file, which is then only named in errors.

    Attributes:
      do_lower_case, keep_accents: As given; a cased WordPiece vocabulary keeps them anyway.
      content: Content of the vocabulary file.
      vocab_size: Number of pieces V.
      ids: Origin of the ids: "release", or "folder" for those of a Hugging Face tokenizer.json,
        which text/folder_ids.py reads.
      one_segment: Whether both texts of a pair have segment 0.
      added_pattern: A regular expression of the added tokens; "" without any.
      digest: Hash of the file, the options and added tokens; equal digests mean equal ids.
      pad_id, unk_id, cls_id, sep_id, mask_id: Ids of the special pieces.

    Source: tokenization.py, FullTokenizer.
    Differs: the release prefers `spm_model_file` if both are given; and with WordPiece it raises a
    KeyError for a token outside the vocabulary, where we return `unk_id`.

    Example:
      >>> import pathlib
      >>> vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##real\nit"
      >>> _ = pathlib.Path("vocab.txt").write_text(vocabulary)
      >>> tokenizer = Tokenizer(vocab_file="vocab.txt")
      >>> tokenizer("Unreal it")
      [5, 6, 7]
      >>> tokenizer.decode([2, 5, 6, 7, 3])
      'unreal it'
    """

    def __init__(
        self,
        spm_model_file: str | os.PathLike[str] | None = None,
        vocab_file: str | os.PathLike[str] | None = None,
        do_lower_case: bool = True,
        keep_accents: bool = False,
        *,
        added_tokens: Sequence[str] = (),
        content: bytes | None = None,
    ):
        if bool(spm_model_file) == bool(vocab_file):
            raise ValueError(
                "Tokenizer needs exactly one of `spm_model_file` and `vocab_file`, got "
                f"spm_model_file={spm_model_file!r} and vocab_file={vocab_file!r}"
            )
        self.do_lower_case = do_lower_case
        self.strips_accents = not keep_accents and (do_lower_case or bool(spm_model_file))
        self.keep_accents = keep_accents and (do_lower_case or bool(spm_model_file))
        read = load if spm_model_file else WordPiece
        path = os.fspath(spm_model_file or vocab_file)
        self.content = read_file(path) if content is None else content
        # The digest stands for the ids of all texts, so it covers the form of the text, too.
        form = bytes([do_lower_case, *[True] * self.keep_accents])
        form += "\0".join(sorted(added_tokens)).encode()
        self.digest = hashlib.sha256(self.content + form).hexdigest()
        self._vocabulary = read(self.content, path, do_lower_case, self.keep_accents)
        self.ids, self.one_segment = self._vocabulary.ids_of, self._vocabulary.one_segment
        # Where several added tokens match, the longest wins; [MASK] takes the spaces before it.
        longest_first = sorted(added_tokens, key=len, reverse=True)
        patterns = (r"\s*" * (text == "[MASK]") + re.escape(text) for text in longest_first)
        self.added_tokens, self.added_pattern = tuple(added_tokens), "|".join(patterns)
        self.vocab_size = len(self._vocabulary.pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = _find_special_ids(
            self._vocabulary, path
        )

    def __call__(self, texts: str | bytes | Iterable[str | bytes]) -> list:
        """Returns the ids of a raw text, or of each of several; without special pieces."""
        if isinstance(texts, (str, bytes)):
            return self.encode(texts)
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence) -> Any:
        """Returns the text of ids, or of each of several rows of ids.

        Padding, [CLS] and [SEP] are left out. The text is normalised: case and accents may be gone.
        """
        if len(ids) and np.ndim(ids[0]):
            return [self.decode(row) for row in ids]
        special = {self.pad_id, self.cls_id, self.sep_id}
        pieces = self.convert_ids_to_tokens(int(i) for i in ids if i not in special)
        return self._vocabulary.join(pieces)

    def preprocess(self, text: str | bytes) -> str:
        """Normalises text for `tokenize`; for WordPiece, which does so itself, only decodes it."""
        return self._vocabulary.preprocess(text)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits preprocessed text into pieces.

        A SentencePiece piece that ends in a digit and a comma ("▁1990,") is split again without
        the comma, so that a number has the same pieces before a comma as elsewhere. A piece
        unknown to the SentencePiece model keeps its text; in WordPiece it becomes [UNK].

        Source: tokenization.py, BasicTokenizer, WordpieceTokenizer, and encode_pieces as it runs
        under Python 3: if the second split puts a ▁ inside a word, it stays.
        """
        return self._vocabulary.tokenize(to_unicode(text))

    def encode(self, text: str | bytes, most: int | None = None) -> list[int]:
        """Returns the ids of raw text: preprocess, tokenize and convert_tokens_to_ids, but faster.

        With `most`, only that many ids are returned, and a long text is read only as far as needed.

        Differs: with `most`, a word of more than LONGEST_WORD characters is cut there, and the text
        with it.
        """
        ids = list[int]()
        for part in self._parts(to_unicode(text)):
            ids += self._encode_part(part, most)
            if most is not None and len(ids) >= most:
                break
        return ids[:most]

    def _parts(self, text: str) -> list[str]:
        """Splits a raw text at added tokens; no part is empty."""
        parts = re.split(f"({self.added_pattern})", text) if self.added_pattern else [text]
        return [part for part in parts if part]

    def _encode_part(self, text: str, most: int | None) -> list[int]:
        vocabulary = self._vocabulary
        if (token := text.strip()) in self.added_tokens:
            return [vocabulary.ids[token]]
        # Encode a growing prefix of the text, up to a space, until it gives enough ids.
        size = len(text) if most is None else CHARACTERS_PER_PIECE * most
        while size < len(text) and vocabulary.words_are_apart:
            head = vocabulary.normalize(text[:size])
            # Pieces before a space do not depend on what follows it.
            end = max(head.rfind(" "), 0)
            if len(head) - end > LONGEST_WORD:
                return vocabulary.encode(head[: end + LONGEST_WORD])[:most]
            ids = vocabulary.encode(head[:end].rstrip())
            if len(ids) >= most:
                return ids[:most]
            size *= GROWTH
        return vocabulary.encode(vocabulary.normalize(text))[:most]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], np.ndarray]:
        """Returns the ids of a segmented text, and which of them start a word, `<bool>[T]`.

        The ids are those that `encode` gives for the words joined with nothing between them.
        """
        vocabulary = self._vocabulary
        if self.added_tokens:
            raise ValueError(
                f"`word_separator` can't be had with tokens added to the tokenizer, here "
                f"{', '.join(self.added_tokens)}: give the vocabulary from another directory"
            )
        text = vocabulary.normalize("".join(words))
        ids, spans = vocabulary.encode_spans(text)
        letters_before = [0, *itertools.accumulate(not char.isspace() for char in text)]
        places = [letters_before[begin] for begin, _ in spans]
        return ids, find_in_words([*map(vocabulary.normalize, words)], places)

    def encode_with_offsets(self, text: str) -> tuple[list[int], np.ndarray]:
        """Returns the ids of raw text, and which characters each stands for.

        Returns:
          T ids; `<int64>[T, 2]`, where each one's characters begin and end in the text. A character
          that is normalised to several belongs to all pieces that have some of them. A mark that is
          dropped belongs to the character before it. With SentencePiece a word begins with the
          white space before it, which includes U+200B and U+FFFD.
        """
        ids, offsets, begin = list[int](), [np.zeros([0, 2], np.int64)], 0
        for part in self._parts(text):
            found, of_part = self._part_with_offsets(part)
            ids += found
            offsets.append(of_part + begin)
            begin += len(part)
        return ids, np.concatenate(offsets)

    def _part_with_offsets(self, text: str) -> tuple[list[int], np.ndarray]:
        vocabulary = self._vocabulary
        if (token := text.strip()) in self.added_tokens:
            return [vocabulary.ids[token]], np.array([[0, len(text)]])
        ids, spans = vocabulary.encode_spans(vocabulary.normalize(text))
        if not ids:
            return [], np.zeros([0, 2], np.int64)
        origins = vocabulary.origins(text)
        # A character ends where the next one begins, unless that is a dropped mark.
        begins_next = np.zeros(len(text), bool)
        begins_next[origins] = True
        for i in np.flatnonzero(~begins_next):
            begins_next[i] = not is_mark(text[i])
        limits = np.append(np.flatnonzero(begins_next), len(text))
        ends = limits[np.searchsorted(limits, origins, side="right")]
        # Spans count characters of the normalised text: map them back to the raw one.
        begins, stops = np.transpose(spans)
        starts = origins[np.minimum(begins, len(origins) - 1)]
        return ids, np.transpose([starts, np.where(stops > begins, ends[stops - 1], starts)])

    @property
    def words_are_apart(self) -> bool:
        """Whether no piece spans a space, so that words can be split one by one."""
        return self._vocabulary.words_are_apart

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of pieces; `unk_id` for those not in the vocabulary."""
        ids, unk_id = self._vocabulary.ids, self.unk_id
        return [ids.get(token, unk_id) for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of ids."""
        ids, pieces = list(ids), self._vocabulary.pieces
        for i in ids:
            if not 0 <= i < len(pieces):
                raise ValueError(f"id {i} is outside the vocabulary of {len(pieces)} pieces")
        return [pieces[i] for i in ids]

    def word_starts(self, letters: str = "latin") -> np.ndarray:
        """Returns which pieces start a word, `<bool>[V]`; the others continue a word.

        Args:
          letters: The letters that SentencePiece pieces may continue a word with: "latin", as
            released, or "unicode": those of all scripts with spaces between words. With WordPiece,
            only the ## counts.

        Source: create_pretraining_data.py, _is_start_piece_sp and _is_start_piece_bert.
        Differs: the release looks at the text of a piece, not at its id, so an unknown English
        letter continues a word there and starts one here.
        """
        return self._vocabulary.word_starts(letters)


def describe_fit(tokenizer: Tokenizer, sentences: Iterable[str]) -> str:
    """Tells how a vocabulary fits a text: its pieces per word, and the marks that it loses."""
    pieces, words, characters = 0, 0, collections.Counter[str]()
    for sentence in sentences:
        pieces += len(tokenizer.encode(sentence))
        words += len(sentence.split())
        characters.update(unicodedata.normalize("NFC", sentence))
    said = f"{pieces / max(words, 1):.2f} pieces a word"
    # A mark that NFC doesn't compose, as in Hindi, counts as a letter with a mark.
    letters = sum(count for char, count in characters.items() if char.isalpha())
    lost = {char: count for char, count in characters.most_common() if _has_mark(char)}
    share = sum(lost.values()) / max(letters, 1)
    if not tokenizer.strips_accents or share < 0.00005:
        return said
    # If the vocabulary lacks the letters with marks, keeping marks would turn words into [UNK].
    held = set("".join(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))))
    form = str.lower if tokenizer.do_lower_case else str
    lacking = sum(count for char, count in lost.items() if not held.issuperset(form(char)))
    trained = "a vocabulary trained with " if lacking > 0.1 * sum(lost.values()) else ""
    said += f"; {share:.2%} of its letters lose a mark ({_shown(lost)}): "
    return said + f"{trained}`keep_accents` keeps them"


def describe_lack(tokenizer: Tokenizer, sentences: Sequence[str]) -> str:
    """Tells how much of a text is [UNK], and which characters are missing; "" if there are few."""
    ids = [i for sentence in sentences for i in tokenizer.encode(sentence)]
    share = ids.count(tokenizer.unk_id) / max(len(ids), 1)
    if share < 0.005:
        return ""
    characters = [char for char, _ in collections.Counter("".join(sentences)).most_common()]
    lacking = [char for char in characters if tokenizer.unk_id in tokenizer.encode(char)]
    said = f"{share:.2%} of the pieces are [UNK]: the vocabulary lacks {_shown(lacking)}"
    marked = tokenizer.keep_accents and any(map(_has_mark, lacking))
    return said + "; without `keep_accents` letters lose their marks only" * marked


def _has_mark(char: str) -> bool:
    return any(map(unicodedata.combining, unicodedata.normalize("NFKD", char)))


def _shown(characters: Iterable[str]) -> str:
    first = itertools.islice(characters, 5)
    return " ".join(f"\u25cc{char}" if is_mark(char) else char for char in first)


def read_file(path: str) -> bytes:
    """Returns the content of a vocabulary file."""
    files.check_file(path, f"vocabulary file {path}")
    return files.read_bytes(path, files.SMALL_BYTES)


def _find_special_ids(vocabulary: SentencePiece | WordPiece, path: str) -> list[int]:
    ids = vocabulary.ids
    missing = [names for names in vocabulary.special_pieces if ids.keys().isdisjoint(names)]
    if missing:
        listed = ", ".join(" or ".join(names) for names in missing)
        raise ValueError(
            f"{path} has no piece {listed}: ALBERT needs a vocabulary with pieces for padding, "
            "unknown, [CLS], [SEP] and [MASK]"
        )
    return [next(ids[n] for n in names if n in ids) for names in vocabulary.special_pieces]
