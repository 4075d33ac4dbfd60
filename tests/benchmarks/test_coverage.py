"""The intervals of the reports have their stated coverage, in simulated studies."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis import scores, uncertainty
from benchmarks import coverage, wall_time
from benchmarks.coverage import Setting
from runs import records
from runs.study import Condition, Study

STUDIES, POOL = 400, 24
MARGIN = 0.03  # allowed shortfall from the nominal level; the standard error is 0.01

MATCHED = Setting(by_trial=True, noise=0.3)
CLAIMED = {
    "five searches": (coverage.by_search, Setting()),
    "five searches, fine evaluations": (coverage.by_search, Setting(cadence=10.0)),
    "five searches, half of them censored": (
        coverage.by_search,
        Setting(noise=0.4, censored=0.5, between=0.2),
    ),
    "five searches that differ, another optimum": (
        coverage.by_search,
        Setting(ratio=0.25, apart=0.2, shift=0.5),
    ),
    "10 pairs": (coverage.by_trial, dataclasses.replace(MATCHED, searches=1, trials=10)),
    "20 pairs, half censored": (
        coverage.by_trial,
        dataclasses.replace(MATCHED, searches=2, trials=10, censored=0.5),
    ),
    "64 pairs": (
        coverage.by_trial,
        dataclasses.replace(MATCHED, searches=4, cadence=10.0),
    ),
    "64 pairs, coarse evaluations, half censored": (
        coverage.by_trial,
        dataclasses.replace(MATCHED, searches=4, noise=0.05, ratio=0.25, censored=0.5),
    ),
    "ten seeds of wall_time": (coverage.of_benchmark, Setting(ratio=0.25)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMED)
def test_an_interval_covers_its_nominal_level(name):
    rows = coverage.simulated([CLAIMED[name]], STUDIES, POOL)
    claimed = [row for row in rows if row.claimed]
    assert len(claimed) == 1
    assert claimed[0].covered >= claimed[0].nominal - MARGIN


def test_continuous_ratios_cover_exactly_their_level():
    """An interval that covers everything would pass the other tests."""
    search = coverage.by_search(
        np.random.default_rng(0), Setting(cadence=1.0), studies=1000, pool=POOL
    )[0]
    assert search.covered == pytest.approx(search.nominal, abs=0.025)
    many = dataclasses.replace(MATCHED, searches=4, cadence=1.0)
    (pairs,) = coverage.by_trial(np.random.default_rng(0), many, 1000, POOL)
    # 64 signs are discrete: their interval has level 0.9676.
    assert pairs.covered == pytest.approx(0.9676, abs=0.02)


def test_intervals_that_are_not_claimed_to_cover_do_not_cover():
    """Effects that differ by search, and a benchmark that tunes once."""
    apart = dataclasses.replace(MATCHED, searches=4, noise=0.2, apart=0.2)
    (pairs,) = coverage.simulated([(coverage.by_trial, apart)], STUDIES, POOL)
    assert not pairs.claimed
    assert pairs.covered < 0.9
    tuned = coverage.simulated([CLAIMED["ten seeds of wall_time"]], STUDIES, POOL)[1]
    assert not tuned.claimed
    assert tuned.covered < 0.9


def test_simulation_and_analysis_give_the_same_intervals():
    random = np.random.default_rng(5)
    setting = Setting(searches=3, trials=6, noise=0.4)
    cost, counted, _ = coverage.costs(random, setting, 1, POOL)
    score, end = coverage.scored(cost[0], setting.cadence), 6400.0
    rows = [
        {
            "condition": name,
            "label": name,
            "insertion": insertion,
            "search": search,
            "trial": trial,
            "status": "reached" if value <= end else "exhausted",
            "model_seed": 100 * search + trial,
            "counted": bool(counted[0, side, search, trial]),
            "lanes": 1,
            "workers": 1,
            "fresh_examples_to_target": value if value <= end else None,
            "fresh_examples_before_target": value - setting.cadence if value <= end else None,
            "steps_to_target": 1.0,
            "seconds_to_target": 1.0,
            "fresh_examples": min(value, end),
            "steps": 1,
            "train_seconds": 1.0,
            "best_value": 0.5,
        }
        for side, (name, insertion) in enumerate(
            (("baseline", "none"), ("echoed", "before_augmentation"))
        )
        for (search, trial), value in np.ndenumerate(score[side])
    ]
    trials = pd.DataFrame(rows).astype({"fresh_examples_to_target": float})
    conditions = (
        Condition("baseline", "baseline", {}),
        Condition("echoed", "echoed", {}, "before_augmentation", factor=2.0),
    )
    target = records.Target("accuracy", 0.9, "above")
    study = Study("s", conditions, target, "baseline", trials=6, searches=3, budget=6400)
    table = scores.condition_scores(trials, study)
    best = coverage.best(cost[0], counted[0], setting.cadence)
    low, high = coverage.ends(best, end)
    assert (table.loc[1, "ratio_min"], table.loc[1, "ratio_max"]) == pytest.approx(
        ((low[1] / high[0]).min(), (high[1] / low[0]).max())
    )
    effects = uncertainty.paired_effects(uncertainty.pairs(trials, study), study)
    both = counted[0, 0] & counted[0, 1]
    (own, own_high), (base, base_high) = (
        coverage.ends(score[side][both], end, setting.cadence) for side in (1, 0)
    )
    expected = uncertainty.sign_interval(own / base_high, own_high / base)
    assert effects.loc[0, ["low", "high"]].tolist() == pytest.approx(expected[:2])


def test_command_writes_the_page(capsys, tmp_path, monkeypatch):
    some = [CLAIMED["five searches"], (coverage.of_band, Setting(searches=3))]
    monkeypatch.setattr(coverage, "all_simulations", lambda: some)
    coverage.main(["--quick", f"--out={tmp_path / 'coverage.md'}"])
    text = (tmp_path / "coverage.md").read_text()
    assert text == capsys.readouterr().out
    assert "| ratio by search, [min, max] of 5 | ratio 0.6, noise 0.2 | 93.75 % |" in text
    assert "score_by_trials' band at 16 of 16 trials, of a new search's score *" in text


def test_wall_time_report_says_what_its_interval_covers():
    plan = wall_time.Plan(factors=(1, 2), on_device=())
    reached = {"seconds_to_target": 2.0, "train_seconds": 2.0, "fresh_examples": 9, "step": 3}
    reached |= {"status": "reached"}
    results = {c.label: [reached] * 10 for c in wall_time.conditions(plan)}
    results["e = 2"] = [reached] * 9 + [
        reached | {"seconds_to_target": None, "status": "exhausted"}
    ]
    text, _ = wall_time.report(plan, results, 0.01, 100.0)
    assert "at the hyperparameters that one search found" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = {row.split(" | ")[0]: row.split(" | ")[2] for row in rows}
    assert cells["| e = 2"] == "≤1.00"  # a run that ended took longer than its seconds say
    assert cells["| auto"] == "1.00 (1.00 to 1.00)"
