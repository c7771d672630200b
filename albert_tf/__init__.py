"""ALBERT on TensorFlow 2 and Keras 3, with the numbers, flags and checkpoints of its release.

Configs and text, which need no framework::

  AlbertConfig    what a model is: AlbertConfig.from_json_file("albert_base_v2"), or a file
  Tokenizer       text -> ids, with the release's SentencePiece or WordPiece vocabulary

Keras models, on any backend::

  AlbertModel                        the encoder, with its pooler
  AlbertForPreTraining               masked LM and sentence order
  AlbertForSequenceClassification    one label or number for a text or a pair
  AlbertForTokenClassification       a label for each token
  AlbertForMultipleChoice            which of several texts
  AlbertForQuestionAnswering         SQuAD 1.1's head
  AlbertForQuestionAnsweringV2       SQuAD 2.0's head
  AlbertForEmbedding                 a vector of each text

Weights and training::

  Preprocessor    texts -> a model's inputs; lists, tables and datasets -> batches for fit
  load_weights    fills a model from a checkpoint of the release or of ours, TF-Hub, Hugging Face,
                  KerasHub or Keras, and says what it did
  load_config     reads the config beside such weights
  export_saved_model    writes a fitted model as a SavedModel that takes raw text
  load_exported   loads what albert-export wrote, to predict from text; ONNX needs no TensorFlow
  optimization    LAMB and AdamW as released, with their schedule
  CosineSimilarityLoss            a loss of two texts' vectors and a score
  MultipleNegativesRankingLoss    a loss of two texts' vectors among those of the batch

For example::

  path = "hf://albert/albert-base-v2"
  preprocess = albert_tf.Preprocessor.from_weights(path, max_seq_length=128)
  model = albert_tf.AlbertForSequenceClassification.from_weights(path, num_labels=2)
  model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  model.fit(preprocess.dataset(texts, labels, batch_size=32))

Scripts: albert-pretrain, albert-finetune, albert-create-pretraining-data,
albert-train-sentencepiece, albert-extend-vocabulary, albert-convert, albert-export,
albert-predict, albert-serve, albert-inspect; see their --help.
Names load on first use, TensorFlow only if it is needed. Keras knows a class once it is loaded: so
`from albert_tf import AlbertModel, optimization` comes before keras.saving.load_model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from albert_tf import optimization
    from albert_tf.config import AlbertConfig
    from albert_tf.conversion import load_config, load_weights
    from albert_tf.model.albert import AlbertModel
    from albert_tf.model.embedding import AlbertForEmbedding
    from albert_tf.model.finetuning import (
        AlbertForMultipleChoice,
        AlbertForQuestionAnswering,
        AlbertForQuestionAnsweringV2,
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
    )
    from albert_tf.model.heads import AlbertForPreTraining
    from albert_tf.serving.predict import load_exported
    from albert_tf.serving.saved_model import export_saved_model
    from albert_tf.tasks.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
    from albert_tf.tasks.preprocessor import Preprocessor
    from albert_tf.text.tokenization import Tokenizer

__version__ = "1.0.0"

_HOMES = {
    "AlbertConfig": "config",
    "Tokenizer": "text.tokenization",
    "AlbertModel": "model.albert",
    "AlbertForPreTraining": "model.heads",
    "AlbertForEmbedding": "model.embedding",
    "AlbertForSequenceClassification": "model.finetuning",
    "AlbertForTokenClassification": "model.finetuning",
    "AlbertForMultipleChoice": "model.finetuning",
    "AlbertForQuestionAnswering": "model.finetuning",
    "AlbertForQuestionAnsweringV2": "model.finetuning",
    "CosineSimilarityLoss": "tasks.losses",
    "MultipleNegativesRankingLoss": "tasks.losses",
    "Preprocessor": "tasks.preprocessor",
    "export_saved_model": "serving.saved_model",
    "load_config": "conversion",
    "load_exported": "serving.predict",
    "load_weights": "conversion",
}
_MODULES = ("optimization",)

__all__ = [
    "AlbertConfig",
    "AlbertForEmbedding",
    "AlbertForMultipleChoice",
    "AlbertForPreTraining",
    "AlbertForQuestionAnswering",
    "AlbertForQuestionAnsweringV2",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertModel",
    "CosineSimilarityLoss",
    "MultipleNegativesRankingLoss",
    "Preprocessor",
    "Tokenizer",
    "export_saved_model",
    "load_config",
    "load_exported",
    "load_weights",
    "optimization",
]


def __getattr__(name: str) -> Any:
    # A name is imported when it is first used, so that `import albert_tf` is quick.
    if name in _HOMES:
        return getattr(importlib.import_module(f"albert_tf.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"albert_tf.{name}")
    raise AttributeError(f"module 'albert_tf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
