"""The settings shared by all commands that read a stored model."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from albert_tf.console.settings import Settings, setting

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.conversion.stored_model import ModelLocation

_stored = functools.partial(setting, group="What lies beside the weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredSettings(Settings):
    """Files and options that belong to a model's weights and are not found beside them."""

    albert_config_file: str | None = _stored(
        None, "The model's config; by default the one beside the weights."
    )
    spm_model_file: str | None = _stored(
        None, "The model's SentencePiece model; by default the one beside the weights."
    )
    vocab_file: str | None = _stored(
        None, "The model's WordPiece vocabulary; by default the one beside the weights."
    )
    do_lower_case: bool | None = _stored(
        None, "Whether the model is uncased; by default as stored with the weights, else yes."
    )
    keep_accents: bool | None = _stored(
        None, "Whether its text keeps accents; by default as stored with the weights, else no."
    )
    ids: str | None = _stored(
        None,
        "Whose ids it was trained with: the release's, or those of the tokenizer.json in its "
        "folder; by default as stored with the weights, else folder for weights that Hugging "
        "Face's libraries fine-tuned.",
        choices=["release", "folder"],
    )

    def stored(self, path: str) -> ModelLocation:
        """Returns the location of the stored model at a path, with these settings."""
        from albert_tf.conversion.stored_model import ModelLocation

        files = (self.albert_config_file, self.spm_model_file, self.vocab_file)
        return ModelLocation(path, *files, self.do_lower_case, self.keep_accents, self.ids)
