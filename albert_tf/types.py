"""Types of the values that models and losses take and return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A tensor of Keras' backend, or a NumPy array.
Array = Any
# A batch: arrays by feature name.
Features = Mapping[str, Array]
