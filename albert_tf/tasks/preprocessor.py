"""Raw texts (lists, tables, datasets) -> inputs, and batches for `fit`."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf.config import check_integer
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion import layouts
from albert_tf.storage import files, hub, parquet_files, run_record
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.storage.text_files import class_of
from albert_tf.tasks import sequence_features, squad_text
from albert_tf.text import vocabulary
from albert_tf.text.characters import to_unicode
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import length_buckets

Row = dict[str, np.ndarray]
# How texts are read.
_LENGTHS = ("max_seq_length", "max_qa_length", "max_query_length", "doc_stride")
# The labels of a text that has any number of them.
_SEVERAL = (list, tuple, set, frozenset, np.ndarray)


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
      classes: The names of the classes whose ids are the labels, where these have their own.
    """

    texts: list[str]
    pairs: list[str] | None = None
    choices: list[list[str]] | None = None
    contexts: list[str] | None = None
    labels: list[Any] | None = None
    weights: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Any, labels: Any = None, weights: Any = None, **others: Any) -> TextColumns:
        """Reads what a caller gives; see Preprocessor.dataset."""
        classes: tuple[str, ...] = ()
        if hasattr(texts, "as_numpy_iterator"):
            texts, labels, weights = _from_dataset(texts, labels, weights)
        elif hasattr(texts, "column_names") and hasattr(texts, "features"):
            texts, stored = _from_hugging_face(texts)
            classes = stored if labels is None else ()
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
        return cls(**columns, classes=classes)

    def label_ids(self, names: Sequence[str]) -> np.ndarray | None:
        """Returns the labels, `<int32>[N]` for classes and `<float32>[N]` for other numbers.

        Lists of names become `<float32>[N, C]`, 1 for the classes named.

        Args:
          names: The names of the classes, if they have names. Labels are looked up there if they
            are strings or any is one of them, as the numbers 3 and 3.0 are of "3"; else they are
            ids.
        """
        if self.labels is None:
            return None
        several = any(isinstance(label, _SEVERAL) for label in self.labels)
        rows = [[*label] if isinstance(label, _SEVERAL) else [label] for label in self.labels]
        if self.classes:
            names = names or self.classes
            known_ids = dict(enumerate(self.classes))  # A missing label is -1 or None.
            rows = [[known_ids.get(part, part) for part in row] for row in rows]
        known = {class_of(name): i for i, name in enumerate(names)}
        given = [[class_of(labels_file.name_of(part)) for part in row] for row in rows]
        found = {part for row in given for part in row}
        are_names = any(isinstance(part, (str, bytes)) for row in rows for part in row)
        # Several numbers for a text are no classes.
        if are_names or not (several or known.keys().isdisjoint(found)) or not found:
            unknown = sorted(found - known.keys())
            if unknown:
                raise ValueError(
                    f"label {unknown[0]!r} is not one of `labels` "
                    f"({', '.join(names) or 'none given'}): give the names of all classes in the "
                    "order of their ids"
                )
            if not several:
                return np.array([known[part] for (part,) in given], np.int32)
            targets = np.zeros((len(given), len(names)), np.float32)
            for target, row in zip(targets, given, strict=True):
                target[[known[part] for part in row]] = 1
            return targets
        if len({*map(len, rows)}) > 1:
            raise ValueError(
                "`labels` of several numbers must be as many for each text, as 0 or 1 for each "
                "class; or give lists of names"
            )
        ids = np.asarray(self.labels)
        if ids.dtype.kind not in "biuf" or not np.isfinite(ids).all():
            raise ValueError("labels must be finite numbers, or strings that are all in `labels`")
        is_wrong = (ids < 0) | (ids >= len(names)) | (ids % 1 != 0)
        if names and ids.ndim == 1 and is_wrong.any():
            raise ValueError(
                f"label {ids[is_wrong][0]} is neither one of `labels` ({', '.join(names)}) nor "
                "an id of one: give the names of all classes in the order of their ids, or "
                "`labels=()` for numbers that are no classes"
            )
        return ids.astype(np.float32 if ids.dtype.kind == "f" else np.int32)


