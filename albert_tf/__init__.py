"""ALBERT on TensorFlow 2 and Keras 3. Names load on first use, TensorFlow only where needed."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AlbertConfig": "config",
    "Tokenizer": "text.tokenization",
    "AlbertModel": "model.albert",
    "AlbertForPreTraining": "model.heads",
    "AlbertForSequenceClassification": "model.finetuning",
    "AlbertForTokenClassification": "model.finetuning",
    "AlbertForMultipleChoice": "model.finetuning",
    "AlbertForQuestionAnswering": "model.finetuning",
    "AlbertForQuestionAnsweringV2": "model.finetuning",
    "load_config": "conversion",
    "load_weights": "conversion",
}
_MODULES = ("optimization",)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"albert_tf.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"albert_tf.{name}")
    raise AttributeError(f"module 'albert_tf' has no attribute {name!r}")
