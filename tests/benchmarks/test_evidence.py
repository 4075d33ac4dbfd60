"""Claims, confirmations, and curves averaged over seeds, as benchmarks/evidence.py judges them."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import archive, load
from benchmarks import claims, common, evidence
from configs import problems
from tests.helpers.written_studies import BASELINE, BEFORE, setting, write_study

NAN = (math.nan, math.nan)


@pytest.mark.parametrize(
    ("interval", "matched", "verdict"),
    [
        ((0.5, 0.99), (0.6, 0.98), "yes"),
        ((0.5, 0.99), (0.6, 1.0), "open"),  # an end at 1 does not exclude it
        ((0.5, 0.99), NAN, "open"),
        (NAN, (0.6, 0.9), "open"),
        ((1.01, 2.0), (1.02, math.inf), "no"),
        ((1.01, 2.0), (0.99, 1.5), "open"),
        ((0.91, 1.10), (0.8, 0.95), "no difference"),
        ((0.91, 1.10), (0.8, 0.90), "open"),  # they do not overlap
        ((0.90, 1.10), (0.9, 1.1), "open"),
        ((0.91, 1.12), (0.9, 1.1), "open"),
    ],
)
def test_a_problem_needs_both_intervals(interval, matched, verdict):
    assert claims.verdict_of(interval, matched) == verdict


@pytest.mark.parametrize(
    ("ratios", "interval"),
    [
        ([0.5] * 4, NAN),
        ([0.5, 0.6, 0.7, 0.8, 2.0], (0.5, 2.0)),  # the range
        ([0.5, 0.6, 0.7, 0.8, 0.9, 2.0], (0.5, 2.0)),
        ([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 2.0], (0.5, 1.0)),  # one of nine may disagree
    ],
)
def test_six_searches_or_more_are_judged_by_the_sign_test(ratios, interval):
    searches = pd.DataFrame({"low": ratios, "high": ratios})
    assert claims.interval_of(searches) == pytest.approx(interval, nan_ok=True)


def effect(ratio, error=0.05, verdict="open", **fields):
    nothing = {"interval": NAN, "text": "", "matched_text": ""}
    return claims.Effect(ratio, ratio, error=error, verdict=verdict, **nothing | fields)


@pytest.mark.parametrize(
    ("ratios", "error", "verdict"),
    [
        ([0.5, 0.55, 0.6, 0.5], 0.1, "yes"),
        ([2.0, 1.8, 1.7, 2.1], 0.1, "no"),
        ([0.98, 1.02, 1.0, 1.01], 0.1, "no difference"),
        ([0.2, 0.9, 0.5, 1.1], 0.1, "depends"),
        ([0.2, 0.9, 0.5, 1.1], 1.0, "open"),  # they may differ as their searches do
        ([0.1, 0.15, 0.2, 0.12], 0.05, "yes"),  # they differ, but all gain
    ],
)
def test_a_claim_is_judged_over_problems(ratios, error, verdict):
    assert claims.pooled([effect(ratio, error) for ratio in ratios]).verdict == verdict


def test_few_problems_and_unbounded_ones_are_not_pooled():
    alike = claims.pooled([effect(0.5, verdict="yes"), effect(0.6, verdict="yes")])
    assert alike.verdict == "yes"
    assert math.isnan(alike.equal[0])
    assert claims.pooled([effect(0.5, verdict="yes"), effect(0.6)]).verdict == "open"
    unbounded = [effect(0.5, verdict="yes")] * 3 + [effect(math.inf, verdict="no")]
    assert claims.pooled(unbounded).verdict == "open"
    assert claims.pooled(unbounded).text(claims.pooled(unbounded).equal) == "-"


@pytest.mark.parametrize(
    ("margins", "verdict"),
    [([0.5, -0.4, 0.2, 0.1], "yes"), ([-2, -2.2, -1.9, -2.1], "no"), ([-1.5, 0.5, 0, 1], "open")],
)
def test_best_values_are_judged_by_non_inferiority(margins, verdict):
    pooled = claims.pooled([effect(margin, differs=True) for margin in margins])
    assert pooled.verdict == verdict
    assert pooled.equal[0] == pytest.approx(np.mean(margins))


def test_pooling_agrees_with_scipy_and_with_the_definitions():
    values, errors = np.log([0.5, 0.7, 0.6, 0.9]), np.array([0.05, 0.1, 0.08, 0.2])
    (mean, low, high), new = claims.equal_weights(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (mean, low, high) == pytest.approx((values.mean(), expected.low, expected.high))
    assert new[1] - mean == pytest.approx((high - mean) * math.sqrt(5))
    (mean, low, high), p = claims.random_effects(values, errors)
    weights = 1 / errors**2
    q = sum(weights * (values - sum(weights * values) / sum(weights)) ** 2)
    tau2 = (q - 3) / (sum(weights) - sum(weights**2) / sum(weights))
    weights = 1 / (errors**2 + tau2)
    assert mean == pytest.approx(sum(weights * values) / sum(weights))
    variance = sum(weights * (values - mean) ** 2) / sum(weights) / 3
    assert high - mean == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(variance))
    assert mean - low == pytest.approx(high - mean)
    assert p == pytest.approx(1 - stats.chi2.cdf(q, 3))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Makes a published study of nine searches of two trials, `values` being the evaluations that
    a trial takes, by condition, given its search and number; returns its name."""

    def write(conditions, values):
        outcomes = {
            (name, search, trial): [0.2] * (evaluations(search, trial) - 1) + [0.9]
            for name, evaluations in values.items()
            for search in range(9)
            for trial in range(2)
        }
        root = write_study(tmp_path / "study", conditions, outcomes, searches=9)
        loaded = load.read(root)
        curves = load.curves(loaded.trials, "accuracy")
        archive.pack(loaded.study, loaded.trials, curves, tmp_path, tmp_path.name)
        monkeypatch.setattr(claims, "RECORDS", tmp_path / archive.TRIALS)
        return tmp_path.name

    return write


