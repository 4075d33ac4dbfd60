"""What all figures share: size, fonts, colours, units, and numbers as a reader writes them."""

import functools
import math

import matplotlib

from analysis.study import INSERTIONS, Study, target_text

WIDTH = 6.5  # inches: the text width of a printed page, so that fonts keep the size given here
FONT = 8.5  # points
SMALL = 8.0
# Okabe-Ito, told apart by readers of any colour vision; the words beside each mark say it again.
COLOURS = dict(zip(INSERTIONS, ("#555555", "#0072B2", "#D55E00", "#009E73"), strict=True))
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
QUIET = "#767676"
DOTTED = (0, (2, 2))
_STYLE = {
    "font.size": FONT,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "pdf.fonttype": 42,  # text stays text in PDF and SVG
    "svg.fonttype": "none",
    "text.parse_math": False,  # a $ in the name of a condition or metric is a $
}


def styled(figure_function):
    """Draws with this file's style and leaves matplotlib's global settings alone."""

    @functools.wraps(figure_function)
    def drawn(*args, **kwargs):
        with matplotlib.rc_context(_STYLE):
            return figure_function(*args, **kwargs)

    return drawn


def dashes(insertions: list[str]) -> list:
    """A dash pattern for each line, different among those that share an insertion's colour."""
    return [
        DASHES[insertions[:place].count(insertion) % len(DASHES)]
        for place, insertion in enumerate(insertions)
    ]


def measure_label(measure: str, study: Study) -> str:
    """What an axis shows, for the names in `scores.MEASURES`."""
    if measure == "best_value":
        within = f" within {study.budget:,} fresh examples" if study.budget else ""
        return f"best validation {study.target.metric}{within}"
    names = {"fresh_examples": "fresh examples", "seconds": "seconds of training"}
    return f"{names.get(measure, measure)} to reach {target_text(study.target)}"


def unit(largest: float) -> tuple[float, str]:
    """The unit that keeps an axis to a few digits, and how its label says so."""
    if largest >= 1e7:
        return 1e6, " (millions)"
    if largest >= 1e4:
        return 1e3, " (thousands)"
    return 1.0, ""


def short(value: float) -> str:
    """Three significant digits, never in powers of ten: 8.12, 1,240."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def lighter(colour: str, amount: float) -> tuple[float, float, float]:
    """The colour mixed with white; unlike transparency it survives every vector format."""
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return tuple(part + (1 - part) * amount for part in (red, green, blue))
