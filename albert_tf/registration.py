"""Registers our classes with Keras, so that keras.saving.load_model finds them by name.

Keras imports no module that a file names. Nor does `import albert_tf` import Keras, which takes
seconds: so the classes are registered as soon as someone else does. That may be a module of ours,
which is half imported then: so model/ imports Keras before any of its modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_FRAMEWORK = "keras"
# Modules of all classes with `register_keras_serializable`, or that import them.
_MODULES = ("model.heads", "model.finetuning", "training.adamw")


def register_after_keras() -> None:
    """Registers the classes now if Keras is imported, else right after it is."""
    if sys.modules.get(_FRAMEWORK):
        _register()
    else:
        sys.meta_path.insert(0, _AfterKeras())


def _register() -> None:
    for module in _MODULES:
        importlib.import_module(f"albert_tf.{module}")
    # model/ lies below the folder that reads files, so it gets its `from_weights` from here.
    configured = importlib.import_module("albert_tf.model.configured")
    loading = importlib.import_module("albert_tf.conversion.loading")
    configured.ConfiguredModel.builder = loading.from_weights


class _AfterKeras:
    """Finds Keras as the other finders do, and registers our classes once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if name != _FRAMEWORK:
            return None
        found = (
            finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self
        )
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        # The loader stays its own, for it may have methods that only its class knows.
        def exec_module(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:  # Others may look for Keras without importing it.
                sys.meta_path.remove(self)
            _register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
