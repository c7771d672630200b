"""Test vectors beside an exported file, for whoever feeds it from another language.

test_vectors.json is a list. Each entry has texts, the ids that the model is fed for them (a row for
each window), the first numbers of each output, and the answer of albert-predict.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import numpy as np

from albert_tf.answers.kind import Kind
from albert_tf.answers.rows import FEATURES
from albert_tf.serving import exported_files
from albert_tf.serving.predict import Predictor
from albert_tf.storage import files
from albert_tf.types import Features

FILE = "test_vectors.json"
# How many numbers of each output are written.
_SHOWN = 8
# Accents, digits before commas, unknown characters, quotes; the last text is repeated until it is
# longer than a sequence.
_TEXTS = (
    "Crème brûlée à Ålesund, naïve façades: ÀÉÎÕÜ ﬁn, e\u0301te\u0301, Ελλάδα.",
    "In 1990, some 3,000 of 9,999,999 paid 2,5 % or $1,234.50, ok?",
    "☃ met 漢字 and 🙂\u200b; then\tthe\u00a0rest.",
    "``It's here,'' said Zoë -- \"isn't it?\" [SEP] <b>&amp;</b>",
    "The quick brown fox jumps over the lazy dog. ",
)


def write(path: str) -> None:
    """Writes the vectors beside an exported file, which computes them."""
    kind, vocabulary, runner, *_ = exported_files.load(path)
    # Record what the model is fed while it answers.
    fed: list[tuple[Features, Features]] = []

    def run(features: Features) -> Features:
        outputs = runner.run(features)
        fed.append((features, outputs))
        return outputs

    answer = Predictor(kind, functools.partial(kind.find, vocabulary.tokenizer, run))
    lines = []
    for texts in rows_of(kind):
        fed.clear()
        (found,) = answer([texts])
        # Ids are written for all windows, but outputs only with their first numbers.
        vector: dict[str, Any] = {"texts": texts}
        for name in FEATURES:
            vector[name] = np.concatenate([features[name] for features, _ in fed]).tolist()
        vector["outputs"] = {name: _first(value) for name, value in fed[0][1].items()}
        lines.append(json.dumps({**vector, "answer": found}, ensure_ascii=False))
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    files.replace(os.path.join(os.path.dirname(path), FILE), text)


def rows_of(kind: Kind) -> list[list[str]]:
    """Returns the texts of each test vector, in the form that a kind takes."""
    *texts, short = _TEXTS
    texts.append(short * (kind.max_seq_length // len(short.split()) + 1))
    if kind.vector:
        texts = [f"The [MASK]: {text}" for text in texts]
    if kind.takes_many:
        return [[text, "They ate [it].", _TEXTS[0]] for text in texts]
    if "question" in kind.text_names:
        return [["Où est-ce, in 1,000 words?", text] for text in texts]
    if len(kind.text_names) == 2:
        return [[text, _TEXTS[1]] for text in texts]
    return [[text] for text in texts]


def _first(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values.ravel()[:_SHOWN].tolist()]
