"""Entities in a text, or a tag for each word, and the schemes of tags."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import CLASSIFIER_HEAD, Labelled, Reading, softmax, strings
from albert_tf.answers.rows import Row
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_splitting import split_words

# The tag of words outside any entity.
OUTSIDE = "O"
# B begins an entity, I continues it, E ends it; S is an entity of one word.
_ENTITY = re.compile(r"([BIES])-(.+)", re.DOTALL)


def are_entities(tags: Sequence[str]) -> bool:
    """Returns whether tags mark entities: O, or B-, I-, E- or S- before a type; else plain."""
    others = [tag for tag in tags if tag != OUTSIDE]
    return bool(others) and all(_ENTITY.fullmatch(tag) for tag in others)


def tag_parts(tag: str) -> tuple[str, str]:
    """Splits an entity's tag into B, I, E or S and its type; O has no type."""
    match = _ENTITY.fullmatch(tag)
    return (match[1], match[2]) if match else (OUTSIDE, "")


def default_tag(tags: Sequence[str]) -> int:
    """Returns the id of the tag for words without pieces: O, or the first tag if O is missing."""
    return tags.index(OUTSIDE) if OUTSIDE in tags else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tag(Labelled):
    """Tags the words of texts of any length.

    Each word is split into pieces by itself, and its first piece carries its tag. Long texts are
    read in windows that end between words. Words are those of text/word_splitting.py.

    Attributes:
      labels: The tags by id.

    Differs: the release has no such task.
    """

    task = "tag"
    task_name = "token_classification"
    model = "AlbertForTokenClassification"
    pipeline = "token-classification"
    heads = (CLASSIFIER_HEAD,)
    title = "Tag a text"
    is_scored = False  # Labelled files have their own words, not those of `split_words`.

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        return {"logits": (None, None, len(self.labels))}

    def rows(self, tokenizer: Tokenizer, text: str) -> Iterator[Row]:
        """Yields the rows of a raw text; see `word_rows`."""
        return self.word_rows(tokenizer, [text[start:end] for start, end in split_words(text)])

    def word_rows(self, tokenizer: Tokenizer, words: Sequence[str]) -> Iterator[Row]:
        """Yields a row for each window on words; if no word has a piece, there is none.

        `word_numbers` `<int32>[L]` holds the number of the word, from 1, at each word's first
        piece, and 0 elsewhere.
        """
        room = self.max_seq_length - 2
        # Each word is split by itself, as in training, and cut if it would not fit alone.
        pieces = [tokenizer.encode(word, room) for word in words]
        for window in windows([len(ids) for ids in pieces], room):
            row = rows_of.join_ids(tokenizer, [i for number in window for i in pieces[number]])
            row["word_numbers"] = np.zeros_like(row["input_ids"])
            # Mark the first piece of each word, after [CLS], by the word's number.
            position = 1
            for number in window:
                if pieces[number]:
                    row["word_numbers"][position] = 1 + number
                    position += len(pieces[number])
            yield row

    def shares(self, logits: Any) -> np.ndarray:
        """Turns the logits `<float>[W, C]` of words' first pieces into their probabilities."""
        return softmax(logits)

    def found(self, reading: Reading) -> dict[str, Any]:
        _, (text,), rows, outputs = reading
        words = [*split_words(text)]
        # Words without pieces get the default tag with probability 1.
        shares = np.tile(np.eye(len(self.labels))[default_tag(self.labels)], (len(words), 1))
        # Take the probabilities at the first piece of each word.
        for row, output in zip(rows, outputs, strict=True):
            numbers = row["word_numbers"]
            is_first = numbers > 0
            logits = output["logits"][: len(numbers)][is_first]
            shares[numbers[is_first] - 1] = self.shares(logits)
        chosen, best = shares.argmax(axis=1).tolist(), shares.max(axis=1).tolist()

        # Merge the words of each entity; plain tags leave one span per word.
        spans: list[tuple[str, int, int, list[float]]] = []  # Type, start, end, probabilities.
        prefix = of_type = ""
        for (start, end), tag, share in zip(words, chosen, best, strict=True):
            before = prefix, of_type
            prefix, of_type = self._parts[tag]
            # An entity goes on by seqeval's default rules.
            if prefix in ("I", "E") and before in (("B", of_type), ("I", of_type)):
                _, start, _, earlier = spans.pop()
                spans.append((of_type, start, end, [*earlier, share]))
            elif prefix != OUTSIDE:
                spans.append((of_type, start, end, [share]))
        # Columns of all spans; a text may have none.
        types, starts, ends, each = zip(*spans, strict=True) if spans else ((), (), (), ())
        strings_of = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        return {
            self._names[0]: strings(strings_of),
            self._names[1]: strings(types),
            "starts": np.array(starts, np.int32),
            "ends": np.array(ends, np.int32),
            "probabilities": np.array([np.mean(shares) for shares in each], np.float32),
        }

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        texts, types = self._names
        names = ("text", types.removesuffix("s"), "start", "end", "probability")
        columns = [
            found[name].tolist() for name in (texts, types, "starts", "ends", "probabilities")
        ]
        # A SavedModel pads texts with fewer spans than others of the batch.
        rows = (row for row in zip(*columns, strict=True) if row[0])
        return {texts: [dict(zip(names, row, strict=True)) for row in rows]}

    def said(self, answer: Mapping[str, Any]) -> str:
        if "words" in answer:
            return " ".join(f"{word['text']}/{word['tag']}" for word in answer["words"])
        entities = (f"{e['text']} ({e['type']} {e['probability']:.3f})" for e in answer["entities"])
        return ", ".join(entities) or "no entities"

    @functools.cached_property
    def _parts(self) -> list[tuple[str, str]]:
        """Prefix and type of each tag; plain tags have no prefix, so they are never merged."""
        named = are_entities(self.labels)
        return [tag_parts(tag) if named else ("", tag) for tag in self.labels]

    @property
    def _names(self) -> tuple[str, str]:
        return ("entities", "types") if are_entities(self.labels) else ("words", "tags")


def windows(lengths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yields the numbers of the words in each window; without any pieces, there is none.

    Args:
      lengths: The number of pieces of each word, `room` at most.
      room: The number of pieces that fit into a window.
    """
    window: list[int] = []
    total = 0
    for number, length in enumerate(lengths):
        if total + length > room:
            yield window
            # Windows don't overlap: each word is read once, so it has one tag.
            window, total = [], 0
        window.append(number)
        total += length
    if total:
        yield window
