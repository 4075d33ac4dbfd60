"""The regressions beside the forecast equal scikit-learn's; pilots show nothing of the rest."""

import collections
import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest

from analysis import load
from benchmarks import forecast_accuracy, forecast_grid, pilot_seeds
from configs import problems
from echo.advice.forecast import Run
from tests.helpers.runs import ROOT

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)


def user(problem, seed, *, target=0.1, budget=4000.0, price=0.1):
    """A user whose curves follow the law of test_forecast.py, with noise."""
    noise, runs = np.random.default_rng(seed), {}
    for e in FACTORS:
        fresh = np.linspace(50, budget, 60)
        scale = 1.1 ** noise.standard_normal()
        runs[e] = Run(e, fresh, fresh * e / 32, 30 * scale * (1 + price * e) / e**0.5 / fresh)
    return forecast_accuracy.User(problem, (problem, 0, seed, 32), 32, target, budget, runs)


def example(problem, seed, slope=0.3, missing=False):
    online = np.random.default_rng(seed).standard_normal(7)
    truth = {e: slope * online[0] + math.log(e) for e in (2.0, 16.0)}
    if missing:
        online[3] = math.nan
    return forecast_grid.Example(user(problem, seed), online, {2.0: 0.1, 16.0: 0.9}, truth)


@pytest.mark.parametrize("kind", ["mean", "online", "both"])
def test_a_regression_is_ridge_regression_with_equal_weight_for_each_problem(kind):
    linear_model = pytest.importorskip("sklearn.linear_model")
    examples = [example("a", n) for n in range(20)] + [example("b", 100 + n) for n in range(5)]
    predict = forecast_grid.regression(kind, examples, 16.0)

    weights = np.array([25 / 2 / 20] * 20 + [25 / 2 / 5] * 5)
    x = np.array([forecast_grid.inputs(kind, one, 16.0) for one in examples])
    y = np.array([one.truth[16.0] for one in examples])
    fresh = example("c", 999)
    if kind == "mean":
        assert predict(fresh) == pytest.approx(np.average(y, weights=weights))
        return
    center = np.average(x, axis=0, weights=weights)
    scale = np.sqrt(np.maximum(np.average((x - center) ** 2, axis=0, weights=weights), 1e-9))
    ridge = linear_model.Ridge(alpha=1.0).fit((x - center) / scale, y, sample_weight=weights)
    wanted = ridge.predict((forecast_grid.inputs(kind, fresh, 16.0) - center)[None] / scale)
    assert predict(fresh) == pytest.approx(float(wanted[0]))


def test_a_missing_measurement_takes_the_mean():
    examples = [example("a", n, missing=n % 2 == 0) for n in range(20)]
    predict = forecast_grid.regression("online", examples, 16.0)
    known = np.array([one.online[3] for one in examples])
    one = example("b", 500)
    one.online[3] = math.nan
    at_mean = example("b", 500)
    at_mean.online[3] = np.nanmean(known)
    assert predict(one) == pytest.approx(predict(at_mean))


def test_the_factor_with_the_fewest_predicted_seconds_is_chosen():
    answer = {1.0: 0.8, 4.0: 0.0, 16.0: -0.5}
    assert forecast_grid.chosen(answer, math.inf) == 16.0
    assert forecast_grid.chosen(answer, 16.0) == 16.0
    assert forecast_grid.chosen(answer, 6.0) == 4.0  # e = 16 takes 16 / 6 as long per example


def test_a_regression_does_not_choose_a_factor_whose_pilot_diverged(monkeypatch):
    monkeypatch.setattr(forecast_grid, "measurements", lambda user: np.zeros(7))
    one = user("made", 0, target=0.02)
    end = np.array([100.0])
    one.runs[4.0] = Run(4.0, end, end / 8, np.array([math.nan]))
    assert set(forecast_grid.Example.of(one).law) == {1.0, 2.0, 8.0, 16.0}
    answer = forecast_grid.allowed(one, {4.0: 0.0, 16.0: 0.5, 32.0: -1.0})
    assert answer == {16.0: 0.5}


