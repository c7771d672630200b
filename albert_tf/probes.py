"""What linear probes read from each layer: `python -m albert_tf.probes`. See inspection/."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.inspection import commands

    commands.probes()
