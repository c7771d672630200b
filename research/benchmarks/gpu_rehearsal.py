"""Runs the lines of `gpu.py --rehearse` on a CPU: JAX takes it for an H100, and only lowers."""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
from typing import Any

import gpu
import numpy as np


def pretend() -> set[str]:
    """Makes JAX's probes report an H100, and replaces running on it by lowering for CUDA.

    Returns:
      The names of the kernels in lowered programs, filled in later.
    """
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from albert_tf.model import jax_ops
    from albert_tf.training.jax_devices import JaxDevices

    cudnn.check_cudnn_version = lambda: 91200
    cudnn.check_compute_capability = lambda capability: float(capability) <= 9
    cudnn.is_cuda_compute_capability_equal = lambda capability: capability == "9.0"
    jax_ops._found, jax_ops.why_not = (lambda: "cuda"), (lambda kind: None)
    with contextlib.suppress(ImportError):  # Triton's probe, in newer versions of JAX.
        from jax._src.pallas.triton import gpu_info

        h100 = gpu_info.get_gpu_info_from_version(gpu_info.GpuVersion.H100)
        gpu_info.get_gpu_info = lambda: h100
    names: set[str] = set()

    def lowered(function: Any, *inputs: Any) -> Any:
        """Lowers a function; returns ones in the shapes of its results."""
        program = function.trace(*inputs).lower(lowering_platforms=("cuda",))
        names.update(re.findall(r"__cudnn\$fmha|add_and_norm|biased_gelu", program.as_text()))
        return jax.tree.map(lambda of: np.ones(of.shape, of.dtype), program.out_info)

    def train_steps(devices: Any, task: Any, model: Any, optimizer: Any, settings: Any) -> Any:
        step, stats = devices.train_step(task, model, optimizer, settings), {}

        def of(batch: Any) -> Any:
            shapes = {name: (value.shape, value.dtype) for name, value in batch.items()}
            if str(shapes) not in stats:
                inputs = devices.shapes(model, optimizer, shapes)
                stats[str(shapes)] = lowered(step, *inputs)[1]
            return stats[str(shapes)]

        return lambda runs: np.stack(
            [of(next(batches)) for batches, count in runs for _ in range(count)]
        )

    gpu._call, JaxDevices.train_steps = lowered, train_steps
    return names


def run(function: str, *arguments: Any) -> Any:
    """Calls a function that measures a line; returns that it lowers, and with which kernels."""
    names = pretend()
    result = getattr(gpu, function)(*arguments)
    with_kernels = gpu.LOWERS + (f" with {', '.join(sorted(names))}" if names else "")
    if function != "facts":
        return {"note": with_kernels}
    _, found = result
    return gpu.ON_A_CPU, [(at, note if gpu._failed(note) else with_kernels) for at, note in found]


def run_script(path: str, *flags: str) -> None:
    """Runs a script in this process; its steps are only lowered."""
    pretend()
    sys.argv = [path, *flags]
    runpy.run_path(path, run_name="__main__")
