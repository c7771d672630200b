"""Answers texts with an exported or a trained model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_tf.answers.kind import Kind
from albert_tf.answers.rows import LENGTH_MULTIPLE
from albert_tf.serving import exported_files
from albert_tf.serving.settings import PredictionSettings
from albert_tf.storage import files
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.serving.graphs.base import ServedModel

# Returns a model's results for some inputs; see Kind.find.
Find = Callable[[Sequence[Sequence[Any]]], list[dict[str, Any]]]
# Lines answered per batch.
_BATCH = 32


class Answer(dict[str, Any]):
    """An answer in JSON's types, by name; `said` is its text for people."""

    def __init__(self, said: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.said = said


def _check_finite(found: Mapping[str, Any], texts: Sequence[str]) -> None:
    for name, value in found.items():
        if np.asarray(value).dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(
                f"the model's outputs for {texts[0][:60]!r} are NaN or infinite ({name}): its "
                "weights are damaged, or too large; use another checkpoint"
            )


class Signature:
    """Runs a SavedModel on raw texts, and returns results as Kind.find does.

    Args:
      kind: The model's.
      exported: The loaded SavedModel.
      tokenizer: Its tokenizer, if the kind also takes ids.
      end: Suffix of its signatures' names, which selects a smaller number of layers.
    """

    def __init__(
        self, kind: Kind, exported: Any, tokenizer: Tokenizer | None = None, end: str = ""
    ) -> None:
        # Keep the SavedModel: its signatures don't hold a reference to the weights.
        self._kind, self._exported, self._tokenizer, self._end = kind, exported, tokenizer, end

    def __call__(self, inputs: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        # Ids become features in Python, as for a model that has no tokenizer in its graph.
        if self._tokenizer and not isinstance(inputs[0][0], str):
            run = functools.partial(self._outputs, f"features{self._end}")
            return self._kind.find(self._tokenizer, run, inputs)
        columns = zip(self._kind.text_names, zip(*inputs, strict=True), strict=True)
        arrays = self._outputs(f"serving_default{self._end}", dict(columns))
        return [{name: v[i] for name, v in arrays.items()} for i in range(len(inputs))]

    def _outputs(self, signature: str, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        import tensorflow as tf

        tensors = {name: tf.constant(value) for name, value in given.items()}
        outputs = self._exported.signatures[signature](**tensors)
        return {name: _decoded(value.numpy()) for name, value in outputs.items()}


def _decoded(values: np.ndarray) -> np.ndarray:
    return np.vectorize(bytes.decode, [object])(values) if values.dtype == object else values


class Predictor:
    """Answers texts; load_exported returns one. It may be called from several threads.

    Args:
      kind: The model's kind.
      find: Returns the model's results for some inputs.
      depends_on_batch: Whether an answer depends on the other texts of its batch, beyond rounding.
      path: The export that it was loaded from, if any. A pickle holds only this and the depth.
      tokenizer: The model's, if it takes ids.
      by_depth: A function like `find` for each number of layers that may be applied.
      about: The model's description for people.
    """

    def __init__(
        self,
        kind: Kind,
        find: Find,
        depends_on_batch: bool = False,
        path: str = "",
        tokenizer: Tokenizer | None = None,
        by_depth: Mapping[int, Find] | None = None,
        about: exported_files.About = exported_files.UNSAID,
    ) -> None:
        self.kind, self._find, self.depends_on_batch = kind, find, depends_on_batch
        self._by_depth, self.about = by_depth or {}, about
        self._depth: int | None = None
        self.names, self.takes_many = kind.text_names, kind.takes_many
        self.tokenizer = tokenizer if kind.takes_ids else None
        # Absolute, because whoever unpickles it may work in another directory.
        self._path = os.path.abspath(path) if path and not files.is_remote(path) else path

    def __reduce__(self) -> Any:
        if not self._path:
            raise TypeError("only what load_exported loads can be pickled: export the model")
        return load_exported, (self._path, self._depth)

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of layers that may be applied."""
        return tuple(self._by_depth)

    def at_depth(self, depth: int) -> Predictor:
        """Returns the same loaded model, but answering after `depth` layers, one of `depths`."""
        if depth not in self._by_depth:
            known = " or ".join(map(str, self.depths)) or "left out"
            raise ValueError(f"`depth` must be {known} for this model, got {depth}")
        same = self.depends_on_batch, self._path, self.tokenizer, self._by_depth, self.about
        shallow = Predictor(self.kind, self._by_depth[depth], *same)
        shallow._depth = depth
        return shallow

    def __call__(self, inputs: Any) -> list[Answer]:
        """Answers a list of inputs.

        An input is a text, a list of texts that belong together, a string with tabs between them as
        in the lines of albert-predict, or a dictionary with the model's `names`. A dictionary or
        data frame with a column for each name may replace the list of inputs.
        """
        if isinstance(inputs, (str, bytes)):
            raise TypeError("`inputs` must be a list of texts, not one text")
        # Turn a table into rows; `_row` takes a row in any form.
        if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
            lacking = [name for name in self.names if name not in inputs]
            if lacking:
                raise ValueError(f"`inputs` lacks the column {' and '.join(lacking)}")
            inputs = zip(*(inputs[name] for name in self.names), strict=True)
        given = [self._row(each, index) for index, each in enumerate(inputs)]
        # Batch consecutive inputs with the same number of texts. Models with vectors compare pairs.
        found = []
        for fields, group in itertools.groupby(given, key=len):
            rows, is_pair = list(group), self.kind.vector and fields == 2
            for start in range(0, len(rows), _BATCH):
                found += (self._compare if is_pair else self._answer)(rows[start : start + _BATCH])
        return found

    def _row(self, given: Any, index: int) -> list[str]:
        """Returns the texts of the input at an index."""
        if isinstance(given, Mapping):
            given = [given.get(name) for name in self.names]
        row = self.texts(given) if isinstance(given, Iterable) else [given]
        if self.takes_many and row and isinstance(row[-1], (list, tuple)):
            row = [*row[:-1], *row[-1]]
        if not all(isinstance(text, str) for text in row):
            raise ValueError(f"`inputs` must be texts, but at index {index} is {str(given)[:60]}")
        if fault := self.fault(row):
            raise ValueError(f"`inputs` at index {index}: {fault}")
        return row

    def embed(
        self, texts: Iterable[str], prompt: str | None = None, dimensions: int | None = None
    ) -> np.ndarray:
        """Returns a vector of each text, `<float32>[B, D]`.

        Only models of the task embed and pretrained ones (fill_mask) have vectors; in the latter, a
        text's vector is the mean of its pieces' vectors.

        Args:
          texts: The texts.
          prompt: "query" or "document": which of the model's prompts to put before each text.
          dimensions: D, how many of the first dimensions to keep, by default all.
        """
        if not self.kind.vector:
            raise ValueError(
                f"a model of the task {self.kind.task} has no vectors: export it again "
                "with `task=embed`"
            )
        is_list = not isinstance(texts, (str, Mapping)) and not hasattr(texts, "columns")
        given = [*texts]
        if not is_list or not all(isinstance(text, str) for text in given):
            raise TypeError(f"`texts` must be a list of texts, got {str(texts)[:60]!r}")
        before = self.kind.prompt(prompt)
        # If there are no texts, an empty one tells the number of columns.
        asked = [[f"{before}{text}"] for text in given or [""]]
        found: dict[int, np.ndarray] = {}
        for places in self.alike(asked):
            for start in range(0, len(places), _BATCH):
                batch = places[start : start + _BATCH]
                outputs = self.outputs([asked[place] for place in batch])
                found |= zip(batch, (each[self.kind.vector] for each in outputs), strict=True)
        rows = [self.kind.shortened(found[i], dimensions) for i in range(len(asked))]
        return np.stack(rows)[: len(given)]

    def alike(self, rows: Sequence[Sequence[Any]]) -> Iterator[list[int]]:
        """Yields the indexes of rows that may share a batch: of similar length, to pad little."""

        def shape(place: int, row: Sequence[Any]) -> tuple[int, ...]:
            if self.depends_on_batch:
                return (place,)
            is_text = isinstance(row[0], str)
            if self.tokenizer:
                (read,) = self.kind.rows(self.tokenizer, *row)
                return is_text, -(-len(read["input_ids"]) // LENGTH_MULTIPLE)
            # Lengths in characters fall into four classes for each doubling.
            return is_text, len(row), int(4 * math.log2(32 + sum(map(len, row))))

        shapes = [*itertools.starmap(shape, enumerate(rows))]
        order = sorted(range(len(rows)), key=shapes.__getitem__)
        yield from (list(group) for _, group in itertools.groupby(order, shapes.__getitem__))

    def texts(self, given: str | Iterable[str]) -> list[str]:
        """Returns the texts of an input; tabs are white space if the model takes one text."""
        if not isinstance(given, str):
            return list(given)
        return given.split("\t") if self.kind.vector or len(self.names) > 1 else [given]

    def fault(self, given: str | Iterable[str]) -> str | None:
        """Returns a message if an input has too few or too many fields, else None."""
        row = self.texts(given)
        least = len(self.names) + self.takes_many
        most = len(row) if self.takes_many else least + bool(self.kind.vector)
        if least <= len(row) <= most:
            return None
        expected = " and ".join(self.names) + (" or two of them" if self.kind.vector else "")
        first = "".join(row[:1])[:60]
        return f"expected {expected}, separated by tabs, got {len(row)} fields: {first!r}"

    def outputs(self, rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Returns the results for rows with the same number of texts; see Kind.found."""
        # An answer must not depend on its neighbours.
        if self.depends_on_batch and len(rows) > 1:
            return [found for row in rows for found in self.outputs([row])]
        # Rows are flat here; the kind takes the texts of its list as one argument.
        alone = len(self.names) - 1
        inputs = [[*r[:alone], r[alone:]] for r in rows] if self.takes_many else rows
        found = self._find(inputs)
        for each, texts in zip(found, rows, strict=True):
            _check_finite(each, texts)
        return found

    def _answer(self, rows: Sequence[Sequence[str]]) -> list[Answer]:
        answers = map(self.kind.answer, self.outputs(rows))
        return [Answer(self.kind.said(answer), answer) for answer in answers]

    def _compare(self, pairs: Sequence[Sequence[str]]) -> list[Answer]:
        first, second = (self.embed([pair[side] for pair in pairs]) for side in (0, 1))
        # A vector of zeros gives NaN; the check below then names the two texts.
        found = self.kind.compared(first, second).tolist()
        for number, pair in zip(found, pairs, strict=True):
            _check_finite({"similarity": number}, pair)
        return [Answer(f"similarity {each:.4f}", {"similarity": each}) for each in found]


def answer_lines(
    predictor: Predictor, lines: Iterable[tuple[int, str]], where: str
) -> Iterator[tuple[str, Answer]]:
    """Yields each numbered line that isn't empty, and its answer; `where` is their source.

    A line that can't be read raises ValueError, after the answers to the lines before it.
    """
    met: list[ValueError] = []

    def texts() -> Iterator[str]:
        try:
            for number, line in lines:
                if text := line.rstrip("\r\n"):
                    if fault := predictor.fault(text):
                        raise ValueError(f"{where}:{number}: {fault}")
                    yield text
        except ValueError as error:  # The lines before it are answered first.
            met.append(error)

    # Read no further than a batch ahead, so that the answers to a long file appear soon.
    given = texts()
    while batch := [*itertools.islice(given, _BATCH)]:
        yield from zip(batch, predictor(batch), strict=True)
    if met:
        raise met[0]


def load(settings: PredictionSettings) -> Predictor:
    """Loads the model that the settings name."""
    if not settings.task:
        return load_exported(settings.model, settings.depth)
    if exported_files.find(settings.model):
        raise ValueError(f"{settings.model} is an export, which knows its task: leave `task` out")
    from albert_tf.serving import served_tasks

    stored = dataclasses.replace(settings.stored(settings.model), num_hidden_layers=settings.depth)
    return from_model(served_tasks.load_served(settings.task, stored, {}))


def from_model(served: ServedModel) -> Predictor:
    """Returns a Predictor of a model in this process."""
    tokenizer = served.vocabulary.tokenizer
    find = functools.partial(served.kind.find, tokenizer, served.run_numbers)
    return Predictor(served.kind, find, tokenizer=tokenizer)


def load_exported(path: str | os.PathLike[str], depth: int | None = None) -> Predictor:
    r"""Loads what albert-export wrote, to answer texts with it in Python.

    An ONNX file needs onnxruntime, a TFLite file LiteRT (`ai-edge-litert`) or TensorFlow, and a
    SavedModel TensorFlow. A SavedModel can run code: only load one that you trust.

    Args:
      path: The directory of an export, or the .onnx or .tflite file in it.
      depth: The number of layers to apply, one of the export's `depths`; by default all.

    Returns:
      A function of a list of texts. An answer is a dictionary, as in albert-predict's JSON.

    Example:
      >>> import pathlib
      >>> import albert_tf
      >>> from albert_tf.text.vocabulary import Vocabulary
      >>> words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm"
      >>> _ = pathlib.Path("vocab.txt").write_text(words)
      >>> vocabulary = Vocabulary.read("vocab.txt", is_word_piece=True)
      >>> preprocess = albert_tf.Preprocessor(vocabulary, max_seq_length=8, labels=("bad", "good"))
      >>> size = {"vocab_size": 8, "hidden_size": 12, "num_attention_heads": 3}
      >>> config = albert_tf.AlbertConfig(**size, num_hidden_layers=1)
      >>> model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
      >>> albert_tf.export_saved_model(model, preprocess, "exported")
      >>> predictor = albert_tf.load_exported("exported")
      >>> [sorted(answer["probabilities"]) for answer in predictor(["good film", "a bad one"])]
      [['bad', 'good'], ['bad', 'good']]
    """
    # A SavedModel is a directory; for other formats, the path is a file or the directory it is in.
    path = os.fspath(path)
    if files.is_file(os.path.join(path, "saved_model.pb")):
        found = _load_saved_model(path)
    else:
        found = _load_file(path)
    return found if depth is None else found.at_depth(depth)


def _load_file(path: str) -> Predictor:
    file = exported_files.find(path)
    # A checkpoint's path is only a prefix: its .index file shows that it exists.
    if file is None and not files.exists(path) and not files.exists(f"{path}.index"):
        raise FileNotFoundError(f"there is no directory {path}")
    if file is None:
        raise ValueError(
            f"{path} is not an exported model (it has no saved_model.pb, .onnx or .tflite file): "
            "if it is a trained model, export it, or give albert-predict its `task`"
        )
    kind, found, runner, runs, about = exported_files.load(file)
    find = functools.partial(kind.find, found.tokenizer)
    by_depth = {depth: functools.partial(find, run) for depth, run in runs.items()}
    same = runner.depends_on_batch, path, found.tokenizer, by_depth, about
    return Predictor(kind, functools.partial(find, runner.run), *same)


def _load_saved_model(path: str) -> Predictor:
    import tensorflow as tf

    from albert_tf.serving.graphs.text import text_operations

    text_operations()  # Registers them.
    files.check_literal(path)
    try:
        exported = tf.saved_model.load(path)
    # On a truncated file TensorFlow may raise anything, even an IndexError.
    except Exception as error:
        raise ValueError(
            f"{path} can't be loaded; a file may be damaged or incomplete ({files.reason(error)}): "
            "copy the directory again, or export again"
        ) from error
    kind, config, _, depths, about = exported_files.read_description(path)
    # Any SavedModel may lie beside a description: its inputs must be the kind's texts.
    signature = exported.signatures.get("serving_default")
    names = signature.structured_input_signature[1] if signature else {}
    if {*names} != {*kind.text_names}:
        raise ValueError(f"{path} was not written by albert-export: export a trained model")
    # The vocabulary is one of its assets; whether texts are lower-cased doesn't matter for ids.
    found = vocabulary.find(path) if kind.takes_ids else None
    tokenizer = found.tokenizer if found else None
    find = Signature(kind, exported, tokenizer)
    by_depth: dict[int, Find] = {config.num_hidden_layers: find} if depths else {}
    for depth in depths:
        by_depth[depth] = Signature(kind, exported, tokenizer, f"_depth_{depth}")
    return Predictor(kind, find, False, path, tokenizer, by_depth, about)