@pytest.mark.long
def test_users_of_the_grid_come_with_the_records_of_their_gradients():
    packed = forecast_grid.RESULTS / "digits.tar.xz"
    users = forecast_accuracy.recorded_users("digits", "digits", packed)
    assert users
    measured = np.array([forecast_grid.measurements(one) for one in users])
    assert measured.shape == (len(users), 7)
    for one in users:
        assert set(one.trials) == set(one.runs)
        assert one.batch_size in problems.PROBLEMS["digits"].batch_sizes


def test_a_run_that_was_preempted_is_no_miss(monkeypatch):
    packed = forecast_grid.RESULTS / "mnist.tar.xz"
    whole = forecast_accuracy.recorded_users("mnist", "mnist", packed)
    records = load.read(packed)
    status = records.trials["status"].mask(records.trials["factor"] == 2.0, "preempted")
    stopped = dataclasses.replace(records, trials=records.trials.assign(status=status))
    monkeypatch.setattr(load, "read", lambda _: stopped)
    users = forecast_accuracy.recorded_users("mnist", "mnist", packed)
    assert any(2.0 in one.runs for one in whole)
    assert users
    assert not any(2.0 in one.runs for one in users)


def test_a_problem_alone_has_no_others_to_learn_from():
    text = forecast_grid.report({"digits": [user("made", seed) for seed in range(2)]})
    assert "| law, adaptive pilots | 2 |" in text
    assert "Regressions" not in text


def test_the_protocol_has_the_errors_of_the_page():
    """The ranges over the problems in the item on gradient statistics of forecast_protocol.md."""
    page = (ROOT / "results" / "forecast_grid.md").read_text(encoding="utf-8")
    tables = re.findall(r"^Regressions on the other problems\.(.+?)(?=^R|^#|\Z)", page, re.M | re.S)
    errors = collections.defaultdict(list)
    for kind, error in re.findall(r"^\| ([^|]+) \| \d+ \| (\d+)% \|", "".join(tables), re.M):
        errors[kind.split(" and ")[0]].append(int(error))
    assert len(tables) == len(errors["law"]) == len(errors["mean of the others"]) == 7
    assert len(errors["online measurements"]) == 2 * 7  # and with the law
    protocol = (ROOT / "results" / "forecast_protocol.md").read_text(encoding="utf-8")
    (item,) = re.findall(r"^\* \*\*Gradient statistics hardly.+?(?=^\* )", protocol, re.M | re.S)
    ranges = [(int(low), int(high)) for low, high in re.findall(r"(\d+)%\sto\s(\d+)%", item)]
    kinds = ("online measurements", "mean of the others", "law")
    assert ranges == [(min(errors[kind]), max(errors[kind])) for kind in kinds]


def test_two_seeds_have_the_time_of_one():
    seeds = [user("made", seed) for seed in range(6)]
    seeded = pilot_seeds.Seeded(seeds)
    seconds = seeded.seconds(6.0)
    assert set(seconds) == set(FACTORS)
    logs = [math.log(one.seconds(6.0)[4.0]) for one in seeds]
    assert seconds[4.0] == pytest.approx(math.exp(np.mean(logs)))
    for choice in (seeded.pilots([0], 6.0), seeded.pilots([0, 1], 6.0)):
        assert seconds[choice.factor] <= 1.5 * min(seconds.values())


@pytest.mark.parametrize("chosen", [[0], [0, 1]], ids=["one seed", "two seeds"])
def test_pilots_cost_at_most_a_run_without_echoing(chosen, monkeypatch):
    seeded = pilot_seeds.Seeded([user("made", seed, target=0.02) for seed in range(6)])
    ratio, costs, answers = 6.0, [], []

    def predicted(first, runs, *arguments):
        costs.append(sum(run.fresh_examples[-1] * max(1, run.factor / ratio) for run in runs))
        answers.append(original(first, runs, *arguments))
        return answers[-1]

    original = forecast_accuracy.predicted
    monkeypatch.setattr(forecast_accuracy, "predicted", predicted)
    seeded.pilots(chosen, ratio)
    assert max(costs) <= seeded.seconds(math.inf)[1.0]
    assert answers[-1].next_factor is not None  # longer pilots would help


