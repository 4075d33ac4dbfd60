"""The confirmation of a grid: its winners, its runs without a search, and its sequential looks."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import sweep
from analysis import load
from analysis.__main__ import main as analyze
from benchmarks import confirmation
from configs import catalog, problems
from tests.helpers.small_studies import QUIET, study


def test_of_equal_trials_the_first_one_of_the_first_search_wins():
    grid = confirmation.published("logistic")
    # The first trial of search 0 has not reached the target, those of later searches have.
    later = (grid.trials["search"] > 0) | (grid.trials["trial"] > 0)
    reached = grid.trials["counted"] & later
    trials = grid.trials.assign(fresh_examples_to_target=reached.map({True: 99.0, False: math.nan}))
    winners = confirmation.winners(dataclasses.replace(grid, trials=trials))
    fields = [axis.field for axis in grid.study.space]
    for condition, own in trials[reached].groupby("condition"):
        first = own[own["search"] == 0].sort_values("trial").iloc[0]
        assert winners[condition] == first[fields].to_dict()


@pytest.mark.parametrize("problem", ["documents", "photographs", "common_cadence_sentences"])
def test_the_packed_winners_are_those_of_the_packed_grid(problem):
    chosen = json.loads(confirmation.problems.WINNERS.read_text())[problem]
    assert chosen == confirmation.winners(confirmation.published(problem))


def test_condition_with_an_unfinished_search_has_no_winner():
    grid = load.read("results/trials.parquet", study="grid/documents")
    counted = grid.trials.groupby("condition")["counted"].sum()
    assert 0 < counted["before_augmentation_e2_b32"] < grid.study.trials  # it was interrupted
    half = grid.trials.index[grid.trials["condition"] == "before_augmentation_e4_b16"][-6:]
    grid = dataclasses.replace(grid, trials=grid.trials.drop(index=half))
    reached = grid.trials[grid.trials["fresh_examples_to_target"].notna()]
    assert "before_augmentation_e4_b16" in set(reached["condition"])
    winners = {f"before_augmentation_e{factor}_b16" for factor in (2, 16)}
    assert set(confirmation.winners(grid)) == {"baseline_b16", "after_batching_e2_b16"} | winners


def test_confirmation_takes_the_conditions_whose_baseline_has_a_winner():
    numbers = problems.PROBLEMS["logistic"].workload.MINI_NUMBERS
    rate = {"optimizer.learning_rate": 0.1}
    winners = {"baseline_b32": rate, "before_augmentation_e2_b32": {"optimizer.learning_rate": 0.2}}
    winners |= {"before_augmentation_e2_b64": rate}  # no winner without echoing at this size
    grid = catalog.registered(numbers, (2, 4), 20, winners)["confirmation"]
    assert list(grid["conditions"]) == ["baseline_b32", "before_augmentation_e2_b32"]
    assert grid["conditions"]["before_augmentation_e2_b32"]["optimizer.learning_rate"] == 0.2
    assert (grid["trials"], grid["searches"], grid["space"]) == (1, 20, ())
    assert "confirmation" not in catalog.registered(numbers, (2, 4), 20, {})


def test_winners_at_a_common_cadence_are_confirmed_at_it_with_the_same_seeds():
    studies = problems.get_studies("logistic")
    own, grid = studies["confirmation_common_cadence"], studies["confirmation"]
    assert own["overrides"] == grid["overrides"]
    assert (own["trials"], own["searches"], own["space"]) == (1, grid["searches"], ())
    assert set(own["conditions"]) < set(grid["conditions"])
    every = {c["evaluate_every_fresh_examples"] for c in own["conditions"].values()}
    assert every == {problems.get_config("logistic").evaluate_every_fresh_examples}


def test_weight_decay_is_tried_at_the_winners_and_at_the_setting_of_no_echoing():
    numbers = problems.PROBLEMS["sentences"].workload.MINI_NUMBERS
    rates = {"baseline_b32": 0.1, "before_augmentation_e16_b32": 0.2}
    winners = {name: {"optimizer.learning_rate": rate} for name, rate in rates.items()}
    studies = catalog.registered(numbers, (16,), 20, winners)
    conditions = studies["weight_decay_of_winners"]["conditions"]
    settings = {
        (c["echo.factor"], c["optimizer.learning_rate"], c["optimizer.weight_decay"])
        for c in conditions.values()
    }
    sides = ((1, 0.1), (16, 0.2), (16, 0.1))
    assert settings == {(*side, decay) for side in sides for decay in (0, 1e-4, 1e-3, 1e-2)}
    assert len(conditions) == len(settings)
    own = studies["confirmation"]["conditions"]["before_augmentation_e16_b32"]
    assert own.items() <= conditions["e16_decay_0.001"].items()
    del winners["before_augmentation_e16_b32"]
    assert "weight_decay_of_winners" not in catalog.registered(numbers, (16,), 20, winners)


@pytest.mark.long
def test_study_without_axes_runs_and_is_decided(tmp_path):
    plan = study(trials=1, searches=3, axes=(), target__value=0.1)
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    loaded = load.read(tmp_path / "study")
    assert len(loaded.trials) == 6
    decisions = confirmation.decisions(loaded, planned=3)
    assert [decision.pairs for decision in decisions.values()] == [3]
    assert "before augmentation, e = 2" in confirmation.report({"digits": (loaded, 3)})
    analyze([str(tmp_path / "study"), f"--out={tmp_path / 'report'}"])


def fresh_examples(packed):
    """By pair and condition."""
    values = packed.trials.pivot(
        index="search", columns="condition", values="fresh_examples_to_target"
    )
    return values.astype(float)


def test_all_pairs_give_the_median_of_their_ratios_and_its_interval():
    packed = load.read("results/trials.parquet", study="grid/confirmation_sentences")
    needed = fresh_examples(packed)
    finals = confirmation.finals(packed)
    assert len(finals) == 4
    for condition, seen in finals.items():
        ratios = np.sort(needed[condition] / needed["baseline_b32"])
        assert seen.pairs == 20
        assert seen.effect == pytest.approx(np.median(ratios), rel=0.02)
        assert [seen.low, seen.high] == pytest.approx(ratios[[5, 14]], rel=0.03)


def test_confirmed_conditions_are_compared_with_one_another():
    """The ratios of runs with matched seeds, against pandas."""
    packed = load.read("results/trials.parquet", study="grid/confirmation_sentences")
    (factors, points) = confirmation.compared(packed)
    needed = fresh_examples(packed)
    for row, own, other in (
        (factors, "before_augmentation_e4_b32", "before_augmentation_e16_b32"),
        (points, "before_augmentation_e2_b32", "after_batching_e2_b32"),
    ):
        ratios = needed[own] / needed[other]
        assert float(row[3]) == pytest.approx(ratios.median(), abs=0.015)
        ends = np.sort(ratios)[[5, 14]]  # those that the sign test of 20 pairs leaves
        assert [float(end) for end in row[4].split(" to ")] == pytest.approx(ends, abs=0.03)


def _pairs(ratios):
    known = np.asarray(ratios, float)
    return pd.DataFrame(
        {
            "search": range(len(known)),
            "reached": True,
            "baseline_reached": True,
            "effect_low": known,
            "effect_high": known,
        }
    )


def test_a_clear_effect_is_decided_at_the_first_look():
    decision = confirmation.decide(_pairs(np.geomspace(0.4, 0.6, 64)), 64, 64)
    assert (decision.verdict, decision.pairs) == ("fewer", 21)
    decision = confirmation.decide(_pairs(np.geomspace(1.5, 2.5, 20)), 20, 20)
    assert (decision.verdict, decision.pairs) == ("more", 13)  # 7 pairs are too few to decide


def test_a_look_takes_place_when_all_of_its_pairs_have_been_run():
    ratios = np.concatenate([np.geomspace(0.5, 2, 21), np.geomspace(0.3, 0.6, 21)])
    pairs = _pairs(ratios)
    decision = confirmation.decide(pairs, 63, 41)  # one pair is missing at the second look
    assert (decision.verdict, decision.pairs) == ("undecided", 21)
    decision = confirmation.decide(pairs, 63, 42)
    assert (decision.verdict, decision.pairs) == ("fewer", 42)
    assert confirmation.decide(pairs, 63, 20).pairs == 0


def test_only_the_first_run_of_each_pair_counts():
    """A run that diverged is tried again with another model seed, which forms no pair, even where
    both sides diverged."""
    packed = load.read("results/trials.parquet", study="grid/confirmation_documents_search_0")
    again = packed.trials[packed.trials["trial"] > 0]
    assert len(set(again["condition"])) > 1  # in the same search
    first = packed.trials[packed.trials["trial"] == 0]
    needed = first.pivot(index="search", columns="condition", values="fresh_examples_to_target")
    for name, seen in confirmation.finals(packed).items():
        assert seen.pairs == needed[[name, "baseline_b16"]].notna().all(axis=1).sum()


@pytest.mark.parametrize("wins", range(20))
def test_decision_at_a_look_is_the_sign_test_at_its_level(wins):
    ratios = [0.5 + 0.01 * k for k in range(wins)] + [1.5 + 0.01 * k for k in range(21 - wins)]
    decision = confirmation.decide(_pairs(ratios), 63, 21)  # the first look has 21 pairs
    rejected = stats.binomtest(wins, 21).pvalue <= 0.05 / 3
    assert (decision.verdict != "undecided") == rejected
    if not rejected:
        assert decision.pairs == 21
        assert decision.low < 1 < decision.high


def test_runs_that_miss_the_target_count_on_their_side():
    pairs = _pairs(np.full(21, 0.9))
    pairs["baseline_reached"] = False
    pairs["effect_low"] = 0.0
    decision = confirmation.decide(pairs, 63, 63)
    assert decision.verdict == "fewer"
    assert math.isnan(decision.effect)
