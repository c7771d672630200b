"""Runs albert_tf.generator.sotu, from a clone that need not be installed."""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from albert_tf.generator import sotu

    sotu.run()