@pytest.mark.parametrize(
    ("ahead", "second", "verdict"),
    [
        (9, 5, "yes"),
        (8, 5, "yes"),  # one search in nine may disagree
        (7, 5, "open"),
        (9, 7, "open"),  # the searches agree with the claim, the pairs do not
        (0, 5, "open"),
        (0, 7, "no"),
    ],
)
def test_searches_and_pairs_must_agree(ahead, second, verdict, written):
    """The first trials are the best, and are ahead in `ahead` searches; the second ones take as
    many evaluations as `second`, and those without echoing six."""
    values = {
        "baseline": lambda _, trial: 6 if trial else 4,
        "before_e2": lambda search, trial: second if trial else 3 if search < ahead else 5,
    }
    study = written([BASELINE, BEFORE], values)
    assert claims.compared(study, ("before_e2", "baseline")).verdict == verdict


def test_ratios_of_ratios_and_comparisons(written):
    conditions = [BASELINE, BEFORE, *(setting(name, "after_batching", 2.0) for name in "cd")]
    costs = {"baseline": 8, "before_e2": 2, "c": 8, "d": 2}
    study = written(conditions, {name: lambda *_, n=cost: n for name, cost in costs.items()})
    smaller, larger = ("before_e2", "baseline"), ("c", "d")
    assert claims.compared(study, smaller, larger).verdict == "yes"
    assert claims.compared(study, larger, smaller).verdict == "no"
    assert claims.compared(study, smaller, smaller).verdict == "no difference"
    own = claims.compared(study, smaller)
    assert (own.text, own.verdict, own.too_small) == ("0.25 [0.25, 0.25]", "yes", True)
    assert not claims.compared(study, larger).too_small
    assert claims.compared(study, larger).verdict == "no"


def test_a_score_at_the_first_evaluation_is_an_upper_bound(written):
    values = {"baseline": lambda *_: 4, "before_e2": lambda *_: 1}
    own = claims.compared(written([BASELINE, BEFORE], values), ("before_e2", "baseline"))
    assert (own.low, own.high) == (0, 0.25)
    assert own.text == "≤0.25 [-, <0.25]"


def test_an_end_that_is_a_bound_of_a_search_is_printed_as_one(written):
    def evaluations(search, _):
        return 1 if search < 3 else 2 + search % 2  # at the first evaluation: at most 0.25

    study = written([BASELINE, BEFORE], {"baseline": lambda *_: 4, "before_e2": evaluations})
    assert claims.compared(study, ("before_e2", "baseline")).text == "0.50 [<0.25, 0.75]"


def test_the_law_of_repeats_is_recovered_from_its_own_ratios():
    rows = pd.DataFrame({"e": [2, 4, 16, 2, 2], "spacing": [256, 256, 256, 1, 1024]})
    parameters = [math.log(0.8), math.log(3), 0.1]
    ratios = np.exp(claims.law(parameters, rows))
    assert 1 / ratios[0] == pytest.approx(1 + 0.8 * 3 * (1 - math.exp(-1 / 3)))
    assert claims.fitted(rows.assign(ratio=ratios)) == pytest.approx(parameters, abs=1e-3)
    one = rows[:3].assign(ratio=ratios[:3])
    assert claims.fitted(one) == pytest.approx([*parameters[:2], 0], abs=1e-3)


