"""The console commands: each imports what it runs, and TensorFlow before that, quietly."""

from __future__ import annotations

from albert_tf import quiet


def pretrain() -> None:
    """`albert-pretrain`, and run_pretraining.py of a clone."""
    quiet.import_tensorflow()
    from albert_tf.cli import pretrain

    pretrain.run()


def finetune() -> None:
    """`albert-finetune`, and run_finetune.py of a clone."""
    quiet.import_tensorflow()
    from albert_tf.cli import finetune

    finetune.run()


def create_pretraining_data() -> None:
    """`albert-create-pretraining-data`, and data/create_pretraining_data.py of a clone."""
    # Its worker processes, which may import this module, do without TensorFlow.
    from albert_tf.generator import create

    create.run()


def train_sentencepiece() -> None:
    """`albert-train-sentencepiece`, and data/train_sentencepiece.py of a clone."""
    quiet.import_tensorflow()
    from albert_tf.generator import sentencepiece

    sentencepiece.run()


def convert() -> None:
    """`albert-convert`."""
    quiet.import_tensorflow()
    from albert_tf.conversion import __main__

    __main__.main()


def export() -> None:
    """`albert-export`, and `python -m albert_tf.export`."""
    quiet.import_tensorflow()
    from albert_tf.serving import export

    export.main()


def predict() -> None:
    """`albert-predict`, and `python -m albert_tf.predict`."""
    quiet.import_tensorflow()
    from albert_tf.serving import predict

    predict.main()
