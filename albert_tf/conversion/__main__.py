"""`python -m albert_tf.conversion`; see cli/convert.py."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.convert()
