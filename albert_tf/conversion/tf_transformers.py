"""Reads tf_model.h5, the file of transformers' TFAlbert classes, as Hugging Face's tensors."""

from __future__ import annotations

import re

import numpy as np

from albert_tf.conversion import arrays

FILE = "tf_model.h5"
# The parts of a name that follow the model's own name: the encoder, and the heads.
_ROOTS = ("albert", "predictions", "sop_classifier", "classifier", "qa_outputs")
# The last part of a name -> PyTorch's name of it.
_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
# A layer's place in a list of layers.
_PLACE = re.compile(r"_\._(\d+)")


def read(path: str) -> dict[str, np.ndarray]:
    """Returns arrays by the names and in the shapes that PyTorch's classes give them.

    The file has a group for each layer, with paths such as
    `albert/tf_albert_model/albert/pooler/kernel:0`. Weights that two layers share are stored twice.
    """
    tensors: dict[str, np.ndarray] = {}
    datasets, _ = arrays.read_hdf5(path, path)
    for dataset, value in datasets.items():
        # The layer's group comes first, then perhaps the model's own name; PyTorch has neither.
        *parts, last = dataset.partition("/")[2].partition(":")[0].split("/")
        if parts[:1] and parts[0] not in _ROOTS:
            parts = parts[1:]
        name = ".".join([*parts, _PARTS.get(last, last)])
        name = _PLACE.sub(r".\1", name)
        value = value.T if last == "kernel" else value
        if not np.array_equal(tensors.setdefault(name, value), value):
            raise ValueError(f"{path} has {name} twice, with other numbers: save the model again")
    # TFAlbert's masked-LM head adds this bias, and not the one with PyTorch's name.
    if "predictions.decoder.bias" in tensors:
        tensors["predictions.bias"] = tensors.pop("predictions.decoder.bias")
    return tensors
