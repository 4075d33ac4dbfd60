"""Seconds and steps behind a slow input: limits, bounds, shares, and small runs."""

import re

import numpy as np
import pandas as pd
import pytest

from benchmarks import common, speedup
from benchmarks.speedup import Plan, Steady
from tests.helpers.written_studies import BASELINE, BEFORE, TARGET, write_study

PLAN = Plan(ratio=6.0, seeds=2)


def chosen(where="read", factors=(2, 8)):
    config = speedup.configuration(PLAN, "")
    return speedup.conditions(config, where, factors, ("host", "device"))


def runs(condition, bound, seconds):
    """A table of runs that took so many seconds to the target, by search and seed; negative: in
    all, without reaching it."""
    rows = []
    for search, own in enumerate(seconds):
        for seed, taken in enumerate(own):
            reached = taken > 0
            row = {"condition": condition, "bound": bound, "search": search, "seed": seed}
            row |= {"status": "reached" if reached else "exhausted", "train_seconds": abs(taken)}
            row["seconds_to_target"] = taken if reached else None
            row["fresh_examples_to_target"] = 9 if reached else None
            rows.append(row | {"fresh_examples": 9, "step": 4})
    return pd.DataFrame(rows)


def cells(table):
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {label: rest for label, *rest in lines}


def test_bursts_have_the_mean_of_the_limit():
    fields = speedup.limits("read", "burst", 300.0, 0.02)
    every, stall = (fields[f"upstream.stall{x}_seconds"] for x in ("_every", ""))
    assert every + stall == pytest.approx(64 * 0.02)
    assert fields["upstream.examples_per_second"] * every == pytest.approx(300 * (every + stall))


def test_bounds_of_the_speedup():
    bounds = {c.label: c.bound("read", 6.0) for c in chosen()}
    expected = {"no echoing": 1, "e = 2": 2, "e = 8": 6, "e = 2, device": 2, "e = 8, device": 6}
    assert bounds == expected | {"auto": 6}
    slow = {c.label: c.bound("augment", 6.0) for c in chosen("augment")}
    assert slow["before augmentation, e = 4"] == 1  # each copy is augmented
    assert slow["after augmentation, e = 4"] == slow["after batching, e = 4"] == 4
    assert slow["no echoing, device"] == 6


def test_with_searches_speedups_are_geometric_means_and_missed_targets_give_bounds():
    none = runs("no echoing", 1.0, [[4.0, 9.0], [4.0, 9.0], [4.0, -4.0]])
    echoed = runs("e = 2", 2.0, [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    _, rows = speedup.target_rows(pd.concat([none, echoed]))
    first, row = rows
    assert (first[0], first[2], first[-1]) == ("no echoing", "1", "5/6")
    assert row[2] == "3.00 to 6.00* [1.00, >6.00]"
    assert row[-1] == "6/6"


def test_shares_are_of_what_the_upstream_and_the_step_allow():
    named = {c.label: c for c in chosen()}
    rounds = [(Steady(12.0, 0.0), {"e = 2": Steady(3.0, 768.0), "auto": Steady(9.0, 512.0)})]
    rows = cells(speedup.steps_table([named["e = 2"], named["auto"]], rounds, PLAN, "read"))
    # At R = 6, the input gives 2 batches of 512 per second: 4 steps with e = 2.
    assert [cell.split()[0] for cell in rows["e = 2"]] == ["3.0", "0.75", "0.25", "0.75"]
    assert [cell.split()[0] for cell in rows["auto"]] == ["9.0", "0.75", "0.75", "0.50"]


def test_the_pace_leaves_out_the_warm_up_and_what_is_emitted_when_nothing_is_read():
    def row(step):
        slow = min(step, 20) * 5 + max(0, min(step, 60) - 20) * 0.5 + max(0, step - 60) * 0.01
        return {"step": step, "train_seconds": slow, "fresh_examples": 8 * min(step, 60)}

    pace = speedup.pace([row(step) for step in range(1, 80)])
    assert (pace.steps, pace.fresh_examples) == (pytest.approx(2.0), pytest.approx(16.0))
    with pytest.raises(SystemExit):
        speedup.pace([row(step) for step in range(1, 20)])


@pytest.mark.parametrize("flags", [[], ["--measure=steps", "--source=burst"]])
def test_a_small_run_prints_a_row_per_condition(flags, capsys, tmp_path):
    file = tmp_path / "runs.csv"
    recorded = [] if flags else ["--test-split=test", f"--csv={file}"]
    speedup.main(["--quick", "--factors=4", *recorded, *flags])
    page = capsys.readouterr().out
    rows = re.findall(r"^\| (no echoing|e = 4|auto) \| ([\d.]+)", page, re.MULTILINE)
    assert [label for label, _ in rows] == ["no echoing", "e = 4", "auto"]
    assert np.all([float(value) > 0 for _, value in rows])
    if not flags:
        header, again = speedup.target_rows(pd.read_csv(file))
        assert common.markdown_table(header, again) in page


@pytest.mark.parametrize("flags", [["--measure=steps", "--csv=runs.csv"], ["--study=grid/digits"]])
def test_flags_that_would_have_no_effect_are_refused(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        speedup.main(flags)
    assert flags[-1].split("=")[0] in capsys.readouterr().err.partition("error:")[2]


def test_metrics_on_a_test_split_are_compared_within_searches():
    none = runs("no echoing", 1.0, [[4.0, 4.0], [4.0, 4.0]]).assign(test=[0.5, 0.7, 0.1, 0.1])
    echoed = runs("e = 2", 2.0, [[2.0, 2.0], [2.0, 2.0]]).assign(test=[0.5, 0.5, 0.4, 0.2])
    _, (first, second) = speedup.target_rows(pd.concat([none, echoed]))
    assert first[-1] == "0.300"
    assert second[-1] == "+0.050 [-0.100, +0.200]"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_study_tunes_each_search(sign, tmp_path):
    """The fewest fresh examples to the target, or the best value; never a trial that diverged."""
    values = {("before_e2", 0, 0): [0.1, 0.2, 0.9], ("before_e2", 0, 1): [0.1, 0.9]}
    values |= {("before_e2", 0, 2): ([0.8], "diverged")}
    values |= {("baseline", 0, 0): [0.5, 0.6], ("baseline", 0, 1): [0.5, 0.7]}
    values |= {("baseline", 1, 0): [0.5, 0.8], ("baseline", 1, 1): [0.5, 0.7]}
    for place, own in values.items():
        own, *status = own if isinstance(own, tuple) else (own,)
        values[place] = [sign * value for value in own], *(status or [None])
    target = TARGET | {"value": sign * 0.9, "mode": "above" if sign > 0 else "below"}
    config = {"batch_size": 10, "upstream": {"examples_per_second": 9.0}}
    conditions = [BEFORE, BASELINE]
    write_study(tmp_path / "s", conditions, values, target=target, resolved_config=config)
    none, echoed = speedup.tuned(tmp_path / "s", "", "augment", (), (), 6.0)
    assert (none.label, echoed.label) == ("no echoing", "before augmentation, e = 2")
    rates = [[c.optimizer.learning_rate for c in side.configs] for side in (none, echoed)]
    assert rates == [[0.02, 0.01], [0.02]]
    assert not any(none.config.upstream.values())
    none, *others = speedup.tuned(tmp_path / "s", "", "read", (2, 4), ["host"], 6.0)
    assert [side.label for side in others] == ["e = 2", "e = 4", "auto"]
    assert [side.config.echo.factor for side in others[:2]] == [2.0, 4.0]
    assert all(side.config.optimizer.learning_rate == 0.02 for side in others)
