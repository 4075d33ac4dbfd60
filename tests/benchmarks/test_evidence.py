"""Claims, confirmations, and curves averaged over seeds, as benchmarks/evidence.py judges them."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import archive, load, uncertainty
from benchmarks import claims, evidence
from configs import problems
from runs import records
from tests.helpers.written_studies import BASELINE, BEFORE, setting, write_study

SEARCHES = pd.DataFrame({"low": [1.2, 1.5], "high": [1.2, 1.5]})
RATIOS = np.array([1.0] * 4 + [2.0] * 12 + [0.5] * 2)  # 2 below 1, 12 above, 4 ties


def effect(ratios):
    """What `claims` judges of pairs with these ratios."""
    ratios = np.asarray(ratios, float)
    below, above = (int(count) for count in uncertainty.signs(ratios, ratios, 1.0))
    low, high, *balance = uncertainty.sign_interval(ratios, ratios)
    ends = {"effect_low": balance[0], "effect_high": balance[1], "low": low, "high": high}
    p = float(uncertainty.sign_test(below, above))
    return ends | {"below": below, "above": above, "p": p}


@pytest.mark.parametrize(
    ("ratios", "changes", "verdict"),
    [
        (RATIOS, {}, "not reproduced"),  # the interval ends at 1
        ([2.0] * 12, {}, "not reproduced"),
        ([0.5] * 12, {}, "undecided"),  # pairs and searches disagree
        ([2.0, 0.5] * 6, {}, "undecided"),
        ([2.0] * 12, {"low": math.nan, "high": math.nan, "p": math.nan}, "undecided"),  # too few
    ],
)
def test_pairs_and_searches_must_agree(ratios, changes, verdict):
    assert claims._by_sign_test(effect(ratios) | changes, SEARCHES).verdict == verdict


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
        (9, 5, "reproduced"),
        (8, 5, "reproduced"),  # one search in nine may disagree
        (7, 5, "undecided"),
        (9, 7, "undecided"),  # the searches agree with the claim, the pairs do not
        (0, 5, "undecided"),
        (0, 7, "not reproduced"),
    ],
)
def test_further_searches_are_judged_by_sign_tests(ahead, second, verdict, written, monkeypatch):
    """The first trials are the best, and are ahead in `ahead` searches; the second ones take as
    many evaluations as `second`, and those without echoing six."""
    values = {
        "baseline": lambda _, trial: 6 if trial else 4,
        "before_e2": lambda search, trial: second if trial else 3 if search < ahead else 5,
    }
    study = written([BASELINE, BEFORE], values)
    monkeypatch.setattr(claims, "loaded", lambda _: load.read(claims.RECORDS, study=study))
    assert claims.further("any", ("before_e2", "baseline"))().verdict == verdict


def test_ratios_of_ratios_and_comparisons(written):
    conditions = [BASELINE, BEFORE, *(setting(name, "after_batching", 2.0) for name in "cd")]
    costs = {"baseline": 8, "before_e2": 2, "c": 8, "d": 2}
    values = {name: lambda *_, cost=cost: cost for name, cost in costs.items()}
    study = written(conditions, values)
    smaller, larger = ("before_e2", "baseline"), ("c", "d")
    assert claims.relative(study, smaller, larger)().verdict == "reproduced"
    assert claims.relative(study, larger, smaller)().verdict == "not reproduced"
    assert claims.relative(study, smaller, smaller)().verdict == "undecided"
    assert claims.between(study, *smaller)().tuned == "0.25 [0.25, 0.25]"
    assert claims.between(study, *larger)().verdict == "not reproduced"
    assert claims.against_none(study, "before_e2")().verdict == "reproduced"


def test_a_condition_is_bounded_by_two_searches_at_one_end(written):
    values = {"baseline": lambda *_: 4, "before_e2": lambda *_: 3}
    study = written([BASELINE, BEFORE], values)
    assert claims.between(study, "before_e2", "baseline")().bounded == "-"
    plan = claims.loaded(study)
    low = [dataclasses.replace(axis, min=0.0099) for axis in plan.study.space]
    narrow = dataclasses.replace(plan, study=dataclasses.replace(plan.study, space=tuple(low)))
    claims._bounded.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "loaded", lambda _: narrow)
        cell = claims.between(study, "before_e2", "baseline")()
    assert "before_e2: min of learning rate in 9 of 9" in cell.bounded


def curves(*runs):
    """By factor, the mean curve of runs [runs, evaluations] and one resample, the same."""
    fresh = np.arange(1.0, 5.0) * 100
    means = (np.tile(np.mean(own, axis=0), (2, 1)) for own in runs)
    return {e: (fresh, mean) for e, mean in zip((2, 1), means, strict=True)}


def test_curves_averaged_over_seeds_are_compared_where_they_reach_a_value():
    own, base = [[0.1, 0.4, 0.6, 0.8], [0.3, 0.4, 0.4, 0.4]], [[0.1, 0.2, 0.3, 0.4]]
    ratio = claims.mean_ratio(curves(own, base), (2, 1), 0.3)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx([0.5] * 3)
    assert ratio.verdict == "reproduced"
    missed = claims.mean_ratio(curves(base, own), (2, 1), 0.5)
    assert str(missed).startswith(">")
    assert missed.verdict == "not reproduced"
    assert claims.mean_ratio(curves(own, base), (2, 1), 0.5) is None


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.8, 0.994, "reproduced"),
        (0.8, 0.998, "undecided"),  # as other resamples would decide
        (1.004, 1.2, "undecided"),
        (1.006, 1.2, "not reproduced"),
    ],
)
def test_an_end_of_an_interval_decides_as_it_is_printed(low, high, verdict):
    assert claims.Ratio(0.9, 0.9, low, high).verdict == verdict


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


def pairs_of(ratios):
    known = np.asarray(ratios, float)
    ends = {"reached": True, "baseline_reached": True, "effect_low": known, "effect_high": known}
    return pd.DataFrame({"search": range(len(known))} | ends)


@pytest.mark.parametrize("wins", range(20))
def test_decision_at_a_look_is_the_sign_test_at_its_level(wins):
    ratios = [0.5 + 0.01 * k for k in range(wins)] + [1.5 + 0.01 * k for k in range(21 - wins)]
    decision = evidence.decide(pairs_of(ratios), 63, 21)  # the first look has 21 pairs
    rejected = stats.binomtest(wins, 21).pvalue <= 0.05 / 3
    assert (decision.verdict != "undecided") == rejected
    if not rejected:
        assert decision.pairs == 21
        assert decision.low < 1 < decision.high


def test_a_look_takes_place_when_all_of_its_pairs_have_been_run():
    ratios = np.concatenate([np.geomspace(0.5, 2, 21), np.geomspace(0.3, 0.6, 21)])
    for complete, expected in (
        (41, ("undecided", 21)),
        (42, ("fewer", 42)),
        (20, ("undecided", 0)),
    ):
        decision = evidence.decide(pairs_of(ratios), 63, complete)
        assert (decision.verdict, decision.pairs) == expected
    decision = evidence.decide(pairs_of(np.geomspace(1.5, 2.5, 20)), 20, 20)
    assert (decision.verdict, decision.pairs) == ("more", 13)  # 7 pairs are too few to decide


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
    assert all(
        len(own) <= evidence.complete(confirmed, name) or own["reached"].notna().all()
        for name, own in uncertainty.pairs(evidence.registered(confirmed), confirmed.study).groupby(
            "condition"
        )
    )


def test_a_number_that_does_not_follow_from_the_records_is_found(tmp_path, monkeypatch):
    texts = {name: evidence.RESULTS.joinpath(name).read_text() for name in ("convex.md",)}
    monkeypatch.setattr(evidence, "files", lambda: {"convex.md": evidence.convex_page() + "\n"})
    shutil.copy(evidence.RESULTS / "convex.md", tmp_path)
    assert evidence.differing(tmp_path) == []
    records.write_bytes(tmp_path / "convex.md", texts["convex.md"].replace("0.35", "0.36").encode())
    assert evidence.differing(tmp_path) == ["convex.md"]
    (tmp_path / "convex.md").unlink()
    assert evidence.differing(tmp_path) == ["convex.md"]
