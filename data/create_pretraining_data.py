"""Runs albert_tf.cli.create_pretraining_data, from a clone that need not be installed."""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from albert_tf.cli import commands

    commands.create_pretraining_data()
