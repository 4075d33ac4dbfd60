"""Pilots are ordinary runs, stopped and continued; the command reports what follows from them."""

import copy
import dataclasses
import itertools
import math
import re
import types
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import advise
import train
from configs import base, cifar10
from data.sources import RecordError
from echo.advice.cost_model import StageTime, Timing
from echo.advice.forecast import FACTORS, Forecast, Run, forecast
from echo.advice.recommend import conclude
from pipeline import accounting
from runs import cli, records, signals
from runs.progress import Progress
from studies import pilots
from tests.helpers.runs import (
    StopsAt,
    echoing,
    flags,
    mini,
    on_each_step,
    records_of,
    stop_at_call,
)
from training import check
from training.experiment import make_experiment

SECONDS = {e: 0.01 * max(6 / e, 1) for e in (1, 2, 4, 8, 16)}


def config(**fields):
    small = echoing("before_augmentation", 64, factor=1) | {
        "budget__fresh_examples": 1280,
        "evaluate_every_fresh_examples": 320,
        "checkpoint_every_fresh_examples": 0,
        "target__value": 0.9,
    }
    return mini(**small | fields)


def make(directory, limit=1.0, seeds=1, ratio=6.0, **fields):
    return pilots.Pilots(
        config(**fields), SECONDS, ratio, directory, seeds, limit, Progress(quiet=True)
    )


@given(
    st.sampled_from(["before_augmentation", "after_batching"]),
    st.sampled_from([0, 3, 100]),
    st.floats(1, 20),
    st.integers(1, 40),
)
def test_so_many_evaluations_follow_the_filling_of_the_buffer(insertion, buffer, e, evaluations):
    run = mini(**echoing(insertion, buffer, factor=e), evaluate_every_fresh_examples=32)
    counts = accounting.Counts.of_all(run)
    fresh = [sum(c.admitted(n) for c in counts) for n in range(accounting.total_steps(run) + 1)]
    steps = pilots._steps_until(run, evaluations)
    if steps == len(fresh):  # the budget ends before that, so the run ends by itself
        assert (fresh[-1] - fresh[1]) / 32 < evaluations
        return
    passed = (fresh[steps] - fresh[1]) / 32
    assert passed >= evaluations
    assert (fresh[steps - 1] - fresh[1]) / 32 < evaluations


