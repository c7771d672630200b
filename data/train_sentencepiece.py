"""Runs albert_tf.cli.train_sentencepiece, from a clone that need not be installed."""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from albert_tf.cli import commands

    commands.train_sentencepiece()
