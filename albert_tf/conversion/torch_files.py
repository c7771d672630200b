"""Files of tensors by name, as torch users store them: safetensors and pickles."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import safetensors
import safetensors.numpy

from albert_tf.conversion import values

# torch and TensorFlow can't both be loaded in one process (their LLVMs collide), and a separate
# process limits what reading a pickle can do.
_UNPICKLE = """
import sys
import torch
from safetensors.numpy import save_file
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    sys.exit(f"torch {torch.__version__} reads pickles unsafely: install 2.6 or later")
tensors = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
if not isinstance(tensors, dict) or not all(torch.is_tensor(t) for t in tensors.values()):
    sys.exit("it contains something other than tensors by name")
tensors = {name: tensor.float() if tensor.is_floating_point() else tensor
           for name, tensor in tensors.items()}
save_file({name: tensor.contiguous().numpy() for name, tensor in tensors.items()}, sys.argv[2])
"""


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """Reads a safetensors file.

    Args:
      path: The file.

    Returns:
      Arrays by name.

    Raises:
      ValueError: If it is damaged, or has weights of a type that NumPy lacks, such as float8.
    """
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None
    except (AttributeError, TypeError) as error:  # What it raises of a type that NumPy lacks.
        raise ValueError(
            f"{path} has weights of a type that is not read ({error}): save the model again in "
            "float32"
        ) from None


def read_pickle(path: str) -> dict[str, np.ndarray]:
    """Reads a pickle of tensors with torch, without running its code.

    Args:
      path: The file.

    Returns:
      Arrays by name; floating-point ones in float32.

    Raises:
      ValueError: If torch is not installed, or the file is damaged or holds more than tensors.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            f"{path} is a pickle, which only torch reads: install torch, or save the model again "
            "as model.safetensors"
        )
    if zipfile.is_zipfile(path):
        values.check_not_compressed(path)
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "model.safetensors")
        process = subprocess.run(
            [sys.executable, "-c", _UNPICKLE, os.path.abspath(path), target],
            cwd=folder,  # python -c also looks for modules here.
            capture_output=True,
            text=True,
        )
        if process.returncode:
            reason = (process.stderr.strip() or "killed").splitlines()[-1]
            raise ValueError(
                f"{path} can't be read safely ({reason}): save the model again as model.safetensors"
            )
        return read_safetensors(target)
