"""Raw texts (lists, tables, datasets) -> inputs, and batches for `fit`."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf.conversion import labels as labels_file
from albert_tf.conversion import layouts
from albert_tf.storage import files, hub
from albert_tf.tasks import sequence_features, squad_text
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import length_buckets

Row = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """N examples, column by column.

    Attributes:
      texts: The texts.
      pairs: Second texts, if there are any.
      choices: The choices of each text, if there are any.
      contexts: The context of each question, if the texts are questions.
      labels: Classes, their names or numbers, if there are any.
      weights: `<float32>[N]`, weights of the examples, if there are any.
    """

    texts: list[str]
    pairs: list[str] | None = None
    choices: list[list[str]] | None = None
    contexts: list[str] | None = None
    labels: list[Any] | None = None
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, texts: Any, labels: Any = None, weights: Any = None, **others: Any) -> TextColumns:
        """Reads what a caller gives; see Preprocessor.dataset."""
        if hasattr(texts, "as_numpy_iterator"):
            texts, labels, weights = _from_dataset(texts, labels, weights)
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):
            if "text" not in texts:
                raise ValueError(
                    f"expected a column 'text', got {', '.join(map(repr, texts))}: rename the "
                    "columns, or give each as an argument"
                )
            labels = texts["label"] if labels is None and "label" in texts else labels
            if others.get("pairs") is None and "text_pair" in texts:
                others["pairs"] = texts["text_pair"]
            texts = texts["text"]
        columns: dict[str, Any] = {"texts": _texts(texts, "texts")}
        for name, given in others.items():
            if given is not None and name == "choices":
                columns[name] = [_texts(choices, name) for choices in given]
            elif given is not None:
                columns[name] = _texts(given, name)
        columns["labels"] = None if labels is None else list(labels)
        columns["weights"] = None if weights is None else np.asarray(weights, np.float32)
        count = len(columns["texts"])
        if not count:
            raise ValueError("there are no texts")
        for name, column in columns.items():
            if column is not None and len(column) != count:
                raise ValueError(f"expected as many {name} as texts, got {len(column)} and {count}")
        if len({len(choices) for choices in columns.get("choices") or ()}) > 1:
            raise ValueError("all texts must have the same number of choices")
        if columns["weights"] is not None and not np.isfinite(columns["weights"]).all():
            raise ValueError("`sample_weights` must be finite numbers")
        return cls(**columns)

    def label_ids(self, names: Sequence[str]) -> np.ndarray | None:
        """Returns the labels, `<int32>[N]` for classes and `<float32>[N]` for other numbers.

        Args:
          names: The names of the classes, if they have names. Labels are looked up there if they
            are strings or any is one of them, as the numbers 3 and 3.0 are of "3"; else they are
            ids.
        """
        if self.labels is None:
            return None
        known = {name: i for i, name in enumerate(names)}
        given = [_name_among(names, label) for label in self.labels]
        if isinstance(self.labels[0], (str, bytes)) or not known.keys().isdisjoint(given):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(
                    f"label {unknown[0]!r} is not one of `labels` "
                    f"({', '.join(names) or 'none given'}): give the names of all classes in the "
                    "order of their ids"
                )
            return np.array([known[name] for name in given], np.int32)
        ids = np.asarray(self.labels)
        if ids.dtype.kind not in "biuf" or not np.isfinite(ids).all():
            raise ValueError("labels must be finite numbers, or strings that are all in `labels`")
        # Several numbers for a text are no ids.
        is_wrong = (ids < 0) | (ids >= len(names)) | (ids % 1 != 0)
        if names and ids.ndim == 1 and is_wrong.any():
            raise ValueError(
                f"label {ids[is_wrong][0]} is neither one of `labels` ({', '.join(names)}) nor "
                "an id of one: give the names of all classes in the order of their ids, or "
                "`labels=()` for numbers that are no classes"
            )
        return ids.astype(np.float32 if ids.dtype.kind == "f" else np.int32)


def _name_among(names: Sequence[str], label: Any) -> str:
    """Returns a label's name: of the numbers 3 and 3.0 "3" or "3.0", whichever is in `names`."""
    text = labels_file.name_of(label)
    if text in names or not isinstance(label, numbers.Number):
        return text
    try:
        return next((name for name in names if float(name) == label), text)
    except ValueError:  # Names that are no numbers.
        return text


