"""What serving.py measures: each function returns a function that answers requests.

All run an ALBERT-base v2 classifier with random weights, in float32 unless their name says
otherwise, and are used as their documentation says. A request is `<int32>[B, S]` features.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from base_model import CONFIG_FILE, hugging_face_config

LENGTHS = (8, 256)
NUM_LABELS = 2
ONNX_FORMATS = ("onnx", "onnx_int8")

Features = dict[str, np.ndarray]
# Contestants whose name ends so take texts, the others features.
FROM_TEXT = ", text"
Answer = Callable[[Any], np.ndarray]


def request(batch: int, number: int) -> Features:
    """Returns a batch with lengths spread evenly on a logarithmic scale."""
    random = np.random.default_rng([batch, number])
    lengths = np.exp(random.uniform(*np.log(LENGTHS), batch)).astype(int)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
    return {
        "input_ids": random.integers(5, 30_000, mask.shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
    }


def texts_of(features: Features) -> list[str]:
    """Returns texts with these pieces, but for [CLS] and [SEP]."""
    rows = zip(features["input_ids"], features["input_mask"].sum(axis=1), strict=True)
    return [" ".join(f"w{i - 5}" for i in ids[1 : n - 1]) for ids, n in rows]


def build_model():
    """Returns this project's model."""
    import albert_tf

    config = albert_tf.AlbertConfig.from_json_file(str(CONFIG_FILE))
    model = albert_tf.AlbertForSequenceClassification(config, NUM_LABELS)
    # As trained: with biases of zero a converter would leave out their addition.
    noise = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign_add(noise.normal(0, 0.01, weight.shape))
    return model


def prepare(folder: str) -> None:
    """Writes the model as a SavedModel and, if installed, for onnxruntime, also in 8 bits."""
    from albert_tf import export
    from albert_tf.serving import other_formats
    from albert_tf.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.read(_vocabulary(folder), is_word_piece=True)
    served = export.Classifier(build_model(), vocabulary, ("no", "yes"))
    export.save(served, os.path.join(folder, "saved_model"))
    try:
        for name in ONNX_FORMATS:
            other_formats.save(served, os.path.join(folder, name), name)
    except ValueError as error:
        print(f"no ONNX: {error}")


def _vocabulary(folder: str) -> str:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(29_995))]
    path = os.path.join(folder, "vocab.txt")
    Path(path).write_text("\n".join(pieces) + "\n")
    return path


def _signature(folder: str, name: str) -> Callable[..., dict[str, Any]]:
    import tensorflow as tf

    importlib.import_module("tensorflow_text")  # Registers its text operations.
    loaded = tf.saved_model.load(os.path.join(folder, "saved_model"))
    # A signature doesn't keep the model's weights alive.
    return lambda **inputs: loaded.signatures[name](
        **{key: tf.constant(value) for key, value in inputs.items()}
    )


def saved_model(folder: str) -> Answer:
    """This project's SavedModel, loaded without this project."""
    signature = _signature(folder, "features")
    return lambda features: signature(**features)["logits"].numpy()


def saved_model_from_text(folder: str) -> Answer:
    """The same, from raw text with as many pieces."""
    signature = _signature(folder, "serving_default")
    return lambda texts: signature(text=texts)["logits"].numpy()


def keras_predict(folder: str) -> Answer:
    """keras.Model.predict_on_batch of this project's model."""
    model = build_model()
    return lambda features: model.predict_on_batch(features)


def onnxruntime(folder: str, file_format: str) -> Answer:
    """The ONNX file."""
    import onnxruntime

    (path,) = Path(folder, file_format).glob("*.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda features: session.run(["logits"], features)[0]


def onnxruntime_from_text(folder: str, file_format: str) -> Answer:
    """The same, from raw text that this project's Preprocessor splits."""
    import albert_tf
    from albert_tf.text import vocabulary

    preprocess = albert_tf.Preprocessor(vocabulary.find(os.path.join(folder, file_format)))
    run = onnxruntime(folder, file_format)
    return lambda texts: run(preprocess(texts))


def hugging_face(folder: str, compiled: bool) -> Answer:
    """Hugging Face's AlbertForSequenceClassification on torch."""
    import torch
    import transformers

    config = hugging_face_config(num_labels=NUM_LABELS)
    model = transformers.AlbertForSequenceClassification(config).eval()
    forward = torch.compile(model, dynamic=True) if compiled else model

    def answer(features: Features) -> np.ndarray:
        ids, mask, types = (torch.from_numpy(value).long() for value in features.values())
        with torch.inference_mode():
            return forward(input_ids=ids, attention_mask=mask, token_type_ids=types).logits.numpy()

    return answer


def hugging_face_from_text(folder: str) -> Answer:
    """The compiled one, from raw text that Hugging Face's fast tokenizer splits."""
    import transformers

    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    run = hugging_face(folder, compiled=True)

    def answer(texts: list[str]) -> np.ndarray:
        rows = tokenizer(texts, padding=True, return_tensors="np")
        names = ("input_ids", "attention_mask", "token_type_ids")
        return run({name: rows[name] for name in names})

    return answer


CONTESTANTS: dict[str, Callable[[str], Answer]] = {
    "albert_tf SavedModel": saved_model,
    "albert_tf SavedModel, text": saved_model_from_text,
    "albert_tf keras predict": keras_predict,
    "Hugging Face, eager": lambda folder: hugging_face(folder, compiled=False),
    "Hugging Face, torch.compile": lambda folder: hugging_face(folder, compiled=True),
    "torch.compile, text": hugging_face_from_text,
    "onnxruntime": lambda folder: onnxruntime(folder, "onnx"),
    "onnxruntime, int8": lambda folder: onnxruntime(folder, "onnx_int8"),
    "onnxruntime, text": lambda folder: onnxruntime_from_text(folder, "onnx"),
    "onnxruntime, int8, text": lambda folder: onnxruntime_from_text(folder, "onnx_int8"),
}
