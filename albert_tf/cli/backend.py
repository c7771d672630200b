"""The devices that a training script runs on."""

from __future__ import annotations

import keras

from albert_tf.cli.training_settings import BACKENDS, TrainingSettings
from albert_tf.training.devices import Devices


def create_devices(settings: TrainingSettings) -> Devices:
    """Returns the devices that the settings name."""
    running = keras.config.backend()
    if running == "jax":
        from albert_tf.training import jax_devices

        return jax_devices.connect(
            settings.use_tpu, settings.num_tpu_cores, settings.shard_optimizer_state
        )
    if running != "tensorflow":
        raise ValueError(f"Keras runs on {running}: set `backend` to one of {', '.join(BACKENDS)}")
    from albert_tf.training import tensorflow_devices
    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    strategy = tensorflow_devices.create_strategy(
        settings.use_tpu,
        settings.tpu_name,
        settings.tpu_zone,
        settings.gcp_project,
        settings.master,
        settings.num_tpu_cores,
    )
    return TensorFlowDevices(strategy)


def check_batch_sizes(settings: TrainingSettings, devices: Devices, *evaluations: str) -> None:
    """Checks that batches can be split evenly over the devices.

    `evaluations` are the names of the batch sizes that are used besides the training's.
    """
    replicas, parts = devices.num_replicas, settings.gradient_accumulation_steps
    sizes = [(name, replicas, "") for name in evaluations]
    if settings.do_train:
        in_parts = f" with {parts} part(s) each" if parts > 1 else ""
        sizes.append(("train_batch_size", replicas * parts, in_parts))
    for name, divisor, in_parts in sizes:
        if getattr(settings, name) % divisor:
            raise ValueError(
                f"`{name}` {getattr(settings, name)} can't be split evenly over {replicas} "
                f"replica(s){in_parts}: make it a multiple of {divisor}"
            )
