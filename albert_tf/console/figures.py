"""Figures as PNG files, by matplotlib, which is an extra."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches."""
    # No pyplot: it would touch the display, or a notebook's settings.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaces = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12, wspace=0.03, hspace=0.05)
    figure = Figure(figsize=(width, height), layout=spaces)
    FigureCanvasAgg(figure)
    return figure


def whole_numbers(axis: Any) -> None:
    """Puts an axis' ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def png(figure: Figure) -> bytes:
    """Returns a figure as the content of a PNG file."""
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=130)
    return page.getvalue()
