"""Exports a page that answers in the browser: an ONNX file and the page's own files."""

from __future__ import annotations

import copy
import importlib.resources
import json
import os

from albert_tf.answers.fill import MADE_OF
from albert_tf.answers.kinds import KINDS
from albert_tf.serving import other_formats
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.serving.graphs.fill import MaskFiller
from albert_tf.serving.other_formats import Drift
from albert_tf.serving.settings import FORMATS
from albert_tf.storage import files
from albert_tf.text import sentence_piece, vocabulary

PAGE_FILE = "page.json"
_FORMAT = "onnx_int8"
# Where the page loads onnxruntime-web from; "ort/" would be a folder beside the page.
_RUNTIME = "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist/"


def save(served: ServedModel, directory: str | os.PathLike[str]) -> Drift:
    """Writes a model as `onnx_int8`, and a page beside it: index.html and its modules.

    Any host of static files serves the directory, and `load_exported` opens it.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
    """
    _check(served)
    if isinstance(served, MaskFiller):
        # The page shows words, not vectors of texts.
        served = copy.copy(served)
        served.kind = served.kind.replace(without=tuple(MADE_OF))
    with files.whole_directory(os.fspath(directory)) as temporary:
        drift = other_formats.write(served, temporary, _FORMAT)
        for file in importlib.resources.files("albert_tf.serving").joinpath("web").iterdir():
            files.replace(os.path.join(temporary, file.name), file.read_bytes())
        files.replace(os.path.join(temporary, PAGE_FILE), _description(served, temporary))
    return drift


def _check(served: ServedModel) -> None:
    if not served.kind.title:
        known = dict.fromkeys(kind.task for kind in KINDS if kind.title)
        raise ValueError(
            f"`format=web` has no page for the task {served.kind.task}, only for "
            f"{', '.join(known)}: give another `format`"
        )
    if served.depths:
        raise ValueError("a page answers with all layers: leave `depths` out")
    vocabulary = served.vocabulary
    if not vocabulary.is_word_piece:
        stored = sentence_piece.read_model(vocabulary.tokenizer.content)
        if not sentence_piece.is_unigram(stored) or sentence_piece.spaces_end_words(stored):
            raise ValueError(
                f"`format=web` splits words only with a Unigram model that begins them with a "
                f"space, and {vocabulary.path} is none: give another `format`"
            )


def _description(served: ServedModel, directory: str) -> str:
    """Returns the page's settings; its host may change title and runtime."""
    found = vocabulary.need(directory)
    page = {
        "title": served.kind.title,
        **served.about._asdict(),
        "runtime": _RUNTIME,
        "model": FORMATS[_FORMAT],
        "vocabulary": os.path.basename(found.path),
        "tokenizer": {
            "wordPiece": found.is_word_piece,
            "lower": found.tokenizer.do_lower_case,
            "keepAccents": found.tokenizer.keep_accents,
            "added": found.tokenizer.added_pattern,
        },
        "kind": served.kind.to_json(),
    }
    return json.dumps(page, indent=2, ensure_ascii=False) + "\n"
