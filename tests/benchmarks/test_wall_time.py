"""Seconds to a target behind a slow upstream: the page, and what it is made from."""

import functools
import re
from collections import Counter

import pytest

from analysis import load
from benchmarks import common, wall_time
from data import throttle
from runs import records
from runs.study import nested
from training import check


@pytest.mark.long
def test_the_page_follows_from_the_runs_and_starting_again_trains_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(wall_time, "WORKERS", 1)  # each takes seconds to start
    words = ["--quick", "--trials=1", "--searches=1", f"--runs={tmp_path / 'runs'}"]
    wall_time.main(words)
    page = capsys.readouterr().out

    @functools.cache
    def run(label):
        directory = tmp_path / "runs" / "paired" / label / "0"
        return [records.read_json(directory / name) for name in (records.CONFIG, records.RESULT)]

    rows = dict(re.findall(r"^\| (\S.*?) \| (.*) \|$", page, re.MULTILINE))
    assert page.startswith("# Seconds to 50% behind an upstream with R = 6\n")
    assert {"e = 1", "e = 4", "e = 4, device", "auto"} < set(rows)
    for label in ("e=1", "e=4", "e=4,device", "auto"):
        config, result = run(label)
        assert result["status"] in ("reached", "exhausted")
        base = run("e=1")[1]
        speedup, *_, steps, reached, _ = rows[_spaced(label)].split(" | ")[1:]
        if label != "e=1" and base["status"] == result["status"] == "reached":
            ratio = base["seconds_to_target"] / result["seconds_to_target"]
            assert speedup.split()[0] == f"{ratio:.2f}"
        assert float(steps) == pytest.approx(result["step"] / result["train_seconds"], abs=0.06)
        assert reached == f"{int(result['status'] == 'reached')}/1"
        assert config["config"]["seed"] == run("e=1")[0]["config"]["seed"]
        assert config["config"]["upstream"] == run("e=1")[0]["config"]["upstream"]

    (tuned,) = (tmp_path / "runs" / "fixed" / "e4").rglob(records.HPARAMS)
    hparams = records.read_json(tuned)["hparams"]
    for label in ("e=4", "e=4,device"):  # which shares the host's hyperparameters
        config = run(label)[0]["config"]
        for field, value in hparams.items():
            assert nested(config, field) == value

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob(records.METRICS)}
    wall_time.main(words)
    assert capsys.readouterr().out == page
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_slow_augmentation_limits_the_host_and_not_reading():
    plan = wall_time.Plan(augmentation=True)
    base, *others = conditions = wall_time.conditions(plan)
    for condition in conditions:
        overrides = condition.overrides | wall_time.upstream(plan, 2_500.0)
        config = common.overridden(wall_time.configuration(plan), overrides)
        check.check(config)
        assert throttle.limits(config).none
        assert throttle.augmentation_limiter(config)
    assert base.overrides["echo.insertion"] == "none"
    points = {c.overrides["echo.insertion"]: c for c in others if "device" not in c.label}
    assert points.keys() == {"before_augmentation", "after_augmentation", "after_batching"}
    assert points["before_augmentation"].ideal == 1  # each copy is augmented
    assert points["after_augmentation"].label == wall_time.timed(plan)
    (on_device,) = (c for c in others if c.overrides.get("augment_on") == "device")
    assert (on_device.search, on_device.ideal) == (base.search, plan.ratio)


def test_the_page_of_a_slow_augmentation():
    plan = wall_time.Plan(augmentation=True, searches=5, seeds=1)
    seconds = {"no echoing": 12.0, "after augmentation, e = 4": 4.0}
    results = _searches(plan, lambda condition: seconds.get(condition.label, 12.0))
    tuned = wall_time.Tuned({}, Counter(), step_seconds=0.03, rate=2_500.0)
    page, _ = wall_time.report(plan, results, tuned)
    assert page.startswith("# Seconds to 97% behind a slow augmentation with R = 6\n")
    assert "the host augments at most 2500 examples per second" in page
    assert "| after augmentation, e = 4 | 6.00 | 2.33 [2.00, 3.00] | 4 |" in page
    assert "| before augmentation, e = 4 | 14.00 | 1.00 [1.00, 1.00] | 1 |" in page
    assert "Choi et al." not in page


