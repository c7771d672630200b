"""Requests that TensorFlow Serving answers while it loads a model: the first ones are slow."""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf.serving.served_models import ServedModel

# Where the server looks for them, in the SavedModel's directory.
REQUESTS_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")


def write(served: ServedModel, directory: str) -> None:
    """Writes two requests of raw text, one short and one that fills a sequence.

    Writes nothing if tensorflow-serving-api is not installed.

    Args:
      served: The model.
      directory: That of its SavedModel.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        return
    path = os.path.join(directory, REQUESTS_FILE)
    os.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for words in (1, served.max_seq_length):
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.signature_name = "serving_default"
            for name in served.text_names:
                text = " ".join(["word"] * words)
                value = [text] if served.text_ranks.get(name, 1) == 1 else [[text, text]]
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            writer.write(log.SerializeToString())