def _from_dataset(dataset: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Reads a tf.data.Dataset of texts, (texts, labels) or (texts, labels, weights)."""
    from albert_tf.records.input_files import untuned

    if dataset.cardinality() == -1:  # tf.data.INFINITE_CARDINALITY
        raise ValueError("the dataset of texts never ends: leave its repeat() out, or take() some")
    elements = list(untuned(dataset).as_numpy_iterator())
    if not elements:
        raise ValueError("there are no texts")
    if not isinstance(elements[0], tuple):
        elements = [(element,) for element in elements]
    first = elements[0][0]
    texts_of = first.values() if isinstance(first, Mapping) else [first]
    if any(map(np.ndim, texts_of)):  # Batches.
        elements = [row for batch in elements for row in zip(*map(_rows_of, batch), strict=True)]
    texts: Any
    texts, *others = zip(*elements, strict=True)
    if isinstance(first, Mapping):
        texts = {name: [row[name] for row in texts] for name in first}
    own = dict(zip(("labels", "sample_weights"), others, strict=False))
    for name, given in (("labels", labels), ("sample_weights", weights)):
        if name in own and given is not None:
            raise ValueError(f"the dataset has its own `{name}`: leave the argument out")
    return texts, own.get("labels", labels), own.get("sample_weights", weights)


def _from_hugging_face(dataset: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Reads a Dataset or IterableDataset of Hugging Face's; returns columns and names of labels."""
    names = dataset.column_names or ()
    if names and "text" not in names:
        return dict.fromkeys(names), ()
    wanted = [name for name in ("text", "text_pair", "label") if name in names]
    columns: dict[str, list[Any]] = {}
    selected = dataset.select_columns(wanted) if names else dataset
    for batch in selected.with_format(None).iter(1000):
        for name, cells in batch.items():
            columns.setdefault(name, []).extend(cells)
    if all(label in (None, -1) for label in columns.get("label", ())):  # A test set's.
        columns.pop("label", None)
    return columns, parquet_files.class_names((dataset.features or {}).get("label"))


def _rows_of(batch: Any) -> list[Any]:
    """Returns the rows of a batch of values, or of named ones."""
    if isinstance(batch, Mapping):
        rows = zip(*map(_rows_of, batch.values()), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows]
    return list(np.asarray(batch))


def _texts(values: Any, name: str) -> list[str]:
    values = values.numpy() if hasattr(values, "numpy") else values  # A tensor of strings.
    values = [values] if isinstance(values, (str, bytes)) else values
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be strings, not {values!r}")
    texts = []
    for i, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise ValueError(f"{name} must be strings, but the one at index {i} is {value!r}")
        try:
            texts.append(str(to_unicode(value)))
        except ValueError as error:
            raise ValueError(f"{name}: the one at index {i} is no text: {error}") from error
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

        def spec(array: np.ndarray, fixed: tuple[int, ...] = ()) -> Any:
            return tf.TensorSpec([None] * (array.ndim - len(fixed)) + [*fixed], array.dtype)

        features, *others = self[0]
        # Of features the length varies; what a label has is in all batches the same.
        signature = (
            {name: spec(array) for name, array in features.items()},
            *(spec(array, array.shape[1:]) for array in others),
        )
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
      >>> preprocess
      <Preprocessor: text, lower-cased, without accents -> at most 8 of 8 WordPiece pieces; ...>
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
        self.vocabulary = vocabulary
        self.max_seq_length = max_seq_length
        self.labels = labels_file.names(labels)
        self.max_qa_length = max_qa_length
        self.max_query_length = max_query_length
        self.doc_stride = doc_stride
        for name in _LENGTHS:
            check_integer(name, getattr(self, name), 4 if name == "max_seq_length" else 1)

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
        keep_accents: bool | None = None,
        **settings: int,
    ) -> Preprocessor:
        """Finds the vocabulary, its case and the names of the classes beside stored weights.

        Lengths are by default those of the Preprocessor that was saved there, or those that the
        model was fine-tuned with.

        Args:
          path: What the model's `from_weights` takes.
          max_seq_length: See the class; if it is unknown, as many as the model has positions.
          labels: See the class; by default those stored, if there are any.
          spm_model_file: A SentencePiece model, if there is none beside the weights.
          vocab_file: Or a WordPiece vocabulary.
          do_lower_case: Whether the model is uncased; see vocabulary.find.
          keep_accents: Whether its text keeps accents; see there.
          **settings: The other arguments of the class.
        """
        path = hub.local(path)
        config = layouts.load_config(path)
        words = vocabulary.need(path, spm_model_file, vocab_file, do_lower_case, keep_accents)
        words.check(config)
        longest, run = config.max_position_embeddings, run_record.find_run(path)
        known = {"max_seq_length": longest}
        if run and run.task:
            known |= {name: n for name, n in run.task.reading.items() if name in _LENGTHS}
        if max_seq_length is not None:
            settings["max_seq_length"] = max_seq_length
        labels = labels_file.stored(path) if labels is None else labels
        preprocess = cls(words, labels=labels, **{**known, **settings})
        if preprocess.max_seq_length > longest:
            raise ValueError(
                f"`max_seq_length` must be at most {longest} (the config's "
                f"max_position_embeddings), not {preprocess.max_seq_length}"
            )
        labels_file.check_order(preprocess.labels, path)
        return preprocess

    def __repr__(self) -> str:
        kind = "WordPiece" if self.vocabulary.is_word_piece else "SentencePiece"
        tokenizer = self.tokenizer
        changed = "lower-cased, " * tokenizer.do_lower_case
        changed += "without accents" if tokenizer.strips_accents else "with accents"
        pieces = f"{self.max_seq_length} of {tokenizer.vocab_size:,} {kind} pieces"
        labels = ", ".join(self.labels) or "none"
        return f"<Preprocessor: text, {changed} -> at most {pieces}; labels: {labels}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary's tokenizer."""
        return self.vocabulary.tokenizer

    @property
    def reading(self) -> dict[str, int]:
        """How texts are read, as a run's record has it."""
        return {name: getattr(self, name) for name in _LENGTHS}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes vocabulary, labels and lengths beside a saved model.

        There `from_weights`, albert-export and albert-predict find them.
        """
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
        # Into the record of the run, if it is the directory of one.
        run = run_record.find_run(directory) or RunRecord(settings={}, config={})
        task = run.task or TaskRecord("")
        task = dataclasses.replace(task, reading={**task.reading, **self.reading})
        dataclasses.replace(run, task=task).write(directory)

    def __call__(
        self,
        texts: Any,
        pairs: Any = None,
        *,
        choices: Sequence[Sequence[str]] | None = None,
        contexts: Any = None,
        pad_to: int | None = None,
    ) -> dict[str, Any]:
        """Turns raw texts into one batch, padded to its longest row.

        A dataset's `map` can call it as well, tf.data's and that of Hugging Face's datasets: with a
        batch, or with one text, of which it makes a row of `max_seq_length`, without an axis N.

        Args:
          texts: N texts, or one: strings, or a table's column of them; or a dictionary of `text`
            and, perhaps, `text_pair`.
          pairs: N second texts.
          choices: For each text, C choices.
          contexts: For each text, which is then a question, the context of its answer.
          pad_to: Pads to a multiple of it, but not beyond `max_seq_length`, so that a compiled
            model meets few lengths; with `pad_to=preprocess.max_seq_length`, one.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each `<int32>[N, L]`, with choices
          `[N, C, L]`. With contexts also `p_mask`, and `example_index` `<int32>[N]`, the number of
          the question: each has as many rows as its context needs.
        """
        check_integer("pad_to", pad_to or 1, 1)
        is_row = False
        if isinstance(texts, Mapping) and "text" in texts:
            pairs = texts.get("text_pair") if pairs is None else pairs
            texts = texts["text"]
            is_row = isinstance(texts, (str, bytes))
        if hasattr(texts, "graph"):  # A tensor without a value, as tf.data's map gives it.
            if contexts is not None:
                raise ValueError("`contexts` give several rows each: call it outside of `map`")
            return self._in_graph({"texts": texts, "pairs": pairs, "choices": choices}, pad_to)
        columns = TextColumns.of(texts, pairs=pairs, choices=choices, contexts=contexts)
        rows = list(self._rows(columns))
        if not rows:
            raise ValueError("no context has any text to search: expected at least one with words")
        longest = max(row["input_ids"].shape[-1] for row in rows)
        if is_row or pad_to:
            multiple = self.max_seq_length if is_row else pad_to
            longest = min(-(-longest // multiple) * multiple, self.max_seq_length)
        features = sequence_features.stack(rows, longest)
        return {name: value[0] for name, value in features.items()} if is_row else features

    def _in_graph(self, given: Mapping[str, Any], pad_to: int | None) -> dict[str, Any]:
        """Does the same when the graph runs that tf.data's map is building."""
        import tensorflow as tf

        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if value.dtype != tf.string:
                raise ValueError(
                    f"{name} must be strings, not {value.dtype.name}: map texts and labels with "
                    "`lambda text, label: (preprocess(text), label)`"
                )
        is_row = given["texts"].shape.rank == 0
        names = ("input_ids", "input_mask", "segment_ids")

        def run(*values: Any) -> list[np.ndarray]:
            columns = {n: [v] if is_row else v for n, v in zip(given, values, strict=True)}
            features = self(**columns, pad_to=self.max_seq_length if is_row else pad_to)
            return [features[name][0] if is_row else features[name] for name in names]

        arrays = tf.numpy_function(run, list(given.values()), [tf.int32] * len(names))
        axes = [None] * ("choices" in given)
        shape = [*axes, self.max_seq_length] if is_row else [None, *axes, None]
        return {name: tf.ensure_shape(x, shape) for name, x in zip(names, arrays, strict=True)}

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
        pad_to: int | None = None,
    ) -> Any:
        """Turns raw texts into batches for `fit`, `evaluate` and `predict`.

        A batch is padded to one of a few lengths. `shuffle` draws batches of similar lengths, anew
        in each epoch; without it they are in the order of the texts.

        Args:
          texts: N texts; or a table with a column `text`, perhaps `text_pair` and `label`: a pandas
            frame, a dictionary, a Dataset of Hugging Face's, where ids stand for the names of a
            ClassLabel; or a tf.data.Dataset of texts, (texts, labels) or (texts, labels, weights).
          labels: N of `self.labels`, as names or the numbers that they were made of; N lists of
            names, which become 0 or 1 for each class; or N ids of classes or other numbers.
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
          pad_to: Lengths are instead the multiples of it up to `max_seq_length`: on JAX, where each
            new one takes seconds to compile, several datasets then share them.

        Returns:
          On TensorFlow a tf.data.Dataset, else a keras.utils.PyDataset, of (inputs,), (inputs,
          labels) or (inputs, labels, weights).
        """
        check_integer("batch_size", batch_size, 1)
        check_integer("static_lengths", static_lengths, 1)
        columns = TextColumns.of(texts, labels, sample_weights, pairs=pairs, choices=choices)
        ids = columns.label_ids(self.labels)
        if columns.weights is not None and ids is None:  # They would be taken for labels.
            raise ValueError("`sample_weights` apply to the loss of `labels`: give both")
        rows = list(self._rows(columns))
        lengths: tuple[int, ...] = (self.max_seq_length,)
        if pad_to is not None:
            check_integer("pad_to", pad_to, 1)
            lengths = (*range(pad_to, self.max_seq_length, pad_to), self.max_seq_length)
        elif static_lengths > 1:
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
            for window in squad_text.squad_windows(
                questions, tokenizer, longest, self.doc_stride, self.max_query_length, False
            ):
                yield {**window.features, "example_index": np.array(window.example_index, np.int32)}
        elif columns.choices is not None:
            for text, choices in zip(columns.texts, columns.choices, strict=True):
                yield sequence_features.choice_features(
                    tokenizer, text, choices, longest, self.max_qa_length
                )
        else:
            pairs = columns.pairs or [None] * len(columns.texts)
            for text, pair in zip(columns.texts, pairs, strict=True):
                yield sequence_features.pair_features(tokenizer, text, pair, longest)
