#!/bin/sh
# With JAX, a Keras model loses its weights if a batch can't be read in evaluate or predict.
#
# Both take the values out of the model's variables for the time of the loop, and put them back only
# after its last batch. An error on the way, such as a file that can't be read this time, leaves a
# model that can't predict, be saved or be evaluated. What it has learned is gone, unless a batch came
# before and the program knows of model.jax_state_sync(). fit mostly puts the values back, since
# keras-team/keras#21019, but lost them in 2 of 6 runs. With the numpy backend, as with TensorFlow's,
# the model goes on working. Seen in 10 of 10 runs with keras 3.15.1 and jax 0.10.2 on Python 3.11,
# x86-64 (150 MB to download, 660 MB on the disk):
#
#   jax evaluate: OSError: not readable now | afterwards: TypeError: 'NoneType' object is not callable
#   jax predict: OSError: not readable now | afterwards: TypeError: 'NoneType' object is not callable
#   numpy evaluate: OSError: not readable now | afterwards: weights 2.0
#   numpy predict: OSError: not readable now | afterwards: weights 2.0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import sys

import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise OSError("not readable now")
        return np.ones((4, 1), np.float32), np.full((4, 1), 2, np.float32)


for method in sys.argv[1:]:
    layers = [keras.Input([1]), keras.layers.Dense(1, use_bias=False)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    model.set_weights([np.full((1, 1), 2, np.float32)])
    try:
        getattr(model, method)(Batches(), verbose=0)
    except OSError as error:
        raised = f"{type(error).__name__}: {error}"
    try:
        afterwards = f"weights {model.get_weights()[0].item()}"
    except TypeError as error:
        afterwards = f"{type(error).__name__}: {error}"
    backend = keras.backend.backend()
    print(f"{backend} {method}: {raised} | afterwards: {afterwards}")
END
run() { KERAS_BACKEND=$1 PYTHONPATH="$folder/packages" python3 "$folder/run.py" $2; }
found=$(run jax 'evaluate predict' && run numpy 'evaluate predict')
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
