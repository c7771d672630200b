"""`python -m albert_tf.predict`; see cli/predict.py."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.predict()
else:
    from albert_tf.cli.predict import main as main
