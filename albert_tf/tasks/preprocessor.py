"""Raw texts -> the inputs of a model, in one call: for `fit`, `predict` and your own loops."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf import files, hub
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion import layouts
from albert_tf.tasks import sequence_features, squad_text, text_columns
from albert_tf.tasks.text_batches import TextBatches
from albert_tf.tasks.text_columns import TextColumns
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import length_buckets

Row = dict[str, np.ndarray]


class Preprocessor:
    """Turns raw texts into a model's inputs, as `run_finetune.py` does.

    Args:
      vocabulary: The model's vocabulary.
      max_seq_length: Maximum number of pieces per sequence, special ones included; what is longer
        is cut, but contexts of questions give several rows.
      labels: The classes in the order of their ids: names, or numbers, which become names ("3").
      max_qa_length: Maximum number of pieces per choice.
      max_query_length: Maximum number of pieces per question on a context.
      doc_stride: Pieces between the starts of consecutive rows of a long context.

    Raises:
      ValueError: If `max_seq_length` is less than 4, two labels are the same, one is missing, or
        they are a dictionary.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_seq_length: int = 512,
        labels: Sequence[Any] = (),
        *,
        max_qa_length: int = 128,
        max_query_length: int = 64,
        doc_stride: int = 128,
    ) -> None:
        if max_seq_length < 4:
            raise ValueError(f"`max_seq_length` must be at least 4, not {max_seq_length}")
        self.vocabulary = vocabulary
        self.max_seq_length = max_seq_length
        self.labels = text_columns.class_names(labels)
        labels_file.check_names(self.labels)
        self.max_qa_length = max_qa_length
        self.max_query_length = max_query_length
        self.doc_stride = doc_stride

    @classmethod
    def from_weights(
        cls,
        path: str | os.PathLike[str],
        max_seq_length: int | None = None,
        labels: Sequence[Any] | None = None,
        *,
        spm_model_file: str | None = None,
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
        **settings: int,
    ) -> Preprocessor:
        """Finds the vocabulary, its case and the names of the classes beside stored weights.

        Args:
          path: What the model's `from_weights` takes.
          max_seq_length: See the class; by default as many as the model has positions.
          labels: See the class; by default those stored, if there are any.
          spm_model_file: A SentencePiece model, if there is none beside the weights.
          vocab_file: Or a WordPiece vocabulary.
          do_lower_case: Whether the model is uncased; see vocabulary.find.
          **settings: The other arguments of the class.

        Raises:
          FileNotFoundError: If there are no such weights, or no vocabulary beside them.
          ValueError: If the vocabulary is not the model's, `max_seq_length` is more than it has
            positions, or `labels` are those stored in another order.
        """
        path = hub.local(path)
        config = layouts.load_config(path)
        words = vocabulary.need(path, spm_model_file, vocab_file, do_lower_case)
        words.check(config)
        longest = config.max_position_embeddings
        if max_seq_length is None:
            max_seq_length = longest
        elif max_seq_length > longest:
            raise ValueError(
                f"`max_seq_length` must be at most {longest} (the config's "
                f"max_position_embeddings), not {max_seq_length}"
            )
        if labels is None:
            return cls(words, max_seq_length, labels_file.stored(path), **settings)
        preprocess = cls(words, max_seq_length, labels, **settings)
        labels_file.check_order(preprocess.labels, path)
        return preprocess

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary's tokenizer."""
        return self.vocabulary.tokenizer

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes vocabulary and labels beside a saved model, where `from_weights` finds them.

        Raises:
          FileExistsError: If another vocabulary is there, or labels, and these are none.
          ValueError: If labels are not distinct strings.
        """
        labels_file.check_names(self.labels)  # Before anything is written.
        directory = os.fspath(directory)
        if not files.is_remote(directory):
            os.makedirs(directory, exist_ok=True)
        stale = os.path.join(directory, labels_file.LABELS_FILE)
        if not self.labels and files.exists(stale):
            raise FileExistsError(
                f"{stale} would name the classes of a model without labels: save to a new "
                "directory, or remove it"
            )
        found = vocabulary.find(directory)
        if found is None:
            vocabulary.copy(self.vocabulary, directory)
        elif found.tokenizer.digest != self.tokenizer.digest:
            raise FileExistsError(f"{found.path} is another vocabulary: save to a new directory")
        if self.labels:
            labels_file.write(directory, self.labels)

    def __call__(
        self,
        texts: Any,
        pairs: Any = None,
        *,
        choices: Sequence[Sequence[str]] | None = None,
        contexts: Any = None,
    ) -> dict[str, np.ndarray]:
        """Turns raw texts into one batch, padded to its longest row.

        Args:
          texts: N texts, or one: strings, or a table's column of them.
          pairs: N second texts.
          choices: For each text, C choices.
          contexts: For each text, which is then a question, the context of its answer.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each `<int32>[N, L]`, with choices
          `[N, C, L]`. With contexts also `p_mask`, and `example_index` `<int32>[N]`, the number of
          the question: each has as many rows as its context needs.

        Raises:
          ValueError: If the numbers of texts differ, or one is not a string.
        """
        columns = TextColumns.of(texts, pairs=pairs, choices=choices, contexts=contexts)
        rows = list(self._rows(columns))
        if not rows:
            raise ValueError("no context has any text to search: expected at least one with words")
        longest = max(row["input_ids"].shape[-1] for row in rows)
        return sequence_features.stack(rows, longest)

    def dataset(
        self,
        texts: Any,
        labels: Any = None,
        batch_size: int = 32,
        *,
        pairs: Any = None,
        choices: Sequence[Sequence[str]] | None = None,
        sample_weights: Any = None,
        shuffle: bool | None = None,
        seed: int | None = 0,
        static_lengths: int = 6,
    ) -> Any:
        """Turns raw texts into batches for `fit`, `evaluate` and `predict`.

        A batch is padded to one of a few lengths. `shuffle` draws batches of similar lengths, anew
        in each epoch; without it they are in the order of the texts.

        Args:
          texts: N texts; or a table (a pandas frame or a dictionary) with a column `text`, perhaps
            `text_pair` and `label`; or a tf.data.Dataset of texts, (texts, labels) or (texts,
            labels, weights).
          labels: N of `self.labels`, as names or the numbers that they were made of; or N ids of
            classes or other numbers.
          batch_size: Rows per batch; the last one may have fewer.
          pairs: See `__call__`.
          choices: See `__call__`.
          sample_weights: N weights of the examples in the loss.
          shuffle: By default, whether there are labels. Give False where predictions are compared
            with the labels.
          seed: Seed of the order; None draws one.
          static_lengths: Number of lengths that batches are padded to; each is compiled once. 1
            pads all to `max_seq_length`, which models with an output per position need in
            `predict`.

        Returns:
          On TensorFlow a tf.data.Dataset, else a keras.utils.PyDataset, of (inputs,), (inputs,
          labels) or (inputs, labels, weights).

        Raises:
          ValueError: If numbers of texts, labels and weights differ, a text is not a string, a
            label is neither in `self.labels` nor an id, or there are no rows in a batch.
        """
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, not {batch_size}")
        columns = TextColumns.of(texts, labels, sample_weights, pairs=pairs, choices=choices)
        ids = columns.label_ids(self.labels)
        if columns.weights is not None and ids is None:
            raise ValueError("`sample_weights` apply to the loss of `labels`: give both")
        rows = list(self._rows(columns))
        lengths: tuple[int, ...] = (self.max_seq_length,)
        if static_lengths > 1:
            lengths = length_buckets.choose_static_lengths(
                np.array([row["input_ids"].shape[-1] for row in rows]), lengths[0], static_lengths
            )
        shuffle = ids is not None if shuffle is None else shuffle
        seed = random.randrange(2**31) if seed is None else seed
        order = seed if shuffle else None
        batches = TextBatches(rows, ids, columns.weights, batch_size, lengths, order)
        return batches.as_tf_dataset() if keras.backend.backend() == "tensorflow" else batches

    def _rows(self, columns: TextColumns) -> Iterator[Row]:
        """Yields the features of each text, or of each window of its context, unpadded."""
        tokenizer, longest = self.tokenizer, self.max_seq_length
        if columns.contexts is not None:
            yield from self._windows(columns.texts, columns.contexts)
        elif columns.choices is not None:
            for text, choices in zip(columns.texts, columns.choices, strict=True):
                yield sequence_features.choice_features(
                    tokenizer, text, choices, longest, self.max_qa_length
                )
        else:
            pairs = columns.pairs or [None] * len(columns.texts)
            for text, pair in zip(columns.texts, pairs, strict=True):
                yield sequence_features.pair_features(tokenizer, text, pair, longest)

    def _windows(self, questions: Sequence[str], contexts: Sequence[str]) -> Iterator[Row]:
        examples = [
            squad_text.SquadExample(str(i), question, context, (), False)
            for i, (question, context) in enumerate(zip(questions, contexts, strict=True))
        ]
        for window in squad_text.squad_windows(
            examples,
            self.tokenizer,
            self.max_seq_length,
            self.doc_stride,
            self.max_query_length,
            is_training=False,
        ):
            yield {**window.features, "example_index": np.int32(window.example_index)}
