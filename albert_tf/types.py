"""Types of what flows through models and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A tensor of Keras' backend, or a NumPy array.
Array = Any
# A batch, by the names of its features.
Features = Mapping[str, Array]
