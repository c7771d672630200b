"""The flags of extend_vocabulary.py."""

from __future__ import annotations

from absl import flags

from albert_tf.generator.sentencepiece import define_training_flags
from albert_tf.generator.text_flags import define_text_flags
from albert_tf.scripts import FlagGroup


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of extend_vocabulary.py."""
    define_text_flags(values)
    group = FlagGroup(values, "Model and output")
    group.string(
        "init_checkpoint",
        None,
        "Model to extend: stored weights of any layout, or hf://OWNER/NAME.",
        required=True,
    )
    group.string(
        "output_dir",
        None,
        "Directory to write vocabulary, config and checkpoint to; it must be new or empty.",
        required=True,
    )
    group.string("albert_config_file", None, "Config of the model. Default: beside the weights.")
    group.string(
        "spm_model_file", None, "SentencePiece model to extend. Default: beside the weights."
    )
    group.boolean(
        "do_lower_case",
        None,
        "Lower-case the text: true for uncased models. Default: as stored with the weights, or "
        "else true.",
    )
    group = FlagGroup(values, "New pieces")
    group.integer(
        "num_pieces",
        1000,
        "Number of pieces to add: those that shorten the text most. 1000 make ALBERT-base 1 % "
        "larger.",
        lower_bound=1,
    )
    define_training_flags(group)
