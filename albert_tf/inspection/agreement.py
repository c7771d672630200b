"""Whether a masked LM prefers the form of a verb that agrees with its subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.answers.rows import join_ids
from albert_tf.inspection import models
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.text.tokenization import Tokenizer

# Singular and plural.
_NOUNS = [
    (noun, f"{noun}s")
    for noun in (
        *("officer", "citizen", "farmer", "judge", "state", "nation"),
        *("school", "bank", "ship", "road", "law", "report"),
    )
]
# Singular, plural, and the rest of the sentence.
_VERBS = (
    *(("is", "are", "old"), ("was", "were", "here"), ("has", "have", "a name")),
    *(("does", "do", "not help"), ("needs", "need", "help"), ("gives", "give", "us hope")),
    *(("makes", "make", "a change"), ("seems", "seem", "good"), ("comes", "come", "first")),
    ("remains", "remain", "the same"),
)
_BETWEEN = ("near", "with")
# Sentences are short.
_BATCH = 256
# Between subject and verb stands nothing, or a noun in the subject's or in the other number.
BETWEEN = ("nothing", "same number", "other number")
NUMBERS = ("singular", "plural")
COLUMNS = ("model", "between", "subject", "sentences", "left_out", "right")


class Sentence(NamedTuple):
    """A sentence with a gap for its verb."""

    between: str  # One of BETWEEN.
    subject: str  # One of NUMBERS.
    left: str
    right: str
    verb: str  # The form that agrees.
    wrong_verb: str


def sentences() -> Iterator[Sentence]:
    """Yields all sentences that the templates make."""
    for place, noun in enumerate(_NOUNS):
        # Two nouns of a sentence are never the same.
        other_noun = _NOUNS[(place + 1) % len(_NOUNS)]
        for number, subject in enumerate(NUMBERS):
            lefts = [("nothing", f"the {noun[number]}")]
            for word in _BETWEEN:
                for between, other in (("same number", number), ("other number", 1 - number)):
                    lefts.append((between, f"the {noun[number]} {word} the {other_noun[other]}"))
            for between, left in lefts:
                for *forms, rest in _VERBS:
                    right = f"{rest}."
                    verb, wrong_verb = forms[number], forms[1 - number]
                    yield Sentence(between, subject, left, right, verb, wrong_verb)


class _Gap(NamedTuple):
    """A sentence in ids: with masks for its verb, and the pieces of both forms."""

    row: dict[str, np.ndarray]
    first: int
    verb: list[int]
    wrong_verb: list[int]


def measure(model: AlbertForPreTraining, tokenizer: Tokenizer) -> list[tuple]:
    """Measures how often the form that agrees is the more probable one.

    Both forms fill the same masks, one for each piece; the log-probabilities of pieces are summed.
    Sentences with an unknown piece are left out, and those whose forms differ in their number of
    pieces.

    Returns:
      For each of BETWEEN and NUMBERS these two, the number of sentences, how many more are left
      out, and the share of sentences in which the right form is preferred (NaN without sentences).
    """
    found = {(between, number): [0, 0, 0] for between in BETWEEN for number in NUMBERS}
    # Sentences with as many masks are computed together.
    groups: dict[int, list[tuple[Sentence, _Gap]]] = {}
    for sentence in sentences():
        gap = _gap(sentence, tokenizer)
        if gap is None:
            found[sentence.between, sentence.subject][1] += 1
        else:
            groups.setdefault(len(gap.verb), []).append((sentence, gap))
    for group in groups.values():
        gains = _gains(model, [gap for _, gap in group])
        for (sentence, _), gain in zip(group, gains, strict=True):
            # The counts are: sentences measured, left out, and right.
            counts = found[sentence.between, sentence.subject]
            counts[0] += 1
            counts[2] += int(gain > 0)
    return [
        (*key, count, left_out, right / count if count else np.nan)
        for key, (count, left_out, right) in found.items()
    ]


def _gap(sentence: Sentence, tokenizer: Tokenizer) -> _Gap | None:
    texts = (sentence.left, sentence.verb, sentence.wrong_verb, sentence.right)
    left, verb, wrong_verb, right = map(tokenizer.encode, texts)
    if tokenizer.unk_id in (*left, *verb, *wrong_verb, *right) or len(verb) != len(wrong_verb):
        return None
    # Both forms have as many pieces, so the same masks stand for either.
    ids = [*left, *[tokenizer.mask_id] * len(verb), *right]
    return _Gap(join_ids(tokenizer, ids), 1 + len(left), verb, wrong_verb)


def _gains(model: AlbertForPreTraining, gaps: Sequence[_Gap]) -> np.ndarray:
    """Returns by how much the right form is the more probable one, `<float64>[N]`, in nats."""
    positions = np.array([gap.first + np.arange(len(gap.verb)) for gap in gaps], np.int32)
    verbs = np.array([gap.verb for gap in gaps])[..., None]
    wrong_verbs = np.array([gap.wrong_verb for gap in gaps])[..., None]
    gains: list[float] = []
    for count, batch in models.batches([gap.row for gap in gaps], _BATCH):
        # The last batch is filled up with rows of padding, whose masks are at position 0.
        places = np.arange(len(gains), len(gains) + count)
        masked = np.zeros((len(batch["input_ids"]), positions.shape[1]), np.int32)
        masked[:count] = positions[places]
        outputs = model({**batch, "masked_lm_positions": masked}, training=False)
        # Logits do: the normaliser is the same for both forms, and cancels.
        logits = np.asarray(outputs["masked_lm_logits"], np.float64)[:count]
        right, wrong = (
            np.take_along_axis(logits, form[places], axis=2).sum((1, 2))
            for form in (verbs, wrong_verbs)
        )
        gains.extend(right - wrong)
    return np.array(gains)


def table(found: Mapping[str, Sequence[tuple]]) -> str:
    """Returns the measures of models, by name, as the text of a .csv file."""
    rows = []
    for name, measures in found.items():
        rows += [[name, *counts, f"{right:.4f}"] for *counts, right in measures]
    return models.csv_text(COLUMNS, rows)
