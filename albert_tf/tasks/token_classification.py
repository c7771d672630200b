"""Tags words in windows on sentences, and scores tags with seqeval."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from albert_tf.answers.tag import OUTSIDE, are_entities, default_tag
from albert_tf.storage import files
from albert_tf.tasks import losses, metrics
from albert_tf.tasks.conll import BETWEEN_CELLS, TokenExample
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.metrics import ratio
from albert_tf.tasks.supervised import (
    SupervisedTask,
    mean_probabilities,
    prediction_path,
    write_probabilities,
)
from albert_tf.types import Array, Features

# Tags of each sentence; seqeval takes only lists.
Tags = list[list[str]]
# Decimals of stored probabilities: a set has many words.
_DIGITS = 7
# Rows of seqeval's report that are no types.
_MEANS = ("micro avg", "macro avg", "weighted avg")


def score_tags(expected: Tags, predicted: Tags, classes: Sequence[str]) -> dict[str, float]:
    """Scores tags.

    Args:
      expected: The true tags.
      predicted: As many predicted tags.
      classes: All tags.

    Returns:
      The `accuracy` of words and, for entities, `f1`, `precision` and `recall` of whole entities by
      seqeval's defaults; for plain tags, `macro_f1`, the mean over the tags that occur.
    """
    words = confusion_matrix(expected, predicted, classes)
    accuracy = {"accuracy": float(np.trace(words) / words.sum())}
    if not are_entities(classes):
        rows = scores_by_type(expected, predicted, classes)
        return {"macro_f1": float(np.mean([row["f1-score"] for row in rows.values()])), **accuracy}
    # Imported here because plain tags need no seqeval.
    from seqeval.metrics import f1_score, precision_score, recall_score

    metrics = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    found = {
        name: float(score(expected, predicted, zero_division=0)) for name, score in metrics.items()
    }
    return {**found, **accuracy}


def scores_by_type(
    expected: Tags, predicted: Tags, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Returns `precision`, `recall`, `f1-score` and `support` of each type of entity or plain tag.

    Types that neither occur nor are predicted are left out.
    """
    # Whole entities by seqeval.
    if are_entities(classes):
        from seqeval.metrics import classification_report

        if {tag for sentence in (*expected, *predicted) for tag in sentence} <= {OUTSIDE}:
            return {}  # seqeval would warn.
        rows = classification_report(expected, predicted, output_dict=True, zero_division=0)
        return {name: row for name, row in rows.items() if name not in _MEANS}
    # Plain tags by word: hits are on the diagonal.
    words = confusion_matrix(expected, predicted, classes)
    both, found, true = (
        x.tolist() for x in (words.diagonal(), words.sum(axis=0), words.sum(axis=1))
    )
    return {
        tag: {
            "precision": ratio(both[i], found[i]),
            "recall": ratio(both[i], true[i]),
            "f1-score": ratio(2 * both[i], true[i] + found[i]),
            "support": true[i],
        }
        for i, tag in enumerate(classes)
        if true[i] + found[i]
    }


def confusion_matrix(expected: Tags, predicted: Tags, classes: Sequence[str]) -> np.ndarray:
    """Counts words, `<int64>[C, C]`, by true tag (rows) and predicted tag (columns)."""
    ids = {tag: i for i, tag in enumerate(classes)}
    rows, columns = (
        np.array([ids[tag] for sentence in tags for tag in sentence], np.int64)
        for tags in (expected, predicted)
    )
    counts = np.bincount(rows * len(ids) + columns, minlength=len(ids) ** 2)
    return counts.reshape(len(ids), len(ids))


