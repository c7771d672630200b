"""Text in, answers out: python -m albert_tf.predict --help."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files, user_errors
from albert_tf.export import arguments, trained

# Lines of a file that are answered at once.
_BATCH = 32
# The order in which the texts of an exported model stand in a line.
_ORDER = ("text", "text_a", "text_b", "question", "context", "endings")

_EPILOG = """\
One input a line. What belongs together stands between tabs: two texts, a question and its context,
a context and its endings. A pretrained model fills each [MASK] of a text, and tells of two texts
how alike they are (the cosine of their mean vectors).
"""

Answer = dict[str, Any]


class Predictor:
    """Answers lines of text.

    Args:
      signature: `serving_default` of an exported model.
      model: What it belongs to; a signature by itself doesn't keep its weights.
    """

    def __init__(self, signature: Callable[..., dict[str, tf.Tensor]], model: Any) -> None:
        self._signature, self._model = signature, model
        specs = signature.structured_input_signature[1]
        self._names = sorted(specs, key=_ORDER.index)
        self._takes_many = specs[self._names[-1]].shape.rank == 2
        self._embeds = "mean" in signature.structured_outputs

    def __call__(self, lines: Sequence[str]) -> list[Answer]:
        """Answers lines whose fields stand between tabs; each as JSON has it.

        Raises:
          ValueError: A line has too few or too many fields.
        """
        for fault in filter(None, map(self.fault, lines)):
            raise ValueError(fault)
        rows = [line.split("\t") for line in lines]
        answers = []
        for fields, group in itertools.groupby(rows, key=len):
            if self._embeds and fields == 2:
                answers += self._compare(list(group))
            else:
                answers += self._answer(list(group))
        return answers

    def fault(self, line: str) -> str | None:
        """Returns what is wrong with a line: too few or too many fields."""
        row = line.split("\t")
        least = len(self._names) + self._takes_many
        most = len(row) if self._takes_many else least + self._embeds
        if least <= len(row) <= most:
            return None
        expected = " and ".join(self._names) + (" or two of them" if self._embeds else "")
        return f"expected {expected}, between tabs, and got {len(row)} fields: {row[0][:60]!r}"

    def _run(self, rows: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        alone = len(self._names) - self._takes_many
        columns = [[row[i] for row in rows] for i in range(alone)]
        if self._takes_many:
            columns.append([row[alone:] for row in rows])
        named = zip(self._names, columns, strict=True)
        outputs = self._signature(**{name: tf.constant(column) for name, column in named})
        return {name: value.numpy() for name, value in outputs.items()}

    def _answer(self, rows: Sequence[Sequence[str]]) -> list[Answer]:
        outputs = self._run(rows)
        of_row = next(make for name, make in _ANSWERS.items() if name in outputs)
        return [
            of_row({name: value[i] for name, value in outputs.items()}) for i in range(len(rows))
        ]

    def _compare(self, pairs: Sequence[Sequence[str]]) -> list[Answer]:
        first, second = (self._run([[pair[side]] for pair in pairs])["mean"] for side in (0, 1))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        return [{"similarity": float(cosine)} for cosine in (first * second).sum(axis=1) / lengths]


def _filled(outputs: dict[str, np.ndarray]) -> Answer:
    slots = zip(outputs["pieces"], outputs["probabilities"], strict=True)
    return {"masks": [_shares("piece", *slot) for slot in slots if slot[0][0]]}


def _classified(outputs: dict[str, np.ndarray]) -> Answer:
    names = [label.decode() for label in outputs["labels"]]
    probabilities = dict(zip(names, outputs["probabilities"].tolist(), strict=True))
    threshold = {k: float(v) for k, v in outputs.items() if k == "threshold"}
    return {"label": outputs["label"].decode(), "probabilities": probabilities, **threshold}


def _scored(outputs: dict[str, np.ndarray]) -> Answer:
    return {"score": float(outputs["score"])}


def _answered(outputs: dict[str, np.ndarray]) -> Answer:
    null_odds = {k: float(v) for k, v in outputs.items() if k == "null_odds"}
    answers = _shares("text", outputs["answers"], outputs["probabilities"])
    return {"answer": outputs["answer"].decode(), "answers": answers, **null_odds}


def _chosen(outputs: dict[str, np.ndarray]) -> Answer:
    return {
        "choice": int(outputs["choice"]),
        "probabilities": outputs["probabilities"].tolist(),
    }


def _shares(name: str, texts: np.ndarray, probabilities: np.ndarray) -> list[Answer]:
    return [
        {name: text.decode(), "probability": float(probability)}
        for text, probability in zip(texts, probabilities, strict=True)
        if text
    ]


# An output that only one kind of model has -> what makes an answer of its outputs.
_ANSWERS = {
    "pieces": _filled,
    "labels": _classified,
    "score": _scored,
    "answer": _answered,
    "choice": _chosen,
}


def describe(answer: Answer) -> str:
    """Returns an answer as a person reads it."""
    if "masks" in answer:
        rows = (
            ", ".join(f"{entry['piece']} {entry['probability']:.3f}" for entry in slot)
            for slot in answer["masks"]
        )
        return "\n".join(rows) or "there is no [MASK] in what the model reads of it"
    if "label" in answer:
        shares = answer["probabilities"].items()
        return f"{answer['label']} ({', '.join(f'{name} {p:.3f}' for name, p in shares)})"
    if "answer" in answer:
        found = [e["probability"] for e in answer["answers"] if e["text"] == answer["answer"]]
        return f"{answer['answer']} ({found[0]:.3f})" if found else "no answer"
    if "choice" in answer:
        shares = answer["probabilities"]
        return f"{answer['choice'] + 1} ({', '.join(f'{share:.3f}' for share in shares)})"
    ((name, number),) = answer.items()
    return f"{name} {number:.4f}"


def answer_lines(predictor: Predictor, lines: Iterable[str]) -> Iterator[tuple[str, Answer]]:
    """Yields the answer to each line that isn't empty, several of them at once.

    Raises:
      ValueError: A line has too few or too many fields; those before it are answered.
    """
    numbered = enumerate((line.rstrip("\n") for line in lines), start=1)
    numbered = ((number, text) for number, text in numbered if text)
    while group := list(itertools.islice(numbered, _BATCH)):
        texts = [text for _, text in group]
        good = list(itertools.takewhile(lambda text: predictor.fault(text) is None, texts))
        yield from zip(good, predictor(good), strict=True)
        for number, text in group[len(good) :]:
            raise ValueError(f"line {number}: {predictor.fault(text)}")


def load(args: argparse.Namespace) -> Predictor:
    """Loads what the arguments name.

    Raises:
      ValueError, OSError: It can't be loaded; the message tells why.
    """
    if args.task:
        served = arguments.serve(args)
        return Predictor(served.signatures()["serving_default"], served)
    if not files.is_file(os.path.join(args.model, "saved_model.pb")):
        raise ValueError(
            f"{args.model} is no exported model (it has no saved_model.pb): say with --task what a "
            "trained model is for"
        )
    arguments.check_none(args)
    # The operations on text that it needs are there, for albert_tf.export imports tensorflow_text.
    exported = tf.saved_model.load(args.model)
    signature = exported.signatures.get("serving_default")
    names = signature.structured_input_signature[1] if signature else {}
    is_ours = names and set(names) <= set(_ORDER)
    if not is_ours or _ANSWERS.keys().isdisjoint(signature.structured_outputs):
        raise ValueError(
            f"{args.model} was not written by python -m albert_tf.export: export a trained model"
        )
    return Predictor(signature, exported)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m albert_tf.predict",
        description="Answers text with an exported or a trained model.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--model",
        required=True,
        help="An exported model, which is a program: one that you trust; or a trained one.",
    )
    parser.add_argument("--task", choices=trained.TASKS, help="What a trained model is for.")
    parser.add_argument("--input_file", help="A text file; standard input if left out.")
    parser.add_argument("--json", action="store_true", help="Each answer as a line of JSON.")
    arguments.add(parser)
    return parser


def _converse(predictor: Predictor, as_json: bool) -> None:
    print("A line, and Enter; the end of the input (Ctrl-D) ends it.", file=sys.stderr)
    for line in sys.stdin:
        text = line.rstrip("\n")
        fault = text and predictor.fault(text)
        if fault:
            print(f"error: {fault}", file=sys.stderr)
        elif text:
            _show(text, predictor([text])[0], as_json)


def _answer(predictor: Predictor, lines: Iterable[str], as_json: bool) -> None:
    for text, answer in answer_lines(predictor, lines):
        _show(text, answer, as_json)


def _show(text: str, answer: Answer, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"input": text.split("\t"), **answer}, ensure_ascii=False)
    else:
        line = describe(answer)
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Does what the arguments say."""
    args = _parser().parse_args(argv)
    with user_errors.in_one_line():
        if args.input_file and not os.path.isfile(args.input_file):
            raise FileNotFoundError(f"--input_file {args.input_file} is not there")
        predictor = load(args)
        if args.input_file:
            with open(args.input_file, encoding="utf-8") as source:
                _answer(predictor, source, args.json)
        elif sys.stdin.isatty():
            with contextlib.suppress(KeyboardInterrupt):
                _converse(predictor, args.json)
        else:
            _answer(predictor, sys.stdin, args.json)


if __name__ == "__main__":
    main()
