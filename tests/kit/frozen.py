"""Imports what a fork server needs, in half the time, and freezes it, so that forks copy nothing.

Keras tries to import packages for its plots, wrappers and table adapters, which no test uses.
"""

import gc
import importlib.util
import sys

# The garbage collector would scan a million permanent objects again and again.
gc.disable()
_unused = [name for name in ("matplotlib", "pandas", "sklearn") if importlib.util.find_spec(name)]
sys.modules.update(dict.fromkeys(_unused))

import keras  # noqa: E402, F401
import tensorboard  # noqa: E402, F401

from tests.kit import finetune_runs, pretraining_runs  # noqa: E402, F401

for _name in _unused:
    del sys.modules[_name]
gc.collect()
gc.freeze()
gc.enable()