def test_the_page_counts_what_diverged_runs_exclude():
    seeds = [user("made", seed) for seed in range(6)]
    by_name = {"user1": seeds, "user6": seeds[:1], "user8": seeds[:3]}
    text = pilot_seeds.exclusions({n: pilot_seeds.Seeded(some) for n, some in by_name.items()})
    assert "Of 3 registered settings, 2 are judged" in text
    assert "1 of 6 for trial 6, 3 of 6 for trial 8, all for the others" in text


@pytest.mark.long
def test_curves_of_a_study_that_was_stopped_replace_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(pilot_seeds.sweep, "run", lambda *_: "preempted")
    with pytest.raises(SystemExit, match="the same command resumes"):
        pilot_seeds.train(tmp_path)


def test_the_oracle_knows_the_other_seeds_only():
    seeds = [user("made", seed) for seed in range(3)]
    seeded = pilot_seeds.Seeded(seeds)
    others = pilot_seeds.Seeded(seeds[1:]).seconds(6.0)
    assert seeded.seconds(6.0, without=0) == pytest.approx(others)
    choice = seeded.oracle(0, 6.0)
    assert choice.factor == min(others, key=others.get)
    assert choice.fresh == pytest.approx(pilot_seeds.Seeded(seeds[1:]).seconds(math.inf))


def test_the_medians_of_the_other_seeds_choose_and_predict():
    end = np.array([100.0])

    def seed(number: int, **fresh: float) -> forecast_accuracy.User:
        runs = {
            float(name[1:]): Run(float(name[1:]), end * hit, end * hit / 8, np.array([0.01]))
            for name, hit in fresh.items()
        }
        return dataclasses.replace(user("made", number), runs=runs, target=0.02, budget=1_000.0)

    seeds = [seed(0, e1=1, e4=9), seed(1, e1=6, e4=2), seed(2, e1=8, e4=4), seed(3, e1=7, e4=30)]
    missed = Run(4.0, end * 30, end * 30 / 8, np.array([0.5]))
    seeds[3].runs[4.0] = missed  # counts as 1,500 fresh examples
    first, *_, last = pilot_seeds.by_others(seeds, math.inf)
    assert first.factor == 4.0  # medians of the others: 400 (of 200, 400, 1,500) and 700
    assert first.regret == pytest.approx(9)
    assert first.predicted == {1.0: 700.0, 4.0: 300.0}  # of those that reached the target
    assert [e for e, _ in last.cells()] == [1.0]
    assert last.factor == 4.0


@pytest.mark.long
def test_the_confirmed_seeds_of_a_problem_have_a_run_at_every_factor(monkeypatch):
    seeds = pilot_seeds.confirmed()["sentences", 32]
    assert [set(one.runs) for one in seeds] == [{1.0, 2.0, 4.0, 16.0}] * 20
    monkeypatch.setattr(pilot_seeds, "CONFIRMATIONS", "nothing/{}.tar.xz")
    assert pilot_seeds.confirmed() == {}


def test_the_curves_of_pilots_are_read_as_they_were_written(tmp_path):
    rows = [
        ("a_e1", 0, 6, 192.0, 0.25),
        ("a_e1", 0, 12, 384.0, 0.5),
        ("a_e1", 1, 6, 192.0, 0.125),  # it diverged after that
        ("a_e2", 0, 12, 192.0, 0.75),
    ]
    columns = ["condition", "search", "step", "fresh_examples", "value"]
    curves = pd.DataFrame(rows, columns=columns)
    pilot_seeds._wide(curves).to_csv(tmp_path / "curves.csv.xz")
    found = pilot_seeds.read_curves(tmp_path / "curves.csv.xz")
    pd.testing.assert_frame_equal(found[columns].reset_index(drop=True), curves)
