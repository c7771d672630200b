"""How far each layer takes its input: `python -m albert_tf.similarity`. See inspection/."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.inspection import commands

    commands.similarity()
