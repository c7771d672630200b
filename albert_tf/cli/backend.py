"""Which framework computes: chosen before Keras is imported, then its devices."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from absl import flags, logging

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.training.devices import Devices

BACKENDS = ("tensorflow", "jax")
_OF_A_TPU = ("tpu_name", "tpu_zone", "gcp_project", "master")
# Flags that only TensorFlow's devices have, and what holds for JAX's.
_TENSORFLOWS = {
    **dict.fromkeys(_OF_A_TPU, "JAX takes the TPU of its own machine"),
    "jit_compile": "JAX always compiles",
    "export_dir": "albert-export makes a SavedModel of an --output_dir of JAX",
}


def choose(values: flags.FlagValues) -> None:
    """Has Keras start on what --backend names; if it can't, ends the process with one line."""
    if values.backend:
        os.environ["KERAS_BACKEND"] = values.backend
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


def create_devices(values: flags.FlagValues) -> Devices:
    """Returns the devices that the flags name.

    Raises:
      ValueError: If there are no such devices, or Keras has started on another framework.
    """
    import keras

    running = keras.config.backend()
    if values.backend not in (None, running):
        raise ValueError(
            f"--backend={values.backend}, but Keras has already started on {running}: set "
            f"KERAS_BACKEND={values.backend} before Python starts"
        )
    if running not in BACKENDS:
        raise ValueError(f"Keras runs on {running}: set --backend to one of {', '.join(BACKENDS)}")
    return _jax_devices(values) if running == "jax" else _tensorflow_devices(values)


def _jax_devices(values: flags.FlagValues) -> Devices:
    for name, reason in _TENSORFLOWS.items():
        if name in values and values[name].value:
            raise ValueError(f"--{name} is for --backend=tensorflow, and {reason}: leave it out")
    from albert_tf.training import jax_devices

    return jax_devices.connect(values.use_tpu, values.num_tpu_cores, values.shard_optimizer_state)


def _tensorflow_devices(values: flags.FlagValues) -> Devices:
    if values.shard_optimizer_state:
        raise ValueError("--shard_optimizer_state is for --backend=jax: set that too")
    ignored = [f"--{name}" for name in _OF_A_TPU if values[name].value and not values.use_tpu]
    if ignored:
        logging.warning("without --use_tpu no TPU is used, and %s ignored", " and ".join(ignored))
    from albert_tf.training import tensorflow_devices
    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    strategy = tensorflow_devices.create_strategy(
        values.use_tpu,
        values.tpu_name,
        values.tpu_zone,
        values.gcp_project,
        values.master,
        values.num_tpu_cores,
    )
    return TensorFlowDevices(strategy)
