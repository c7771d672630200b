"""What a model costs: `python -m albert_tf.sizes`. The formulas are in costs.py."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.sizes()
