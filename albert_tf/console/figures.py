"""Figures as PNG files. matplotlib comes with an extra, so functions import it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches."""
    # pyplot would touch the display, or a notebook's settings.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaces = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12, wspace=0.03, hspace=0.05)
    figure = Figure(figsize=(width, height), layout=spaces)
    FigureCanvasAgg(figure)
    return figure


# Colour-blind people can tell these apart (Okabe and Ito, without yellow); markers help as well.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "os^DvPX<>"
BLUE, RED = _COLORS[:2]


def style(number: int) -> dict[str, Any]:
    """Returns the line style of a series; every other one is dashed."""
    return {
        "color": _COLORS[number % len(_COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": ("-", (0, (4, 2)))[number % 2],
        "linewidth": 1.4,
        "markersize": 4,
    }


def legend_beside(axes: Any) -> None:
    """Puts the legend to the right of the axes, where it hides no line."""
    axes.legend(
        fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handlelength=4
    )


def whole_numbers(axis: Any) -> None:
    """Allows ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def png(figure: Figure) -> bytes:
    """Returns a figure as the content of a PNG file."""
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=130)
    return page.getvalue()
