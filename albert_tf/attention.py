"""What each head attends to in a text: `python -m albert_tf.attention`. See inspection/."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.inspection import commands

    commands.attention()
