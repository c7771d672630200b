"""Applies an exported or a trained model to text.

    albert-predict --model=exported --input_file=text.txt

One input per line; empty lines are skipped. Texts that belong together are separated by tabs: two
texts, a question and its context, a context and its endings; to a model of single texts a tab is
white space. A pretrained model fills each [MASK] in a text, or compares two texts (by the cosine of
their mean vectors). In a clone `python -m albert_tf.predict` is the same.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.serving import exported_files
from albert_tf.serving.predict import Answer, Predictor, answer_lines, load
from albert_tf.serving.settings import PredictionSettings
from albert_tf.storage import files, text_files

_STANDARD = "standard input"


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
    errors.print_to_reader(errors.escape_controls(line) if sys.stdout.isatty() else line)


def main(settings: PredictionSettings) -> None:
    """Answers lines of text."""
    log.begin(logging.WARNING)
    with errors.in_one_line(flags=settings.names()):
        # Exports for other runtimes need no TensorFlow.
        if settings.task or exported_files.find(settings.model) is None:
            tensorflow_logs.import_tensorflow("tensorflow")
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
