"""The base classes of the models for fine-tuning. Axis letters: see model/__init__.py."""

from __future__ import annotations

from typing import Any

import keras

from albert_tf.config import ConfigSource
from albert_tf.model import dropout
from albert_tf.model.albert import AlbertModel, ConfiguredModel
from albert_tf.model.heads import ClassifierHead
from albert_tf.types import Array


class FineTunedModel(ConfiguredModel):
    """Base class of the models here: an encoder, and a head with its own dropout.

    Args:
      config: See ConfiguredModel.
      classifier_dropout_prob: Dropout rate of the head, separate from the config's
        `hidden_dropout_prob` and `attention_probs_dropout_prob`.
      recompute: See ConfiguredModel.
      **kwargs: Passed to keras.Model.

    Raises:
      ValueError: If `classifier_dropout_prob` is outside [0, 1).
    """

    def __init__(
        self,
        config: ConfigSource,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, **kwargs)
        if not 0 <= classifier_dropout_prob < 1:
            raise ValueError(f"`classifier_dropout_prob` {classifier_dropout_prob} not in [0, 1)")
        self.classifier_dropout_prob = classifier_dropout_prob
        self.albert = AlbertModel(self.config, recompute, dtype=self.dtype_policy)
        self.seed_generator = keras.random.SeedGenerator() if classifier_dropout_prob else None

    def build(self, input_shape: object = None) -> None:
        """Creates all weights; their shapes follow from the config alone."""
        width = self.config.hidden_size
        of_head = (None, width) if self.reads_pooler else (None, None, width)
        for layer in self.layers:
            if not layer.built:
                layer.build(of_head)
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "classifier_dropout_prob": self.classifier_dropout_prob}

    def encode(
        self, inputs: dict[str, Array], training: bool | None, dropout_seed: Array
    ) -> tuple[dict[str, Any], Array]:
        """Encodes a batch.

        Args:
          inputs: See AlbertModel.
          training: Whether to apply dropout.
          dropout_seed: See AlbertModel.call.

        Returns:
          AlbertModel's outputs, and the head's seed `<int>[2]`, None without dropout.
        """
        if training and dropout_seed is None and self.seed_generator is not None:
            dropout_seed = self.seed_generator.next()
        outputs = self.albert(inputs, training=training, dropout_seed=dropout_seed)
        site = 1 + dropout.SITES_PER_BLOCK * self.config.num_blocks
        return outputs, dropout.fold_in(dropout_seed if training else None, site)

    def add_classifier(self, num_outputs: int, name: str) -> ClassifierHead:
        """Returns a head of `num_outputs` classes with this model's dropout and dtype."""
        return ClassifierHead(
            self.config,
            num_outputs,
            self.classifier_dropout_prob,
            name=name,
            dtype=self.dtype_policy,
        )


class ClassifierModel(FineTunedModel):
    """Base class of the classifiers.

    Args: see FineTunedModel; `num_labels` is the number of classes C.
    """

    default_name: str

    def __init__(
        self,
        config: ConfigSource,
        num_labels: int,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if num_labels < 1:
            raise ValueError(f"`num_labels` must be at least 1, not {num_labels}")
        kwargs["name"] = name or self.default_name
        super().__init__(config, classifier_dropout_prob, recompute, **kwargs)
        self.num_labels = num_labels
        self.classifier = self.add_classifier(num_labels, "classifier")
        self.build()

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "num_labels": self.num_labels}
