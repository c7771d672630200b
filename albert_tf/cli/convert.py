"""Writes a stored model in another layout.

    albert-convert --from=albert_base --to=huggingface --output_dir=converted

In a clone `python -m albert_tf.conversion` is the same.
"""

from __future__ import annotations

import importlib

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.conversion.settings import ConversionSettings


def main(settings: ConversionSettings) -> None:
    """Converts the model that the settings name."""
    log.begin()
    tensorflow_logs.import_tensorflow("tensorflow" if settings.onnx else None)
    from albert_tf.conversion import convert

    with errors.in_one_line(flags=settings.names()):
        complete = None
        if settings.onnx and settings.to == "huggingface":
            with errors.of_extra("onnx", "`onnx`"):
                for package in ("onnxruntime", "tf2onnx"):
                    importlib.import_module(package)
            from albert_tf.serving import transformers_onnx

            complete = transformers_onnx.write
        said = convert.convert(
            settings.from_,
            settings.to,
            settings.output_dir,
            albert_config_file=settings.albert_config_file,
            spm_model_file=settings.spm_model_file,
            vocab_file=settings.vocab_file,
            do_lower_case=settings.do_lower_case,
            keep_accents=settings.keep_accents,
            architecture=settings.architecture,
            drop=settings.drop,
            license=settings.license,
            complete=complete,
        )
    logging.info("%s", said)
