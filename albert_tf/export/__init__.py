"""Models that take raw text, for TensorFlow Serving and for programs without this library."""

from __future__ import annotations

from albert_tf.export.answering import QuestionAnswerer
from albert_tf.export.choosing import Chooser
from albert_tf.export.saved_model import save
from albert_tf.export.serving import Classifier, MaskFiller, ServedModel

__all__ = ["Chooser", "Classifier", "MaskFiller", "QuestionAnswerer", "ServedModel", "save"]
