"""Vectors of texts, trained on pairs whose likeness people have scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from albert_tf.answers.rows import stack
from albert_tf.model.finetuning import AlbertForEmbedding
from albert_tf.model.heads import unit_length
from albert_tf.tasks.classification import ScoringTask
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.types import Array, Features


class AlbertForTextPairs(AlbertForEmbedding):
    """Embeds both texts of pairs: inputs `<int32>[B, 2, S]` -> vectors `<float32>[B, 2, D]`."""

    input_axes = dict.fromkeys(AlbertForEmbedding.input_axes, "B, C, S")

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        self.check_inputs(inputs)
        # Each text is a row of the encoder.
        _, count, length = ops.shape(inputs["input_ids"])
        names = [name for name in self.input_axes if inputs.get(name) is not None]
        rows = {name: ops.reshape(inputs[name], (-1, length)) for name in names}
        vectors = self.embed(rows, training, dropout_seed)
        return ops.reshape(vectors, (-1, count, vectors.shape[-1]))

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> keras.KerasTensor:
        return keras.KerasTensor((*inputs["input_ids"].shape[:2], self.width))


class EmbeddingTask(ScoringTask[TextExample]):
    """Embeds texts so that the cosine of a pair is its score (examples: TextExample).

    The loss is the squared difference of the cosine and the score, which is scaled from the range
    of the training file's scores to 0 and 1.

    Source: Reimers and Gurevych 2019, Sentence-BERT (arXiv 1908.10084), its regression objective.
    Differs: the release has no such task.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_names = ("cosine_loss",)
        self.metric_names = ("spearman", "pearson")

    def build_model(self) -> keras.Model:
        options = dict(vars(self.options))
        del options["classifier_dropout_prob"]  # There is no head with a dropout of its own.
        return AlbertForTextPairs(**self.kind.model_arguments, **options)

    def texts(self, example: TextExample) -> tuple[Any, ...]:
        return example.text_a, example.text_b

    def rows(
        self, examples: Sequence[TextExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        scores = np.array([example.label or 0 for example in examples], np.float64)
        least, spread = float(np.min(scores)), float(np.ptp(scores))
        if is_training and not spread:
            raise ValueError(f"all pairs to train on have the score {least:g}: give different ones")
        if is_training:
            logging.info("scores from %g to %g are cosines from 0 to 1", least, least + spread)
        targets = ((scores - least) / (spread or 1)).astype(np.float32)
        for example, target in zip(examples, targets, strict=True):
            texts = self.texts(example)
            pair = [row for text in texts for row in self.kind.rows(self.tokenizer, text)]
            longest = max(len(row["input_ids"]) for row in pair)
            yield {**stack(pair, longest), self.labels[0]: target}

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        first, second = (unit_length(outputs[:, side]) for side in (0, 1))
        cosines = ops.sum(first * second, axis=-1)
        return {"cosine_loss": ops.square(cosines - features["label_ids"])}

    def predictions(
        self, examples: Sequence[TextExample], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        """Returns how alike the kind finds the texts of each pair, `<float64>[N, 1]`."""
        first, second = (np.asarray(outputs[:, side], np.float64) for side in (0, 1))
        return self.kind.compared(first, second)[:, None]

    def scores(self, examples: Sequence[TextExample], predictions: np.ndarray) -> dict[str, float]:
        """Returns the correlations with the examples' scores."""
        found = super().scores(examples, predictions)
        return {name: found[name] for name in self.metric_names if found}
