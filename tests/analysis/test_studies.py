"""Studies of every kind get the right figures and scores, from synthetic records."""

import math

import pytest

from analysis import figures, load, report, scores, uncertainty
from analysis.figures.settings import varied_setting
from runs import records
from tests.helpers.figure_texts import assert_inside, assert_no_overlap, strings, texts
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    ECHO,
    TARGET,
    analyzed,
    change,
    config,
    run_analysis,
    setting,
    study_of,
    write_study,
    write_trial,
)


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
AUTO_BUFFER = [
    BASELINE,
    *(setting(f"fixed_{size}", BEFORE_E, 4, size) for size in (40, 160)),
    *(setting(f"auto_{size}", BEFORE_E, 1, size, **auto(4)) for size in (40, 160)),
]
INSERTION = [
    BASELINE,
    BEFORE,
    setting("after", "after_augmentation", 2),
    setting("batch", BATCH_E, 2, 4),
]
CONTROLS = [BASELINE, BEFORE, setting("long", "none", 1, **{"budget.fresh_examples": 2000})]


@pytest.mark.parametrize(
    ("conditions", "name", "lines", "reference"),
    [
        (FACTOR, "factor", {"before augmentation, batch 10": 4}, None),
        (WALL_TIME, "factor", {"before augmentation": 5}, None),
        (BATCH_SIZE, "batch_size", {"no echoing": 3, "batch echoing, e = 2": 3}, None),
        (SHUFFLE, "buffer_examples", {"batch echoing, e = 2": 4}, "baseline"),
        (POLICY, "factor", {"before augmentation": 5, "before augmentation, auto": 4}, None),
        (DECAY, "factor", {"before augmentation": 5, "before augmentation, decay = 0.1": 3}, None),
        (
            AUTO_BUFFER,
            "buffer_examples",
            {"before augmentation, e = 4": 2, "before augmentation, e ≤ 4": 2},
            "baseline",
        ),
    ],
)
def test_study_that_varies_a_setting_is_plotted_against_it(
    tmp_path, conditions, name, lines, reference
):
    varied = varied_setting(load.read(study_of(tmp_path / "s", conditions)).study)
    assert (varied.name, varied.reference) == (name, reference)
    assert lines.items() <= {label: len(line) for label, line in varied.lines.items()}.items()


def test_buffer_of_batches_is_counted_in_examples(tmp_path):
    varied = varied_setting(load.read(study_of(tmp_path / "s", SHUFFLE)).study)
    for line in varied.lines.values():
        assert [varied.value(condition) for condition in line] == [0, 40, 160, 640]


TWO_BASELINES = [*SHUFFLE, setting("decayed", **{"w.decay": 0.1})]


@pytest.mark.parametrize("conditions", [INSERTION, CONTROLS, TWO_BASELINES, [BASELINE], [BEFORE]])
def test_any_other_study_has_no_varied_setting(tmp_path, conditions):
    assert varied_setting(load.read(study_of(tmp_path / "s", conditions)).study) is None


def test_each_batch_size_has_its_own_baseline(tmp_path):
    root = study_of(tmp_path / "s", FACTOR, lambda c: 16 if "b40" in c["name"] else 8)
    loaded = load.read(root)
    table = scores.condition_scores(loaded.trials, loaded.study).set_index("condition")
    assert table.loc["e4_b40", "baseline"] == "e1_b40"
    assert table.loc[["e1_b10", "e1_b40", "e4_b40"], "ratio_low"].tolist() == [1, 1, 1]
    median = table.loc["e1_b40", "fresh_examples_low"]
    assert table.loc["e4_b40", "ideal_fresh_examples"] == median / 4


KINDS = {
    "factor": (FACTOR, {}, ["fresh_examples_by_factor"]),
    "seconds": (WALL_TIME, {"score": "seconds"}, ["seconds_by_factor", "fresh_examples_by_factor"]),
    "batch_size": (BATCH_SIZE, {}, ["fresh_examples_by_batch_size"]),
    "shuffle": (SHUFFLE, {}, ["fresh_examples_by_buffer_examples"]),
    "insertion": (INSERTION, {}, ["fresh_examples_to_target"]),
    "quality": (INSERTION, {"score": "best_value"}, ["best_values"]),
}
OTHERS = [
    *("best_trial_curves", "best_trial_curves_by_step", "best_trial_curves_by_train_seconds"),
]
WITH_OTHERS = ("factor", "quality")  # most conditions, and scores of the other sort


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_readable(tmp_path, kind):
    conditions, changes, first = KINDS[kind]
    loaded = load.read(study_of(tmp_path / "s", conditions, **changes))
    if kind in WITH_OTHERS:
        drawn = figures.of_study(loaded)
        assert list(drawn) == [*first, *OTHERS]
    else:
        drawn = figures.results(loaded)
        assert list(drawn) == first
    for name, figure in drawn.items():
        assert figure.get_size_inches()[0] == 6.5, name
        shown = texts(figure)
        assert min(text.get_fontsize() for text in shown) >= 7, name
        assert_inside(figure, shown)
        if len(figure.axes) == 1:
            assert_no_overlap(shown)


