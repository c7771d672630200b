"""Imports at half the time what a server of processes needs, and freezes it: nothing is copied.

Keras tries to import what only its plots, wrappers and adapters of tables use: no test does.
"""

import gc
import importlib.util
import sys

# It would search a million objects that live until the end, again and again.
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
