"""Which framework computes: chosen before Keras is imported, then its devices."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from albert_tf.cli.training_settings import BACKENDS, TrainingSettings

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.training.devices import Devices


def choose(backend: str | None) -> None:
    """Has Keras start on what --backend names; if it can't, ends the process with one line."""
    if backend:
        os.environ["KERAS_BACKEND"] = backend
    name = os.environ.get("KERAS_BACKEND") or None
    if name not in (None, *BACKENDS):
        sys.exit(
            f"error: KERAS_BACKEND is {name!r}: unset it, or set --backend to one of "
            f"{', '.join(BACKENDS)}"
        )
    if name == "jax" and importlib.util.find_spec(name) is None:
        sys.exit(
            "error: --backend=jax needs JAX, which is not installed: pip install 'albert_tf[jax]'"
        )


def create_devices(settings: TrainingSettings) -> Devices:
    """Returns the devices that the settings name."""
    import keras

    running = keras.config.backend()
    if settings.backend not in (None, running):
        raise ValueError(
            f"`backend={settings.backend}`, but Keras has already started on {running}: set "
            f"KERAS_BACKEND={settings.backend} before Python starts"
        )
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

    Args:
      settings: The settings.
      devices: The devices.
      *evaluations: The names of the batch sizes that are used besides the training's.
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


def describe(devices: Devices) -> str:
    """Returns the devices' name and number of replicas, for people."""
    return f"{devices.name} with {devices.num_replicas} replica(s)"