def curves(*runs):
    """By factor, the mean curve of runs [runs, evaluations] and one resample, the same."""
    fresh = np.arange(1.0, 5.0) * 100
    means = (np.tile(np.mean(own, axis=0), (2, 1)) for own in runs)
    return {e: (fresh, mean) for e, mean in zip((2, 1), means, strict=True)}


def test_curves_averaged_over_seeds_are_compared_where_they_reach_a_value():
    own, base = [[0.1, 0.4, 0.6, 0.8], [0.3, 0.4, 0.4, 0.4]], [[0.1, 0.2, 0.3, 0.4]]
    ratio = claims.mean_ratio(curves(own, base), (2, 1), 0.3)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx([0.5] * 3)
    assert str(claims.mean_ratio(curves(base, own), (2, 1), 0.5)).startswith(">")
    assert claims.mean_ratio(curves(own, base), (2, 1), 0.5) is None


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.8, 0.994, "yes"),
        (0.8, 0.998, "open"),  # as other resamples would decide
        (1.004, 1.2, "open"),
        (1.006, 1.2, "no"),
    ],
)
def test_an_end_of_an_interval_decides_as_it_is_printed(low, high, verdict, monkeypatch):
    monkeypatch.setattr(claims, "mean_curves", lambda _: ({}, 0.5))
    monkeypatch.setattr(claims, "mean_ratio", lambda *_: claims.Ratio(0.9, 0.9, low, high))
    assert claims.by_mean_curves("digits", 2, 1).verdict == verdict


def test_the_error_of_a_mean_curve_comes_from_the_ends_that_are_known(monkeypatch):
    monkeypatch.setattr(claims, "mean_curves", lambda _: ({}, 0.5))
    for high in (4.0, math.inf):
        ratio = claims.Ratio(2.0, 2.0, 1.0, high)
        monkeypatch.setattr(claims, "mean_ratio", lambda *_, ratio=ratio: ratio)
        error = claims.by_mean_curves("digits", 4, 16).error
        assert error == pytest.approx(math.log(2.0) / stats.norm.ppf(0.975))


def test_a_run_that_diverges_counts_with_the_loss_of_a_uniform_prediction(monkeypatch):
    def table(runs):  # those that diverged are replaced by ones that do not count
        return pd.DataFrame(
            {"condition": name, "search": search, "trial": trial, "fresh_examples": at, "value": x}
            for (name, search), losses in runs.items()
            for trial, own in enumerate((losses, whole) if losses is diverged else (losses,))
            for at, x in own.items()
        )

    # The second evaluation of the run that diverged is at another place than those of others.
    whole, diverged = {1000: 5.0, 2000: 4.55, 3000: 4.0}, {1000: 5.0, 1500: math.nan}
    candidates = {("baseline_b16_c0", seed): whole for seed in (0, 1)}
    candidates |= {("baseline_b16_c1", 0): whole | {2000: 3.0}, ("baseline_b16_c1", 1): diverged}
    names = ["baseline_b16", *(f"before_augmentation_e{e}_b16" for e in claims.MEAN_FACTORS)]
    runs = {(name, seed): own for name in names for seed, own in enumerate((whole, diverged))}
    runs[names[-1], 1] = {}  # before its first evaluation
    tables = {"mean_curves/documents": runs, "mean_curves/documents/candidates": candidates}
    monkeypatch.setattr(archive, "curves", lambda _, study: table(tables[study]))
    drawn, level = claims.mean_curves.__wrapped__("documents")
    assert level == pytest.approx(-4.65)  # two margins short of the stable candidate
    uniform = math.log(512)
    for factor, first in ((4, 5.0), (16, uniform)):
        fresh, means = drawn[factor]
        np.testing.assert_array_equal(fresh, [1000, 2000, 3000])
        losses = [[5.0, 4.55, 4.0], [first, uniform, uniform]]
        np.testing.assert_allclose(means[0], -np.mean(losses, axis=0))


