"""Users' programs for GPUs and TPUs, lowered on a CPU. Not tested here: whether they run there.

Only JAX's probes of the hardware are replaced. Everything lowers, with a kernel or, by the rules of
`attends`, without. A CPU computes in the same process.
"""

import contextlib
import re
import warnings
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

from albert_tf import AlbertConfig
from albert_tf.training import length_buckets
from albert_tf.training.interfaces import StepSettings
from tests.kit import jax_process, tolerances

pytest.importorskip("jax")

# Attention uses a kernel (v2), or has dropout on its probabilities (v1).
V2, V1 = {}, {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1}
# Task, length, dtype, the config's changes, and how the step is made: each value at least once.
Case = tuple[str, int, str, dict[str, Any], dict[str, Any]]
STEPS: dict[str, list[Case]] = {
    "tpu": [
        (
            "pretraining",
            512,
            "bfloat16",
            V2,
            {"is_packed": True, "recompute": True, "optimizer": "muon"},
        )
    ],
    "cuda": [
        ("pretraining", 128, "float32", V2, {"accumulates": 2, "optimizer": "muon"}),
        ("pretraining", 128, "bfloat16", V1, {"is_packed": True, "recompute": True}),
        ("squad_v2", 384, "mixed_float16", V2, {"recompute": True}),
    ],
}
# Run with the peers' tests only.
MORE_STEPS: dict[str, list[Case]] = {
    "tpu": [
        ("pretraining", 512, "bfloat16", V1, {"is_packed": True}),
        ("squad_v2", 384, "bfloat16", V2, {"recompute": True}),
    ],
    "cuda": [
        ("pretraining", 128, "mixed_float16", V2, {"recompute": True}),
        ("pretraining", 128, "bfloat16", V1, {"is_packed": True, "accumulates": 2}),
        ("classification", 88, "bfloat16", V2, {}),  # SST-2's longest on a GPU.
        ("race", 9, "bfloat16", V2, {}),  # No kernel takes odd lengths.
        ("token_classification", 64, "bfloat16", V2, {}),
        ("squad_v2", 384, "bfloat16", V2, {}),
    ],
}
# All lengths that are chosen for tables, and lengths of users' choice with each remainder mod 8.
LENGTHS = (*range(8, 129, 8), 1, 2, 3, 13, 20, 30, 63, 81, 130, 384, 512)
# Each size of a head in bfloat16, and two of them in each other type.
HEADS = {"bfloat16": (16, 24, 32, 64, 96, 128), "float32": (24, 128), "mixed_float16": (16, 96)}


@pytest.mark.slow
def test_steps_lower_and_a_cpu_computes_beside_a_gpu():
    """One process for all. A run leaves out kernels that fail, and logs the cause."""
    written = jax_process.finish(jax_process.start(lower_and_compute))
    assert re.search("attention kernels, which .* .RuntimeError: cuDNN is not detected", written)
    assert re.search("elementwise kernels, which .* .ModuleNotFoundError: .*pallas.triton", written)


@pytest.mark.slow
@pytest.mark.peers  # Minutes.
def test_all_lengths_heads_and_dtypes_lower_for_gpus():
    written = jax_process.finish(jax_process.start(lower_more))
    assert "37 programs lowered" in written  # 27 lengths, 10 heads and dtypes.


def pretend(platform: str) -> None:
    """Replaces JAX's probes of the hardware, as on an H100 or a v5e."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from albert_tf.model import jax_ops

    cudnn.check_cudnn_version = lambda: 91200
    cudnn.check_compute_capability = lambda capability: float(capability) <= 9
    cudnn.is_cuda_compute_capability_equal = lambda capability: capability == "9.0"
    jax_ops._found = lambda: platform
    with contextlib.suppress(ImportError):  # Triton's, of newer versions of JAX.
        from jax._src.pallas.triton import gpu_info

        h100 = gpu_info.get_gpu_info_from_version(gpu_info.GpuVersion.H100)
        gpu_info.get_gpu_info = lambda: h100


def config(**changes) -> AlbertConfig:
    sizes = {"embedding_size": 16, "hidden_size": 256, "intermediate_size": 256}
    sizes |= {"num_attention_heads": 2, "num_hidden_layers": 2, **changes}
    return AlbertConfig(31, **sizes)


def lowered(
    platform,
    name,
    length,
    dtype,
    of_config,
    recompute=False,
    accumulates=1,
    is_packed=False,
    optimizer=None,
) -> tuple[str, str]:
    """Returns the programs of a training step, and of the same model's forward pass."""
    import jax

    from albert_tf.training.jax_devices import JaxDevices
    from tools.tpu_check.steps import features, make_parts

    task, model, optimizer = make_parts(name, of_config, dtype, recompute, optimizer)
    devices = JaxDevices(jax.devices()[:1])
    step = devices.train_step(task, model, optimizer, StepSettings(0, None, accumulates))
    specs = features(name, 8, length)
    batch = {key: (tuple(spec.shape), spec.dtype.as_numpy_dtype) for key, spec in specs.items()}
    if is_packed:
        batch["cls_positions"] = ((8, 3), np.int32)
        batch |= {f"sentence_order_{key}": ((8, 3), np.int32) for key in ("labels", "weights")}
    values, batch = devices.shapes(model, optimizer, batch)

    def forward(values, batch):
        with keras.StatelessScope(list(zip(model.trainable_variables, values, strict=True))):
            return jax.tree.leaves(model(batch, training=False))

    weights = values[: len(model.trainable_variables)]
    traced = step.trace(values, batch), jax.jit(forward).trace(weights, batch)
    texts = [each.lower(lowering_platforms=(platform,)).as_text() for each in traced]
    return texts[0], texts[1]


