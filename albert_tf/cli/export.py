"""Writes a trained model for serving, by default one that takes raw text.

    albert-export --model=out --task=classify --export_dir=exported

In a clone `python -m albert_tf.export` is the same.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.serving.exported_files import About
from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import MEDIAPIPE, WEB, ExportSettings
from albert_tf.storage import files, text_files

# Number of examples on a model's web page.
_EXAMPLES = 2
# Largest loss of score, in points of a hundred, that causes no warning.
_MOST_LOST = 0.5


def _table_of(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    lines = [f"{'':16} {'before':>9} {'after':>9}"]
    lines += [f"{name:16} {before[name]:9.4f} {after[name]:9.4f}" for name in before]
    return "\n".join(lines)


def _warn_of_loss(before: float, after: float, name: str) -> None:
    """Warns if a score falls by more than half a point of 100; SQuAD's are already in percent."""
    share = 100 if max(abs(before), abs(after)) <= 1 else 1
    if (lost := share * (before - after)) > _MOST_LOST:
        logging.warning(
            "the export loses %.1f points of %s: try another `format`, which docs/serving.md "
            "compares",
            lost,
            name,
        )


def _examples(path: str, predictor: Predictor) -> tuple[tuple[str, ...], ...]:
    """Returns the texts of a file's first lines, in the input format of albert-predict."""
    rows: list[tuple[str, ...]] = []
    for number, line in text_files.utf8_lines(path):
        if (text := line.rstrip("\r\n")) and len(rows) < _EXAMPLES:
            if fault := predictor.fault(text):
                raise ValueError(f"{path}:{number}: {fault}")
            rows.append(tuple(predictor.texts(text)))
    if not rows:
        raise ValueError(f"{path}: expected lines of text, got none")
    return tuple(rows)


def main(settings: ExportSettings) -> None:
    """Writes the model that the settings name."""
    log.begin()
    tensorflow_logs.import_tensorflow("tensorflow")
    from albert_tf.serving import (
        other_formats,
        predict,
        saved_model,
        scores,
        served_tasks,
        web_page,
    )

    directory, form, task = settings.export_dir, settings.format, settings.task
    with errors.in_one_line(flags=settings.names()):
        # Check the directory and the packages before a model is loaded.
        files.check_free(directory)
        if path := settings.examples_file:
            files.check_file(path, f"`examples_file` {path}")
        # TensorFlow would take a * or [ in the path for a pattern.
        if form == "saved_model":
            files.check_literal(directory)
        elif form.startswith("onnx") or form == WEB:
            with errors.of_extra("onnx", f"`format={form}`"):
                for package in ("onnxruntime", "tf2onnx"):
                    importlib.import_module(package)
        # The model, together with its tokenizer and its kind of answers.
        stored = dataclasses.replace(
            settings.stored(settings.model), num_hidden_layers=settings.num_hidden_layers
        )
        served = served_tasks.load_served(task, stored, settings.options())
        served.depths = served.config.smaller_depths("depths", settings.depths)
        # A description and examples for the model's page.
        examples = _examples(path, predict.from_model(served)) if path else ()
        served.about = About(settings.description, examples)
        # Score the model before and after: formats may change answers, int8 most of all.
        scored = scores.Evaluation.read(served.kind, settings) if settings.eval_file else None
        before = scored(predict.from_model(served).outputs) if scored else {}
        # Other formats are compared with the model right away: `drift` says how far outputs differ.
        if form == "saved_model":
            saved_model.save(served, directory)
            what = f"a SavedModel that takes {' and '.join(served.kind.text_names)}"
        elif form == WEB:
            drift = web_page.save(served, directory)
            what = f"a page for any host of static files; {drift}"
        elif form == MEDIAPIPE:
            from albert_tf.serving import mediapipe

            texts = [text for (text, *_) in scored.texts()] if scored else []
            written = mediapipe.save(served, directory, texts)
            what = f"a TFLite file for MediaPipe; {written}"
        else:
            drift = other_formats.save(served, directory, form)
            what = f"{form} that takes features (albert-predict computes them); {drift}"
        logging.info("%s: %s", directory, what)
        # The second column comes from the files as a user will load them.
        if scored:
            after = scored(predict.load_exported(directory).outputs)
            print(_table_of(before, after))
            name = scored.task.key_metric
            _warn_of_loss(before[name], after[name], name)
    # Suggest the next command.
    if form == "saved_model" and (hint := saved_model.hint(directory)):
        logging.info("%s", hint)
    following = log.command("albert-predict", model=directory)
    if form == WEB:
        following = log.command("python", "-m", "http.server", directory=directory)
    logging.info("next: %s", following)
