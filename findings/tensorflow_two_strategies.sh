#!/bin/sh
# In TensorFlow, two MirroredStrategy of one process take part in each other's sums.
#
# Each strategy numbers its collective operations from the same start (cross_device_utils.py,
# CollectiveKeys), and TensorFlow finds the members of an operation by number. So the second model of
# a process, in a new strategy over the same devices, fails in `fit` as soon as its gradients have
# other shapes than the first model's, and from then on the first one does, too. Over another number
# of devices it fails with "is joining a group with size". No documentation says that a process can
# have only one; with one strategy for both models all is well (tensorflow/tensorflow#62790). Seen
# with tensorflow-cpu 2.21.0 and Keras 3.15.1 on Python 3.11, x86-64 (400 MB of packages):
#
#   one strategy: trained, trained
#   two strategies: trained, Shape mismatch in the collective instance 100
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
python3 -m pip install --quiet --target "$folder/packages" \
  'tensorflow-cpu==2.21.0' 'keras==3.15.1' 'numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import re
import sys

import keras
import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def train(strategy, width):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(width)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.ones([8, 3]), np.ones([8, width]), batch_size=4, verbose=0)
    except tf.errors.OpError as error:
        return re.search(r"Shape mismatch in the collective instance \d+", str(error))[0]
    return "trained"


first = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
second = first
if sys.argv[1] == "two strategies":
    second = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(f"{sys.argv[1]}: {train(first, 1)}, {train(second, 2)}")
END
found=$(for count in 'one strategy' 'two strategies'; do
  PYTHONPATH="$folder/packages" python3 "$folder/run.py" "$count" 2>"$folder/log" || cat "$folder/log" >&2
done)
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
