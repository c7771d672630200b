"""Whether masked LM makes verbs agree: `python -m albert_tf.agreement`. See inspection/."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.inspection import commands

    commands.agreement()
