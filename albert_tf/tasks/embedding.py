"""Text embeddings, trained on pairs: by their scores, or with the batch's texts as negatives."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from albert_tf.answers.rows import stack
from albert_tf.model.embedding import AlbertForEmbedding
from albert_tf.tasks import metrics, table
from albert_tf.tasks.classification import ScoringTask
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss, VectorLoss
from albert_tf.tasks.settings import TaskSettings
from albert_tf.types import Array, Features

_OF_SCORES = ("spearman", "pearson")
_OF_RANKS = ("ndcg_at_10", "recall_at_10", "mrr_at_10")
# Number of first texts that are compared with all candidates at a time.
_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class TextTuple(TextExample):
    """A pair of texts, and hard negatives for the first one."""

    negatives: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CorpusTexts(TextExample):
    """Two texts of a corpus, which are no pair, but candidates beside the pairs' second texts."""


class EmbeddingTask(ScoringTask[TextExample]):
    """Embeds texts so that similar texts have similar vectors (examples: TextExample).

    Pairs with scores are trained on and evaluated by these (in training, scaled from their range in
    the file to [0, 1]); pairs without, by how well each first text retrieves its second.

    Differs: the release has no such task.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.key_metric, self.metric_names = "", _OF_SCORES + _OF_RANKS
        self.train_by(CosineSimilarityLoss())

    def train_by(self, loss: VectorLoss) -> None:
        self.loss, self.loss_names = loss, (loss.name,)
        self.compares_examples = loss.compares_examples

    def evaluate_by(self, names: tuple[str, ...]) -> None:
        """Sets the metrics; the first one compares checkpoints unless another was chosen."""
        if self.key_metric not in ("", *names):
            raise ValueError(
                f"`key_metric` must be one of {', '.join(names)} for the pairs of `eval_file`, not "
                f"{self.key_metric}"
            )
        self.key_metric, self.metric_names = self.key_metric or names[0], names

    @property
    def ranks(self) -> bool:
        """Whether an evaluation ranks candidates to find each pair's second text."""
        return self.metric_names == _OF_RANKS

    def read(self, settings: TaskSettings, split: str) -> list[TextExample]:
        """Reads a split; its columns decide the training loss, or the evaluation metrics."""
        if not settings.text_pair_column:
            raise ValueError(
                "`text_pair_column` names the column of a pair's second text: set that too"
            )
        path, label = settings.file(split), settings.label_column
        scored = split != "test" and table.has_labels(path, settings)
        others = filter(None, (settings.train_file, settings.eval_file))
        if "label_column" in settings.given and not any(
            table.has_labels(each, settings) for each in others
        ):
            raise ValueError(
                f"neither `train_file` nor `eval_file` has the `label_column` {label!r}: correct "
                "it, or leave it out for pairs without scores"
            )
        examples = table.read_texts(path, settings, (), scored)
        if not scored and split != "test":
            logging.info("%s has no column %r: first texts have to find second ones", path, label)
        if split == "train":
            return self._to_train(examples, settings, scored)

        # The corpus adds candidates.
        if split == "dev":
            self.evaluate_by(_OF_SCORES if scored else _OF_RANKS)
        if settings.corpus_file and self.ranks:
            column = settings.text_pair_column
            texts = [row[column] for _, row in table.text_rows(settings.corpus_file, [column])]
            twos = itertools.zip_longest(texts[::2], texts[1::2], fillvalue=texts[-1])
            examples += [CorpusTexts(f"corpus {i}", *two, None) for i, two in enumerate(twos)]
        return examples

    def _to_train(
        self, examples: list[TextExample], settings: TaskSettings, scored: bool
    ) -> list[TextExample]:
        """Returns the examples to train on, with hard negatives, and sets the loss."""
        columns = settings.negative_columns
        if scored and columns:
            raise ValueError(
                f"`negative_columns` are of no use with scores, which {settings.train_file} has in "
                f"{settings.label_column!r}: leave either out"
            )
        given = settings.matryoshka_dimensions
        sizes: list[Any] = [int(x) if x.isdecimal() else x for x in given]
        ranking = functools.partial(MultipleNegativesRankingLoss, settings.ranking_scale)
        self.train_by((CosineSimilarityLoss if scored else ranking)(matryoshka_dimensions=sizes))
        self.loss.check_width(self.kind.width(self.options.config))
        if not columns:
            return examples
        rows = table.text_rows(settings.train_file, columns)
        return [
            TextTuple(**vars(example), negatives=tuple(row[name] for name in columns))
            for example, (_, row) in zip(examples, rows, strict=True)
        ]

    def build_model(self) -> keras.Model:
        options = dict(vars(self.options))
        del options["classifier_dropout_prob"]  # There is no head with a dropout of its own.
        return AlbertForEmbedding(**self.kind.model_arguments, **options)

    def texts(self, example: TextExample) -> tuple[Any, ...]:
        return example.text_a, example.text_b, *getattr(example, "negatives", ())

    def rows(
        self, examples: Sequence[TextExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        targets: list[dict[str, Any]] = [{}] * len(examples)
        if is_training and not self.compares_examples:
            scores = np.array([example.label for example in examples], np.float64)
            least, spread = float(np.min(scores)), float(np.ptp(scores))
            if not spread:
                raise ValueError(
                    f"all pairs to train on have the score {least:g}: give different ones"
                )
            logging.info("scores from %g to %g are cosines from 0 to 1", least, least + spread)
            cosines = ((scores - least) / spread).astype(np.float32)
            targets = [{self.labels[0]: cosine} for cosine in cosines]
        for example, target in zip(examples, targets, strict=True):
            texts = self.texts(example)
            rows = [row for text in texts for row in self.kind.rows(self.tokenizer, text)]
            yield {**stack(rows), **target}

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        return {self.loss.name: self.loss.call(features.get("label_ids"), outputs)}

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        # Training batches are full: no example has the weight 0.
        return {name: ops.sum(x) for name, x in self.example_losses(outputs, features).items()}

    def predictions(
        self, examples: Sequence[TextExample], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        """Returns the similarity of each pair's texts, `<float64>[N, 1]`, as the kind computes it.

        A second column has the rank of the second text, if the evaluation `ranks` candidates.
        """
        pairs = self.asked(examples)
        vectors = np.asarray(outputs, np.float64)
        first, second = (vectors[: len(pairs), side] for side in (0, 1))
        alike = self.kind.compared(first, second)[:, None]
        if not self.ranks:
            return alike
        # Each text is a candidate once.
        texts = [example.text_b for example in pairs]
        texts += [text for each in examples[len(pairs) :] for text in (each.text_a, each.text_b)]
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        candidates = np.empty((len(places), vectors.shape[-1]))
        others = vectors[len(pairs) :].reshape(-1, vectors.shape[-1])
        candidates[[places[text] for text in texts]] = np.concatenate([second, others])
        own = np.array([places[example.text_b] for example in pairs])
        return np.hstack([alike, self._ranks(first, candidates, own)[:, None]])

    def _ranks(self, queries: np.ndarray, candidates: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Returns the rank from 1 of each query's own candidate; it comes last among equals."""
        found = []
        for start in range(0, len(queries), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            alike = self.kind.all_compared(queries[part], candidates)
            less = alike < np.take_along_axis(alike, own[part, None], axis=1)
            found.append(len(candidates) - less.sum(axis=1))
        return np.concatenate(found)

    def scores(self, examples: Sequence[TextExample], predictions: np.ndarray) -> dict[str, float]:
        """Returns correlations with the examples' scores, or retrieval metrics of second texts."""
        if not self.ranks:
            found = super().scores(examples, predictions)
            return {name: found[name] for name in _OF_SCORES if found}
        # A text may be the first one of several pairs.
        ranks: dict[str, dict[str, int]] = {}
        for example, (_, rank) in zip(self.asked(examples), predictions.tolist(), strict=True):
            ranks.setdefault(example.text_a, {})[example.text_b] = rank
        return metrics.retrieval([[*found.values()] for found in ranks.values()])

    def asked(self, examples: Sequence[TextExample]) -> Sequence[TextExample]:
        """Returns the examples without the corpus texts that follow them."""
        return [example for example in examples if not isinstance(example, CorpusTexts)]