@pytest.mark.parametrize("insertion", ["before_augmentation", "after_batching"])
@pytest.mark.parametrize("factor", [1, 4, 16])
@pytest.mark.parametrize("streams", [1, 8])
def test_one_more_evaluation_takes_further_steps(insertion, factor, streams, tmp_path):
    """Otherwise the pilot that the forecast asks for is continued again and again."""
    fields = echoing(insertion, 8, factor=1) | {"echo__streams": streams}
    fields |= {"budget__fresh_examples": 24_000 // streams}
    run = make(tmp_path, **fields)._pilot_config(factor, 0)
    total = accounting.total_steps(run)
    counts = accounting.Counts.of_all(run)
    fresh = [sum(count.admitted(step) for count in counts) for step in range(total + 1)]
    at = [step for step in range(1, total + 1) if _passed(run, fresh, step)]
    steps = 0
    while steps < total:
        evaluated = sum(step <= steps for step in at)
        before, steps = steps, pilots._steps_until(run, evaluated + 1)
        assert steps > before


def _passed(run, fresh, step):
    every = run.evaluate_every_fresh_examples
    return fresh[step] // every > fresh[step - 1] // every


@pytest.mark.slow
def test_a_pilot_that_uses_its_whole_budget_is_finished(tmp_path):
    """Otherwise it would be continued without end, where the time limit allows it."""
    unreachable = make(tmp_path, budget__fresh_examples=96, target__value=0.9999)
    unreachable._continue(4, 0, 1_000, lambda: False)
    assert unreachable._results[4, 0]["status"] == "exhausted"
    assert unreachable._finished(4, 0)


@pytest.mark.slow
def test_a_pilot_stopped_during_an_evaluation_has_not_ended(tmp_path, monkeypatch):
    made = make(tmp_path / "pilots", budget__fresh_examples=96, target__value=0.9999)
    stopping = make_experiment(made._pilot_config(4, 0))
    validation = StopsAt(stopping.validation, 2)
    stopping = dataclasses.replace(stopping, validation=validation)
    monkeypatch.setattr(pilots, "make_experiment", lambda _: stopping)
    with signals.stop_requested() as stop, pytest.raises(train.Preempted):
        made._continue(4, 0, 1_000, stop)
    assert validation.evaluated[1:] == [1]
    assert not made._results
    monkeypatch.undo()
    made._continue(4, 0, 1_000, lambda: False)
    assert made._results[4, 0]["status"] == "exhausted"
    pilot = made._workdir(4, 0)
    train.train(made._pilot_config(4, 0), tmp_path / "whole")
    assert records_of(pilot) == records_of(tmp_path / "whole")


@pytest.mark.long
def test_pilots_are_runs_cut_off_and_continue_after_an_interruption(tmp_path):
    interrupted = make(tmp_path / "pilots", limit=0.25)
    with on_each_step(stop_at_call(3)), pytest.raises(train.Preempted):
        interrupted.run()
    answer = make(tmp_path / "pilots", limit=0.25).run()
    assert answer.forecast.factor in SECONDS
    found = sorted((tmp_path / "pilots").glob("e*/*"))
    assert {path.parent.name for path in found} >= {"e4", "e16"}
    for path in found:
        factor = float(path.parent.name[1:])
        pilot = make(tmp_path)._pilot_config(factor, int(path.name))
        train.train(pilot, tmp_path / "whole" / path.parent.name)
        whole = records_of(tmp_path / "whole" / path.parent.name)
        cut_off = records_of(path)
        assert [r for r in cut_off if r["split"] == "validation"]
        assert cut_off == [r for r in whole if r["step"] <= cut_off[-1]["step"]][: len(cut_off)]


@pytest.mark.slow
def test_without_time_there_are_only_the_first_pilots(tmp_path):
    one = make(tmp_path, limit=1e-9, seeds=2)
    answer = one.run()
    # After so little, the median could be far below what a run without echoing takes.
    high = min(answer.forecast.cells[1].seconds_high, one._budget_seconds())
    assert answer.limit == pytest.approx(1e-9 * high)
    assert {(e, seed) for e, seed in one._runs} == set(itertools.product(pilots.FIRST, range(2)))
    for (factor, _), run in one._runs.items():
        assert len(run.loss) >= pilots.FIRST[factor]
    again = make(tmp_path, limit=1e-9, seeds=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob(records.METRICS)}
    again.run()
    assert before == {path: path.read_bytes() for path in tmp_path.rglob(records.METRICS)}


@pytest.mark.slow
def test_the_command_forecasts_and_prints_flags(tmp_path, capsys):
    """The command of docs/forecast.md, with a smaller budget."""
    small = config(upstream__examples_per_second=400, evaluate_every_fresh_examples=64)
    words = ["--config=configs/cifar10.py:mini", "--seconds=0.05", "--pilot-limit=0.2"]
    words += [f"--pilot={tmp_path / 'pilots'}", *flags(small)]
    assert cli.guarded(advise.main, words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ +16 +[>\d.e+, ]+ \([>\d.e+, ]+ to [>\d.e+, ]+\)", printed, re.MULTILINE)
    assert re.search(r"best guess would be e = \d+ if the input took 0.5 times as long", printed)
    assert printed.count("In flags:") == 1
    assert max(map(len, printed.rpartition("In flags")[0].splitlines())) <= 80


@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("factor", [1, 8])
def test_flags_make_a_run_for_which_the_forecast_holds(
    policy, factor, tmp_path, capsys, monkeypatch
):
    """Echoing as the pilots do, and as often evaluated; or without a buffer that is of no use."""
    answer = short_pilots(tmp_path).answer()
    answer = dataclasses.replace(
        answer, forecast=dataclasses.replace(answer.forecast, factor=factor)
    )
    used = config(echo__policy=policy)
    monkeypatch.setattr(advise, "run_pilots", lambda *_: (used, answer))
    user = copy.deepcopy(used)
    user.echo.insertion, user.echo.shuffle_buffer = "after_augmentation", 32
    assert advise._report_pilots(user, used, advice=None, arguments=None) == 0
    printed = capsys.readouterr().out.rpartition("In flags: ")[2].split()
    for word in printed:
        name, _, value = word.removeprefix("--config.").partition("=")
        cli.set_field(user, name, type(cli.get_field(user, name))(value), base.FIELDS)
    check.check(user)
    if factor == 1:
        assert user.echo.insertion == "none"
        assert user.echo.shuffle_buffer == 0
    else:
        pilot = pilots._pilot_config(used, factor, 0)
        assert user.evaluate_every_fresh_examples == pilot.evaluate_every_fresh_examples
        assert user.echo.insertion == pilot.echo.insertion
        assert user.echo.shuffle_buffer == pilot.echo.shuffle_buffer
        assert (user.echo.max_factor if policy == "auto" else user.echo.factor) == factor


@pytest.mark.slow
def test_seconds_follow_the_present_input_and_the_time_spent_stays(tmp_path, monkeypatch):
    """Pilots of a faster input say nothing about the seconds of a slower one."""
    monkeypatch.setitem(pilots.FIRST, 4, 16)  # enough steps to time
    before = make(tmp_path, limit=1e-9)
    spent = before.run().spent
    assert before.answer().step_seconds != SECONDS  # measured
    slower = make(tmp_path, limit=1e-9, upstream__examples_per_second=1_000).run()
    assert slower.step_seconds == SECONDS  # predicted from the present input
    assert slower.spent >= spent
    again = make(tmp_path, limit=1e-9).run()
    assert again.step_seconds == before.answer().step_seconds


def test_only_steps_at_the_present_pace_are_timed(tmp_path):
    fast, slow = {}, {"upstream__examples_per_second": 2_000}
    for evaluations, fields in ((3, fast), (6, slow), (9, fast)):
        one = make(tmp_path, **fields)
        one._continue(4, 0, evaluations, lambda: False)
    workdir = one._workdir(4, 0)
    points = [(r["step"], r["train_seconds"]) for r in one._validation(workdir)]
    (first, slowed), (second, resumed) = (entry[:2] for entry in pilots._paces(workdir)[1:])
    assert slowed["upstream.examples_per_second"] == 2_000
    assert resumed["upstream.examples_per_second"] == 0
    at = dict(points)
    start, end = points[0][0], points[-1][0]
    steps, seconds = one._times[4, 0]
    assert steps == first - start + end - second
    assert seconds == pytest.approx(at[first] - at[start] + at[end] - at[second])
    slow_again = make(tmp_path, **slow)
    slow_again._continue(4, 0, 0, lambda: False)
    assert slow_again._times[4, 0][0] == second - first
    (workdir / "paces.json").write_text("[]")
    with pytest.raises(cli.InputError, match="was continued at another pace by an earlier version"):
        pilots._paces(workdir)


def test_seconds_are_those_of_long_pilots_and_predictions_as_far_off_as_they_were(tmp_path):
    one = make(tmp_path)
    one._times = {(4, 0): (10, 0.6), (4, 1): (20, 1.6), (4, 2): (9, 99.0)}  # 0.06, 0.08, too short
    one._times |= {(16, 0): (10, 0.4), (2, 0): (9, 99.0)}
    off = math.sqrt(0.07 / SECONDS[4] * 0.04 / SECONDS[16])
    rest = {e: off * SECONDS[e] for e in (1, 2, 8)}
    assert one._step_seconds() == pytest.approx({4: 0.07, 16: 0.04} | rest)


def short_pilots(tmp_path, **settings):
    """Pilots that have recorded the beginning of two runs."""
    one = make(tmp_path, **settings)
    fresh = np.linspace(64, 640, 10)
    for factor, lowest in ((4, 0.8), (16, 0.7)):
        loss = np.geomspace(2.0, lowest, 10)
        one._runs[factor, 0] = Run(factor, fresh, fresh * factor / 32, loss)
        one._results[factor, 0] = {"status": "preempted", "train_seconds": 0.25}
    return one


def test_the_answer_for_another_input_is_the_forecast_with_its_seconds(tmp_path):
    """A step is no faster than the fastest, which does not wait for the input."""
    one = short_pilots(tmp_path)
    answer = one.answer()
    assert answer.spent == 0.5
    for times, factor in answer.otherwise.items():
        seconds = {e: max(0.01, times * 0.06 / e) for e in SECONDS}
        other = forecast(one._runs.values(), one._target, batch_size=32, step_seconds=seconds)
        assert factor == other.factor
    assert set(answer.otherwise) == {0.5, 2.0}


@pytest.mark.parametrize("ratio", [0.3, 64.0])
def test_another_input_is_that_much_faster_than_the_input_and_not_than_the_step(ratio, tmp_path):
    """With R below 1, a step hides the input; above all factors, the input hides the step."""
    one = short_pilots(tmp_path, ratio=ratio)
    one._predicted = {e: 0.01 * max(ratio / e, 1) for e in SECONDS}
    one._times = {}
    for times, factor in one.answer().otherwise.items():
        seconds = {e: 0.01 * max(times * ratio / e, 1) for e in SECONDS}
        other = forecast(one._runs.values(), one._target, batch_size=32, step_seconds=seconds)
        assert factor == other.factor


def test_a_pilot_without_echoing_has_no_stage_and_no_buffer(tmp_path):
    run = make(tmp_path)._pilot_config(1, 0)
    check.check(run)
    assert (run.echo.insertion, run.echo.shuffle_buffer) == ("none", 0)
    (count,) = accounting.Counts.of_all(run)
    assert count.admitted(1) == run.batch_size


def test_the_limit_is_in_runs_without_echoing_of_the_budget_or_less(tmp_path):
    one = short_pilots(tmp_path)
    high = one.answer().forecast.cells[1].seconds_high
    for share in (0.5, 2.0):  # of these seconds, the whole budget takes
        one._config.budget.fresh_examples = round(share * high / SECONDS[1] * 32)
        assert one.answer().limit == pytest.approx(min(share, 1.0) * high, rel=1e-3)


def test_a_pilot_is_extended_as_far_as_the_limit_allows(tmp_path):
    one = short_pilots(tmp_path)
    answer = one.answer()
    factor = answer.forecast.next_factor
    length, longer = (10, 12) if factor in pilots.FIRST else (0, 2)  # evaluations: 15% more
    fresh = (longer - length) * one._pilot_config(factor, 0).evaluate_every_fresh_examples
    needed = answer.spent + fresh * factor / 32 * SECONDS[factor]
    for share, following in ((0.999, None), (1.001, (factor, 0, longer))):
        one._limit = share * needed / answer.limit
        assert one._following() == following


def test_pilots_of_a_seed_have_matched_seeds(tmp_path):
    one = make(tmp_path, seed__data=5, seed__model=7)
    for factor in pilots.FIRST:
        seeds = [one._pilot_config(factor, seed).seed for seed in (0, 2)]
        assert [(seed.data, seed.model) for seed in seeds] == [(5, 7), (7, 9)]


@pytest.mark.parametrize(("every", "expected"), [(0, 375), (320, 320), (6_400, 375)])
def test_a_pilot_is_evaluated_64_times_in_the_budget_or_as_often_as_its_run(
    every, expected, tmp_path
):
    fields = {"budget__fresh_examples": 24_000, "evaluate_every_fresh_examples": every}
    one = make(tmp_path, **fields)
    for factor in (1, 4):
        found = one._pilot_config(factor, 0).evaluate_every_fresh_examples
        assert found == expected // factor


@pytest.mark.parametrize("next_factor", [None, 4])
def test_an_exceeded_limit_is_named_as_such(next_factor):
    unclear = Forecast({}, 4, 1.2, "", next_factor, 0.1)
    printed = " ".join(str(pilots.Answer(unclear, SECONDS, 51.0, 19.0, {2.0: 16})).split())
    assert "The pilots trained for 51 s, longer than the limit of 19 s." in printed
    assert ("higher --pilot-limit" in printed) == (next_factor is not None)


def without_gain(*_):
    """Advice where the input takes as long as the step, so that echoing gains nothing."""
    host = StageTime("decode", 1e-3, 0.0, 1e-3)
    timing = Timing((host,), (), StageTime("step", 1e-3, 0.0, 1e-3), 32, workers=1, cores=64)
    insertions = dict.fromkeys(advise.STAGE_BEFORE, "decode")
    advice = conclude(timing, insertions, {"decode": 9}, factors=FACTORS)
    assert advice.insertion is None
    return advice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("insertion", "buffer", "said"),
    [
        ("after_augmentation", 70, "echoing after augmentation with a shuffle buffer of 70 exam"),
        ("after_batching", 4, "echoing after batching with a shuffle buffer of 4 batches, like"),
    ],
)
def test_the_command_continues_the_pilots_that_exist(
    insertion, buffer, said, tmp_path, capsys, monkeypatch
):
    """Another measurement may recommend another insertion point, or none."""
    make(tmp_path, **echoing(insertion, buffer, factor=1))._continue(4, 0, 4, lambda: False)
    monkeypatch.setattr(advise, "advise", without_gain)
    none = config(echo__insertion="none", echo__shuffle_buffer=0)
    words = ["--config=configs/cifar10.py:mini", f"--pilot={tmp_path}", "--pilot-seeds=1"]
    assert cli.guarded(advise.main, [*words, "--pilot-limit=1e-9", *flags(none)]) == 0
    printed = capsys.readouterr()
    assert said in printed.err
    assert "In flags: as configured" in printed.out  # a step hides the input: no echoing
    for path in tmp_path.rglob(records.CONFIG):
        assert records.read_json(path)["config"]["echo"]["insertion"] == insertion


def test_pilots_of_another_configuration_are_refused_before_measuring(
    tmp_path, capsys, monkeypatch
):
    make(tmp_path)._continue(4, 0, 1, lambda: False)
    monkeypatch.setattr(advise, "advise", None)  # nothing is measured
    words = ["--config=configs/cifar10.py:mini", f"--pilot={tmp_path}"]
    for fields, message in (
        ({"batch_size": 16}, "batch_size (32 there, 16 here)"),
        ({"echo__insertion": "none", "echo__shuffle_buffer": 99}, "shuffle_buffer (64 there, 99"),
        ({"seed__data": 5}, "seed.data (0 there, 5 here)"),
        (echoing("after_batching", 4, factor=1), "'before_augmentation' there"),
    ):
        assert cli.guarded(advise.main, [*words, *flags(config(**fields))]) == cli.WRONG_INPUT
        assert message in capsys.readouterr().err


def failing(monkeypatch, at):
    """Batches of runs cannot be made from step `at` on; `failing(monkeypatch, None)` repairs it."""

    def step(self, batch):
        if at is not None and self.counters.step >= at:
            raise RecordError("record 5 is truncated")
        original(self, batch)

    original = getattr(train._Run._step, "original", train._Run._step)
    step.original = original
    monkeypatch.setattr(train._Run, "_step", step)


@pytest.mark.parametrize(("factor", "evaluations", "at"), [(1, 2, 1), (8, 30, 24), (4, 3, 2)])
def test_a_pilot_that_failed_is_tried_again(factor, evaluations, at, tmp_path, monkeypatch):
    """If it were stopped before it fails, its failure would be forgotten."""
    failing(monkeypatch, at)
    with pytest.raises(cli.InputError, match=r"0 has failed: RecordError: record 5 is truncated"):
        make(tmp_path)._continue(factor, 0, evaluations, lambda: False)
    for stop in (lambda: False, lambda: True):  # the second is asked to stop before it fails
        again = make(tmp_path)
        monkeypatch.setattr(pilots.signals, "stop_requested", lambda s=stop: nullcontext(s))
        with pytest.raises((cli.InputError, train.Preempted)):
            again.run()
        result = records.read_json(again._workdir(factor, 0) / records.RESULT)
        assert result["status"] == "failed"
    failing(monkeypatch, None)
    repaired = make(tmp_path)
    repaired._continue(factor, 0, repaired._begin_with(factor, 0), lambda: False)
    assert repaired._results[factor, 0]["step"] > at


def test_the_display_says_which_seed_of_a_factor_trains(tmp_path):
    two = make(tmp_path, seeds=2, budget__fresh_examples=96)
    shown = []
    two._progress.update = shown.append
    two._continue(4, 1, 1, lambda: False)
    assert set(shown) == {"pilot e = 4, seed 2 of 2"}


def test_the_time_left_is_that_of_training_in_80_columns(tmp_path, monkeypatch):
    """Compilation, evaluations, and checkpoints are not included, and may take much longer."""
    guess = types.SimpleNamespace(factor=16)
    one = make(tmp_path)
    monkeypatch.setattr(one, "answer", lambda: pilots.Answer(guess, SECONDS, 20.0, 220.0, {}))
    status = one._status("pilot e = 16, seed 2 of 2")
    assert "| at most 3 min 20 s of training left | guess e = 16" in status
    assert len(status) <= 80


def test_pilots_of_an_auto_run_have_fixed_factors(tmp_path):
    auto = {"echo__policy": "auto", "echo__replay": "decisions.jsonl"}
    check.check(make(tmp_path, **auto)._pilot_config(16, 0))


def test_a_target_without_a_loss_is_refused(tmp_path):
    with pytest.raises(cli.InputError, match=r"target.value is 1.1; allowed for a forecast"):
        make(tmp_path, target__value=1.1)


def test_the_directory_of_a_run_is_refused(tmp_path):
    (tmp_path / records.CONFIG).write_text("{}")
    with pytest.raises(cli.InputError, match="contains a run or a study; give a new directory"):
        make(tmp_path)


def test_a_pilot_that_diverged_ends_with_a_loss_that_is_not_finite():
    config = cifar10.get_config("mini")
    evaluated = [{"fresh_examples": 100, "step": 12, "accuracy": 0.6}]
    result = {"status": "diverged", "fresh_examples": 132, "step": 16}
    curve = pilots.loss_curve(config, 4.0, evaluated, result)
    assert curve.steps.tolist() == [12, 16]
    assert curve.loss[0] == pytest.approx(0.4)
    assert math.isnan(curve.loss[1])
    assert pilots.loss_curve(config, 4.0, [], result | {"status": "exhausted"}) is None
    overflown = [evaluated[0] | {config.target.metric: None}]
    assert math.isnan(pilots.loss_curve(config, 4.0, overflown, result).loss[0])


@pytest.mark.parametrize("content", ["{", '{"config": {"echo": "none"}}'])
def test_a_damaged_pilot_is_named(content, tmp_path):
    workdir = tmp_path / "e4" / "0"
    workdir.mkdir(parents=True)
    (workdir / records.CONFIG).write_text(content)
    with pytest.raises(cli.InputError, match="e4/0"):
        make(tmp_path).run()
    with pytest.raises(cli.InputError, match="e4/0"):
        pilots.recorded(tmp_path)  # before anything is measured


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pilot=s3://a/b"], "is a URL"),
        (["--pilot=x", "--pilot-limit=0"], "--pilot-limit is 0; allowed"),
        (["--pilot=x", "--pilot-seeds=0"], "--pilot-seeds is 0; allowed"),
        (["--pilot-seeds=2"], "--pilot-seeds is given without --pilot=DIR"),
        (["--pilot=advise.py"], "--pilot is advise.py, a file; give a directory"),
        (["--pilot=advise.py/x"], "advise.py/x cannot be used (Not a directory); give a directory"),
        (["--pilot=x", "--config.target.value=1"], "target.value is 1; allowed for a forecast"),
    ],
)
def test_wrong_flags_are_one_sentence(words, message, capsys, monkeypatch):
    monkeypatch.setattr(advise, "advise", None)  # nothing is measured
    assert cli.guarded(advise.main, ["--config=configs/cifar10.py:mini", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
