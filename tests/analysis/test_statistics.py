"""The statistics of a study against scipy and against values computed by hand."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import bounds, caveats, figures, load, scores, tables, uncertainty
from runs import records
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    TARGET,
    analyzed,
    change,
    study_of,
    write_study,
)

INF = math.inf
NEVER = TARGET | {"value": 2.0}


@pytest.mark.parametrize(
    ("ends", "middle", "spread"),
    [
        ([(0.5, 0.5), (0.7, 0.7), (0.9, 0.9)], "0.70", "0.50, 0.90"),
        ([(0.5, 0.5), (0.7, 0.7), (0.9, INF)], "0.70", "0.50, >0.90"),  # does not touch the median
        ([(0.5, 0.5), (0.8, INF), (0.9, INF)], "≥0.80", "0.50, >0.90"),
        ([(0.0, 0.4), (0.0, 0.6), (0.7, 0.7)], "≤0.60", "<0.40, 0.70"),
        ([(0.0, 0.9), (0.5, 0.5), (0.7, 0.7)], "0.50 to 0.70", "<0.50, 0.90"),
        ([(0.0, INF), (0.0, INF), (0.7, 0.7)], "undetermined", "<0.70, >0.70"),
        ([(0.0, INF)], "undetermined", "-, -"),
        ([(0.5, INF), (0.7, INF)], "≥0.60", ">0.50, >0.70"),
        ([(0.0, 0.5), (0.0, 0.7)], "≤0.60", "<0.50, <0.70"),
        ([(0.4, 0.4), (0.6, 0.6)], "0.50", "0.40, 0.60"),
        ([(math.nan, math.nan), (0.6, 0.6)], "0.60", "0.60, 0.60"),
        ([], "-", None),
    ],
)
def test_median_of_partly_censored_ratios(ends, middle, spread):
    summary = bounds.summary(*np.reshape(ends, (-1, 2)).T)
    assert bounds.text(summary.low, summary.high, "{:.2f}".format) == middle
    if spread:
        assert bounds.range_text(summary, "{:.2f}".format) == spread


@pytest.mark.parametrize("count", range(1, 12))
def test_level_of_the_range_is_that_of_order_statistics(count):
    # The median lies outside where all draws are on one side of it.
    outside = stats.binom.pmf(0, count, 0.5) + stats.binom.pmf(count, count, 0.5)
    assert bounds.level(count) == pytest.approx(1 - outside)


def test_range_is_an_interval_from_five_searches_on():
    assert [bounds.interval_name(n) for n in (1, 4, 5, 6, 14, 15)] == [
        *("range", "range", "93.75% interval", "96.88% interval"),
        *("99.99% interval", ">99.99% interval"),
    ]


def test_ratio_of_two_censored_scores_is_undetermined(tmp_path):
    values = {("baseline", 0, k): [0.1] * 10 for k in (0, 1)}
    values |= {("before_e2", 0, k): [0.1] * 10 for k in (0, 1)}
    values |= {("baseline", 1, k): [0.1] * 10 for k in (0, 1)}
    values |= {("before_e2", 1, 0): [0.1, 0.9], ("before_e2", 1, 1): ([0.1], "diverged")}
    loaded, _, table = analyzed(write_study(tmp_path / "s", [BASELINE, BEFORE], values))
    base, before = tables.conditions(table, loaded.study).to_numpy().tolist()
    assert tuple(base[2:4]) == ("0/2", ">1,000 (>1,000 to >1,000)")
    assert tuple(before[2:5]) == ("1/2", ">600 (200 to >1,000)", "undetermined [<0.20, -]")
    assert "Some searches never reached" in " ".join(caveats.find(loaded))


@pytest.mark.parametrize(
    ("score", "effects"),
    [
        ("fresh_examples", {"ratio": 1, "seconds_ratio": 1}),
        ("best_value", {"difference": 0}),
    ],
)
def test_a_baseline_that_is_censored_has_no_effect_on_itself(tmp_path, score, effects):
    values = {("baseline", 0, k): [0.1] * 10 for k in (0, 1)}
    values |= {("baseline", 1, k): ([], "diverged") for k in range(4)}
    loaded = load.read(write_study(tmp_path / "s", [BASELINE], values, score=score))
    (row,) = scores.condition_scores(loaded.trials, loaded.study).to_dict("records")
    for name, effect in effects.items():
        *ends, count = dataclasses.astuple(scores.summary_of(row, name))
        assert set(ends) == {effect}
        assert count == 2
    assert row["seconds_ratio_low"] == 1


def test_search_in_which_every_trial_diverged_is_not_dropped(tmp_path):
    values = {("baseline", s, k): [0.1, 0.9] for s in (0, 1) for k in (0, 1)}
    values |= {("before_e2", 0, k): [0.9] for k in (0, 1)}
    values |= {("before_e2", 1, k): ([0.1], "diverged") for k in range(4)}
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], values))
    row = scores.condition_scores(loaded.trials, loaded.study).to_dict("records")[1]
    assert row["searches"] == row["ratio_count"] == 2
    assert tables.effect_text(row, "ratio") == "≥0.25 [<0.50, >0.50]"


def test_best_value_of_a_search_in_which_every_trial_diverged_is_not_known(tmp_path):
    """Dropping it would favor the condition that diverges."""
    values = {("baseline", s, k): [0.7 + 0.01 * s] for s in range(3) for k in (0, 1)}
    values |= {("before_e2", s, k): [0.75 + 0.01 * s] for s in (0, 1) for k in (0, 1)}
    values |= {("before_e2", 2, k): ([], "diverged") for k in range(4)}
    root = write_study(
        tmp_path / "s", [BASELINE, BEFORE], values, score="best_value", searches=3, target=NEVER
    )
    loaded, searches, table = analyzed(root)
    row = table.to_dict("records")[1]
    assert row["searches"] == row["difference_count"] == 3
    assert tables.conditions(table, loaded.study).iloc[1, 3] == "0.75 to 0.76 (<0.75 to >0.76)"
    assert tables.effect_text(row, "difference") == "+0.05 [<+0.05, >+0.05]"
    drawn = figures.by_condition(table, searches, loaded.study)
    assert any("0.75 to 0.76" in text.get_text() for text in drawn.axes[0].texts)


@pytest.mark.parametrize(
    ("low", "high", "value"),
    [
        (0, INF, ">0"),
        (-0.5, INF, ">-0.5"),
        (-0.5, -0.3, "-0.5 to -0.3"),
        (-INF, -0.3, "≤-0.3"),
        (-INF, INF, "not known"),
    ],
)
def test_best_values_may_be_below_zero(low, high, value):
    assert tables.score_text({"steps_low": 0, "steps_high": INF}, "steps") == "not known"
    row = {"best_value_low": low, "best_value_high": high}
    assert tables.score_text(row, "best_value") == value


@pytest.mark.parametrize("pairs", [6, 10, 20, 64])
@pytest.mark.parametrize("floor", [0.0, -INF])
def test_sign_interval_without_censoring_is_that_of_order_statistics(pairs, floor):
    values = np.random.default_rng(pairs).lognormal(size=pairs)
    low, high, *balance = uncertainty.sign_interval(values, values, floor)
    place = int(stats.binom.ppf(0.025, pairs, 0.5))  # the smallest with cdf(place) >= 0.025
    ordered = np.sort(values)
    assert (low, high) == (ordered[place - 1], ordered[pairs - place])
    assert balance[0] <= np.median(values) <= balance[1]


def test_p_values_are_those_of_the_binomial_test():
    for below, above in [(0, 0), (1, 0), (3, 9), (9, 3), (10, 10), (40, 1)]:
        expected = stats.binomtest(below, below + above).pvalue if below + above else 1.0
        assert uncertainty.sign_test(below, above) == pytest.approx(expected)


def test_interval_is_the_set_of_effects_that_the_test_does_not_reject():
    """Against a grid of effects, each tested directly."""
    random = np.random.default_rng(4)
    own, base = random.lognormal(6, 0.5, (2, 25))
    own_end, base_end = 700.0, 500.0  # budgets: more than half of the baseline is censored
    low = np.where(own <= own_end, own, own_end) / np.where(base <= base_end, base, INF)
    high = np.where(own <= own_end, own, INF) / np.where(base <= base_end, base, base_end)
    kept = []
    for rho in np.geomspace(0.05, 20, 3000):
        end = min(own_end / rho, base_end)
        a, b = np.minimum(own / rho, end), np.minimum(base, end)
        wins, losses = int((a < b).sum()), int((b < a).sum())
        if stats.binomtest(wins, wins + losses).pvalue > 0.05:
            kept.append(rho)
    interval = uncertainty.sign_interval(low, high)[:2]
    assert interval == pytest.approx((kept[0], kept[-1]), rel=0.005)


def test_signs_are_those_of_each_pair_on_its_own():
    rng = np.random.default_rng(3)
    lows = rng.integers(0, 9, 200).astype(float)
    highs = lows + rng.integers(0, 3, 200)
    highs[rng.random(200) < 0.1] = np.inf
    for null in (0.0, 4.0, 4.5, 10.0):
        inside = lows < highs
        below = (highs < null) | ((highs == null) & inside)
        above = (lows > null) | ((lows == null) & inside)
        assert uncertainty.signs(lows, highs, null) == (below.sum(), above.sum())


def test_interval_is_a_point_if_every_other_effect_is_rejected():
    lows, highs = [1.0] * 100 + [0.5] * 6, [2.0] * 100 + [0.9] * 6
    for null, counts in ((1.0, (6, 100)), (1.01, (6, 0))):
        assert uncertainty.signs(lows, highs, null) == counts
        assert uncertainty.sign_test(*counts) < 0.05
    assert uncertainty.sign_interval(lows, highs) == (1.0, 1.0, 1.0, 1.0)


def test_signs_change_at_a_value_that_pairs_share():
    ratios = np.array([0.5, 0.5, 0.5, 0.5, 1.0, 0.25])
    assert uncertainty.sign_interval(ratios, ratios)[2:] == (0.5, 0.5)
    assert uncertainty.sign_interval([0.5] * 3 + [0.7], [0.5] * 3 + [0.7])[2:] == (0.5, 0.5)


def test_a_ratio_of_ratios_is_the_quotient_of_two_wider_intervals():
    own, base = np.random.default_rng(1).lognormal(size=(2, 200))
    sides = [uncertainty.sign_interval(x, x, level=0.975) for x in (own, base)]
    low, high, *balance = uncertainty.ratio_of_ratios((own, own), (base, base))
    assert (low, high) == pytest.approx((sides[0][0] / sides[1][1], sides[0][1] / sides[1][0]))
    assert balance[0] <= np.median(own) / np.median(base) <= balance[1]


def test_holm_adjustment_by_hand():
    assert uncertainty.holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert uncertainty.holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def paired_study(root, costs, **changes):
    """`costs` are pairs (baseline, echoed) in evaluations; None is not reached within 40."""
    sides = {"baseline": 0, "before_e2": 1}
    values = {
        (name, 0, k): [0.1] * 40 if pair[side] is None else [0.1] * (pair[side] - 1) + [0.9]
        for k, pair in enumerate(costs)
        for name, side in sides.items()
    }
    values["before_e2", 0, len(costs)] = [0.9]  # the baseline has no such trial
    changes |= {"searches": 1, "trials": len(costs) + 1}
    loaded = load.read(write_study(root, [BASELINE, BEFORE], values, **changes))
    return loaded, effect_of(loaded)


def effect_of(loaded):
    paired = uncertainty.pairs(loaded.trials, loaded.study)
    (effect,) = uncertainty.paired_effects(paired, loaded.study).to_dict("records")
    return effect


def test_pairs_keep_what_is_known_of_censored_sides(tmp_path):
    costs = [(20, 10)] * 6 + [(None, 30)] * 5 + [(25, None)] + [(None, None)] * 2
    loaded, effect = paired_study(tmp_path / "s", costs)
    names = ("pairs", "condition_alone", "baseline_alone", "neither", "below", "above")
    assert [effect[name] for name in names] == [6, 5, 1, 2, 11, 1]
    assert effect["p"] == pytest.approx(stats.binomtest(1, 12).pvalue)
    # Of a pair (20, 10): above 9 and at most 10, over above 19 and at most 20.
    ends = uncertainty.pairs(loaded.trials, loaded.study)[["effect_low", "effect_high"]]
    assert ends.iloc[0].tolist() == [9 / 20, 10 / 19]
    assert ends.iloc[6].tolist() == [0, 30 / 40]
    assert ends.iloc[11].tolist() == [40 / 25, INF]
    assert ends.iloc[12].tolist() == [0, INF]
    assert effect["verdict"] == "fewer"
    fewer = loaded.trials.assign(counted=loaded.trials["trial"] != 3)
    assert len(uncertainty.pairs(fewer, loaded.study)) == len(costs) - 1
    between = uncertainty.pairs_between(fewer, loaded.study, "before_e2", "baseline")
    assert sorted(between["trial"]) == [0, 1, 2, *range(4, len(costs))]


def test_signs_that_all_point_one_way_bound_no_effect_but_the_intervals(tmp_path):
    """They balance below the smallest of all upper bounds, an extreme of the pairs."""
    costs = [(None, 30 + k) for k in range(12)]
    loaded, effect = paired_study(tmp_path / "s", costs)
    assert (effect["effect_low"], effect["effect_high"]) == (0, INF)
    highs = np.sort(uncertainty.pairs(loaded.trials, loaded.study)["effect_high"])
    assert effect["high"] == highs[5]  # six signs that agree are the fewest that exclude an effect
    assert tables.paired_text(effect, loaded.study).startswith("undetermined [-, 0.88")


def test_verdicts_are_adjusted_for_all_conditions_of_a_study(tmp_path):
    """Also for those with too few pairs to be tested."""
    loaded, _ = paired_study(tmp_path / "s", [(20, 10)])
    effects = {"effect_low": [0.5] * 10 + [2.0] * 2, "effect_high": [0.5] * 10 + [2.0] * 2}
    reached = {"reached": True, "baseline_reached": True}
    pairs = pd.DataFrame(reached | effects | {"insertion": "none", "label": "", "search": 0})
    p = stats.binomtest(2, 12).pvalue
    assert p < 0.05 < 2 * p
    for others, verdict in ((0, "fewer"), (1, "undecided")):
        few = [pairs.head(9).assign(condition=f"few {k}") for k in range(others)]
        table = uncertainty.paired_effects(
            pd.concat([pairs.assign(condition="many"), *few]), loaded.study
        )
        assert table["verdict"].tolist() == [verdict] + ["undecided"] * others
        assert table["p_holm"].iloc[0] == pytest.approx((1 + others) * p)


def test_few_pairs_give_no_interval(tmp_path):
    _, effect = paired_study(tmp_path / "s", [(20, 10)] * 9 + [(None, None)] * 4)
    assert math.isnan(effect["low"])
    assert math.isnan(effect["p"])
    assert effect["verdict"] == "undecided"
    assert effect["effect_low"] == pytest.approx(math.sqrt(9 / 20 * 10 / 19))


def test_pair_within_one_evaluation_interval_counts_for_neither_side(tmp_path):
    _, effect = paired_study(tmp_path / "s", [(5, 5)] * 10)
    assert (effect["below"], effect["above"], effect["p"]) == (0, 0, 1.0)
    # Both were reached after 400 and at 500 at the latest.
    assert (effect["low"], effect["high"]) == pytest.approx((0.8, 1.25))
    assert effect["effect_low"] == pytest.approx(1)


def test_best_values_are_compared_by_differences(tmp_path):
    target = TARGET | {"value": 2.0}
    values = {("baseline", 0, k): [0.5] for k in range(12)}
    values |= {("before_e2", 0, k): [0.5 + 0.01 * (k - 2)] for k in range(12)}
    changes = {"target": target, "score": "best_value", "searches": 1, "trials": 12}
    effect = effect_of(
        load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], values, **changes))
    )
    assert (effect["below"], effect["above"]) == (2, 9)  # a tie is dropped
    assert effect["effect_low"] == pytest.approx(0.035)
    assert (effect["low"], effect["high"]) == pytest.approx((0.0, 0.07))  # 3rd and 10th of 12
    assert effect["verdict"] == "undecided"


def test_seconds_of_trials_that_shared_cores_form_no_pairs(tmp_path):
    loaded, effect = paired_study(tmp_path / "s", [(20, 10)] * 12, score="seconds")
    assert (effect["pairs"], effect["verdict"]) == (12, "faster")
    for numbers, left in (((0, 3), 10), (range(12), 0)):
        for number in numbers:
            change(tmp_path / "s" / f"before_e2/0/{number}" / records.HPARAMS, workers=2)
        loaded = load.read(tmp_path / "s")
        paired = uncertainty.pairs(loaded.trials, loaded.study)
        assert len(paired) == left
    assert uncertainty.paired_effects(paired, loaded.study).empty
    by_examples = dataclasses.replace(loaded.study, score="fresh_examples")
    assert len(uncertainty.pairs(loaded.trials, by_examples)) == 12


def test_signs_are_counted_by_search(tmp_path):
    root = study_of(tmp_path / "s", [BASELINE, BEFORE], lambda c: c["name"] != BASELINE["name"])
    effect = effect_of(load.read(root))
    assert (effect["searches_below"], effect["searches_above"]) == (0, 2)
