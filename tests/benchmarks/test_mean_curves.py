"""Mean curves reach a level where they should, and ratios have the intervals of a bootstrap."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import load
from benchmarks import mean_curves
from benchmarks.mean_curves import DESIGNS, NONE, OF_MEANS, OF_TRIALS
from studies import search

ECHOED = "before_augmentation_e2_b32"
FRESH = np.array([100.0, 200.0, 300.0, 400.0])


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([0.1, 0.2, 0.4, 0.5], 250.0),  # between two evaluations
        ([0.1, 0.3, 0.1, 0.5], 200.0),  # at an evaluation, and only the first time counts
        ([0.6, 0.7, 0.8, 0.9], 100.0),  # at the first evaluation; nothing is known before it
        ([0.1, 0.2, 0.2, 0.2], math.inf),
    ],
)
def test_a_mean_curve_reaches_a_level_once(means, expected):
    assert mean_curves.reaches(FRESH, np.array([means]), 0.3) == pytest.approx(expected)


def accuracies(own, base):
    """Of runs with accuracies `own` and `base` [seeds, evaluations]."""
    return {name: pd.DataFrame(values, columns=FRESH) for name, values in ((2, own), (NONE, base))}


def ratio_at(both, level):
    return mean_curves.ratio(mean_curves.resampled(both), (2, NONE), level)


def test_the_interval_is_that_of_a_paired_percentile_bootstrap():
    rng = np.random.default_rng(1)
    rising = np.linspace(0.2, 0.8, 4)
    noise = rng.normal(0, 0.1, (2, 24, 1))  # of a seed, over all of its evaluations
    own, base = rising + 0.1 + noise[0], rising + noise[1]
    ratio = ratio_at(accuracies(own, base), 0.5)

    def of_means(rows, axis=-1):
        drawn = [values[rows.astype(int)].mean(axis=-2) for values in (own, base)]
        first, second = (
            mean_curves.reaches(FRESH, means.reshape(-1, 4), 0.5).reshape(means.shape[:-1])
            for means in drawn
        )
        return first / second

    expected = stats.bootstrap(
        (np.arange(24),), of_means, method="percentile", rng=np.random.default_rng(2)
    )
    assert ratio is not None
    assert ratio.value == pytest.approx(of_means(np.arange(24)).item())
    assert ratio.low == pytest.approx(expected.confidence_interval.low, abs=0.01)
    assert ratio.high == pytest.approx(expected.confidence_interval.high, abs=0.01)
    assert ratio.verdict == "reproduced"


@pytest.mark.parametrize(
    ("evaluated", "expected", "verdict"),
    [(4, ">1.33 [1.33, -]", "not reproduced"), (2, ">0.67 [0.67, -]", "undecided")],
)
def test_a_curve_that_misses_the_level_needs_more_than_its_budget(evaluated, expected, verdict):
    own, base = (np.tile(values, (3, 1)) for values in ([0.1, 0.2, 0.3, 0.4], [0.1, 0.3, 0.5, 0.5]))
    both = accuracies(own, base)
    assert str(ratio_at(both, 0.3)) == "1.50 [1.50, 1.50]"
    both[2] = both[2].iloc[:, :evaluated]
    missed = ratio_at(both, 0.5)
    assert missed is not None
    assert (str(missed), missed.verdict) == (expected, verdict)
    assert ratio_at(both, 0.6) is None


def test_a_run_that_diverged_counts_with_an_accuracy_of_0():
    rows = [("a", seed, 100.0 * k, 0.5) for seed in range(2) for k in (1, 2) if seed == 0 or k < 2]
    curves = pd.DataFrame(rows, columns=["condition", "search", "fresh_examples", "value"])
    expected = [[0.5, 0.5], [0.5, 0.0], [0.0, 0.0]]  # the last one before its first evaluation
    assert mean_curves.by_seed(curves, 3)["a"].to_numpy().tolist() == expected


@pytest.mark.parametrize(
    ("low", "high", "verdict", "text"),
    [
        (0.8, 0.994, "reproduced", "0.90 [0.80, 0.99]"),
        (0.8, 0.998, "undecided", "0.90 [0.80, 1.00]"),  # as other resamples would decide
        (1.004, 1.2, "undecided", "0.90 [1.00, 1.20]"),
        (1.006, 1.2, "not reproduced", "0.90 [1.01, 1.20]"),
        (0.0, math.inf, "undecided", "0.90 [-, -]"),
    ],
)
def test_an_end_of_an_interval_decides_as_it_is_printed(low, high, verdict, text):
    ratio = mean_curves.Ratio(0.9, 0.9, low, high)
    assert (ratio.verdict, str(ratio)) == (verdict, text)


def test_a_smoothed_curve_keeps_its_ends_and_straight_lines():
    assert mean_curves.smoothed(np.array([3.0, 0.0, 6.0, 0.0]), 3).tolist() == [3.0, 3.0, 2.0, 0.0]
    line = np.arange(10.0)
    np.testing.assert_allclose(mean_curves.smoothed(line, 5), line)


def simulated(noise, window):
    """Of 24 runs of two conditions whose curves rise, with noise in each evaluation."""
    rng = np.random.default_rng(0)
    fresh = np.arange(1, 41) * 100.0
    rising = np.stack([1 - np.exp(-fresh / own) for own in (1000, 2000)])
    runs = rising[:, None] + rng.normal(0, noise, (2, 24, 40))
    own, base = (pd.DataFrame(values, columns=fresh) for values in runs)
    both = {2: own, NONE: base, 4: own, 16: base}
    return mean_curves.coverage(both, 0.6, window)["e = 2 over no echoing"]


@pytest.mark.parametrize("window", [1, 5])
def test_intervals_cover_where_smooth_curves_rise(window):
    found = simulated(0.02, window)
    assert found.true == pytest.approx(0.5, abs=0.02)
    assert found.share > 0.9
    assert 0 <= found.above <= 1 - found.share


def test_intervals_cover_less_where_curves_scatter():
    """Single evaluations are half as far from each other as all of them rise."""
    rough = simulated(0.5, 5)
    assert rough.share < 0.9
    assert rough.above > 0.9 * (1 - rough.share)  # mostly, the flatter curve is early


def test_a_ratio_to_a_curve_that_does_not_reach_the_level_has_no_coverage():
    flat = np.full((5, 4), 0.1)
    tables = accuracies(flat + np.arange(4), flat)
    both = tables | {4: tables[2], 16: tables[2]}
    assert math.isnan(mean_curves.coverage(both, 0.5, 1)["e = 2 over no echoing"].share)


def test_the_level_is_one_that_no_echoing_reaches_within_two_thirds_of_the_budget():
    base = np.tile([0.1, 0.8, 0.8749, 0.9], (2, 1))
    levels = [
        mean_curves.judged_level(accuracies(base, base), budget) for budget in (300.0, 450.0, 600.0)
    ]
    assert levels == pytest.approx([0.8, 0.87, 0.9])


def test_the_setting_with_the_smallest_score_is_chosen():
    rows = [
        ("a", 0, 0, 0.1, 500.0, 0.88),
        ("a", 1, 0, 0.2, 400.0, 0.87),
        ("a", 1, 1, 0.3, 400.0, 0.89),
        ("b", 0, 0, 0.4, math.inf, 0.80),
        ("b", 0, 1, 0.5, math.inf, 0.85),
    ]
    columns = ["condition", "search", "trial", "optimizer.learning_rate", "score", "smoothed"]
    chosen = mean_curves.chosen(pd.DataFrame(rows, columns=columns))
    assert chosen == {
        "a": {"optimizer.learning_rate": 0.3},
        "b": {"optimizer.learning_rate": 0.5},
    }


def test_the_search_has_the_points_and_seeds_of_the_packed_study():
    packed = load.read("results/trials.parquet", study="grid/common_cadence_logistic")
    own = packed.trials[(packed.trials["search"] == 3) & (packed.trials["trial"] == 5)]
    study = mean_curves.search()
    for condition in study.conditions:
        row = own.set_index("condition").loc[condition.name]
        config = search.trial_config(study, condition, 3, 5)
        assert config.seed.model == row["model_seed"]
        rate, momentum = config.optimizer.learning_rate, config.optimizer.momentum
        assert rate == pytest.approx(row["optimizer.learning_rate"])
        assert momentum == pytest.approx(row["optimizer.momentum"])
        assert config.target.value == mean_curves.NEVER


def seeds_of(study, run=7):
    seeds = search.trial_config(study, study.conditions[0], run, 0).seed
    return seeds.data, seeds.model


def test_new_seeds_are_those_of_the_protocol():
    design = DESIGNS["logistic"]
    settings = {name: {} for name in design.conditions.values()}
    tried, of_means, of_trials = (
        mean_curves.runs(design, "made", settings, seeds)
        for seeds in (design.candidates, design.new_seeds[OF_MEANS], design.new_seeds[OF_TRIALS])
    )
    assert seeds_of(of_trials) == (30_007, 40_070_000)
    assert seeds_of(tried) == (31_007, 50_070_000)
    assert seeds_of(of_means) == (32_007, 60_070_000)


@pytest.mark.parametrize(("problem", "pairs"), [("digits", 32), ("mnist", 21), ("cells", 21)])
def test_runs_with_echoing_have_the_budgets_of_the_protocol(problem, pairs):
    design = DESIGNS[problem]
    settings = mean_curves.candidates(mean_curves.searched(problem))
    study = mean_curves.runs(design, "made", settings, design.candidates)
    budget = study.budget
    assert budget == design.budget
    for condition in study.conditions:
        share = {1: 1, 2: 3 / 4, 4: 1 / 2, 16: 1 / 4}[condition.factor]
        assert study.budget_of(condition) == budget * share
        assert condition.overrides["evaluate_every_fresh_examples"] == budget // 64
        name, _, number = condition.name.partition("_search_")
        assert condition.overrides.items() >= settings[f"{name}_search_{number}"].items()
    assert len(study.conditions) == 20
    assert study.searches == 8
    new = mean_curves.runs(design, "made", settings, design.new_seeds[OF_MEANS])
    assert new.searches == pairs
    assert seeds_of(study) == (31_007, 50_070_000)
    assert seeds_of(new) == (32_007, 60_070_000)


def test_candidates_of_images_are_the_winners_of_the_searches():
    packed = load.read("results/trials.parquet", study="grid/common_cadence_mnist").trials
    own = packed[(packed["condition"] == ECHOED) & (packed["search"] == 2) & packed["counted"]]
    best = own.loc[own["fresh_examples_to_target"].astype(float).idxmin()]
    settings = mean_curves.candidates(mean_curves.searched("mnist"))
    assert len(settings) == 20
    rate = settings[f"{ECHOED}_search_2"]["optimizer.learning_rate"]
    assert rate == pytest.approx(best["optimizer.learning_rate"])


def test_the_common_level_lies_below_what_no_echoing_reaches_in_time():
    rows = [
        ("baseline_b32_search_0", 100.0, 0.962),
        ("baseline_b32_search_1", 400.0, 0.9749),
        ("baseline_b32_search_1", 500.0, 0.99),  # too late
        (f"{ECHOED}_search_0", 100.0, 0.99),
    ]
    means = pd.DataFrame(rows, columns=["condition", "fresh_examples", "value"])
    assert mean_curves.common_level(means, 600.0) == pytest.approx(0.96)


def test_candidates_are_the_best_trials_of_each_search_and_the_best_mean_curve_is_chosen():
    rows = [
        (condition, number, trial, 0.1 * number + 0.01 * trial, score, 0.9)
        for condition in ("baseline_b32", ECHOED)
        for number in range(2)
        for trial, score in enumerate((500.0, 400.0, 450.0))
    ]
    columns = ["condition", "search", "trial", "optimizer.learning_rate", "score", "smoothed"]
    trials = pd.DataFrame(rows, columns=columns)
    settings = mean_curves.candidates(trials)
    rates = [own["optimizer.learning_rate"] for own in settings.values()]
    assert rates == pytest.approx([0.01, 0.11, 0.01, 0.11])
    values = {
        "baseline_b32_search_0": (0.8, 0.87, 0.87),
        "baseline_b32_search_1": (0.86, 0.86, 0.9),
        f"{ECHOED}_search_0": (0.8, 0.8, 0.81),  # neither reaches the level
        f"{ECHOED}_search_1": (0.8, 0.83, 0.82),
    }
    means = pd.DataFrame(
        [
            (name, fresh, value)
            for name, own in values.items()
            for fresh, value in zip((100, 200, 300), own, strict=True)
        ],
        columns=["condition", "fresh_examples", "value"],
    )
    best = mean_curves.chosen_by_means(trials, means, 0.865)
    rates = {name: own["optimizer.learning_rate"] for name, own in best.items()}
    assert rates == pytest.approx({"baseline_b32": 0.01, ECHOED: 0.11})
    design = DESIGNS["logistic"]
    study = mean_curves.runs(design, "made", settings, design.candidates)
    assert [c.name for c in study.conditions] == list(values)
    assert study.conditions[1].overrides["optimizer.learning_rate"] == pytest.approx(0.11)


PAGE = mean_curves.RESULTS / "mean_curves.md"
TITLE = "## What the intervals cover"


@pytest.mark.long
def test_the_page_follows_from_the_stored_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(mean_curves, "_covers", lambda accuracies, level: ["-"] * 4)  # takes long
    mean_curves.main([f"--out={tmp_path / 'mean_curves.md'}"])
    made, shown = (
        path.read_text().partition(TITLE) for path in (tmp_path / "mean_curves.md", PAGE)
    )
    assert made[0] == shown[0]
    text = made[2].partition("\n| Logistic")[0]
    assert shown[2].startswith(text)


def test_the_page_says_what_the_intervals_of_cells_cover():
    measured = mean_curves.read(DESIGNS["cells"])
    row = " | ".join(mean_curves._covers(measured.accuracies, measured.level))
    assert f"| Blood cells | AP50 0.160 | {row} |" in PAGE.read_text().partition(TITLE)[2]
