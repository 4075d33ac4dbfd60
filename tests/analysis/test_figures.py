"""The figures show the right numbers, and their texts do not overlap."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from analysis import figures, load, scores
from analysis.figures import style
from tests.helpers.figure_texts import assert_inside, assert_no_overlap, strings, texts
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    analyzed,
    setting,
    write_study,
)

AFTER = setting("after_e4", "after_batching", 4.0)


def drawn_scores(directory) -> Figure:
    loaded, searches, table = analyzed(directory)
    return figures.by_condition(table, searches, loaded.study)


def drawn_curves(directory) -> Figure:
    loaded = load.read(directory)
    best = scores.best_trials(loaded.trials, loaded.study)
    return figures.best_trial_curves(load.curves(best, loaded.study.target.metric), loaded.study)


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE, AFTER], SMALL)


@pytest.fixture(params=["above", "below"])
def crowded(request, tmp_path):
    """Nine conditions whose curves end close together, two of which never reach the target."""
    sign = 1 if request.param == "above" else -1
    conditions, trials = [BASELINE], {("baseline", 0, 0): [0.1] * 9 + [0.9]}
    for number, ending in enumerate([0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.85, 0.86]):
        name = f"condition_{number}"
        conditions.append(setting(name, "after_augmentation", 2.0 + number))
        trials[name, 0, 0] = [0.1 + 0.01 * number] * (10 if ending < 0.9 else 3 + number // 2)
        trials[name, 0, 0] += [ending]
    trials = {key: [sign * value for value in values] for key, values in trials.items()}
    target = TARGET | {"value": sign * 0.9, "mode": request.param}
    return write_study(tmp_path / "crowded", conditions, trials, target=target)


def test_png_files_keep_the_colors_of_small_marks():
    """A PNG file has few colors; many shades elsewhere must not take that of one dot."""
    figure = Figure(figsize=(3, 3))
    axes = figure.add_subplot()
    axes.imshow(np.linspace(0, 1, 10_000).reshape(100, 100), cmap="viridis")
    axes.plot(50, 50, "s", ms=4, color="#D55E00")
    pixels = np.asarray(Image.open(io.BytesIO(style.rendered(figure))).convert("RGB"), int)
    assert np.abs(pixels - (0xD5, 0x5E, 0x00)).max(-1).min() <= 10


def test_rows_print_their_values(small):
    figure = drawn_scores(small)
    shown = strings(figure)
    assert "fresh examples to reach 90% validation accuracy" in shown
    assert {"no echoing", "before augmentation, e = 2", "after batching, e = 4"} <= shown
    assert "800" in shown
    assert ">700\n≥0.83 [0.67, >1.00]\nreached in 1 of 2 searches" in shown
    assert "ideal: baseline / e" in shown
    assert [400, 400] in lines_x(figure)
    assert "no trial has ended yet" in shown
    assert [800] in lines_x(figure)  # the median of 600 and 1,000


@pytest.mark.parametrize("score", ["fresh_examples", "best_value"])
def test_dotted_lines_are_at_the_median_of_the_own_baseline(tmp_path, score):
    conditions = [BASELINE, BEFORE, setting("b40", batch_size=40)]
    conditions.append(setting("e2_b40", "before_augmentation", 2, 50, batch_size=40))
    values = {("baseline", s, 0): [0.1] * 7 + [0.9] for s in (0, 1)}
    values |= {("b40", s, 0): [0.1] * 5 + [0.95] for s in (0, 1)}
    values |= {(name, s, 0): [0.92] for name in ("before_e2", "e2_b40") for s in (0, 1)}
    root = write_study(tmp_path / "s", conditions, values, score=score)
    loaded, searches, table = analyzed(root)
    lines = figures.by_condition(table, searches, loaded.study).axes[0].get_lines()
    dotted = [line.get_xdata()[0] for line in lines if line.get_color() == style.QUIET]
    assert dotted == ([0.9, 0.9, 0.95, 0.95] if score == "best_value" else [800, 800, 600, 600])


def test_best_values_by_factor_are_in_view(tmp_path):
    conditions = [BASELINE, *(setting(f"e{e}", "before_augmentation", e, 50) for e in (2.0, 4.0))]
    values = {("baseline", 0, 0): [0.8], ("baseline", 1, 0): [0.82], ("e2.0", 0, 0): [0.85]}
    root = write_study(tmp_path / "s", conditions, values, score="best_value")
    (figure,) = figures.results(load.read(root)).values()
    low, high = figure.axes[0].get_ylim()
    assert 0.7 < low < 0.8
    assert 0.85 < high < 0.9


def test_ideals_are_those_of_every_factor(tmp_path):
    conditions = [BASELINE, *(setting(f"e{e}", "before_augmentation", e, 50) for e in (2.0, 1e3))]
    root = write_study(tmp_path / "s", conditions, {("baseline", 0, 0): [0.1] * 7 + [0.9]})
    (figure,) = figures.results(load.read(root)).values()
    (ideal,) = (line for line in figure.axes[0].get_lines() if line.get_color() == style.QUIET)
    assert np.interp(1.0, *ideal.get_data()) == pytest.approx(400, rel=0.01)  # log2 of e = 2


def lines_x(figure):
    return [list(line.get_xdata()) for line in figure.axes[0].get_lines()]


def test_axis_and_labels_have_the_number_format_of_the_tables(small):
    loaded, searches, table = analyzed(small)
    columns = [name for name in table if name.startswith("fresh_examples_")]
    columns.remove("fresh_examples_count")
    table[[*columns, "ideal_fresh_examples"]] *= 1000
    searches[["fresh_examples_low", "fresh_examples_high"]] *= 1000
    shown = strings(figures.by_condition(table, searches, loaded.study))
    assert "fresh examples to reach 90% validation accuracy" in shown
    assert {"800,000", "1.00M"} <= shown


def test_figures_where_nothing_was_reached_say_so(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], {("baseline", 0, 0): [0.1]})
    assert ">100\nreached in 0 of 1 search" in strings(drawn_scores(root))
    drawn = figures.of_study(load.read(root))
    for name, figure in drawn.items():
        assert "No search reached 90% validation accuracy." in strings(figure), name
        assert_inside(figure, texts(figure))
    assert "No search" not in str(strings(drawn_scores_of_reached(tmp_path)))


def drawn_scores_of_reached(tmp_path) -> Figure:
    return drawn_scores(write_study(tmp_path / "reached", [BASELINE], {("baseline", 0, 0): [0.9]}))


def test_curves_end_at_the_target_and_have_a_legend(small):
    figure = drawn_curves(small)
    shown = strings(figure)
    assert {"no echoing: 600", "before augmentation, e = 2: 400"} <= shown
    assert {"fresh examples", "validation accuracy", "target 0.9"} <= shown
    assert figure.axes[0].get_lines()[0].get_ydata().tolist() == [0.1] * 5 + [0.95]


def test_curves_without_a_counted_trial(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([0.1], "unfinished")})
    assert "validation accuracy" in strings(drawn_curves(root))


@pytest.mark.parametrize("draw", [drawn_scores, drawn_curves])
def test_no_two_texts_overlap(draw, crowded):
    figure = draw(crowded)
    shown = texts(figure)
    assert_no_overlap(shown)
    assert_inside(figure, shown)


def test_texts_are_large_enough_for_print(small):
    for figure in (drawn_scores(small), drawn_curves(small)):
        assert figure.get_size_inches()[0] == 6.5
        assert min(text.get_fontsize() for text in texts(figure)) >= 8