def _from_dataset(dataset: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Reads a tf.data.Dataset of texts, (texts, labels) or (texts, labels, weights)."""
    from albert_tf.records.input_files import untuned

    elements = list(untuned(dataset).as_numpy_iterator())
    if not elements:
        raise ValueError("there are no texts")
    if not isinstance(elements[0], tuple):
        elements = [(element,) for element in elements]
    texts, *others = (_joined(column) for column in zip(*elements, strict=True))
    own = dict(zip(("labels", "sample_weights"), others, strict=False))
    for name, given in (("labels", labels), ("sample_weights", weights)):
        if name in own and given is not None:
            raise ValueError(f"the dataset has its own `{name}`: leave the argument out")
    return texts, own.get("labels", labels), own.get("sample_weights", weights)


def _joined(column: Sequence[Any]) -> Any:
    """Joins the elements of a dataset's column: single values, batches, or named ones."""
    if isinstance(column[0], Mapping):
        return {name: _joined([row[name] for row in column]) for name in column[0]}
    return np.concatenate([np.atleast_1d(np.asarray(value)) for value in column])


def _texts(values: Any, name: str) -> list[str]:
    values = [values] if isinstance(values, (str, bytes)) else values
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be strings, not {values!r}")
    texts = []
    for i, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise ValueError(f"{name} must be strings, but the one at index {i} is {value!r}")
        if isinstance(value, bytes):
            value = value.decode("utf-8", "ignore")
        texts.append(str(value))
    return texts


class TextBatches(keras.utils.PyDataset):
    """Batches of rows of similar length, in another order each epoch; works on any backend.

    Without a seed they are in the order of the rows.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, np.ndarray]],
        labels: np.ndarray | None,
        weights: np.ndarray | None,
        batch_size: int,
        static_lengths: Sequence[int],
        seed: int | None,
    ) -> None:
        super().__init__()
        self._rows, self._labels, self._weights = rows, labels, weights
        self._row_lengths = np.array([row["input_ids"].shape[-1] for row in rows])
        self._batch_size, self._static_lengths, self._seed = batch_size, static_lengths, seed
        self._epochs = itertools.count()
        self._plan = self._next_plan()

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._batch(self._plan[index])

    def on_epoch_end(self) -> None:
        """Draws another order."""
        self._plan = self._next_plan()

    def epoch(self) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of an epoch of its own, in another order than the last one's."""
        return map(self._batch, self._next_plan())

    def _next_plan(self) -> list[np.ndarray]:
        """Returns the rows of each batch."""
        if self._seed is None:
            rows = np.arange(len(self._rows))
            return [rows[i : i + self._batch_size] for i in rows[:: self._batch_size]]
        return length_buckets.epoch_batches(
            self._row_lengths,
            self._batch_size,
            self._static_lengths,
            self._seed,
            next(self._epochs),
        )

    def _batch(self, rows: np.ndarray) -> tuple[Any, ...]:
        longest = self._row_lengths[rows].max()
        length = next(length for length in self._static_lengths if length >= longest)
        batch: tuple[Any, ...] = (sequence_features.stack([self._rows[i] for i in rows], length),)
        for column in (self._labels, self._weights):
            if column is not None:
                batch += (column[rows],)
        return batch

    def as_tf_dataset(self) -> Any:
        """Returns a tf.data.Dataset of the same batches."""
        import tensorflow as tf

        from albert_tf.records.input_files import untuned
        from albert_tf.records.input_pipeline import BATCHES_AHEAD

        def spec(array: np.ndarray) -> Any:
            return tf.TensorSpec([None] * array.ndim, array.dtype)

        signature = keras.tree.map_structure(spec, self[0])
        dataset = tf.data.Dataset.from_generator(self.epoch, output_signature=signature)
        counted = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return untuned(counted.prefetch(BATCHES_AHEAD))


class Preprocessor:
    r"""Turns raw texts into a model's inputs, as `run_finetune.py` does.

    Args:
      vocabulary: The model's vocabulary.
      max_seq_length: Maximum number of pieces per sequence, special ones included; what is longer
        is cut, but contexts of questions give several rows.
      labels: The classes in the order of their ids: names, or numbers, which become names ("3").
      max_qa_length: Maximum number of pieces per choice.
      max_query_length: Maximum number of pieces per question on a context.
      doc_stride: Pieces between the starts of consecutive rows of a long context.

    Example:
      >>> import pathlib
      >>> from albert_tf.text.vocabulary import Vocabulary
      >>> words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm"
      >>> _ = pathlib.Path("vocab.txt").write_text(words)
      >>> vocabulary = Vocabulary.read("vocab.txt", is_word_piece=True)
      >>> preprocess = Preprocessor(vocabulary, max_seq_length=8, labels=("bad", "good"))
      >>> preprocess(["good film", "bad"])["input_ids"].tolist()
      [[2, 5, 7, 3], [2, 6, 3, 0]]
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
        self.labels = labels_file.names(labels)
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
        """Writes vocabulary and labels beside a saved model, where `from_weights` finds them."""
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
        """
        columns = TextColumns.of(texts, labels, sample_weights, pairs=pairs, choices=choices)
        ids = columns.label_ids(self.labels)
        if columns.weights is not None and ids is None:  # They would be taken for labels.
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
            questions = [
                squad_text.SquadExample(str(i), *both, (), False)
                for i, both in enumerate(zip(columns.texts, columns.contexts, strict=True))
            ]
            read = ("input_ids", "input_mask", "segment_ids", "p_mask", "example_index")
            for row in squad_text.squad_rows(
                questions, tokenizer, longest, self.doc_stride, self.max_query_length, False
            ):
                yield {name: row[name] for name in read}
        elif columns.choices is not None:
            for text, choices in zip(columns.texts, columns.choices, strict=True):
                yield sequence_features.choice_features(
                    tokenizer, text, choices, longest, self.max_qa_length
                )
        else:
            pairs = columns.pairs or [None] * len(columns.texts)
            for text, pair in zip(columns.texts, pairs, strict=True):
                yield sequence_features.pair_features(tokenizer, text, pair, longest)
