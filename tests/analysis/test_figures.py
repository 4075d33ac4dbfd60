"""The figures say the numbers they should, and no two of their texts overlap."""

import pytest
from matplotlib.figure import Figure

from analysis import figures, load, scores
from analysis.figures import labels
from tests.helpers.figure_texts import assert_inside, assert_no_overlap, texts, words
from tests.helpers.written_studies import BASELINE, BEFORE, SMALL, TARGET, setting, write_study

AFTER = setting("after_e4", "after_batching", 4.0)


def drawn_bars(directory) -> Figure:
    found = load.read(directory)
    table = scores.condition_scores(found.trials, found.study)
    searches = scores.search_scores(found.trials, found.study)
    return figures.cost_to_target(table, searches, found.study)


def drawn_curves(directory) -> Figure:
    found = load.read(directory)
    best = scores.best_trials(found.trials, found.study)
    return figures.best_trial_curves(load.curves(best, found.study.target.metric), found.study)


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


def test_bars_print_their_values(small):
    figure = drawn_bars(small)
    said = words(figure)
    assert "fresh examples to reach 90% validation accuracy" in said
    assert {"no echoing", "before augmentation, e = 2", "after batching, e = 4"} <= said
    assert "800" in said
    assert ">700  (≥0.83 of baseline [0.67, >1.00])\nreached in 1 of 2 searches" in said
    assert "ideal, baseline / e: 400" in said
    assert "no trial has ended yet" in said
    assert [patch.get_width() for patch in figure.axes[0].patches] == [800, 700]


def test_bars_in_thousands_say_so(small):
    found = load.read(small)
    table = scores.condition_scores(found.trials, found.study)
    searches = scores.search_scores(found.trials, found.study)
    columns = [name for name in table if name.startswith("fresh_examples_")]
    columns.remove("fresh_examples_count")
    table[[*columns, "ideal_fresh_examples"]] *= 100
    searches[["fresh_examples_low", "fresh_examples_high"]] *= 100
    figure = figures.cost_to_target(table, searches, found.study)
    assert "fresh examples to reach 90% validation accuracy (thousands)" in words(figure)
    assert "80.0" in words(figure)


def test_bars_where_nothing_was_reached(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], {("baseline", 0, 0): [0.1]})
    assert ">100\nreached in 0 of 1 search" in words(drawn_bars(root))


def test_curves_end_at_the_target_and_are_named(small):
    figure = drawn_curves(small)
    said = words(figure)
    assert {"no echoing: 600", "before augmentation, e = 2: 400"} <= said
    assert {"fresh examples", "validation accuracy", "target\n0.9"} <= said
    assert figure.axes[0].get_lines()[0].get_ydata().tolist() == [0.1] * 5 + [0.95]


def test_curves_without_a_counted_trial(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([0.1], "unfinished")})
    assert "validation accuracy" in words(drawn_curves(root))


@pytest.mark.parametrize("draw", [drawn_bars, drawn_curves])
def test_no_two_texts_overlap(draw, crowded):
    figure = draw(crowded)
    assert_no_overlap(figure)
    assert_inside(figure)


def test_texts_are_readable_in_print(small):
    for figure in (drawn_bars(small), drawn_curves(small)):
        assert figure.get_size_inches()[0] == 6.5
        assert min(text.get_fontsize() for text in texts(figure)) >= 8


def test_apart_moves_only_what_is_close():
    assert labels.apart([90, 50, 10], 10, 0, 100) == [90, 50, 10]
    assert labels.apart([52, 50, 49], 10, 0, 100) == [52, 42, 32]
    assert labels.apart([3, 2, 1], 10, 0, 100) == [20, 10, 0]
