"""A stored model as the user names it: weights, and what is beside them or given instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from albert_tf import conversion, hub
from albert_tf.config import AlbertConfig
from albert_tf.text import vocabulary

if TYPE_CHECKING:
    from albert_tf.model.albert import ConfiguredModel


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where a trained model is stored.

    Attributes:
      path: What `load_weights` takes.
      albert_config_file: For weights without a valid config beside them.
      spm_model_file: For weights without a vocabulary beside them.
      vocab_file: A WordPiece vocabulary instead.
      do_lower_case: Whether the model is uncased; see vocabulary.choose.
    """

    path: str
    albert_config_file: str | None = None
    spm_model_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None

    def config(self) -> AlbertConfig:
        """Returns the model's config; raises what load_config raises."""
        if self.albert_config_file:
            return AlbertConfig.from_json_file(self.albert_config_file)
        return conversion.load_config(self.path)

    def vocabulary(self) -> vocabulary.Vocabulary:
        """Returns the model's vocabulary; raises what vocabulary.need raises."""
        path = hub.local(self.path)
        return vocabulary.need(path, self.spm_model_file, self.vocab_file, self.do_lower_case)

    def fill(self, model: ConfiguredModel, classes: Sequence[str] = ()) -> list[str]:
        """Fills a model of the stored config; raises what load_weights raises.

        Args:
          model: The model.
          classes: See load_weights.

        Returns:
          The release's names of what is not stored and the model's outputs depend on.
        """
        replace = bool(self.albert_config_file)
        report = conversion.load_weights(model, self.path, replace_config=replace, classes=classes)
        return conversion.lacking(model, report)
