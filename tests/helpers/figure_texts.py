"""The texts of a figure and where they are, for tests that they do not overlap."""

import itertools

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[Text]:
    """Every visible text, laid out, including tick labels within the axes' limits."""
    figure.draw_without_rendering()
    visible = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    outside = []
    for axes in figure.axes:
        for dimension, axis in enumerate((axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_ticklabels(which="both")
            outside += [t for t in ticks if not low <= t.get_position()[dimension] <= high]
    return [text for text in visible if text not in outside]


def strings(figure: Figure) -> set[str]:
    """The visible texts, with ordinary spaces."""
    return {text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in texts(figure)}


def assert_no_overlap(shown: list[Text]):
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        # Bounding boxes include room for ascenders and descenders, of which a pixel may be shared.
        shared = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(shared) <= 1, (one, other)


def assert_inside(figure: Figure, shown: list[Text]):
    width, height = figure.get_size_inches() * figure.dpi
    for text in shown:
        box = text.get_window_extent()
        assert box.x0 >= -1, text.get_text()
        assert box.x1 <= width + 1, text.get_text()
        assert box.y0 >= -1, text.get_text()
        assert box.y1 <= height + 1, text.get_text()
