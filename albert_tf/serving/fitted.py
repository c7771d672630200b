"""A model in memory, fitted with Keras, as a SavedModel that takes raw text."""

from __future__ import annotations

import os
from typing import Any

import keras

from albert_tf.serving import saved_model, trained
from albert_tf.serving.served_models import ServedModel
from albert_tf.serving.settings import TASKS_OF
from albert_tf.storage import files
from albert_tf.tasks.preprocessor import Preprocessor
from albert_tf.tasks.sequence_features import longest_ending


def export_saved_model(
    model: keras.Model,
    preprocess: Preprocessor,
    directory: str | os.PathLike[str],
    **options: Any,
) -> None:
    r"""Writes a SavedModel that takes raw text; `albert-predict --model=directory` answers with it.

    Args:
      model: One of our models with a head, or of a subclass.
      preprocess: What it was trained with: its vocabulary, lengths and labels go along.
      directory: A new or empty directory.
      **options: Further arguments of the class that serves the model, for example `threshold` of
        serving.classifying.Classifier. `multilabel` is by default whether a model with several
        outputs was compiled with Keras' binary cross-entropy. For an AlbertForPreTraining whose
        sentence-order head was not trained, `without=("swapped",)`; a pooler that was not, either:
        `without=("pooled", "swapped")`.

    Raises:
      ValueError: If Keras is not on TensorFlow, the directory holds something, the model is of
        another class, `preprocess` has labels but the model does regression, or an option or the
        vocabulary doesn't fit.

    Example:
      >>> import pathlib
      >>> import albert_tf
      >>> import tensorflow as tf
      >>> from albert_tf.text.vocabulary import Vocabulary
      >>> words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm"
      >>> _ = pathlib.Path("vocab.txt").write_text(words)
      >>> vocabulary = Vocabulary.read("vocab.txt", is_word_piece=True)
      >>> preprocess = albert_tf.Preprocessor(vocabulary, max_seq_length=8, labels=("bad", "good"))
      >>> size = {"vocab_size": 8, "hidden_size": 12, "num_attention_heads": 3}
      >>> config = albert_tf.AlbertConfig(**size, num_hidden_layers=1)
      >>> model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
      >>> albert_tf.export_saved_model(model, preprocess, "served")
      >>> served = tf.saved_model.load("served").signatures["serving_default"]
      >>> served(text=tf.constant(["good film"]))["labels"].numpy().tolist()
      [[b'bad', b'good']]
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"a SavedModel is made on TensorFlow, but Keras runs on {backend}: save model and "
            "Preprocessor, and give their directory to albert-export"
        )
    files.check_free(os.fspath(directory))
    saved_model.save(_served(model, preprocess, options), directory)


def _served(model: keras.Model, preprocess: Preprocessor, options: dict[str, Any]) -> ServedModel:
    found = [task for task, (kind, _) in trained.TASKS.items() if isinstance(model, kind)]
    if not found:
        known = ", ".join(kind.__name__ for kind, _ in trained.TASKS.values())
        raise ValueError(f"{type(model).__name__} can't be exported to take raw text, only {known}")
    (task,) = found
    settings = {
        name: getattr(preprocess, name)
        for name in ("max_seq_length", "max_qa_length", "max_query_length", "doc_stride")
        if task in TASKS_OF[name]
    }
    if "max_qa_length" in settings:  # As the Preprocessor cuts longer endings.
        settings["max_qa_length"] = longest_ending(
            preprocess.max_seq_length, preprocess.max_qa_length
        )
    if task in TASKS_OF["labels"]:
        settings |= _labels(model, preprocess)
    if task in TASKS_OF["multilabel"]:
        settings["multilabel"] = _is_multilabel(model)
    return trained.TASKS[task][1](model, preprocess.vocabulary, **{**settings, **options})


def _labels(model: keras.Model, preprocess: Preprocessor) -> dict[str, tuple[str, ...]]:
    if model.num_labels > 1:
        return {"labels": preprocess.labels or tuple(map(str, range(model.num_labels)))}
    if preprocess.labels:
        raise ValueError(
            f"`preprocess` has labels ({', '.join(preprocess.labels)}), but the model has one "
            "output, which is a regression: give it an output for each label, or export with a "
            "Preprocessor without labels"
        )
    return {}


def _is_multilabel(model: keras.Model) -> bool:
    """Whether a model was compiled with a loss for any number of labels."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    functions = (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)
    return model.num_labels > 1 and (isinstance(loss, binary) or loss in functions)
