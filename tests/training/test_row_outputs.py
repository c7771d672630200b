"""Outputs on all rows. Several replicas: test_feeding.py."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from albert_tf.training.row_outputs import RowOutputs, in_row_order
from albert_tf.training.tensorflow_devices import TensorFlowDevices


def test_outputs_are_in_the_order_of_the_rows():
    """Five rows, the longest first; what is shorter for short rows ends in -inf."""

    def batches(length: int, rows: list[list[int]]):
        values = [[[10.0 * row + i for i in range(length)] for row in batch] for batch in rows]
        weights = [[float(row >= 0) for row in batch] for batch in rows]
        columns = {"x": values, "example_rows": rows, "example_weights": weights}
        return lambda context: tf.data.Dataset.from_tensor_slices(columns)

    inputs = [batches(3, [[4, 1]]), batches(2, [[0, 3], [2, -1]])]
    devices = TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
    run = RowOutputs(devices, lambda features, training: features["x"])
    outputs = in_row_order(run(inputs), 5)
    inf = float("inf")
    expected = [[0, 1, -inf], [10, 11, 12], [20, 21, -inf], [30, 31, -inf], [40, 41, 42]]
    np.testing.assert_array_equal(outputs, np.array(expected, np.float32))
