"""The flags of `python -m albert_tf.sizes`."""

from __future__ import annotations

from absl import flags

from albert_tf.scripts import FlagGroup


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of `python -m albert_tf.sizes`."""
    group = FlagGroup(values, "Model")
    group.string(
        "albert_config_file",
        None,
        "Config of the model: a name such as albert_base_v2, or a JSON file.",
    )
    group.boolean(
        "markdown",
        False,
        "Print a table of the parameters of the paper's ALBERT and BERT models instead.",
    )
    group = FlagGroup(values, "Run")
    for name, default, text in (
        ("train_batch_size", 4096, "Number of sequences per step. 4096 is the paper's."),
        ("max_seq_length", 512, "Number of tokens per sequence. 512 is the paper's."),
        (
            "max_predictions_per_seq",
            20,
            "Number of masked tokens per sequence. 20 is the release's.",
        ),
        ("num_train_steps", 125000, "Number of training steps. 125000 is the paper's."),
    ):
        group.integer(name, default, text, lower_bound=1)
    group.number(
        "tokens_per_second", None, "Training speed, to compute the hours of the run.", "(0, inf)"
    )
    group.number("watts", None, "Power of the machine, to compute the kWh of the run.", "(0, inf)")
    group.boolean(
        "calibrate",
        False,
        "Measure four small models on this machine, in float32, and predict the model's speed "
        "from them.",
    )
    group.boolean(
        "measure",
        False,
        "Measure the speed of the model itself, in float32; this needs the memory of a training "
        "step.",
    )