def assert_by_rule(platform: str, case, texts, of_config: AlbertConfig) -> None:
    """Attention uses a kernel at lengths and sizes that it supports, but never with dropout."""
    _, length, dtype, *_ = case
    size = of_config.hidden_size // of_config.num_attention_heads
    takes, name = "float32" not in dtype and length % 8 == size % 8 == 0, r"__cudnn\$fmha"
    if platform == "tpu":
        takes, name = dtype == "bfloat16" and length >= 256 and length % 128 == 0, "splash"
    drops = of_config.attention_probs_dropout_prob > 0
    for text, expected in zip(texts, (takes and not drops, takes), strict=True):
        assert bool(re.search(name, text)) == expected, (platform, case)


def lower_steps(steps: dict[str, list[Case]]) -> None:
    for platform, cases in steps.items():
        pretend(platform)
        for case in cases:
            name, length, dtype, changes, how = case
            of_config = config(**changes)
            # JAX warns about deprecated functions.
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                texts = lowered(platform, name, length, dtype, of_config, **how)
            assert not said, said[0]
            assert_by_rule(platform, case, texts, of_config)
            # Chains become kernels where a GPU has enough work, which race has due to its choices.
            assert ("triton" in texts[0]) == (platform == "cuda"), case


def lower_and_compute() -> None:
    lower_steps(STEPS)
    lower_without_triton()
    compute_beside_a_gpu()


def lower_more() -> None:
    lower_steps(MORE_STEPS)  # Ends with those for a GPU.
    tables = [np.random.default_rng(seed).integers(3, 129, 500) for seed in range(20)]
    for rows in tables:
        assert {*length_buckets.choose_static_lengths(rows, 128, on_cpu=False)} <= {*LENGTHS}
    cases: list[Any] = [(("classification", length, "bfloat16"), config()) for length in LENGTHS]
    for dtype, sizes in HEADS.items():
        of_configs = (config(hidden_size=2 * size) for size in sizes)
        cases += [(("classification", 128, dtype), of_config) for of_config in of_configs]
    for case, of_config in cases:
        assert_by_rule("cuda", case, lowered("cuda", *case, of_config), of_config)
    print(len(cases), "programs lowered")


def lower_without_triton() -> None:
    from albert_tf.model import jax_ops

    jax_ops.turn_off("elementwise")
    case = "classification", 64, "bfloat16"
    texts = lowered("cuda", *case, config())
    assert_by_rule("cuda", case, texts, config())
    assert "triton" not in "".join(texts)


def compute_beside_a_gpu() -> None:
    """Three steps on the CPU of a machine with a GPU have the losses of kernels turned off."""
    import os
    import sys

    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from albert_tf.model import jax_ops
    from albert_tf.training import jax_devices
    from tools.tpu_check.steps import features, make_parts

    def losses():
        keras.utils.set_random_seed(3)
        parts = make_parts("classification", config(hidden_dropout_prob=0.1), "bfloat16", False)
        run = jax_devices.JaxDevices().train_steps(*parts, StepSettings())
        specs = features("classification", 8, 64)
        batch = {name: np.ones(spec.shape, "int32") for name, spec in specs.items()}
        return run([(iter([batch] * 3), 3)])[:, 0]

    def fails() -> None:
        raise RuntimeError("cuDNN is not detected.")

    os.environ["ALBERT_KERNELS"] = "attention,elementwise"
    beside = losses()
    os.environ["ALBERT_KERNELS"] = "off"
    np.testing.assert_allclose(beside, losses(), rtol=0, atol=tolerances.BFLOAT16_LOSS)
    # A run first tries the kernels: here JAX lacks Triton, but attention works.
    del os.environ["ALBERT_KERNELS"]
    gone = {"jax.experimental.pallas.triton": None}
    with mock.patch.dict(sys.modules, gone), mock.patch.dict(vars(jax_ops.pl)):
        vars(jax_ops.pl).pop("triton", None)
        jax_devices.connect()
    assert jax_ops.used() == ("attention",)
    # And here there is no cuDNN.
    cudnn.check_cudnn_version = fails
    jax_devices.connect()
    assert os.environ["ALBERT_KERNELS"] == "off" and jax_ops.accelerator("attention") is None
