"""Names for lines in a figure, placed at their ends so that no two overlap.

Ends at the target stand in a row at one height. Their names rise from it like flags on poles: the
leftmost pole is the tallest and flags fly to the right, so no flag meets another's pole. Other ends
are named to their right, moved apart where they are close.
"""

import dataclasses
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from runs.records import Target

ROW = 12.5  # points from one name to the next
_GAP = 4.0  # points between a mark and its name
_LEFT, _BOTTOM, _EDGE = 52.0, 34.0, 6.0  # points around the axes; _EDGE at the top and the right


@dataclasses.dataclass(frozen=True)
class End:
    """A line's end in data coordinates, its name and colour; a `flag` stands at the target."""

    x: float
    y: float
    words: str
    colour: str
    flag: bool


def name_ends(
    figure: Figure, axes: Axes, ends: Sequence[End], target: Target, mark_target: bool = True
) -> None:
    """Lays out the axes and names every end; call it last, with the x limits set.

    The y axis gets room for the flags beyond the target, outside the range of its spine and ticks.
    """
    flags = sorted((end for end in ends if end.flag), key=lambda end: end.x)
    others = sorted((end for end in ends if not end.flag), key=lambda end: -end.y)
    height = figure.get_figheight() * 72 - _BOTTOM - _EDGE
    low, high = _values(axes, target if mark_target else None, target.mode)
    room = len(flags) * ROW + _GAP
    span = (high - low) * height / (height - room)
    up = target.mode == "above"
    axes.set_ylim((low, low + span) if up else (high - span, high))
    if mark_target:
        _bound_axis(axes, low, high, target)

    def points(y: float) -> float:
        return (y - axes.get_ylim()[0]) / span * height

    heights = [(len(flags) - rank - 0.5) * ROW for rank in range(len(flags))]
    places = [height - room + _GAP + rise if up else room - _GAP - rise for rise in heights]
    texts = [_name(axes, end, place / height) for end, place in zip(flags, places, strict=True)]
    spread = apart([points(end.y) for end in others], ROW, points(low), points(high))
    texts += [_name(axes, end, place / height) for end, place in zip(others, spread, strict=True)]
    _fit_margins(figure, axes, [*flags, *others], texts)


def name_right(figure: Figure, axes: Axes, ends: Sequence[End]) -> None:
    """Lays out the axes and names every end right of them, all in one column.

    Call it last, with both limits set: a name's line starts at its end and may cross the margin.
    """
    width, height = (72 * inches for inches in figure.get_size_inches())
    figure.subplots_adjust(bottom=_BOTTOM / height, top=1 - 2 * _EDGE / height)
    inner = height - _BOTTOM - 2 * _EDGE
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: -end.y)
    rises = [(end.y - low) / (high - low) * inner for end in ordered]
    places = apart(rises, ROW, 0, inner)
    texts = [
        axes.annotate(
            end.words,
            (end.x, end.y),
            (1 + 12 / width, place / inner),
            xycoords="data",
            textcoords="axes fraction",
            va="center",
            color=end.colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "lw": 0.5,
                "color": end.colour,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )
        for end, place in zip(ordered, places, strict=True)
    ]
    figure.draw_without_rendering()
    widths = [Text.get_window_extent(text).width for text in texts]  # without their lines
    taken = max(widths, default=0) / figure.dpi * 72
    left = _LEFT + ROW * axes.get_ylabel().count("\n")
    figure.subplots_adjust(left=left / width, right=1 - (taken + 5 * _GAP) / width)


def wrapped(words: str, width: int) -> str:
    """Words in lines of at most `width` characters."""
    return textwrap.fill(words, width)


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Descending `places` moved as little as a simple sweep can, to be at least `gap` apart.

    They stay between `low` and `high` as long as they fit there; beyond that they pass `low`.
    """
    moved: list[float] = []
    for place in places:
        moved.append(min(place, (moved[-1] if moved else high + gap) - gap))
    floor = low
    for index in reversed(range(len(moved))):
        ceiling = high - index * gap
        moved[index] = min(max(moved[index], floor), ceiling)
        floor = moved[index] + gap
    return moved


def _values(axes: Axes, target: Target | None, mode: str) -> tuple[float, float]:
    """The lowest and highest value drawn, with a little air where no flags will stand."""
    drawn = [value for line in axes.get_lines() for value in line.get_ydata()]
    drawn += [target.value] if target else []
    low, high = min(drawn, default=0.0), max(drawn, default=1.0)
    air = 0.03 * ((high - low) or 1)
    if target is None:
        return low - air, high + air
    return (low - air, high) if mode == "above" else (low, high + air)


def _bound_axis(axes: Axes, low: float, high: float, target: Target) -> None:
    """Ends the y axis where the values end, and names the target among its ticks."""
    near = 0.1 * (high - low)
    ticks = [t for t in axes.get_yticks() if low <= t <= high and abs(t - target.value) > near]
    axes.set_yticks(
        [*ticks, target.value], [*(f"{t:g}" for t in ticks), f"target\n{target.value:g}"]
    )
    axes.spines["left"].set_bounds(low, high)


def _name(axes: Axes, end: End, place: float) -> Text:
    """The name at `place` (a fraction of the axes' height), tied to its end by a thin line."""
    across = axes.get_xaxis_transform()  # x in data coordinates, y as a fraction of the axes
    start = axes.transLimits.transform((end.x, end.y))[1]
    if end.flag:
        pole = {"color": end.colour, "lw": 0.6, "zorder": 1, "clip_on": False}
        axes.plot([end.x, end.x], [start, place], transform=across, **pole)
    return axes.annotate(
        end.words,
        (end.x, place),
        (_GAP if end.flag else 2 * _GAP, 0),
        xycoords=across,
        textcoords="offset points",
        va="center",
        color=end.colour,
        annotation_clip=False,
    )


def _fit_margins(figure: Figure, axes: Axes, ends: Sequence[End], texts: Sequence[Text]) -> None:
    """Sets the axes' place in the figure: as wide as the names at the ends allow."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    figure.draw_without_rendering()
    free, right = width - _LEFT, _EDGE
    for end, text in zip(ends, texts, strict=True):
        share = end.x / axes.get_xlim()[1]
        taken = text.get_window_extent().width / figure.dpi * 72 + 2 * _GAP + 1
        # The name starts at share * (free - right) and must end within free.
        if share > 0:
            right = max(right, (taken - (1 - share) * free) / share)
    right = min(right, 0.6 * width)  # names longer than that are cut, the curves stay readable
    figure.subplots_adjust(
        left=_LEFT / width,
        right=1 - right / width,
        bottom=_BOTTOM / height,
        top=1 - _EDGE / height,
    )
