"""The environment of both checks."""

from __future__ import annotations

import os


def variables(keras_backend: str) -> dict[str, str]:
    """Returns what must be in os.environ before TensorFlow or JAX is imported.

    Otherwise TensorFlow queries Google Cloud for this machine's TPU, for minutes, and a second
    program can't use libtpu.
    """
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
    }
