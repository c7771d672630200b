"""The console commands: each reads its flags first, then imports what it runs, quietly."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import pathlib

from absl import flags

from albert_tf import quiet, scripts
from albert_tf.cli import recipes


def pretrain() -> None:
    """`albert-pretrain`, and run_pretraining.py in a clone."""
    from albert_tf.cli import pretrain_flags

    _run("albert_tf.cli.pretrain", pretrain_flags.define_flags, "pretraining")


def finetune() -> None:
    """`albert-finetune`, and run_finetune.py in a clone."""
    from albert_tf.cli import finetune_flags

    _run("albert_tf.cli.finetune", finetune_flags.define_flags, "finetuning")


def _run(module: str, define: scripts.Define, recipes_of: str) -> None:
    """Runs a module's `main` on the command line; --help shows the module's docstring."""

    def main(values: flags.FlagValues) -> None:
        quiet.import_tensorflow()
        importlib.import_module(module).main(values)

    # Read, not imported: --help needs no TensorFlow.
    source = pathlib.Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source))
    scripts.run_script(main, define, doc, functools.partial(recipes.expand, recipes_of))


def create_pretraining_data() -> None:
    """`albert-create-pretraining-data`, and data/create_pretraining_data.py in a clone."""
    from albert_tf.generator import create

    create.run()


def train_sentencepiece() -> None:
    """`albert-train-sentencepiece`, and data/train_sentencepiece.py in a clone."""
    from albert_tf.generator import sentencepiece

    sentencepiece.run()


def convert() -> None:
    """`albert-convert`, and `python -m albert_tf.conversion`."""
    from albert_tf.conversion import __main__

    __main__.main()


def export() -> None:
    """`albert-export`, and `python -m albert_tf.export`."""
    from albert_tf.serving import export

    export.main()


def predict() -> None:
    """`albert-predict`, and `python -m albert_tf.predict`."""
    from albert_tf.serving import predict

    predict.main()