def test_the_page_gives_bounds_where_runs_missed_the_target():
    plan = wall_time.Plan(factors=(1, 2), on_device=(), searches=5, seeds=2)
    reached = {"seconds_to_target": 2.0, "train_seconds": 2.0, "fresh_examples": 9, "step": 3}
    reached |= {"status": "reached"}
    missed = reached | {"seconds_to_target": None, "status": "exhausted"}
    results = {c.label: [[reached] * 2 for _ in range(5)] for c in wall_time.conditions(plan)}
    results["auto"][4] = [reached | {"seconds_to_target": 0.5}] * 2
    results["e = 2"][:3] = [[reached, missed]] * 2 + [[reached, missed | {"status": "diverged"}]]
    tuned = wall_time.Tuned({}, Counter(e2=1), step_seconds=0.01, rate=100.0)
    text, _ = wall_time.report(plan, results, tuned)
    assert "speedup over e = 1 [93.75% interval]" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["| e = 2"][1] == "≤1.00 [<1.00, 1.00]"  # a run that ended took longer than it says
    assert cells["| e = 2"][-2:] == ["7/10, 1 diverged", "4/5 |"]
    assert cells["| auto"][1] == "1.00 [1.00, 4.00]"
    assert cells["| e = 1"][:2] == ["2.00", "1"]


def test_each_search_gives_the_fastest_trial_or_the_best():
    def trial(search, status, value, seconds=None, **hparams):
        result = {"status": status, "seconds": seconds, "best": {"value": value}}
        return {"place": ("e1", search), "hparams": hparams, "result": result}

    trials = [
        trial(0, "reached", 0.9, 5.0, rate=1),
        trial(0, "reached", 0.9, 4.0, rate=2),
        trial(0, "exhausted", 0.8, rate=3),
        trial(1, "exhausted", 0.7, rate=4),
        trial(1, "exhausted", 0.8, rate=5),
        trial(1, "diverged", 0.89, rate=6),
    ]
    best, missed = wall_time.best_trials(trials, lambda result: result["seconds"])
    assert best == {("e1", 0): {"rate": 2}, ("e1", 1): {"rate": 5}}
    assert missed == {"e1": 1}


def test_a_problem_has_the_best_trials_of_its_grid():
    plan = wall_time.of_problem(wall_time.Plan(), "cells")
    assert (plan.batch_size, plan.budget, plan.target) == (16, 3_000, 0.225)
    none, echoed = chosen = wall_time.conditions(plan)
    hparams, missed = wall_time.best_of_grid(plan)
    assert hparams.keys() == {(c.search, number) for c in chosen for number in range(5)}
    assert missed == {none.search: 1, echoed.search: 0}
    trials = load.read(wall_time.RECORDS, study="grid/cells").trials
    own = trials[(trials["condition"] == "before_augmentation_e4_b16") & trials["counted"]]
    for (name, search), chosen in hparams.items():
        if name == echoed.search:
            group = own[own["search"] == search]
            first = group.loc[group["fresh_examples_to_target"].idxmin()]
            assert chosen == {field: first[field] for field in chosen}
    config = common.overridden(wall_time.configuration(plan), hparams[echoed.search, 0])
    check.check(common.overridden(config, echoed.overrides | wall_time.upstream(plan, 99.0)))


def test_a_problem_has_as_many_searches_as_its_grid_has_finished(capsys):
    plan = wall_time.of_problem(wall_time.Plan(), "documents")
    study = load.read(wall_time.RECORDS, study="grid/documents")
    assert plan.searches == study.trials[study.trials["batch_size"] == 16]["search"].nunique()
    assert wall_time.of_problem(wall_time.Plan(searches=2), "documents").searches == 2
    with pytest.raises(SystemExit):
        wall_time.main(["--problem=cells", "--batch-size=32"])
    assert "--problem has batch_size of its grid" in capsys.readouterr().err


def test_the_page_of_a_problem():
    plan = wall_time.of_problem(wall_time.Plan(), "sentences")
    results = _searches(plan, lambda condition: 12.0 / condition.ideal)
    tuned = wall_time.Tuned({}, Counter(), step_seconds=0.01, rate=500.0)
    page, _ = wall_time.report(plan, results, tuned)
    assert page.startswith("# Seconds to the target of sentences behind an upstream with R = 6\n")
    assert "`python -m benchmarks.wall_time --problem=sentences`" in page
    assert "5 searches of [the grid](protocol.md) tune each condition" in page
    assert "| e = 4 | 5.00 | 2.80 [2.29, 4.00] | 4 |" in page


def _searches(plan, seconds):
    """One run of each of five searches of every condition, a second longer from one to the next."""
    return {
        condition.label: [[_reached(seconds(condition) + search)] for search in range(5)]
        for condition in wall_time.conditions(plan)
    }


def _reached(seconds):
    rest = {"fresh_examples": 8_192, "step": 64, "status": "reached"}
    return rest | {"seconds_to_target": seconds, "train_seconds": seconds}


def _spaced(label):
    return label.replace("=", " = ").replace(",", ", ")
