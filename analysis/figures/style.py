"""The style that all figures share: size, fonts, colors, units, and number formats."""

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import matplotlib.colors
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.tables import format_of, target_text
from runs.study import INSERTIONS, Study

WIDTH = 6.5  # inches: the text width of a printed page, so that fonts keep their size
FONT = 8.5  # points
SMALL = 8.0
# Okabe-Ito colors, distinguishable with any color vision.
COLORS = dict(zip(INSERTIONS, ("#555555", "#0072B2", "#D55E00", "#009E73"), strict=True))
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
QUIET = "#767676"
DOTTED = (0, (2, 2))
_STYLE: dict[Any, Any] = {
    "font.size": FONT,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "text.parse_math": False,  # a $ in the name of a condition or metric is a $
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws in this style, without changing matplotlib's global settings."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return wrapper


def line_styles(insertions: Sequence[str]) -> list[dict[str, Any]]:
    """A color and a dash pattern per line; lines of one insertion point differ in their dashes, and
    in their shade once the patterns are used up."""
    styles = []
    for index, insertion in enumerate(insertions):
        shade, pattern = divmod(insertions[:index].count(insertion), len(DASHES))
        color = lighter(COLORS[insertion], min(0.4 * shade, 0.8))
        styles.append({"color": color, "ls": DASHES[pattern]})
    return styles


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend of the labeled artists below the axes, in two columns if the labels are short."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if len(labels) > 3 and max(map(len, labels)) < 48 else 1
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def format_ticks(axis: Axis, measure: str) -> None:
    """Formats the ticks of an axis that shows one of `scores.MEASURES` like the tables do."""
    number = format_of(measure)
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    locator = axis.get_major_locator()
    if measure in ("fresh_examples", "steps") and isinstance(locator, MaxNLocator):
        locator.set_params(integer=True)


def say_if_nothing_reached(figure: Figure, reached: bool, study: Study) -> None:
    """A line above a figure without a search that reached the target."""
    if not reached and not study.scores_values:
        figure.suptitle(f"No search reached {target_text(study.target)}.", fontsize=FONT)


def lighter(color: str, amount: float) -> tuple[float, float, float]:
    """The color mixed with white; unlike transparency it survives every vector format."""
    red, green, blue = (c + (1 - c) * amount for c in matplotlib.colors.to_rgb(color))
    return red, green, blue


def rendered(figure: Figure, suffix: str = "png", **options: Any) -> bytes:
    """The figure as a file of the format `suffix`; `options` are those of `Figure.savefig`."""
    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # text stays text
        figure.savefig(content, format=suffix, **options)
    return content.getvalue()
