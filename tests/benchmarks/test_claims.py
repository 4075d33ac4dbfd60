"""The verdicts of benchmarks.claims follow from the sign test and the searches."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from analysis import archive, load, uncertainty
from benchmarks import claims
from runs import records
from tests.helpers.written_studies import BASELINE, BEFORE, setting, write_study

SEARCHES = pd.DataFrame({"low": [1.2, 1.5], "high": [1.2, 1.5]})


def _effect(ratios):
    """What `claims` judges of pairs with these ratios."""
    below, above = (int(count) for count in uncertainty.signs(ratios, ratios, 1.0))
    low, high, *balance = uncertainty.sign_interval(ratios, ratios)
    ends = {"effect_low": balance[0], "effect_high": balance[1], "low": low, "high": high}
    p = float(uncertainty.sign_test(below, above))
    return ends | {"below": below, "above": above, "p": p}


def test_an_interval_that_ends_at_1_does_not_contain_1():
    ratios = np.array([1.0] * 4 + [2.0] * 12 + [0.5] * 2)  # 2 below 1, 12 above, 4 ties
    effect = _effect(ratios)
    assert effect["low"] == 1.0
    assert effect["p"] < 0.05
    assert claims._by_sign_test(effect, SEARCHES).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [([2.0] * 12, "not reproduced"), ([0.5] * 12, "undecided"), ([2.0, 0.5] * 6, "undecided")],
)
def test_pairs_and_searches_must_agree(ratios, verdict):
    assert claims._by_sign_test(_effect(np.array(ratios)), SEARCHES).verdict == verdict


def test_too_few_pairs_decide_nothing():
    effect = _effect(np.full(12, 2.0)) | {"low": math.nan, "high": math.nan, "p": math.nan}
    assert claims._by_sign_test(effect, SEARCHES).verdict == "undecided"


def test_ratios_are_of_the_searches_that_both_conditions_have():
    own = pd.DataFrame({"low": [2.0, 6.0], "high": [2.0, 6.0]}, index=[1, 2])
    base = pd.DataFrame({"low": [1.0, 4.0], "high": [1.0, 4.0]}, index=[0, 1])
    ratio = claims._compared(own, base)
    assert ratio.index.tolist() == [1]
    assert ratio.iloc[0].tolist() == [0.5, 0.5]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the records of a study where claims find it. `values` are functions of the search and
    the trial, by condition."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)

    def write(conditions, values, trials=12, searches=2, **changes):
        root = tmp_path / "records"
        outcomes = {
            (name, search, trial): outcome(search, trial)
            for name, outcome in values.items()
            for search in range(searches)
            for trial in range(trials)
        }
        write_study(root, conditions, outcomes, searches=searches, **changes)
        plan = records.read_json(root / records.STUDY)
        records.write_json(root / records.STUDY, plan | {"trials": trials})
        loaded = load.read(root)
        curves = load.curves(loaded.trials, loaded.study.target.metric)
        archive.pack(loaded.study, loaded.trials, curves, tmp_path, tmp_path.name)
        return tmp_path.name  # loaded studies are cached by their names

    return write


def after(evaluations):
    """The target is reached at this evaluation."""
    return [0.1] * (evaluations - 1) + [0.9]


@pytest.mark.parametrize(
    ("costs", "lucky", "verdict"),
    [
        ((6, 3), None, "reproduced"),
        ((3, 6), None, "not reproduced"),
        ((6, 3), "baseline", "undecided"),  # its one cheap trial decides a search, but no pairs
        ((3, 6), "before_e2", "undecided"),
    ],
)
def test_fewer_examples_than_without_echoing_in_pairs_and_in_every_search(
    costs, lucky, verdict, written
):
    def outcome(name, cost):
        return lambda search, trial: after(1 if (name, search, trial) == (lucky, 1, 0) else cost)

    names = ("baseline", "before_e2")
    values = {name: outcome(name, cost) for name, cost in zip(names, costs, strict=True)}
    study = written([BASELINE, BEFORE], values)
    assert claims.against_none(study, "before_e2")().verdict == verdict
    assert claims.between(study, "before_e2", "baseline")().verdict == verdict


@pytest.mark.parametrize("judged", ["in all searches", "by further searches"])
@pytest.mark.parametrize(
    ("mode", "own", "verdict"),
    [
        *(("above", 0.6, "reproduced"), ("above", 0.4, "not reproduced")),
        *(("below", 0.4, "reproduced"), ("below", 0.6, "not reproduced")),
    ],
)
def test_a_better_value_lies_where_the_target_does(mode, own, verdict, judged, written, further):
    never = {"metric": "quality", "value": 9.0 if mode == "above" else -9.0, "mode": mode}
    values = {"baseline": lambda *_: [0.5], "before_e2": lambda *_: [own]}
    fields = {"target": never, "score": "best_value"}
    if judged == "in all searches":
        cell = claims.against_none(written([BASELINE, BEFORE], values, **fields), "before_e2")()
    else:
        study = further([BASELINE, BEFORE], values, **fields)
        cell = claims.further(study, ("before_e2", "baseline"))()
    assert (cell.verdict, cell.effect) == (verdict, pytest.approx(own - 0.5))


@pytest.mark.parametrize(("trials", "enough"), [(5, True), (4, False)])
def test_a_ratio_of_ratios_takes_ten_pairs(trials, enough, written):
    conditions = [BASELINE, BEFORE, *(setting(name, "after_batching", 2.0) for name in "cd")]
    costs = {"baseline": 8, "before_e2": 2, "c": 8, "d": 2}
    values = {name: lambda *_, cost=cost: after(cost) for name, cost in costs.items()}
    study = written(conditions, values, trials)
    smaller, larger = ("before_e2", "baseline"), ("c", "d")
    cell = claims.relative(study, smaller, larger)()
    assert cell.verdict == ("reproduced" if enough else "undecided")
    assert math.isnan(cell.low) != enough
    assert cell.tuned.startswith("0.06 [")  # (2 / 8) / (8 / 2)
    opposite = claims.relative(study, larger, smaller)()
    assert opposite.verdict == ("not reproduced" if enough else "undecided")
    assert cell.sizes[0] == "-"
    assert (cell.sizes[1] == "-") == enough  # what is decided has no size


def test_p_values_are_adjusted_for_the_problems_of_a_claim():
    cells = {
        str(k): claims.Cell(1.0, 0.9, 1.1, "", "undecided", p=p)
        for k, p in enumerate((0.04, math.nan, 0.001))
    }
    assert claims.p_values(cells) == ["0.04 (0.08)", "-", "0.001 (0.003)"]


def test_the_rules_of_the_convex_problem_take_whole_intervals_and_both_slopes():
    whole = claims.convex(4, 64, 16, bound=1.0, below=True)()
    assert whole.low < whole.effect < whole.high
    verdicts = ["not reproduced", "undecided", "reproduced"]
    for below, expected in ((True, verdicts), (False, verdicts[::-1])):
        bounds = (0.99 * whole.low, whole.effect, 1.01 * whole.high)
        found = [claims.convex(4, 64, 16, bound, below)().verdict for bound in bounds]
        assert found == expected
    falls = claims.convex_slopes(4, 256, 0.0, 0.0)().effect
    stays = float(claims.convex_slopes(4, 256, 0.0, 0.0)().tuned.split()[0])
    for steep, flat, verdict in (
        (falls + 0.1, stays - 0.1, "reproduced"),
        (falls - 0.1, stays - 0.1, "undecided"),
        (falls + 0.1, stays + 0.1, "undecided"),
        (falls - 0.1, stays + 0.1, "not reproduced"),
    ):
        assert claims.convex_slopes(4, 256, steep, flat)().verdict == verdict


def test_a_claim_names_the_factors_whose_learning_rate_is_the_smallest_tried():
    at_end = "e = {} at batch size 4: min of learning rate".format
    assert claims.convex(4, 64, 16, bound=0.8, below=False)().bounded == at_end(64)
    assert claims.convex_slopes(4, 256, -0.7, -0.3)().bounded == f"{at_end(32)}; {at_end(64)}"
    further = claims.convex(256, 4, 1, bound=0.35, below=True, page="convex_further")()
    assert further.bounded == "-"


def test_a_condition_is_bounded_by_two_winners_at_one_end():
    text = claims._bounded("grid/controls_logistic", "baseline_steps_of_e2")
    assert text == "baseline_steps_of_e2: min of learning rate in 3 of 5"
    assert not claims._bounded("grid/controls_logistic", "before_augmentation_e2")


def test_speedups_come_from_the_pages():
    cell = claims.faster("time", "digits, e = 5")()
    assert cell.verdict == "reproduced"
    assert cell.tuned.endswith("times as fast")
    assert 1 / cell.effect == pytest.approx(float(cell.tuned.split()[0]))
    assert claims.faster("time", "digits, e = 5", claimed=False)().verdict == "not reproduced"
    assert cell.sizes == ("-", "-")
    undecided = claims.faster("time", "digits, e = 5", bound=0.99 / cell.low)()
    assert undecided.verdict == "undecided"
    assert re.fullmatch(r"\d+ \(5\)", undecided.sizes[1])
    assert (
        claims.faster("time", "digits, e = 5", bound=1.01 / cell.low)().verdict == "not reproduced"
    )


@pytest.mark.parametrize(
    ("speedup", "ends", "verdict"),
    [
        ("2.00 [1.25, 4.00]", (0.25, 0.8), "reproduced"),
        ("≥2.00 [1.25, >4.00]", (0.0, 0.8), "reproduced"),
        ("2.00 [<1.25, 4.00]", (0.25, math.inf), "undecided"),
        ("1.50 to 2.50 [-, 4.00]", (0.25, math.inf), "undecided"),
        ("0.50 [0.40, 0.80]", (1.25, 2.5), "not reproduced"),
    ],
)
def test_an_open_end_of_a_speedup_is_open(speedup, ends, verdict, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(f"| e = 4 | 3.1 | {speedup} | 4 |\n")
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    cell = claims.faster("page", "e = 4")()
    assert (cell.low, cell.high) == pytest.approx(ends)
    assert cell.verdict == verdict
    known = speedup.partition(" [")[0]
    assert math.isnan(cell.effect) == (not known.replace(".", "").isdigit())


def test_ratios_of_ratios_have_the_searches_that_would_decide_them():
    sides = [(claims._e(16, size), claims._e(4, size)) for size in (64, 32)]
    cell = claims.relative("grid/logistic", *sides)()
    assert cell.verdict == "undecided"
    pairs, searches = cell.sizes
    assert pairs == "-"
    assert re.fullmatch(r">?[\d,]+ \(5\)", searches)


@pytest.fixture
def further(written, monkeypatch):
    """As `written`, of nine searches, where claims find the further searches."""

    def write(*arguments, **changes):
        study = written(*arguments, trials=2, searches=9, **changes)
        monkeypatch.setattr(
            claims, "loaded", lambda name: load.read(claims.RESULTS / archive.TRIALS, study=study)
        )
        return study

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
def test_further_searches_are_judged_by_sign_tests(ahead, second, verdict, further):
    """The first trials are the best, and are ahead in `ahead` searches; the second ones take as
    many evaluations as `second`, and those without echoing six."""
    values = {
        "baseline": lambda _, trial: after(6 if trial else 4),
        "before_e2": lambda search, trial: after(second if trial else 3 if search < ahead else 5),
    }
    study = further([BASELINE, BEFORE], values)
    assert claims.further(study, ("before_e2", "baseline"))().verdict == verdict


def test_a_further_ratio_of_ratios_is_judged_by_searches_and_pairs(further):
    conditions = [BASELINE, BEFORE, *(setting(name, "after_batching", 2.0) for name in "cd")]
    costs = {"baseline": 8, "before_e2": 2, "c": 8, "d": 2}
    values = {name: lambda *_, cost=cost: after(cost) for name, cost in costs.items()}
    study = further(conditions, values)
    smaller, larger = ("before_e2", "baseline"), ("c", "d")
    assert claims.further(study, smaller, larger)().verdict == "reproduced"
    assert claims.further(study, larger, smaller)().verdict == "not reproduced"
    assert claims.further(study, smaller, smaller)().verdict == "undecided"
