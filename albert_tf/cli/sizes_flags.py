"""The flags of `python -m albert_tf.sizes`."""

from __future__ import annotations

from absl import flags

from albert_tf.scripts import FlagGroup


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of `python -m albert_tf.sizes`."""
    group = FlagGroup(values, "Model")
    group.string(
        "albert_config_file", None, "The model: a name such as albert_base_v2, or a JSON file."
    )
    group.boolean(
        "markdown", False, "Print the paper's table of parameters instead: ALBERT beside BERT."
    )
    group = FlagGroup(values, "Run")
    for name, default, text in (
        ("train_batch_size", 4096, "Sequences of a step. 4096 is the paper's."),
        ("max_seq_length", 512, "Tokens of a sequence. 512 is the paper's."),
        ("max_predictions_per_seq", 20, "Masked tokens of a sequence. 20 is the release's."),
        ("num_train_steps", 125000, "Steps of the run. 125000 is the paper's."),
    ):
        group.integer(name, default, text, lower_bound=1)
    group.number("tokens_per_second", None, "Speed, for the hours of the run.", "(0, inf)")
    group.number("watts", None, "Power of the machine, for the run's kWh.", "(0, inf)")
    group.boolean(
        "calibrate",
        False,
        "Measure four small models on this machine, in float32, and predict the speed from them.",
    )
    group.boolean(
        "measure",
        False,
        "Measure the speed of the model itself, in float32: it needs the memory for a step.",
    )
