"""Where the texts of a figure lie, for tests that none overlaps another."""

import itertools

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[Text]:
    """Every text that is shown, tick labels included, with its place worked out."""
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    beyond = []
    for axes in figure.axes:
        for place, axis in enumerate((axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_ticklabels(which="both")
            beyond += [text for text in ticks if not low <= text.get_position()[place] <= high]
    return [text for text in shown if text not in beyond]


def words(figure: Figure) -> set[str]:
    return {text.get_text() for text in texts(figure)}


def assert_no_overlap(figure: Figure):
    for one, other in itertools.combinations(texts(figure), 2):
        a, b = Text.get_window_extent(one), Text.get_window_extent(other)  # without their arrows
        # Bounding boxes hold room for ascenders and descenders; a pixel of it may be shared.
        shared = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(shared) <= 1, (one.get_text(), other.get_text())


def assert_inside(figure: Figure):
    width, height = figure.get_size_inches() * figure.dpi
    for text in texts(figure):
        box = text.get_window_extent()
        assert box.x0 >= -1, text.get_text()
        assert box.x1 <= width + 1, text.get_text()
        assert box.y0 >= -1, text.get_text()
        assert box.y1 <= height + 1, text.get_text()
