"""Largest absolute differences that tests allow, and why; and what compares numbers with them."""

from typing import Any

import numpy as np

# Optimizer. Rates in float32, relative to the first rate: one rounding is 6e-8.
SCHEDULE_RELATIVE = 2e-7
# Ten float32 steps of weights of about 2, and moments of up to 4: four roundings of 2.4e-7.
TOY_UPDATE = 1e-6
# Three float32 steps against float64, on weights of about 2.
HAND_UPDATE = 1e-6
# Ten steps of the encoder: the release's own noise is up to 1.4e-6, except in the keys' bias. Its
# true gradient is 0; the release's is a rounding error of 1.6e-8. Divided by an epsilon of 1e-6,
# and with rates that add up to 0.14, ten optimizer steps can make 2e-3 of it. Observed are 3.5e-5
# between two of the release's runs, and 1.4e-4 here on a processor with other instructions.
TRAJECTORY_LOSS = 1e-5
TRAJECTORY_WEIGHT = 2e-5
TRAJECTORY_KEY_BIAS = 3e-4
# Five steps of weights of about 1 whose gradients were summed in another order.
REPLICA_WEIGHT = 1e-6

# Model. Two float32 runs of the release differ by up to 2.4e-6 in outputs and 3.3e-7 in gradients
# (golden/encoder/noise_floor.json).
OUTPUT = 2e-5
LOSS = 1e-5
GRADIENT = 5e-6
# A row whose keys are all masked: the release rounds its scores at 1e4, in steps of 1e-3.
ALL_MASKED_ROW = 2e-3
# One sublayer with outputs of about 3 in float32 against float64.
SUBLAYER = 3e-6
# The same float32 sums in another order, relative to the largest gradient of a variable.
RECOMPUTED_RELATIVE = 1e-5
# Values of up to 4 have steps of 2^-6 in bfloat16: half a step, twice in each of 8 sublayers.
BFLOAT16_OUTPUT = 0.125
# Losses of about 4, means over some dozens of such outputs.
BFLOAT16_LOSS = 0.05

# Attention and kernels against float64, relative to the largest value: in float32, sums of 640
# products, off by 6e-6 with some processors' instructions; in bfloat16, two roundings.
KERNEL = 1e-5
BFLOAT16_KERNEL = 2 * 2**-8

# Heads. Gradients relative to the largest of all variables (STS-B's
# are large), and log probabilities of masked positions, about -1e30, relative to themselves.
HEAD_GRADIENT_RELATIVE = 1e-5
MASKED_RELATIVE = 1e-6

# Metrics. The release accumulates them in float32.
METRIC = 1e-6

# Other implementations, on weights drawn with deviation 0.3: what the conversion promises. A
# logit is a sum of some ten products of numbers of about 1, whose rounding is 1e-7.
PEER_OUTPUT = 1e-5
# Errors of float32 gradients of twelve layers, as a multiple of the other library's largest error.
# Observed are 0.4 to 1.2 with several instruction sets.
GRADIENT_OF_NOISE = 3

# Exported models. Weights in 8 bits are off by up to 1/254 of their column's largest; sums of some
# tens of them, through a layer of a random model whose logits deviate by 1.
INT8_OUTPUT = 0.3

# Inspection. What `similarity` and `attention` promise, against float64, of weights drawn with
# deviation 0.3. An angle in degrees is 57 times as far off as a state, but is a mean of many.
INSPECTED = 1e-5


def assert_weight(
    name: str, actual: Any, expected: Any, noise: tuple[str, ...] = ("self/key/bias",)
) -> None:
    """Compares a weight after some steps; the gradient of one whose name ends in `noise` is 0."""
    limit = TRAJECTORY_KEY_BIAS if name.endswith(noise) else TRAJECTORY_WEIGHT
    assert np.max(np.abs(np.asarray(actual) - expected)) <= limit, name


def assert_close(actual: Any, expected: Any, atol: float, name: str = "") -> None:
    """Compares arrays, or tensors of any framework; a failure gives the name."""
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=atol, err_msg=name)
