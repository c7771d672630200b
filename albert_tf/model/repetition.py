"""Applies blocks many times, as a loop of the compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from albert_tf.types import Array

Block = Callable[[Any, Any], Any]


def loop(blocks: Sequence[Block], x: Array, times: int) -> list[Array]:
    """Applies blocks in sequence, and the whole sequence `times` times.

    A block is traced once, whatever `times` is: neither the size of the program nor the time to
    trace and compile it grows.

    Args:
      blocks: Each maps `<float>[...]` and the iteration `<int32>[]` to `<float>[...]` of the same
        shape and dtype.
      x: `<float>[...]`, the input of the first block.
      times: Number of iterations.

    Returns:
      The outputs of all blocks, `times * len(blocks)`, in order.
    """
    if times == 1:
        return unroll(blocks, x, times)
    run = _run_tensorflow if keras.backend.backend() == "tensorflow" else _run
    last, by_block = run(blocks, x, times)
    by_block = [ops.unstack(results, times) for results in by_block]
    results = [result for turn in zip(*by_block, strict=True) for result in turn]
    # The same as results[-1], whose gradient would be one of all iterations.
    return [*results[:-1], last]


def unroll(blocks: Sequence[Block], x: Array, times: int) -> list[Array]:
    """Like `loop`, but unrolled: each block is traced again in each iteration."""
    results = [x]
    for number in range(times):
        results += _in_turn(blocks, results[-1], number)
    return results[1:]


def _run(blocks: Sequence[Block], x: Array, times: int) -> tuple[Array, list[Array]]:
    def turn(x: Array, number: Array) -> tuple[Array, list[Array]]:
        results = _in_turn(blocks, x, number)
        return results[-1], results

    return ops.scan(turn, x, ops.arange(times))


def _run_tensorflow(blocks: Sequence[Block], x: Array, times: int) -> tuple[Array, list[Array]]:
    # Not keras.ops.scan: XLA needs a bound on the loop for its gradient, and scan sets none.
    import tensorflow as tf

    def turn(number: Array, x: Array, arrays: list[Any]) -> tuple[Array, Array, list[Any]]:
        results = [tf.ensure_shape(y, x.shape) for y in _in_turn(blocks, x, number)]
        written = [a.write(number, y) for a, y in zip(arrays, results, strict=True)]
        return number + 1, results[-1], written

    arrays = [tf.TensorArray(x.dtype, times, element_shape=x.shape) for _ in blocks]
    _, last, arrays = tf.while_loop(
        lambda number, *_: number < times, turn, (0, x, arrays), maximum_iterations=times
    )
    return last, [array.stack() for array in arrays]


def _in_turn(blocks: Sequence[Block], x: Array, number: Array) -> list[Array]:
    results = []
    for block in blocks:
        x = block(x, number)
        results.append(x)
    return results
