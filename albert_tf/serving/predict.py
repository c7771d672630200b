"""Applies an exported or a trained model to text.

    albert-predict --model=exported --input_file=text.txt

One input per line; empty lines are skipped. Texts that belong together are separated by tabs: two
texts, a question and its context, a context and its endings; to a model of single texts a tab is
white space. A pretrained model fills each [MASK] in a text, and tells how similar two texts are
(the cosine of their mean vectors). In a clone `python -m albert_tf.predict` is the same.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from albert_tf.console import errors, log, quiet
from albert_tf.serving import exported_files
from albert_tf.serving.settings import PredictionSettings
from albert_tf.storage import files, text_files

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.serving.served_models import ServedModel
    from albert_tf.serving.text_functions import TextFunction

# Lines answered per batch.
_BATCH = 32
_STANDARD = "standard input"
# Order of an exported model's texts in a line.
_ORDER = ("text", "text_a", "text_b", "question", "context", "endings")


class Answer(dict[str, Any]):
    """An answer in JSON's types, by name; `said` is the same for people."""

    def __init__(self, said: str, **values: Any) -> None:
        super().__init__(values)
        self.said = said


def finite(outputs: dict[str, np.ndarray], rows: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Returns a model's outputs for some rows, if all are finite."""
    for name, value in outputs.items():
        if value.dtype.kind == "f":
            good = np.isfinite(value).all(axis=tuple(range(1, value.ndim)))
            if not good.all():
                text = rows[int(np.argmin(good))][0][:60]
                raise ValueError(
                    f"the model's outputs for {text!r} are NaN or infinite ({name}): its weights "
                    "are damaged, or too large; use another checkpoint"
                )
    return outputs


def _filled(outputs: dict[str, Any]) -> Answer:
    slots = zip(outputs["pieces"], outputs["probabilities"], strict=True)
    masks = [_shares("piece", *slot) for slot in slots if slot[0][0]]
    said = [", ".join(f"{e['piece']} {e['probability']:.3f}" for e in slot) for slot in masks]
    nothing = "there is no [MASK] in the part that the model reads"
    return Answer("\n".join(said) or nothing, masks=masks)


def _classified(outputs: dict[str, Any]) -> Answer:
    names = [label.decode() for label in outputs["labels"]]
    probabilities = dict(zip(names, outputs["probabilities"].tolist(), strict=True))
    threshold = {k: float(v) for k, v in outputs.items() if k == "threshold"}
    label = outputs["label"].decode()
    shares = ", ".join(f"{name} {share:.3f}" for name, share in probabilities.items())
    said = f"{label or 'no label'} ({shares})"
    return Answer(said, label=label, probabilities=probabilities, **threshold)


def _number(name: str, value: float) -> Answer:
    return Answer(f"{name} {value:.4f}", **{name: value})


def _answered(outputs: dict[str, Any]) -> Answer:
    null_odds = {k: float(v) for k, v in outputs.items() if k == "null_odds"}
    answer = outputs["answer"].decode()
    answers = _shares("text", outputs["answers"], outputs["probabilities"])
    found = [entry["probability"] for entry in answers if entry["text"] == answer]
    said = f"{answer} ({found[0]:.3f})" if found else "no answer"
    return Answer(said, answer=answer, answers=answers, **null_odds)


def _chosen(outputs: dict[str, np.ndarray]) -> Answer:
    choice, shares = int(outputs["choice"]), outputs["probabilities"].tolist()
    said = f"{choice + 1} ({', '.join(f'{share:.3f}' for share in shares)})"
    return Answer(said, choice=choice, probabilities=shares)


def _named(outputs: dict[str, Any]) -> Answer:
    found = _spans(outputs, "entities", "types", "type")
    said = ", ".join(f"{e['text']} ({e['type']} {e['probability']:.3f})" for e in found)
    return Answer(said or "no entities", entities=found)


def _tagged(outputs: dict[str, Any]) -> Answer:
    words = _spans(outputs, "words", "tags", "tag")
    return Answer(" ".join(f"{word['text']}/{word['tag']}" for word in words), words=words)


def _spans(outputs: dict[str, Any], texts: str, kinds: str, kind: str) -> list[dict[str, Any]]:
    columns = (outputs[name] for name in (texts, kinds, "starts", "ends", "probabilities"))
    return [
        {
            "text": text.decode(),
            kind: name.decode(),
            "start": int(start),
            "end": int(end),
            "probability": float(probability),
        }
        for text, name, start, end, probability in zip(*columns, strict=True)
        if text
    ]


def _shares(name: str, texts: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    return [
        {name: text.decode(), "probability": float(probability)}
        for text, probability in zip(texts, probabilities, strict=True)
        if text
    ]


# An output that only one kind of model has -> the function that makes its answers.
MAKERS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "pieces": _filled,
    "labels": _classified,
    "score": lambda outputs: _number("score", float(outputs["score"])),
    "entities": _named,
    "words": _tagged,
    "answer": _answered,
    "choice": _chosen,
}


class GraphFunction:
    """A served model's function of raw texts, as a TextFunction; see there.

    Args:
      signature: `serving_default` of an exported model.
      model: The signature's model; a signature doesn't keep its weights alive.
    """

    depends_on_batch = False

    def __init__(self, signature: Any, model: Any) -> None:
        self._signature, self._model = signature, model
        specs = signature.structured_input_signature[1]
        self.names = tuple(sorted(specs, key=_ORDER.index))
        self.takes_many = specs[self.names[-1]].shape.rank == 2
        self.embeds = "mean" in signature.structured_outputs

    def __call__(self, *columns: Any) -> dict[str, np.ndarray]:
        import tensorflow as tf

        named = zip(self.names, columns, strict=True)
        outputs = self._signature(**{name: tf.constant(column) for name, column in named})
        return {name: value.numpy() for name, value in outputs.items()}


class Predictor:
    """Answers texts; load_exported makes it. It may be called from several threads.

    Args:
      function: A model's function of raw texts; its attributes are here, too.
    """

    def __init__(self, function: TextFunction | GraphFunction) -> None:
        self._function, self.names = function, function.names
        self.takes_many, self._embeds = function.takes_many, function.embeds
        self.depends_on_batch = function.depends_on_batch

    def __call__(self, inputs: Sequence[str | Sequence[str]]) -> list[Answer]:
        """Answers inputs, in JSON's types: each a text, or the texts that belong together.

        In a string tabs separate these, as in the lines of albert-predict.
        """
        if isinstance(inputs, str):
            raise TypeError("`inputs` must be a list of texts, not one text")
        for fault in filter(None, map(self.fault, inputs)):
            raise ValueError(fault)
        found = []
        for fields, group in itertools.groupby(map(self.texts, inputs), key=len):
            rows, is_pair = list(group), self._embeds and fields == 2
            for start in range(0, len(rows), _BATCH):
                found += (self._compare if is_pair else self._answer)(rows[start : start + _BATCH])
        return found

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the mean of the vectors of each text's pieces, `<float32>[B, H]`.

        Only a pretrained model (fill_mask) has them.
        """
        starts = range(0, len(texts), _BATCH)
        parts = [[[text] for text in texts[start : start + _BATCH]] for start in starts]
        return np.concatenate([self.outputs(part)["mean"] for part in parts])

    def texts(self, given: str | Sequence[str]) -> list[str]:
        """Returns the texts of an input; where there is only one, its tabs are white space."""
        if not isinstance(given, str):
            return list(given)
        return given.split("\t") if self._embeds or len(self.names) > 1 else [given]

    def fault(self, given: str | Sequence[str]) -> str | None:
        """Returns what is wrong with an input: too few or too many fields."""
        row = self.texts(given)
        least = len(self.names) + self.takes_many
        most = len(row) if self.takes_many else least + self._embeds
        if least <= len(row) <= most:
            return None
        expected = " and ".join(self.names) + (" or two of them" if self._embeds else "")
        return f"expected {expected}, separated by tabs, got {len(row)} fields: {row[0][:60]!r}"

    def outputs(self, rows: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """Returns the model's outputs, by name, for rows with equally many texts."""
        alone = len(self.names) - self.takes_many
        columns: list[Any] = [[row[i] for row in rows] for i in range(alone)]
        if self.takes_many:
            columns.append([row[alone:] for row in rows])
        return finite(self._function(*columns), rows)

    def _answer(self, rows: Sequence[Sequence[str]]) -> list[Answer]:
        outputs = self.outputs(rows)
        of_row = next(make for name, make in MAKERS.items() if name in outputs)
        return [
            of_row({name: value[i] for name, value in outputs.items()}) for i in range(len(rows))
        ]

    def _compare(self, pairs: Sequence[Sequence[str]]) -> list[Answer]:
        first, second = (self.outputs([[pair[side]] for pair in pairs])["mean"] for side in (0, 1))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            cosines = (first * second).sum(axis=1) / lengths
        finite({"similarity": cosines}, pairs)
        return [_number("similarity", float(cosine)) for cosine in cosines]


def answer_lines(
    predictor: Predictor, lines: Iterable[tuple[int, str]], where: str
) -> Iterator[tuple[str, Answer]]:
    """Yields each numbered line that isn't empty, and its answer; `where` is their source."""
    for batch, error in _batches(predictor, lines, where):
        yield from zip(batch, predictor(batch), strict=True)
        if error:
            raise error


def _batches(
    predictor: Predictor, lines: Iterable[tuple[int, str]], where: str
) -> Iterator[tuple[list[str], ValueError | None]]:
    """Yields batches of non-empty lines, without line ends, and the error after the last one."""
    batch, met = [], None
    try:
        for number, line in lines:
            if text := line.rstrip("\r\n"):
                if fault := predictor.fault(text):
                    raise ValueError(f"{where}:{number}: {fault}")
                batch.append(text)
            if len(batch) == _BATCH:
                yield batch, None
                batch = []
    except ValueError as error:
        met = error
    yield batch, met


def load(settings: PredictionSettings) -> Predictor:
    """Loads the model that the settings name."""
    if not settings.task:
        return load_exported(settings.model)
    from albert_tf.serving import served_tasks

    stored = settings.stored(settings.model)
    return from_text(served_tasks.serve(settings.task, stored, settings.options(settings.task)))


def load_exported(path: str | os.PathLike[str]) -> Predictor:
    r"""Loads what albert-export wrote, to answer texts with it in Python.

    An ONNX file needs onnxruntime, a TFLite file LiteRT (`ai-edge-litert`) or TensorFlow; only for
    a SavedModel is TensorFlow imported. That can run code: only load one that you trust.

    Args:
      path: The directory of an export, or the .onnx or .tflite file in it.

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
    path = os.fspath(path)
    if files.is_file(os.path.join(path, "saved_model.pb")):
        return _load_saved_model(path)
    file = exported_files.find(path)
    if file is None:
        raise ValueError(
            f"{path} is not an exported model (it has no saved_model.pb, .onnx or .tflite file): "
            "if it is a trained model, set `task`"
        )
    from albert_tf.serving import text_functions

    export = exported_files.load(file)
    return Predictor(text_functions.FUNCTIONS[export.task](export))


def from_text(served: ServedModel) -> Predictor:
    """Returns what answers with a model in this process."""
    return Predictor(GraphFunction(served.text_signature(), served))


def _load_saved_model(path: str) -> Predictor:
    import tensorflow as tf

    importlib.import_module("tensorflow_text")  # Registers its text operations.
    files.check_literal(path)
    try:
        exported = tf.saved_model.load(path)
    # On a truncated file TensorFlow may raise anything, even an IndexError.
    except Exception as error:
        raise ValueError(
            f"{path} can't be loaded; a file may be damaged or incomplete ({files.reason(error)}): "
            "copy the directory again, or export again"
        ) from error
    signature = exported.signatures.get("serving_default")
    names = signature.structured_input_signature[1] if signature else {}
    is_ours = names and set(names) <= set(_ORDER)
    if not is_ours or MAKERS.keys().isdisjoint(signature.structured_outputs):
        raise ValueError(f"{path} was not written by albert-export: export a trained model")
    return Predictor(GraphFunction(signature, exported))


def _converse(predictor: Predictor, lines: Iterable[tuple[int, str]], as_json: bool) -> None:
    print("Type a line, then Enter; Ctrl-D ends.", file=sys.stderr)
    for _, line in lines:
        text = line.rstrip("\r\n")
        fault = text and predictor.fault(text)
        if fault:
            print(f"error: {fault}", file=sys.stderr)
        elif text:
            _show(predictor.texts(text), predictor([text])[0], as_json)


def _show(texts: list[str], answer: Answer, as_json: bool) -> None:
    line = answer.said
    if as_json:
        line = json.dumps({"input": texts, **answer}, ensure_ascii=False)
    errors.print_to_reader(line)


def main(settings: PredictionSettings) -> None:
    """Answers lines of text."""
    log.begin(logging.WARNING)
    with errors.in_one_line(flags=settings.names()):
        if settings.task or exported_files.find(settings.model) is None:
            quiet.import_tensorflow("tensorflow")
        if settings.input_file:
            files.check_file(settings.input_file, f"`input_file` {settings.input_file}")
        predictor = load(settings)
        if settings.input_file:
            lines, where = text_files.utf8_lines(settings.input_file), settings.input_file
        else:
            lines, where = text_files.decoded_lines(sys.stdin.buffer, _STANDARD), _STANDARD
        if not settings.input_file and sys.stdin.isatty():
            with contextlib.suppress(KeyboardInterrupt):
                _converse(predictor, lines, settings.json)
            return
        for text, answer in answer_lines(predictor, lines, where):
            _show(predictor.texts(text), answer, settings.json)
