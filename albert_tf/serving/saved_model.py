"""Writes a model that takes raw text as a TensorFlow SavedModel, with warm-up requests."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import tensorflow as tf

from albert_tf.console import tensorflow_logs
from albert_tf.serving import served_tasks
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.storage import files
from albert_tf.tasks.preprocessor import Preprocessor
from albert_tf.text import vocabulary

# Where TensorFlow Serving looks for warm-up requests, in the SavedModel's directory.
REQUESTS_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")


def write_warm_up(served: ServedModel, directory: str) -> None:
    """Writes two requests of raw text, one short and one that fills a sequence.

    Writes nothing if tensorflow-serving-api is not installed.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        return
    path = os.path.join(directory, REQUESTS_FILE)
    os.makedirs(os.path.dirname(path))
    # The server replays them when it loads the model, so that no client meets a slow start.
    with tf.io.TFRecordWriter(path) as writer:
        for words in (1, served.kind.max_seq_length):
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.signature_name = "serving_default"
            for name, rank in served.kind.text_ranks.items():
                text = " ".join(["word"] * words)
                # A list of texts, such as the endings to choose from, has an axis of its own.
                value = [text] if rank == 1 else [[text, text]]
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            writer.write(log.SerializeToString())


def save(served: ServedModel, directory: str | os.PathLike[str]) -> None:
    """Writes a SavedModel with the signatures `features`, `examples` and `serving_default`.

    Its description lies beside it. With tensorflow-serving-api installed, it has warm-up requests
    for TensorFlow Serving. The directory is empty or new, and appears once everything is written.
    """
    directory = os.fspath(directory)
    files.check_literal(directory)
    with (
        files.whole_directory(directory) as temporary,
        tempfile.TemporaryDirectory() as folder,
        tensorflow_logs.only_warnings(),
    ):
        # An asset of the module is copied into the SavedModel.
        served.vocabulary_asset = tf.saved_model.Asset(vocabulary.copy(served.vocabulary, folder))
        tf.saved_model.save(served, temporary, signatures=served.signatures())
        served.describe(temporary)
        write_warm_up(served, temporary)


def export_saved_model(
    model: keras.Model,
    preprocess: Preprocessor,
    directory: str | os.PathLike[str],
    **options: Any,
) -> None:
    r"""Writes a SavedModel that takes raw text; `albert-predict --model=directory` answers with it.

    Args:
      model: One of our models with a head, or of a subclass.
      preprocess: What it was trained with; its vocabulary, lengths and labels are exported too.
      directory: A new or empty directory.
      **options: Further options of the model's kind, for example `threshold` of
        answers.classify.Classify. By default, `multilabel` is true if a model with several
        outputs was compiled with Keras' binary cross-entropy. For an AlbertForPreTraining whose
        sentence-order head was not trained, give `without=("swapped",)`; if its pooler was not
        trained either, `without=("pooled", "swapped")`.

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
    save(served_tasks.serve_fitted(model, preprocess, options), directory)


def hint(directory: str) -> str | None:
    """Returns a sentence on what a SavedModel lacks for TensorFlow Serving, if anything."""
    if not os.path.basename(os.path.abspath(directory)).isdecimal():
        return (
            "TensorFlow Serving only loads a model from a directory whose name is a number, its "
            f"version: for that, export to {os.path.join(directory, '1')}"
        )
    if not files.is_file(os.path.join(directory, REQUESTS_FILE)):
        return (
            "without tensorflow-serving-api no warm-up requests were written, so TensorFlow "
            "Serving answers its first requests slowly: pip install 'albert_tf[serving]', and "
            "export again"
        )
    return None
