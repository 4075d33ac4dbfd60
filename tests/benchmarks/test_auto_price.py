"""The cost model of auto: closed forms, and decisions that the library replays."""

import json

import grain
import numpy as np
import pytest

import echo
from benchmarks import auto_price
from benchmarks.auto_price import AHEAD, BATCH_SIZE, BUFFER, PERIOD, Upstream

BUDGET = 4_000


@pytest.mark.parametrize("ratio", [2, 6, 16])
@pytest.mark.parametrize("factor", [1, 4, 16])
def test_fixed_factors_take_the_slower_of_step_and_input(ratio, factor):
    ends = auto_price.fixed_times(Upstream(ratio, "constant"), BUDGET, factor)
    pace = np.diff(ends[len(ends) // 2 :]).mean()
    assert pace == pytest.approx(max(1, ratio / factor), rel=0.03)


@pytest.mark.parametrize("kind", auto_price.KINDS)
@pytest.mark.parametrize("ratio", [2, 6, 16])
def test_upstreams_deliver_the_mean_that_r_says_if_nothing_holds_them_up(ratio, kind):
    upstream, count = Upstream(ratio, kind), 4096
    for _ in range(count):
        arrival = upstream.arrival
        upstream.take(arrival)
    assert arrival == pytest.approx(count * ratio / BATCH_SIZE, abs=PERIOD)
    phase = arrival % PERIOD
    assert kind == "constant" or phase <= auto_price.BURST


def test_an_upstream_waits_when_it_is_too_far_ahead():
    upstream = Upstream(2, "constant")
    for _ in range(AHEAD * BATCH_SIZE):
        upstream.take(1000.0)  # all of them had arrived long before
    assert upstream.arrival == pytest.approx(1000.0 + 2 / BATCH_SIZE)


@pytest.mark.parametrize("kind", auto_price.KINDS)
@pytest.mark.parametrize(("ratio", "max_factor"), [(2, 4), (6, 4), (6, 16), (16, 16)])
def test_auto_uses_its_budget_and_no_more_copies_than_allowed(kind, ratio, max_factor):
    ends, decisions = auto_price.auto_times(Upstream(ratio, kind), BUDGET, max_factor)
    assert len(ends) == len(decisions)
    assert BUDGET - BATCH_SIZE < sum(decisions) <= BUDGET
    assert len(decisions) <= max_factor * BUDGET / BATCH_SIZE


@pytest.mark.parametrize(("ratio", "max_factor"), [(2, 4), (6, 16)])
def test_auto_never_waits_behind_a_constant_upstream_that_copies_outlast(ratio, max_factor):
    ends, _ = auto_price.auto_times(Upstream(ratio, "constant"), BUDGET, max_factor)
    waited = np.diff(ends) > 1 + 1e-6
    assert not waited[1:].any()  # the first batch has nothing to repeat


def test_auto_requests_no_batch_before_the_step_before_it_has_begun():
    """A burst at twice the step's speed is taken as fast as steps use it, and a little ahead."""
    ends, decisions = auto_price.auto_times(Upstream(2, "bursty"), BUDGET, 16)
    fresh = np.bincount((ends / PERIOD).astype(int), decisions)
    assert fresh.max() <= (auto_price.BURST + AHEAD + 1) * BATCH_SIZE


@pytest.mark.long
def test_the_page_is_that_of_the_records():
    saved = json.loads(auto_price.RECORDS.read_text())
    page = auto_price.RECORDS.with_suffix(".md").read_text()
    assert auto_price.report(saved) + "\n" == page


@pytest.mark.long
def test_a_study_that_was_stopped_is_not_collected(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_price.sweep, "run", lambda *_: "preempted")
    with pytest.raises(SystemExit, match="the same command resumes"):
        auto_price.run_further("digits", tmp_path)


def test_without_a_slow_upstream_auto_does_not_echo():
    _, decisions = auto_price.auto_times(Upstream(0.5, "constant"), BUDGET, 16)
    assert decisions == [BATCH_SIZE] * (BUDGET // BATCH_SIZE)


def test_the_library_replays_the_simulated_decisions():
    _, decisions = auto_price.auto_times(Upstream(6, "bursty"), BUDGET, 4)
    batches = echo.OpportunisticIterDataset(
        grain.MapDataset.range(BUDGET),
        max_factor=4,
        shuffle_buffer=BUFFER,
        batch_size=BATCH_SIZE,
        annotate=True,
        decisions=decisions,
    )
    fresh = [int((batch.copy == 0).sum()) for batch in batches]
    assert fresh == decisions


def test_report_takes_the_best_factor_of_each_cell(monkeypatch):
    monkeypatch.setattr(auto_price, "PROBLEMS", {"digits": ("", 0.97, BUDGET)})
    runs = {f"e{e}": [[100, 100, "reached"]] * 10 for e in auto_price.FACTORS}
    runs["e4"] = [[50, 50, "reached"]] * 9 + [[None, 1000, "diverged"]]
    for cell in auto_price.auto_cells("digits"):
        runs[auto_price.auto_name(*cell)] = [[50, 50, "reached"]] * 10
    cell = auto_price.measured("digits", 2, "constant", 8, runs)
    assert cell.factor == 4
    assert cell.ratio < 1.2
    assert cell.missed == 1
    slow = auto_price.measured("digits", 16, "constant", 8, runs)
    assert slow.factor == 16  # the same steps at every factor, but e = 16
    saved = {"steps": dict.fromkeys(auto_price.PROBLEMS, runs)}
    text = auto_price.report(json.loads(json.dumps(saved)))
    assert "| digits, R = 2, constant | 8 | 4 |" in text


def _further_study(problem, root, monkeypatch):
    """The conditions that `run_further` would train."""
    studies = []
    with monkeypatch.context() as patched:
        patched.setattr(
            auto_price.sweep, "run", lambda study, *_: studies.append(study) or "finished"
        )
        auto_price.run_further(problem, root)
    (study,) = studies
    known = auto_price.configuration(problem)
    assert study.searches == auto_price.FURTHER_SEEDS
    assert study.config.seed.data == known.seed.data + auto_price.SEEDS
    assert study.config.seed.model == known.seed.model + 10_000 * auto_price.SEEDS
    return [condition.name for condition in study.conditions]


@pytest.mark.long
def test_further_seeds_are_new_and_judge_every_cell_again(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_price, "PILOTED", ("digits",))
    runs = {}
    for name in _further_study("digits", tmp_path, monkeypatch):
        steps = 150 if name.startswith("auto") else 100
        runs[name] = [[steps, steps, "reached"]] * 40
    runs["auto_r2_constant_m16"] = [[90, 90, "reached"]] * 40
    about, table = auto_price.further_seeds({"digits": runs})
    assert table.count("\n| digits") == 6
    met = [float(line.split("|")[6]) <= auto_price.GOAL for line in table.splitlines()[2:]]
    assert f"{sum(met)} of 6 cells" in about
    assert 0 < sum(met) < 6


@pytest.mark.long
def test_auto_is_compared_with_the_medians_of_earlier_versions(tmp_path, monkeypatch):
    names = _further_study("digits", tmp_path, monkeypatch)
    runs = {name: [[100, 100, "reached"]] * 40 for name in names}
    monkeypatch.setattr(auto_price, "PILOTED", ("digits",))
    cells = auto_price._further_cells({"digits": runs}, auto_price.QUARTER)
    now = np.asarray([cell.auto for _, cell in cells])
    earlier = {"close copies": {"digits": 8 * now}, "no reserve": {"digits": 4 * now}}
    monkeypatch.setattr(auto_price, "_EARLIER", earlier)
    text = auto_price.earlier_versions({"digits": runs})
    assert "the twelve cells is 0.500 (digits 0.500) of what it was" in text
    assert "it is 0.250 (digits 0.250) of that in the four cells at R = 16, with 8 copies" in text
    # as many steps with more copies, which come sooner
    assert "over the six cells of digits, the ratio is 0.8" in text
