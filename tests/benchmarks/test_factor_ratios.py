"""The figure of benchmarks.factor_ratios marks what is known, and what is only bounded."""

from analysis import bounds
from benchmarks import factor_ratios


def drawn(lows, highs):
    """By marker, (x, hollow) of what the figure draws for one factor with these ratios."""
    ratios = factor_ratios.Ratios(bounds.summary(lows, highs), ("",) * 6)
    figure = factor_ratios.draw({"digits": {4: ratios}})
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata())]
    marks = {
        line.get_marker(): (line.get_xdata()[0], line.get_markerfacecolor() == "white")
        for line in lines
        if line.get_marker() != "None"
    }
    spans = [tuple(line.get_xdata()) for line in lines if line.get_marker() == "None"]
    return marks, spans


def test_known_ratios_are_a_median_and_a_range():
    ratios = [0.3, 0.2, 0.5, 0.4, 0.25]
    marks, spans = drawn(ratios, ratios)
    assert marks == {"o": (0.3, False)}
    assert (0.2, 0.5) in spans
    assert (0.25, 0.25) in spans, "the ideal of e = 4"


def test_ratios_to_a_baseline_that_missed_the_target_are_upper_bounds():
    marks, spans = drawn([0.0, 0.0, 0.0, 0.3, 0.4], [0.2, 0.35, 0.6, 0.3, 0.4])
    assert marks == {"o": (0.35, True), "<": (0.2, False)}
    assert (0.2, 0.6) in spans