class TokenClassificationTask(SupervisedTask[TokenExample, np.ndarray]):
    """Tags words (examples: TokenExample); a row is a window on a sentence.

    Each word is split into pieces by itself and lies in one window. Its first piece carries its
    tag; no other position counts. Predictions are probabilities `<float64>[W, C]` of all words of
    all sentences. A word without pieces, such as a control character, has the probabilities 0 and
    gets the default tag.

    Differs: the release has no such task.
    """

    labels = ("tag_ids",)
    loss_names = ("classification_loss",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        of_tags = ("f1", "precision", "recall") if are_entities(self.classes) else ("macro_f1",)
        self.key_metric = of_tags[0]
        self.metric_names = (*of_tags, "accuracy", "eval_loss")

    @property
    def can_learn_from_teacher(self) -> bool:
        return True

    def check_scorable(self, examples: Sequence[TokenExample]) -> None:
        """Checks that seqeval is installed, if examples are to be scored with it."""
        is_needed = is_labelled(examples) and are_entities(self.classes)
        if is_needed and importlib.util.find_spec("seqeval") is None:
            raise ImportError(
                "the package 'seqeval', which scores entities, is not installed: pip install "
                "'albert_tf[tokens]' (or pip install seqeval)"
            )

    def rows(
        self, examples: Sequence[TokenExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        """Yields a row for each window.

        It has the features of Tag.word_rows and `tag_ids` `<int32>[L]`: 1 + the id of the word's
        tag at its first piece, 0 elsewhere.
        """
        for index, example in enumerate(examples):
            tags = np.zeros(1 + len(example.words), np.int32)
            if example.labels:
                tags[1:] = 1 + np.array(example.labels)
            for row in self.kind.word_rows(self.tokenizer, example.words):
                tag_ids = tags[row["word_numbers"]]
                yield {**row, "tag_ids": tag_ids, "example_index": np.int32(index)}

    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the number of words."""
        counts = ops.sum(ops.cast(features["tag_ids"] > 0, "float32"), axis=1)
        return dict.fromkeys(self.loss_names, ops.sum(counts * losses.example_weights(features)))

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns the cross entropies of a window's words, summed."""
        # The loss ignores ids of -1: positions that begin no word.
        loss = losses.classification_loss(features["tag_ids"] - 1, outputs)
        if self.distillation:
            # Features per position have the axis of positions last: [B, C, S].
            theirs = ops.transpose(features[losses.TEACHER_PROBABILITIES], (0, 2, 1))
            is_word = ops.cast(features["tag_ids"] > 0, loss.dtype)
            loss = self.distillation.mix(loss, theirs, outputs) * is_word
        return dict.fromkeys(self.loss_names, ops.sum(loss, axis=1))

    def collect(
        self, features: FeatureTable, parts: Iterable[tuple[np.ndarray, Any]]
    ) -> np.ndarray:
        """Returns the logits `<float32>[W, C]` of the words' first pieces, in row order.

        The logits of all positions, padded to the longest row, would take several times the memory.
        """
        # words_before[p] is the row of the logits for the first word at or after position p.
        is_word = features.sequences["word_numbers"] > 0
        ends = np.cumsum(features.lengths)
        words_before = np.concatenate([[0], np.cumsum(is_word)])
        logits = np.empty((words_before[-1], len(self.classes)), np.float32)
        for rows, outputs in parts:
            for row, values in zip(rows, outputs, strict=True):
                start, end = ends[row] - features.lengths[row], ends[row]
                words = slice(words_before[start], words_before[end])
                logits[words] = values[: end - start][is_word[start:end]]
        return logits

    def predictions(
        self, examples: Sequence[TokenExample], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        # Words without pieces have no logits, and keep the probabilities 0.
        _, words = _words(examples, features)
        count = sum(len(example.words) for example in examples)
        probabilities = np.zeros((count, len(self.classes)))
        probabilities[words] = self.kind.shares(outputs)
        return probabilities

    def with_probabilities(
        self, examples: Sequence[TokenExample], features: FeatureTable, probabilities: np.ndarray
    ) -> FeatureTable:
        """Returns the features with a teacher's probabilities `<float>[W, C]` of W words."""
        is_word, words = _words(examples, features)
        column = np.zeros((len(is_word), len(self.classes)), np.float32)
        column[is_word] = probabilities[words]
        sequences = {**features.sequences, losses.TEACHER_PROBABILITIES: column}
        return dataclasses.replace(features, sequences=sequences)

    def scores(self, examples: Sequence[TokenExample], predictions: np.ndarray) -> dict[str, float]:
        """Returns the scores of score_tags, and `eval_loss` over the words that have pieces."""
        if not is_labelled(examples):
            return {}
        expected = self._expected(examples)
        found = score_tags(expected, self._tags(examples, predictions), self.classes)
        labels = np.array([label for example in examples for label in example.labels])
        is_read = _are_read(predictions)
        # Stored probabilities may be rounded to 0.
        shares = np.maximum(predictions[is_read], 0.5 * 10.0**-_DIGITS)
        return {**found, "eval_loss": metrics.log_loss(labels[is_read], shares)}

    def write(
        self, directory: str, split: str, examples: Sequence[TokenExample], predictions: np.ndarray
    ) -> None:
        """Writes the probabilities (see `store`) and tags of a split.

        predictions.conll has a word per line, its true tag if known, and its predicted tag, between
        tabs. Labelled examples also give scores_by_type.tsv and confusion.tsv (rows: true tags,
        columns: predicted tags). The files of "dev" are named dev_predictions.conll and so on.
        """
        self.store(directory, split, examples, predictions)
        predicted = self._tags(examples, predictions)
        # A word can't contain separators of columns and lines in this format.
        words = [[BETWEEN_CELLS.sub("_", word) for word in each.words] for each in examples]
        columns = [words, predicted]
        if is_labelled(examples):
            expected = self._expected(examples)
            columns.insert(1, expected)
            self._write_scores(directory, split, expected, predicted)
        sentences = (zip(*sentence, strict=True) for sentence in zip(*columns, strict=True))
        text = "\n".join(map(_lines, sentences))
        files.replace(prediction_path(directory, split, "predictions.conll"), text)

    def store(
        self, directory: str, split: str, examples: Sequence[TokenExample], predictions: np.ndarray
    ) -> None:
        """Writes <split>_probabilities.json, which `average` reads."""
        rounded = predictions.round(_DIGITS)
        write_probabilities(directory, split, _ids(examples), examples, rounded)

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[TokenExample]
    ) -> np.ndarray:
        return mean_probabilities(directories, split, _ids(examples), examples)

    def _tags(self, examples: Sequence[TokenExample], predictions: np.ndarray) -> list[list[str]]:
        """Returns the likeliest tags, by sentence."""
        ids = np.where(
            _are_read(predictions), predictions.argmax(axis=-1), default_tag(self.classes)
        )
        found = iter(ids.tolist())
        return [
            [self.classes[i] for i in itertools.islice(found, len(example.words))]
            for example in examples
        ]

    def _expected(self, examples: Sequence[TokenExample]) -> list[list[str]]:
        return [[self.classes[i] for i in example.labels] for example in examples]

    def _write_scores(
        self, directory: str, split: str, expected: list[list[str]], predicted: list[list[str]]
    ) -> None:
        by_type = scores_by_type(expected, predicted, self.classes)
        names = ("precision", "recall", "f1-score", "support")
        scores: list[tuple[str, ...]] = [("type", *names)]
        for name, row in sorted(by_type.items()):
            scores.append((name, *(f"{row[key]:.6g}" for key in names)))
        counts = confusion_matrix(expected, predicted, self.classes).tolist()
        pairs = zip(self.classes, counts, strict=True)
        confusion = [("", *self.classes), *((tag, *map(str, row)) for tag, row in pairs)]
        for file, table in (("scores_by_type.tsv", scores), ("confusion.tsv", confusion)):
            files.replace(prediction_path(directory, split, file), _lines(table))


def _words(
    examples: Sequence[TokenExample], features: FeatureTable
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a mask of all rows' positions that begin a word, and the numbers of these words."""
    numbers = features.sequences["word_numbers"]
    is_word = numbers > 0
    counts = np.array([len(example.words) for example in examples])
    rows = np.repeat(features.scalars["example_index"], features.lengths)[is_word]
    return is_word, (np.cumsum(counts) - counts)[rows] + numbers[is_word] - 1


def _are_read(predictions: np.ndarray) -> np.ndarray:
    """Returns which words `<bool>[W]` have pieces, and so a prediction."""
    return predictions.max(axis=-1) > 0


def is_labelled(examples: Sequence[TokenExample]) -> bool:
    """Whether the examples, all of one file, have labels."""
    return examples[0].labels is not None


def _ids(examples: Sequence[TokenExample]) -> list[str]:
    return [f"{example.guid}:{i}" for example in examples for i in range(len(example.words))]


def _lines(table: Iterable[Iterable[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in table)
