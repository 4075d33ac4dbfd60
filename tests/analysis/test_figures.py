"""Studies of every kind get the right figures, with the right numbers, and readable texts."""

import pytest
from matplotlib.figure import Figure

from analysis import figures, load, scores, tables
from analysis.figures import style
from analysis.figures.settings import varied_setting
from tests.helpers.figure_texts import assert_inside, assert_no_overlap, strings, texts
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    analyzed,
    setting,
    study_of,
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


# --- A row per condition, and curves


def test_rows_show_their_values(small):
    figure = drawn_scores(small)
    shown = strings(figure)
    assert {"no echoing", "before augmentation, e = 2", "after batching, e = 4"} <= shown
    assert {"fresh examples to reach 90% validation accuracy", "ideal: baseline / e"} <= shown
    assert {"800", "no trial has ended yet"} <= shown
    assert ">700\n≥0.83 [0.67, >1.00]\nreached in 1 of 2 searches" in shown
    drawn = [list(line.get_xdata()) for line in figure.axes[0].get_lines()]
    assert [400, 400] in drawn  # the ideal
    assert [800] in drawn  # the median of 600 and 1,000


@pytest.mark.parametrize("score", ["fresh_examples", "best_value"])
def test_dotted_lines_are_at_the_median_of_the_own_baseline(tmp_path, score):
    conditions = [BASELINE, BEFORE, setting("b40", batch_size=40)]
    conditions.append(setting("e2_b40", "before_augmentation", 2, 50, batch_size=40))
    values = {("baseline", s, 0): [0.1] * 7 + [0.9] for s in (0, 1)}
    values |= {("b40", s, 0): [0.1] * 5 + [0.95] for s in (0, 1)}
    values |= {(name, s, 0): [0.92] for name in ("before_e2", "e2_b40") for s in (0, 1)}
    root = write_study(tmp_path / "s", conditions, values, score=score)
    lines = drawn_scores(root).axes[0].get_lines()
    dotted = [line.get_xdata()[0] for line in lines if line.get_color() == style.QUIET]
    assert dotted == ([0.9, 0.9, 0.95, 0.95] if score == "best_value" else [800, 800, 600, 600])


def test_axis_and_labels_have_the_number_format_of_the_tables(small):
    loaded, searches, table = analyzed(small)
    columns = [name for name in table if name.startswith("fresh_examples_")]
    columns.remove("fresh_examples_count")
    table[[*columns, "ideal_fresh_examples"]] *= 1000
    searches[["fresh_examples_low", "fresh_examples_high"]] *= 1000
    shown = strings(figures.by_condition(table, searches, loaded.study))
    assert {"800,000", "1.00M"} <= shown


def test_figures_where_nothing_was_reached_say_so(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], {("baseline", 0, 0): [0.1]})
    assert ">100\nreached in 0 of 1 search" in strings(drawn_scores(root))
    for name, figure in figures.of_study(load.read(root)).items():
        assert "No search reached 90% validation accuracy." in strings(figure), name
        assert_inside(figure, texts(figure))
    reached = write_study(tmp_path / "reached", [BASELINE], {("baseline", 0, 0): [0.9]})
    assert "No search" not in str(strings(drawn_scores(reached)))


def test_curves_end_at_the_target_and_have_a_legend(small, tmp_path):
    figure = drawn_curves(small)
    shown = strings(figure)
    assert {"no echoing: 600", "before augmentation, e = 2: 400"} <= shown
    assert {"fresh examples", "validation accuracy", "target 0.9"} <= shown
    assert figure.axes[0].get_lines()[0].get_ydata().tolist() == [0.1] * 5 + [0.95]
    none = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([0.1], "unfinished")})
    assert "validation accuracy" in strings(drawn_curves(none))


