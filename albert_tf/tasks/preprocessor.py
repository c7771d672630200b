"""Preprocessor: raw texts (lists, tables, datasets) -> a model's inputs, or batches for `fit`."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf.answers.kind import class_names
from albert_tf.answers.rows import FEATURES, choice_features, pair_features, stack
from albert_tf.config import check_integer
from albert_tf.conversion import kinds, layouts
from albert_tf.conversion import labels as labels_file
from albert_tf.storage import files, hub, run_record
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.tasks import squad_text, text_columns
from albert_tf.tasks.text_batches import TextBatches
from albert_tf.tasks.text_columns import TextColumns
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.training import length_buckets

_LENGTHS = ("max_seq_length", "max_qa_length", "max_query_length", "doc_stride")


class Preprocessor:
    r"""Turns raw texts into a model's inputs, as `run_finetune.py` does.

    Args:
      vocabulary: The model's vocabulary.
      max_seq_length: Maximum number of pieces per sequence, special ones included. Longer texts
        are truncated, but a question's context is split into several rows.
      labels: The classes in the order of their ids: names, or numbers, which become names ("3").
      max_qa_length: Maximum number of pieces per choice.
      max_query_length: Maximum number of pieces per question on a context.
      doc_stride: Pieces between the starts of consecutive rows of a long context.
      two_towers: Whether the two texts of a pair are separate sequences, `<int32>[N, 2, L]`, as
        in the training of AlbertForEmbedding.

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
        two_towers: bool = False,
    ) -> None:
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(
                f"`vocabulary` must be a Vocabulary, not {vocabulary!r}: write "
                "Preprocessor.from_weights(...) with the path of the model, or give "
                "albert_tf.text.vocabulary.Vocabulary.read(path, is_word_piece=...)"
            )
        self.vocabulary, self.tokenizer = vocabulary, vocabulary.tokenizer
        self.max_seq_length = max_seq_length
        self.labels = class_names(labels)
        self.max_qa_length = max_qa_length
        self.max_query_length = max_query_length
        self.doc_stride = doc_stride
        self.two_towers = two_towers
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
        ids: str | None = None,
        **settings: Any,
    ) -> Preprocessor:
        """Finds the vocabulary, its case and the names of the classes beside stored weights.

        Lengths are by default those of the Preprocessor that was saved there, or those that the
        model was fine-tuned with.

        Args:
          path: Any path that the model's `from_weights` takes.
          max_seq_length: See the class; if unknown, the model's number of positions.
          labels: See the class; by default the stored ones, if any.
          spm_model_file: A SentencePiece model, if there is none beside the weights.
          vocab_file: Or a WordPiece vocabulary.
          do_lower_case: Whether the model is uncased; see vocabulary.find.
          keep_accents: Whether its text keeps accents; see there.
          ids: The kind of ids that the model reads, "release" or "folder"; see there.
          **settings: The other arguments of the class.
        """
        # The vocabulary must fit the model.
        path = hub.download(path)
        config = layouts.read_config(path)
        form = do_lower_case, keep_accents
        found = vocabulary.need(path, spm_model_file, vocab_file, *form, ids)
        found.check(config)
        # Arguments come first, then the stored lengths, then the model's number of positions.
        task = kinds.find(path)
        known: dict[str, Any] = {"max_seq_length": config.max_position_embeddings}
        if task:
            known |= {name: n for name, n in task.kind.items() if name in _LENGTHS}
        if max_seq_length is not None:
            # None means the known length, so it must not replace it.
            settings["max_seq_length"] = max_seq_length
        # An empty list of labels is a valid choice: it means numbers.
        labels = labels_file.stored(path) if labels is None else labels
        preprocess = cls(found, labels=labels, **{**known, **settings})
        config.check_length(preprocess.max_seq_length)
        labels_file.check_order(preprocess.labels, path)
        return preprocess

    def __repr__(self) -> str:
        piece_type = "WordPiece" if self.vocabulary.is_word_piece else "SentencePiece"
        case = "lower-cased, " * self.tokenizer.do_lower_case
        accents = "without accents" if self.tokenizer.strips_accents else "with accents"
        pieces = f"{self.max_seq_length} of {self.tokenizer.vocab_size:,} {piece_type} pieces"
        labels = ", ".join(self.labels) or "none"
        return f"<Preprocessor: text, {case}{accents} -> at most {pieces}; labels: {labels}>"

    @property
    def options(self) -> dict[str, int]:
        """The lengths, as a run's record has them."""
        return {name: getattr(self, name) for name in _LENGTHS}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes vocabulary, labels and lengths beside a saved model.

        There `from_weights`, albert-export and albert-predict find them.
        """
        # First refuse anything that would mix the files of two models.
        directory = os.fspath(directory)
        if not files.is_remote(directory):
            os.makedirs(directory, exist_ok=True)
        stale = os.path.join(directory, labels_file.LABELS_FILE)
        if not self.labels and files.exists(stale):
            raise FileExistsError(
                f"{stale} would name the classes of a model without labels: save to a new "
                "directory, or remove it"
            )
        # A vocabulary that is already there must be the same.
        found = vocabulary.find(directory)
        if found is None:
            vocabulary.copy(self.vocabulary, directory)
        elif found.tokenizer.digest != self.tokenizer.digest:
            raise FileExistsError(f"{found.path} is another vocabulary: save to a new directory")
        if self.labels:
            labels_file.write(directory, self.labels)
        # The lengths go into the run record that is there, or into a new one.
        run = run_record.find_run(directory) or RunRecord(settings={}, config={})
        task = run.task or TaskRecord("")
        task = dataclasses.replace(task, kind={**task.kind, **self.options})
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

        It also works in `map` of tf.data and of Hugging Face's datasets: with a batch of texts, or
        with one text, which becomes a row of `max_seq_length` pieces, without a batch axis.

        Args:
          texts: N texts, or one: strings, or a table's column of strings; or a dictionary with
            `text` and optionally `text_pair`.
          pairs: N second texts.
          choices: For each text, C choices.
          contexts: For each text, which is then a question, the context to search for its answer.
          pad_to: Pads to a multiple of this, up to `max_seq_length`, so that a compiled model meets
            few lengths; `pad_to=preprocess.max_seq_length` gives one length.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each `<int32>[N, L]`, with choices
          `[N, C, L]`, with pairs in two towers `[N, 2, L]`. Contexts give as many rows as they
          need, and further features: `p_mask`, and `example_index` `<int32>[N]`, the index of
          each row's question.
        """
        check_integer("pad_to", pad_to or 1, 1)
        # In a `map`, a dictionary of one text is a row, and one of lists is a batch.
        is_row = False
        if isinstance(texts, Mapping) and "text" in texts:
            pairs = texts.get("text_pair") if pairs is None else pairs
            texts = texts["text"]
            is_row = isinstance(texts, (str, bytes))
        if hasattr(texts, "graph"):  # A symbolic tensor, in tf.data's map.
            if contexts is not None:
                raise ValueError("`contexts` give several rows each: call it outside of `map`")
            return self._in_graph({"texts": texts, "pairs": pairs, "choices": choices}, pad_to)
        # Make the rows, then pad all to the same length.
        columns = text_columns.read(texts, pairs=pairs, choices=choices, contexts=contexts)
        rows = list(self._rows(columns))
        if not rows:
            raise ValueError("no context has any text to search: expected at least one with words")
        # Round the longest row up; a single row of a `map` gets the one full length.
        longest = max(row["input_ids"].shape[-1] for row in rows)
        multiple = self.max_seq_length if is_row else pad_to or 1
        longest = min(-(-longest // multiple) * multiple, self.max_seq_length)
        features = stack(rows, longest)
        return {name: value[0] for name, value in features.items()} if is_row else features

    def _in_graph(self, given: Mapping[str, Any], pad_to: int | None) -> dict[str, Any]:
        """Adds an operation to the graph that calls the preprocessor when the graph runs."""
        import tensorflow as tf

        # The map may have passed labels as second texts.
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if value.dtype != tf.string:
                raise ValueError(
                    f"{name} must be strings, not {value.dtype.name}: map texts and labels with "
                    "`lambda text, label: (preprocess(text), label)`"
                )
        # A scalar is one text: its row has no batch axis, and a fixed length.
        is_row = given["texts"].shape.rank == 0
        names = ("input_ids", "input_mask", "segment_ids")

        def run(*values: Any) -> list[np.ndarray]:
            columns = {n: [v] if is_row else v for n, v in zip(given, values, strict=True)}
            features = self(**columns, pad_to=self.max_seq_length if is_row else pad_to)
            return [features[name][0] if is_row else features[name] for name in names]

        # numpy_function forgets shapes: restore the axes that are known.
        arrays = tf.numpy_function(run, list(given.values()), [tf.int32] * len(names))
        axes = [None] * ("choices" in given or (self.two_towers and "pairs" in given))
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

        A batch is padded to one of a few lengths. `shuffle` draws batches of texts of similar
        length, anew in each epoch; without it batches keep the order of the texts.

        Args:
          texts: N texts; or a table with the column `text` and optionally `text_pair`, `label`
            and `sample_weight`: a pandas DataFrame, a dictionary, or Hugging Face's Dataset, where
            ids get the names of its ClassLabel; or a tf.data.Dataset of texts, (texts, labels) or
            (texts, labels, weights).
          labels: N of `self.labels`, as names or as the numbers that they were made from; N lists
            of names, which become multi-hot rows; or N ids of classes or other numbers.
          batch_size: Rows per batch; the last one may have fewer.
          pairs: See `__call__`.
          choices: See `__call__`.
          sample_weights: N weights of the examples in the loss.
          shuffle: Whether to shuffle; by default, if there are labels. Give False where predictions
            are compared with the labels.
          seed: Seed of the order; None draws a random one.
          static_lengths: Number of lengths that batches are padded to; each is compiled once. 1
            pads all to `max_seq_length`, which models with an output per position need in
            `predict`.
          pad_to: Pads to multiples of this instead, up to `max_seq_length`, so that datasets share
            lengths: on JAX each new length takes seconds to compile.

        Returns:
          On TensorFlow a tf.data.Dataset, else a keras.utils.PyDataset, of (inputs,), (inputs,
          labels) or (inputs, labels, weights).
        """
        check_integer("batch_size", batch_size, 1)
        check_integer("static_lengths", static_lengths, 1)
        # Read everything into columns, and labels into numbers.
        columns = text_columns.read(
            texts, labels=labels, sample_weights=sample_weights, pairs=pairs, choices=choices
        )
        ids = columns.label_ids(self.labels)
        # Keras would take the weights for labels.
        if columns.sample_weights is not None and ids is None:
            raise ValueError("`sample_weights` apply to the loss of `labels`: give both")
        # Choose the lengths that batches are padded to.
        rows = list(self._rows(columns))
        lengths: tuple[int, ...] = (self.max_seq_length,)
        if pad_to is not None:
            check_integer("pad_to", pad_to, 1)
            lengths = (*range(pad_to, self.max_seq_length, pad_to), self.max_seq_length)
        elif static_lengths > 1:
            # Keras lists GPUs or TPUs if there are any.
            on_cpu = keras.distribution.list_devices()[0].startswith("cpu")
            lengths = length_buckets.choose_static_lengths(
                np.array([row["input_ids"].shape[-1] for row in rows]),
                self.max_seq_length,
                static_lengths,
                on_cpu=on_cpu,
            )
        # Training shuffles, prediction does not; a seed that is drawn holds for all epochs.
        shuffle = ids is not None if shuffle is None else shuffle
        seed = random.randrange(2**31) if seed is None else seed
        others = [column for column in (ids, columns.sample_weights) if column is not None]
        batches = TextBatches(rows, others, batch_size, lengths, seed if shuffle else None)
        return batches.as_tf_dataset() if keras.backend.backend() == "tensorflow" else batches

    def _rows(self, columns: TextColumns) -> Iterator[dict[str, np.ndarray]]:
        """Yields the features of each text, or of each window of its context, unpadded."""
        tokenizer, texts, longest = self.tokenizer, columns.texts, self.max_seq_length
        # Contexts give windows, choices a row `[C, L]` each, and other texts a row `[L]`.
        if columns.contexts is not None:
            bounds = {"doc_stride": self.doc_stride, "max_query_length": self.max_query_length}
            bounds["max_seq_length"] = longest
            for row in squad_text.context_rows(texts, columns.contexts, tokenizer, **bounds):
                yield {name: row[name] for name in (*FEATURES, "p_mask", "example_index")}
        elif columns.choices is not None:
            for text, choices in zip(texts, columns.choices, strict=True):
                yield choice_features(tokenizer, text, choices, longest, self.max_qa_length)
        else:
            pairs = columns.pairs or [None] * len(texts)
            for text, pair in zip(texts, pairs, strict=True):
                if self.two_towers and pair is not None:
                    yield stack([pair_features(tokenizer, x, None, longest) for x in (text, pair)])
                else:
                    yield pair_features(tokenizer, text, pair, longest)
