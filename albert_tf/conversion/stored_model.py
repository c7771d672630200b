"""A stored model's location (`ModelLocation`) and its checked content (`StoredModel`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from albert_tf import conversion, weight_shapes
from albert_tf.answers.kind import Kind
from albert_tf.config import AlbertConfig
from albert_tf.conversion import kinds, labels, layouts
from albert_tf.conversion.names import (
    DENSE_BIAS,
    ENCODER,
    HEADS,
    OUTPUT_BIAS,
    POOLER,
    WORD_EMBEDDINGS,
)
from albert_tf.storage import hub
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from albert_tf.model.configured import ConfiguredModel


def model_class(kind: type[Kind]) -> type[ConfiguredModel]:
    """Returns the class of a kind's models."""
    # Not at the top: a conversion between files needs no model.
    from albert_tf.model import embedding, finetuning, heads

    homes = (embedding, finetuning, heads)
    return next(getattr(home, kind.model) for home in homes if hasattr(home, kind.model))


@dataclasses.dataclass(frozen=True)
class ModelLocation:
    """Where a trained model is stored.

    Attributes:
      path: A path that `load_weights` takes.
      albert_config_file: A config, for weights without a valid one beside them.
      spm_model_file: A SentencePiece model, for weights without a vocabulary beside them.
      vocab_file: A WordPiece vocabulary instead.
      do_lower_case: Whether the model is uncased; see vocabulary.find.
      keep_accents: Whether its text keeps accents; see there.
      ids: The ids that it reads, "release" or "folder"; see there.
      num_hidden_layers: Number of layers to use; None for the config's.
    """

    path: str
    albert_config_file: str | None = None
    spm_model_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    keep_accents: bool | None = None
    ids: str | None = None
    num_hidden_layers: int | None = None

    def config(self) -> AlbertConfig:
        if self.albert_config_file:
            config = AlbertConfig.from_json_file(self.albert_config_file)
        else:
            config = layouts.read_config(self.path)
        if self.num_hidden_layers is None:
            return config
        if not config.fits_any_depth:
            raise ValueError(
                f"{self.path} has layers of several groups, and `num_hidden_layers` would change "
                "which are whose: leave it out"
            )
        return dataclasses.replace(config, num_hidden_layers=self.num_hidden_layers)

    def vocabulary(self) -> vocabulary.Vocabulary:
        return vocabulary.need(hub.download(self.path), *self.of_vocabulary)

    @property
    def of_vocabulary(self) -> tuple[Any, ...]:
        """The arguments of vocabulary.find after the path."""
        form = self.do_lower_case, self.keep_accents
        return self.spm_model_file, self.vocab_file, *form, self.ids

    def fill(self, model: ConfiguredModel, classes: Sequence[str] = ()) -> list[str]:
        """Fills a model that has the stored config; see load_weights for `classes`.

        Returns the release's names of weights that its outputs depend on but that are not stored.
        """
        report = conversion.load_weights(
            model,
            self.path,
            any_depth=self.num_hidden_layers is not None,
            replace_config=bool(self.albert_config_file),
            classes=classes,
        )
        return conversion.lacking(model, report)


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """A stored model's content; `weights` are `<float32>` arrays by the release's names."""

    path: str
    config: AlbertConfig
    weights: Mapping[str, np.ndarray]
    vocabulary: Vocabulary | None = None
    labels: tuple[str, ...] = ()
    run: RunRecord | None = None

    @property
    def task(self) -> TaskRecord | None:
        """The task that it was fine-tuned for, if it is known."""
        return self.run.task if self.run else None

    @property
    def num_labels(self) -> int:
        """Number of outputs of the classifier's head; 0 without one."""
        return np.size(self.weights.get("output_bias", ()))

    @property
    def dense_units(self) -> int:
        """Number of outputs of the dense layer after pooling; 0 without one."""
        return np.size(self.weights.get(DENSE_BIAS, ()))

    @property
    def has_pooler(self) -> bool:
        """Whether it has the pooler's weights."""
        return any(name.startswith(POOLER) for name in self.weights)

    @property
    def heads(self) -> frozenset[str]:
        """Name prefixes of the heads it has."""
        return frozenset(h for h in HEADS if any(name.startswith(h) for name in self.weights))


def read(stored: ModelLocation, drop: Sequence[str] = ()) -> StoredModel:
    """Reads a model with all that belongs to it, without the weights that `drop` names."""
    # Read weights and config.
    path = hub.download(stored.path)
    layout = layouts.find(path)
    weights = layout.read_weights(path)
    config = dataclasses.replace(stored, path=path).config()
    if stored.albert_config_file:
        layouts.check_config(config, layout, path, replace=True)

    # The remaining names and shapes must be those of a model of albert_tf.
    for prefix in drop:
        dropped = sorted(name for name in weights if name.startswith(prefix))
        logging.info("dropped: %s", ", ".join(dropped))
        weights = {name: value for name, value in weights.items() if name not in dropped}
    model = StoredModel(path, config, weights)
    _check_weights(model)

    # Find what lies beside the weights: vocabulary, names of classes, the run's record.
    found = vocabulary.find(path, *stored.of_vocabulary)
    if found:
        found.check(config)
    names, run = labels.find(path, model.num_labels), kinds.find_run(path)
    return StoredModel(path, config, weights, found, names, run)


def _check_weights(source: StoredModel) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    for part in weight_shapes.parts(source.config, source.num_labels, source.dense_units).values():
        expected |= part.shapes()

    # The encoder must be complete, and so must each head that has any weight; nothing else may be
    # stored.
    here = (name for name in expected if name.startswith((ENCODER, *source.heads)))
    needed = {name for name in here if source.has_pooler or not name.startswith(POOLER)}
    # Report the first type of problem with all its weights.
    missing = sorted(needed - set(source.weights))
    unknown = sorted(set(source.weights) - set(expected))
    wrong = [
        f"{name} {list(value.shape)}, not {list(expected[name])}"
        for name, value in source.weights.items()
        if name in expected and value.shape != expected[name]
    ]
    for problem, listed in (("lacks", missing), ("has unknown", unknown), ("has", wrong)):
        if listed:
            raise ValueError(
                f"{source.path} does not fit its config: it {problem} {', '.join(listed)}; use "
                "the config that belongs to it, or leave out unneeded weights with `drop`"
            )


def add_pieces(
    source: StoredModel, vocabulary: Vocabulary, replaced: Sequence[Sequence[int]]
) -> StoredModel:
    """Returns the model with rows for new pieces, which come last in `vocabulary`.

    A new piece gets the mean of the rows of the pieces that it replaces.
    """
    weights, size = dict(source.weights), vocabulary.tokenizer.vocab_size
    # The masked-LM head shares the table, so only its bias grows as well.
    for name in (WORD_EMBEDDINGS, OUTPUT_BIAS):
        if name in weights:
            rows = [weights[name][list(ids)].mean(axis=0) for ids in replaced]
            # New pieces come before a table's padding.
            weights[name] = np.concatenate([weights[name][: size - len(rows)], rows])
    config = dataclasses.replace(source.config, vocab_size=size)
    return dataclasses.replace(source, config=config, weights=weights, vocabulary=vocabulary)
