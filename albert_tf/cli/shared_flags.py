"""Flags that both training scripts share, with the same names and meaning."""

from __future__ import annotations

from absl import flags

from albert_tf.cli import backend
from albert_tf.scripts import FlagGroup
from albert_tf.storage import hub

# Group headings.
MODEL, TRAINING, SPEED = "Model and output", "Training", "Speed and memory"


def define_model(values: flags.FlagValues, required: bool) -> None:
    """Adds the flags of a run's model and directory.

    Args:
      values: Receives the flags.
      required: Whether both must be named; else the config defaults to the one beside the
        weights.
    """
    group = FlagGroup(values, MODEL)
    group.string(
        "albert_config_file",
        None,
        "The model's config (sizes, activation, dropout rates): a JSON file, or a name such as "
        "albert_base_v2." + ("" if required else " By default the one beside the weights."),
        required=required,
    )
    group.string(
        "output_dir",
        None,
        "Directory for checkpoints, results and TensorBoard files. An interrupted run resumes "
        "from the newest checkpoint there.",
        required=required,
    )
    group.string(
        "init_checkpoint",
        None,
        "Weights to start from if output_dir contains no checkpoint: a checkpoint prefix, file or "
        "directory, in any layout that albert_tf.conversion reads, or hf://OWNER/NAME on the "
        "Hugging Face Hub. By default "
        + (
            "weights are randomly initialised."
            if required
            else "there are none, which is an error without from_scratch."
        ),
    )


def check_output_dir(values: flags.FlagValues) -> None:
    """Raises ValueError if output_dir is empty."""
    if not values.output_dir:
        raise ValueError("--output_dir is empty: give a directory, or . for the current one")


def fetch_weights(values: flags.FlagValues, *names: str) -> None:
    """Downloads the weights that flags name hf://OWNER/NAME, and sets the flags to where."""
    for name in names:
        if values[name].value:
            values[name].value = hub.local(values[name].value)


def define_batch_size(group: FlagGroup, name: str, default: int) -> None:
    """Adds train_batch_size, eval_batch_size or predict_batch_size."""
    work = {"train": "training", "eval": "evaluation", "predict": "prediction"}
    group.integer(
        name,
        default,
        f"Number of examples per {work[name.partition('_')[0]]} step, over all devices. {default} "
        "is the release's.",
        lower_bound=1,
    )


def define_optimizer(
    values: flags.FlagValues, optimizer: str, learning_rate: float, reason: str
) -> None:
    """Adds the optimizer's flags, with a script's defaults and the reason for its rate."""
    group = FlagGroup(values, TRAINING)
    group.enum(
        "optimizer",
        optimizer,
        ["adamw", "lamb"],
        "Optimizer. The release pre-trains with LAMB, which allows large batches, and fine-tunes "
        "with AdamW.",
    )
    group.number(
        "learning_rate",
        learning_rate,
        "Peak learning rate: reached by linear warm-up, then decayed to 0 at the last step. "
        + reason,
        "(0, inf)",
    )
    group.integer(
        "random_seed",
        12345,
        "Seed for weight initialisation, example order, dropout and, in pre-training, dynamic "
        "masks. The same seed repeats a run.",
        lower_bound=0,
        maximum=2**32 - 1,  # NumPy's.
    )


def define_checkpoints(values: flags.FlagValues, save_checkpoints_steps: int, reason: str) -> None:
    """Adds the flags of when to save checkpoints, and how many to keep, with the reason."""
    group = FlagGroup(values, TRAINING)
    group.integer(
        "save_checkpoints_steps",
        save_checkpoints_steps,
        "Number of training steps between checkpoints. " + reason,
        lower_bound=1,
    )
    group.integer(
        "keep_checkpoint_max",
        5,
        "Number of newest checkpoints to keep; 0 keeps all. The best one is always kept.",
        lower_bound=0,
    )


def define_devices(values: flags.FlagValues) -> None:
    """Adds the flags of the devices to run on, and how to use them."""
    _define_speed(values)
    _define_tpu(values)


def _define_speed(values: flags.FlagValues) -> None:
    group = FlagGroup(values, SPEED)
    group.enum(
        "backend",
        None,
        list(backend.BACKENDS),
        "Framework to train with; records and checkpoints are the same for both. By default the "
        "one that KERAS_BACKEND names, else tensorflow.",
    )
    group.enum(
        "precision",
        "float32",
        ["float32", "bfloat16"],
        "Data type of the computation. bfloat16 saves time and memory on GPUs and TPUs; weights "
        "and optimizer state stay float32. The release computes in float32.",
    )
    group.boolean(
        "jit_compile",
        False,
        "Compile the training step with XLA. The first step then takes longer. Always done on a "
        "TPU, and by JAX.",
    )
    group.boolean(
        "recompute",
        False,
        "Recompute each layer's activations in the backward pass instead of storing them: less "
        "memory, more time.",
    )
    group.integer(
        "gradient_accumulation_steps",
        1,
        "Number of parts into which each device splits its share of a batch, to process them one "
        "after the other. More parts need less memory; the result is the same but for dropout's "
        "masks.",
        lower_bound=1,
    )
    group.boolean(
        "shard_optimizer_state",
        False,
        "Keep on each device only its share of the optimizer's state, not all of it: less memory, "
        "with --backend=jax on several devices.",
    )
    group.integer(
        "iterations_per_loop",
        1000,
        "Maximum number of steps per on-device loop; the host logs and checks the loss between "
        "loops. The default is the release's.",
        lower_bound=1,
    )


def _define_tpu(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "TPU")
    group.boolean(
        "use_tpu",
        False,
        "Run on a TPU. If false, run on all GPUs of this machine, or on its CPU; TF_CONFIG adds "
        "other machines.",
    )
    group.string(
        "tpu_name",
        None,
        "Name or gRPC address of the TPU. By default the one of the TPU VM that runs this script.",
    )
    group.string(
        "tpu_zone", None, "Google Cloud zone of the TPU. By default this machine's own zone."
    )
    group.string(
        "gcp_project", None, "Google Cloud project of the TPU. By default this machine's own."
    )
    group.string("master", None, "gRPC address of the TPU; only used if tpu_name is not set.")
    group.integer(
        "num_tpu_cores",
        8,
        "Number of cores that the TPU must have; another number is an error. 8 is the release's.",
        lower_bound=1,
    )


def dtype_policy(values: flags.FlagValues) -> str:
    """Returns the Keras dtype policy that --precision stands for."""
    return "mixed_bfloat16" if values.precision == "bfloat16" else "float32"