@pytest.mark.parametrize("sign", [1, -1])
def test_no_two_texts_overlap(sign, tmp_path):
    """Nine conditions whose curves end close together, two of which never reach the target."""
    conditions, trials = [BASELINE], {("baseline", 0, 0): [0.1] * 9 + [0.9]}
    for number, ending in enumerate([0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.85, 0.86]):
        name = f"condition_{number}"
        conditions.append(setting(name, "after_augmentation", 2.0 + number))
        trials[name, 0, 0] = [0.1 + 0.01 * number] * (10 if ending < 0.9 else 3 + number // 2)
        trials[name, 0, 0] += [ending]
    trials = {key: [sign * value for value in values] for key, values in trials.items()}
    target = TARGET | {"value": sign * 0.9, "mode": "above" if sign > 0 else "below"}
    crowded = write_study(tmp_path / "crowded", conditions, trials, target=target)
    for figure in (drawn_scores(crowded), drawn_curves(crowded)):
        shown = texts(figure)
        assert_no_overlap(shown)
        assert_inside(figure, shown)
        assert min(text.get_fontsize() for text in shown) >= 8  # in print


# --- Against the setting that a study varies


def auto(max_factor):
    return {"echo.policy": "auto", "echo.max_factor": max_factor}


BEFORE_E, BATCH_E = "before_augmentation", "after_batching"
FACTOR = [
    setting(f"e{e}_b{b}", "none" if e == 1 else BEFORE_E, e, 0 if e == 1 else 50, batch_size=b)
    for b in (10, 40)
    for e in (1, 2, 4, 8)
]
WALL_TIME = [BASELINE, *(setting(f"e{e}", BEFORE_E, e, 50) for e in (2, 3, 4, 5))]
BATCH_SIZE = [
    setting(f"{insertion}_b{b}", insertion, 1 if insertion == "none" else 2, batch_size=b)
    for b in (10, 20, 80)
    for insertion in ("none", BEFORE_E, BATCH_E)
]
SHUFFLE = [
    BASELINE,
    *(setting(f"before_{size}", BEFORE_E, 2, size) for size in (0, 40, 160, 640)),
    *(setting(f"batch_{size}", BATCH_E, 2, size // 10) for size in (0, 40, 160, 640)),
]
POLICY = [*WALL_TIME, *(setting(f"auto{m}", BEFORE_E, 1, 50, **auto(m)) for m in (2, 4, 8))]
DECAY = [*WALL_TIME, *(setting(f"decay{e}", BEFORE_E, e, 50, **{"w.decay": 0.1}) for e in (2, 4))]
INSERTION = [
    *(BASELINE, BEFORE, setting("after", "after_augmentation", 2)),
    setting("batch", BATCH_E, 2, 4),
]
CONTROLS = [BASELINE, BEFORE, setting("long", "none", 1, **{"budget.fresh_examples": 2000})]
TWO_BASELINES = [*SHUFFLE, setting("decayed", **{"w.decay": 0.1})]


@pytest.mark.parametrize(
    ("conditions", "name", "lines", "reference"),
    [
        (FACTOR, "factor", {"before augmentation, batch 10": [1, 2, 4, 8]}, None),
        (WALL_TIME, "factor", {"before augmentation": [1, 2, 3, 4, 5]}, None),
        (BATCH_SIZE, "batch_size", {"batch echoing, e = 2": [10, 20, 80]}, None),
        (SHUFFLE, "buffer_examples", {"batch echoing, e = 2": [0, 40, 160, 640]}, "baseline"),
        (POLICY, "factor", {"before augmentation, auto": [1, 2, 4, 8]}, None),
        (DECAY, "factor", {"before augmentation, decay = 0.1": [1, 2, 4]}, None),
        *((other, None, {}, None) for other in (INSERTION, CONTROLS, TWO_BASELINES, [BASELINE])),
    ],
)
def test_study_that_varies_a_setting_is_plotted_against_it(
    tmp_path, conditions, name, lines, reference
):
    varied = varied_setting(load.read(study_of(tmp_path / "s", conditions)).study)
    if name is None:
        assert varied is None
        return
    assert (varied.name, varied.reference) == (name, reference)
    for label, values in lines.items():
        assert [varied.value(condition) for condition in varied.lines[label]] == values


KINDS = {
    "factor": (FACTOR, {}, ["fresh_examples_by_factor"]),
    "seconds": (WALL_TIME, {"score": "seconds"}, ["seconds_by_factor", "fresh_examples_by_factor"]),
    "batch_size": (BATCH_SIZE, {}, ["fresh_examples_by_batch_size"]),
    "shuffle": (SHUFFLE, {}, ["fresh_examples_by_buffer_examples"]),
    "insertion": (INSERTION, {}, ["fresh_examples_to_target"]),
    "quality": (INSERTION, {"score": "best_value"}, ["best_values"]),
}
CURVES = ["best_trial_curves", "best_trial_curves_by_step", "best_trial_curves_by_train_seconds"]
WITH_CURVES = ("factor", "quality")  # most conditions, and scores of the other sort


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_readable(tmp_path, kind):
    conditions, changes, expected = KINDS[kind]
    loaded = load.read(study_of(tmp_path / "s", conditions, **changes))
    drawn = figures.of_study(loaded) if kind in WITH_CURVES else figures.results(loaded)
    assert list(drawn) == expected + CURVES * (kind in WITH_CURVES)
    for name, figure in drawn.items():
        assert figure.get_size_inches()[0] == 6.5, name
        shown = texts(figure)
        assert min(text.get_fontsize() for text in shown) >= 7, name
        assert_inside(figure, shown)
        assert_no_overlap(shown)


def test_points_are_at_the_scores_and_ideals_at_the_baseline_over_e(tmp_path):
    needed = {1: 20}
    root = study_of(
        tmp_path / "s", WALL_TIME, lambda c: needed.get(c["overrides"]["echo.factor"], 8)
    )
    loaded, _, table = analyzed(root)
    figure = figures.by_setting(table, varied_setting(loaded.study), loaded.study)
    lines = [line.get_ydata().tolist() for line in figure.axes[0].get_lines()]
    assert [2150, 950, 950, 950, 950] in lines
    assert [2150 / e for e in (1, 2, 3, 4, 5)] in lines
    assert {"before augmentation", "ideal: baseline / e", "echo factor e"} <= strings(figure)


def test_a_reference_that_is_only_bounded_has_no_line(tmp_path):
    loaded, _, table = analyzed(study_of(tmp_path / "s", SHUFFLE))
    buffers = tables.conditions(table, loaded.study)["buffer (examples)"]  # as on the axis
    assert buffers.tolist() == ["0", *["0", "40", "160", "640"] * 2]
    for bounded in (False, True):
        table.loc[table["condition"] == "baseline", "fresh_examples_high"] += bounded
        figure = figures.by_setting(table, varied_setting(loaded.study), loaded.study)
        assert ("no echoing" in strings(figure)) == (not bounded)


def test_best_values_by_factor_are_in_view(tmp_path):
    conditions = [BASELINE, *(setting(f"e{e}", BEFORE_E, e, 50) for e in (2.0, 4.0))]
    values = {("baseline", 0, 0): [0.8], ("baseline", 1, 0): [0.82], ("e2.0", 0, 0): [0.85]}
    root = write_study(tmp_path / "s", conditions, values, score="best_value")
    (figure,) = figures.results(load.read(root)).values()
    low, high = figure.axes[0].get_ylim()
    assert 0.7 < low < 0.8
    assert 0.85 < high < 0.9