def test_points_are_at_the_scores(tmp_path):
    root = study_of(
        tmp_path / "s", WALL_TIME, lambda c: {1: 20}.get(c["overrides"]["echo.factor"], 8)
    )
    loaded, _, table = analyzed(root)
    figure = figures.by_setting(table, varied_setting(loaded.study), loaded.study)
    lines = [line.get_ydata().tolist() for line in figure.axes[0].get_lines()]
    assert [2150, 950, 950, 950, 950] in lines
    assert {"before augmentation", "ideal: baseline / e", "echo factor e"} <= strings(figure)


def test_runs_with_the_same_seeds_in_one_condition_form_no_pairs(tmp_path):
    for name, seed in (("a", 0), ("b", 1), ("c", 1)):
        write_trial(tmp_path / name, [0.9], settings=config(seed={"data": 0, "model": seed}))
        if name != "c":
            settings = config(seed={"data": 0, "model": seed}, echo=ECHO)
            write_trial(tmp_path / f"{name}_echoed", [0.1, 0.9], settings=settings)
    loaded = load.read(tmp_path)
    (pair,) = uncertainty.pairs(loaded.trials, loaded.study).itertuples()
    assert (pair.effect_low, pair.effect_high) == (1, math.inf)  # in (100, 200] over (0, 100]


def test_runs_are_paired_only_with_runs_of_the_same_optimizer(tmp_path):
    linear = {"name": "linear", "horizon_fresh_examples": 500}
    for number, (base, echoed) in enumerate(
        [
            ({"learning_rate": 0.1}, {"learning_rate": 0.1}),
            ({"learning_rate": 0.2}, {"learning_rate": 0.2}),
            ({"learning_rate": 0.3}, {"learning_rate": 0.4}),
            ({"name": "adamw", "beta2": 0.9}, {"name": "nesterov", "beta2": 0.9}),
            ({"schedule": linear}, {"schedule": linear | {"horizon_fresh_examples": 0}}),
        ]
    ):
        write_trial(tmp_path / f"{number}", [0.9], settings=config(optimizer=base))
        settings = config(optimizer=echoed, echo=ECHO)
        write_trial(tmp_path / f"{number}_echoed", [0.1, 0.9], settings=settings)
    loaded = load.read(tmp_path)
    paired = uncertainty.pairs(loaded.trials, loaded.study)
    assert paired["effect_low"].tolist() == [1, 1]


@pytest.mark.long
@pytest.mark.usefixtures("coarse_figures")
@pytest.mark.parametrize(("mode", "best"), [("above", 0.8), ("below", 0.3)])
def test_study_of_final_quality_scores_best_values(tmp_path, mode, best):
    target = TARGET | {"mode": mode, "value": 2.0 if mode == "above" else -1.0}
    values = {("baseline", 0, 0): [0.5, 0.7, 0.6], ("baseline", 0, 1): [0.3, 0.8, 0.4]}
    values |= {("before_e2", 0, k): [0.4, 0.9, 0.2] for k in (0, 1)}
    root = write_study(
        tmp_path / "s", [BASELINE, BEFORE], values, target=target, score="best_value", searches=1
    )
    loaded, _, table = analyzed(root)
    assert table["best_value_low"].tolist() == [best, 0.9 if mode == "above" else 0.2]
    assert table["difference_low"].tolist() == pytest.approx([0, 0.1 if mode == "above" else -0.1])
    assert scores.best_trials(loaded.trials, loaded.study)["trial"].tolist() == [1, 0]
    report.write(loaded, tmp_path / "out", root)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "# small: best validation accuracy within 1,000 fresh examples" in text
    assert "never reached" not in text


def test_study_of_seconds_scores_the_fastest_trial(tmp_path):
    values = {("baseline", 0, 0): [0.1, 0.9], ("baseline", 0, 1): [0.1, 0.1, 0.9]}
    root = write_study(tmp_path / "s", [BASELINE], values, score="seconds")
    change(root / "baseline" / "0" / "1" / "result.json", seconds_to_target=1.0)
    (row,) = analyzed(root)[2].itertuples()
    assert (row.seconds_low, row.fresh_examples_low) == (1.0, 300)


@pytest.mark.long
@pytest.mark.parametrize("hparams", [None, {"optimizer.momentum": None}])
def test_a_trial_without_hyperparameters_is_analyzed(hparams, tmp_path):
    axis = {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.1, "max": 0.5}
    root = write_study(tmp_path / "s", [BASELINE], {}, search_space=[axis])
    (root / "baseline" / "0" / "0").mkdir(parents=True)
    if hparams:
        records.write_json(root / "baseline" / "0" / "0" / records.HPARAMS, {"hparams": hparams})
    assert run_analysis(root) == 0