def test_the_bootstrap_of_curves_agrees_with_scipy():
    drawn, level = claims.mean_curves("mnist")
    table = archive.curves(claims.RECORDS, "mean_curves/mnist")
    runs = [
        table[table["condition"] == name].pivot(
            index="search", columns="fresh_examples", values="value"
        )
        for name in ("before_augmentation_e2_b32", "baseline_b32")
    ]

    def of_means(seeds):
        ends = (
            claims.reaches(own.columns.to_numpy(float), own.to_numpy()[seeds].mean(0)[None], level)
            for own in runs
        )
        return (next(ends) / next(ends))[0]

    seeds = np.arange(len(runs[0]))
    expected = stats.bootstrap(
        (seeds,), of_means, n_resamples=3000, method="percentile", vectorized=False, rng=0
    ).confidence_interval
    ratio = claims.mean_ratio(drawn, (2, 1), level)
    assert ratio.value == pytest.approx(of_means(seeds))
    assert ratio.low == pytest.approx(expected.low, abs=0.02)
    assert ratio.high == pytest.approx(expected.high, abs=0.02)


@pytest.mark.parametrize("wins", range(22))
def test_a_confirmation_is_decided_at_the_level_of_its_looks(wins):
    ratios = [0.5 + 0.01 * k for k in range(wins)] + [1.5 + 0.01 * k for k in range(21 - wins)]
    ends = {"reached": True, "baseline_reached": True, "effect_low": ratios, "effect_high": ratios}
    own = evidence.confirmed(pd.DataFrame({"search": range(21)} | ends))
    differs = stats.binomtest(wins, 21).pvalue <= 0.05 / 3
    expected = ("fewer" if wins > 10 else "more") if differs else "undecided"
    assert own["verdict"] == expected
    low, high = map(float, own["interval"].split(" to "))
    assert (low < 1 < high) != differs


def test_few_pairs_confirm_nothing():
    ends = {"reached": True, "baseline_reached": True, "effect_low": 0.5, "effect_high": 0.5}
    own = evidence.confirmed(pd.DataFrame({"search": range(9)} | ends))
    assert (own["verdict"], own["interval"]) == ("undecided", "- to -")


@pytest.mark.parametrize("problem", ["documents", "photographs", "common_cadence_sentences"])
def test_confirmations_run_the_best_trial_of_each_condition_of_the_grid(problem):
    trials = claims.loaded(f"grid/{problem}").trials
    known = trials[trials["counted"] & trials["fresh_examples_to_target"].notna()]
    ordered = known.sort_values(["fresh_examples_to_target", "search", "trial"])
    best = ordered.groupby("condition").first()
    for condition, chosen in json.loads(problems.WINNERS.read_text())[problem].items():
        if condition in best.index:  # the others have the best value
            assert best.loc[condition, [*chosen]].to_dict() == chosen


def test_only_the_first_run_of_each_pair_counts():
    """A run that diverged is tried again with another model seed, which forms no pair."""
    confirmed = claims.loaded("grid/confirmation_documents_search_0")
    assert set(evidence.registered(confirmed)["trial"]) == {0}
    assert set(confirmed.trials["trial"]) != {0}


def test_a_number_that_does_not_follow_from_the_records_is_found(tmp_path, monkeypatch):
    name = "results/convex.md"
    text = evidence.ROOT.joinpath(name).read_text(encoding="utf-8")
    rows = {"verdicts": (["registered claim", "measured", "verdict"], evidence.convex_verdicts())}
    made = common.with_tables(evidence.ROOT / name, rows)
    assert made == text
    monkeypatch.setattr(evidence, "files", lambda: {name: made})
    (tmp_path / "results").mkdir()
    assert evidence.differing(tmp_path) == [name]
    (tmp_path / name).write_text(text.replace("0.35", "0.36"), encoding="utf-8")
    assert evidence.differing(tmp_path) == [name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert evidence.differing(tmp_path) == []


def test_a_range_ends_at_the_largest_known_effect(monkeypatch):
    def effect(low, high):
        return claims.Effect(low, high, (low, high), "", "", "open", 0.1)

    own = {"a": effect(1.49, math.inf), "b": effect(2.0, 2.31), "c": effect(0.11, 0.11)}
    monkeypatch.setattr(claims, "effects", lambda claim: own)
    claim = next(iter(claims.CLAIMS["How much?"]))
    assert evidence.span(claim) == "0.11 c to 2.31 b"


def test_numbers_in_the_prose_of_the_page_are_in_a_table():
    page = (evidence.ROOT / "docs/claims.md").read_text(encoding="utf-8")
    prose = re.sub("<!-- claims -->.*<!-- end -->", "", page, flags=re.DOTALL)
    tables = "".join(
        (evidence.ROOT / "results" / name).read_text(encoding="utf-8")
        for name in ("claims.md", "convex.md", "factor_ratios.csv")
    )
    assert len(page.splitlines()) <= 60
    for number in re.findall(r"\d\.\d\d \[[^]]+\]|\d+ of \d+ runs", prose):
        assert number.removesuffix(" runs") in tables
