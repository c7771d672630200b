"""Writes a stored model in another layout.

    albert-convert --from=albert_base --to=huggingface --output_dir=converted

In a clone `python -m albert_tf.conversion` is the same.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.console.settings import REQUIRED, setting
from albert_tf.conversion import huggingface, layouts
from albert_tf.conversion.settings import StoredSettings
from albert_tf.storage import files, hub

_conversion = functools.partial(setting, group="Conversion")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionSettings(StoredSettings):
    """The settings of albert-convert."""

    headings = ("Conversion",)

    from_: str = _conversion(
        REQUIRED,
        "Model to convert: a directory, checkpoint prefix, file or hf://OWNER/NAME.",
    )
    to: str = _conversion(REQUIRED, "Layout to write.", choices=layouts.LAYOUTS)
    output_dir: str = _conversion(REQUIRED, "Output directory, new or empty.")
    architecture: str | None = _conversion(
        None,
        "Hugging Face class; by default inferred from the heads.",
        choices=huggingface.ARCHITECTURES,
    )
    drop: tuple[str, ...] = _conversion(
        (), "Weights to leave out: prefixes of the release's names, separated by commas."
    )
    onnx: bool = _conversion(
        False, "With --to=huggingface: add onnx/model.onnx and an int8 one, for transformers.js."
    )
    license: str | None = _conversion(
        None,
        "Licence that the model card of --to=huggingface names, as apache-2.0. By default that of "
        "ALBERT's released weights if the model began with them, else none.",
    )


def main(settings: ConversionSettings) -> None:
    """Converts the model that the settings name."""
    log.begin()
    # Hugging Face's files are written without TensorFlow, which takes seconds to import.
    paths = (settings.from_.removeprefix(hub.SCHEME), settings.output_dir)
    if settings.onnx or settings.to != "huggingface" or any(map(files.is_remote, paths)):
        tensorflow_logs.import_tensorflow("tensorflow" if settings.onnx else None)
    from albert_tf.conversion import convert

    with errors.in_one_line(flags=settings.names()):
        # Find missing packages first; `complete` adds the ONNX files once weights are written.
        complete = None
        if settings.onnx and settings.to == "huggingface":
            with errors.of_extra("onnx", "`onnx`"):
                for package in ("onnxruntime", "tf2onnx"):
                    importlib.import_module(package)
            from albert_tf.serving import transformers_onnx

            complete = transformers_onnx.write
        files_named = ("albert_config_file", "spm_model_file", "vocab_file")
        others = ("do_lower_case", "keep_accents", "ids", "architecture", "drop", "license")
        given = {name: getattr(settings, name) for name in (*files_named, *others)}
        where = settings.from_, settings.to, settings.output_dir
        said = convert.convert(*where, **given, complete=complete)
    logging.info("%s", said)
