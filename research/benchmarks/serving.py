"""Measures the latency of an ALBERT-base classifier on a CPU, in several runtimes.

    make bench-serving  or, with the peers installed,  python research/benchmarks/serving.py

Each contestant has its own process. All are alive together and answer each request one after the
other, in a random order, so that other load on the machine affects all alike. A request is a batch
of id sequences of mixed lengths, padded to the longest; contestants for raw text split it first.
All run an ALBERT-base v2 classifier with random weights, in float32 unless their name says
otherwise, and are used as their documentation says.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from base_model import CONFIG_FILE, hugging_face_config, with_noise
from workers import Worker, in_process, that_answer

BATCHES = (1, 8, 32)
# Pause before each request: threads of the previous contestant may keep the cores busy while they
# wait for more work.
PAUSE_SECONDS = 0.3
LENGTHS = (8, 256)
NUM_LABELS = 2
ONNX_FORMATS = ("onnx", "onnx_int8")

Features = dict[str, np.ndarray]
# The end of the names of contestants that take texts; the others take features.
FROM_TEXT = ", text"
Answer = Callable[[Any], np.ndarray]


def request(batch: int, number: int) -> Features:
    """Returns a batch with lengths spread evenly on a logarithmic scale."""
    rng = np.random.default_rng([batch, number])
    lengths = np.exp(rng.uniform(*np.log(LENGTHS), batch)).astype(int)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
    return {
        "input_ids": rng.integers(5, 30_000, mask.shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
    }


def texts_of(features: Features) -> list[str]:
    """Returns texts of these pieces, without [CLS] and [SEP]."""
    rows = zip(features["input_ids"], features["input_mask"].sum(axis=1), strict=True)
    return [" ".join(f"w{i - 5}" for i in ids[1 : n - 1]) for ids, n in rows]


def build_model():
    """Returns this project's model."""
    import albert_tf

    config = albert_tf.AlbertConfig.from_json_file(str(CONFIG_FILE))
    return with_noise(albert_tf.AlbertForSequenceClassification(config, NUM_LABELS), 0.01)


def prepare(folder: str) -> None:
    """Writes the model as a SavedModel and, if installed, for onnxruntime, also in 8 bits."""
    from albert_tf import export
    from albert_tf.answers.classify import Classify
    from albert_tf.serving import other_formats
    from albert_tf.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.read(_vocabulary(folder), is_word_piece=True)
    served = export.Classifier(build_model(), vocabulary, Classify(labels=("no", "yes")))
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


def answers(name: str, folder: str) -> Callable[..., dict[str, float]]:
    """Returns a function that runs the contestant on a request, and returns the seconds."""
    answer = None

    def respond(**wanted: int) -> dict[str, float]:
        nonlocal answer
        answer = answer or CONTESTANTS[name](folder)
        given = request(**wanted)
        if name.endswith(FROM_TEXT):
            given = texts_of(given)
        start = time.perf_counter()
        answer(given)
        return {"seconds": time.perf_counter() - start}

    return respond


class Contestant(Worker):
    """A contestant, and its answer times in seconds."""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name, "serving.answers", name, folder)
        self.seconds: list[float] = []


def percentile(seconds: Sequence[float], share: float) -> float:
    """Returns the smallest time that at least a `share` of the times don't exceed."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(workers: Sequence[Contestant], batch: int, requests: int) -> None:
    """Has all answer the same requests in turns, and prints a row for each."""
    for worker in workers:
        worker.seconds.clear()
        # One-time costs of a length or batch, such as compiling, are not measured.
        for number in range(requests):
            worker.ask(batch=batch, number=number)
    for number in range(requests):
        for worker in random.Random(number).sample(workers, len(workers)):
            time.sleep(PAUSE_SECONDS)
            worker.seconds.append(worker.ask(batch=batch, number=number)["seconds"])
    print(f"\nbatch {batch}, {requests} requests")
    print(f"{'':28} {'p50':>9} {'p99':>9} {'sequences/s':>12}")
    for worker in workers:
        p50, p99 = (percentile(worker.seconds, share) for share in (0.5, 0.99))
        rate = batch * requests / sum(worker.seconds)
        print(f"{worker.name:28} {1e3 * p50:6.1f} ms {1e3 * p99:6.1f} ms {rate:12.1f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument(
        "--sequences",
        type=int,
        default=128,
        help="Number of requests per batch size; 0 only exports.",
    )
    parser.add_argument("--only", default="", help="Only contestants whose name contains this.")
    parser.add_argument(
        "--folder", help="Folder in which the exported models are kept for later runs."
    )
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        Path(folder).mkdir(parents=True, exist_ok=True)
        if not Path(folder, "saved_model").exists():
            in_process("serving.prepare", folder, backend="tensorflow")
        if args.sequences == 0:
            return
        made = (Contestant(name, folder) for name in CONTESTANTS if args.only in name)
        workers = that_answer(made, batch=1, number=0)
        try:
            for batch in args.batches:
                measure(workers, batch, max(3, args.sequences // batch))
        finally:
            for worker in workers:
                worker.close()
    print(f"\n{platform.processor() or platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
