"""The timing model and the advice: against a simulated pipeline, and on measured ones."""

import collections
import dataclasses
import hashlib
import io
import itertools
import os
import re
import threading
import time
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import echo
from echo.advice import profile, recommend
from echo.advice.alternatives import TOLERANCE, rate, time_text
from echo.advice.cost_model import StageTime, Timing
from echo.advice.recommend import FACTORS, conclude
from echo.spec import EchoSpecError

BATCH = 32


def stage(name, seconds, cpu=0.0, limit=None):
    return StageTime(name, seconds, cpu, seconds if limit is None else limit)


def pipeline(read=1e-6, decode=1e-6, augment=1e-6, transfer=1e-6, step=1e-3, **fields):
    """Stages that take so many seconds per example, with one worker."""
    times = {"read": read, "decode": decode, "augment": augment, "batch": 1e-7}
    timing = Timing(
        stages=tuple(stage(name, seconds) for name, seconds in times.items()),
        transfers=(stage("transfer", transfer),),
        step=stage("step", step),
        batch_size=BATCH,
        workers=1,
        cores=64,
    )
    return dataclasses.replace(timing, **fields)


def advice_on(timing):
    insertions = {
        "before_augmentation": "decode",
        "after_augmentation": "augment",
        "after_batching": "batch",
    }
    return conclude(timing, insertions, {"decode": 100, "augment": 200, "batch": 200})


def simulated(upstream, behind, step, factor, steps=400):
    """Steps per second of three servers in a row, each handing over to the next as it finishes.

    The first makes a fresh batch in `upstream` seconds, the second emits one in `behind`.
    """
    ready = made = emitted = done = 0.0
    fresh, begun = 0, None
    for number in range(steps):
        while fresh * factor <= number:  # error diffusion: floor(fresh * factor) copies so far
            made += upstream
            fresh, ready = fresh + 1, made
        emitted = max(emitted, ready) + behind
        done = max(done, emitted) + step
        if number == steps // 2:
            begun = done
    return (steps - steps // 2 - 1) / (done - begun)


@settings(max_examples=80, deadline=None)
@given(
    upstream=st.floats(0.05, 10),
    behind=st.floats(0.001, 2),
    step=st.floats(0.05, 2),
    factor=st.integers(1, 8),
)
def test_predictions_are_those_of_a_simulated_pipeline(upstream, behind, step, factor):
    timing = Timing(
        stages=(stage("read", upstream / BATCH), stage("augment", behind / BATCH)),
        transfers=(),
        step=stage("step", step / BATCH),
        batch_size=BATCH,
        workers=1,
        cores=100,
    )
    rate = simulated(upstream, behind, step, factor)
    assert 1 / timing.step_seconds(1, factor) == pytest.approx(rate, rel=0.05)


@given(up=st.floats(0.001, 10), down=st.floats(0.001, 10), factor=st.floats(1, 20))
def test_one_worker_and_many_cores_give_the_papers_formula(up, down, factor):
    timing = pipeline(step=down / BATCH, stages=(stage("batch", up / BATCH),), transfers=())
    assert timing.step_seconds(1, factor) == pytest.approx(max(up / factor, down))
    assert timing.ratio(1) == pytest.approx(up / down)


@given(up=st.floats(0.001, 10), down=st.floats(0.001, 10), factor=st.floats(1, 20))
def test_without_workers_input_and_step_add_up(up, down, factor):
    timing = pipeline(step=down / BATCH, stages=(stage("batch", up / BATCH),), workers=0, cores=1)
    timing = dataclasses.replace(timing, transfers=())
    assert timing.step_seconds(1, factor) == pytest.approx(up / factor + down)
    assert timing.baseline_seconds() == pytest.approx(up + down)
    assert timing.ratio(1) == pytest.approx(up / down)
    assert timing.with_workers(1).baseline_seconds() == pytest.approx(max(up, down))


def test_workers_share_latency_but_neither_a_rate_limit_nor_the_stages_after_echoing():
    timing = pipeline(read=8e-3, augment=2e-3, workers=4)
    assert timing.step_seconds(2, 1) == pytest.approx(BATCH * 8e-3)  # each is its own limit
    latency = dataclasses.replace(timing.stages[0], limit=1e-3)
    timing = dataclasses.replace(timing, stages=(latency, *timing.stages[1:]))
    assert timing.step_seconds(2, 1) == pytest.approx(BATCH * 8e-3 / 4, rel=0.01)
    assert timing.step_seconds(2, 4) == pytest.approx(BATCH * 2e-3, rel=0.01)  # augment, each step
    assert timing.step_seconds(3, 4) == pytest.approx(BATCH * 1e-3, rel=0.01)  # the step


def test_stages_and_a_step_on_the_same_cores_add_up():
    read, step = stage("read", 3e-3, cpu=3e-3, limit=1.5e-3), stage("step", 1e-3, cpu=2e-3)
    timing = pipeline(stages=(read,), transfers=(), workers=2, cores=2)
    timing = dataclasses.replace(timing, step=step)
    for factor in FACTORS:
        shared = (3e-3 / factor + 2e-3) / 2
        assert timing.step_seconds(1, factor) == pytest.approx(BATCH * max(shared, 1e-3))


HASHING, LIMITED = stage("read", 3e-3, cpu=3e-3, limit=1.5e-3), stage("read", 3e-3, cpu=3e-5)
HERE, DEVICE = stage("step", 1e-3, cpu=2e-3), stage("step", 1e-3)


@pytest.mark.parametrize(
    ("read", "step", "used", "useful", "cores"),
    [
        (HASHING, HERE, 2.0, 2.0, 2.0),  # nothing is lost
        (HASHING, HERE, 2.0, 1.6, 1.6),  # CPU time is worth less
        (HASHING, HERE, 1.6, 1.6, 1.6),  # threads wait for each other
        (HASHING, HERE, 1.8, 1.6, 1.6),  # both
        (HASHING, HERE, 2.0, 2.3, 2.0),  # the machine has become faster
        (HASHING, HERE, 3.0, 1.5, 1.5),  # and gives more cores than were counted
        (HASHING, DEVICE, 2.0, 1.5, 1.5),
        (dataclasses.replace(HASHING, limit=2e-3), DEVICE, 1.5, 1.5, 2.0),  # idle: a limit
        (LIMITED, HERE, 2.0, 1.9, 1.9),
        (LIMITED, DEVICE, 0.01, 0.01, 2.0),
        (LIMITED, DEVICE, 0.04, 0.01, 1.97),  # far off, but of nearly nothing
    ],
)
def test_the_loss_under_contention_is_subtracted_from_the_cores(read, step, used, useful, cores):
    timing = pipeline(transfers=(), workers=2, cores=2, stages=(read,))
    timing = dataclasses.replace(timing, step=step)
    lowered = timing.under_contention(used, useful)
    assert lowered.cores == pytest.approx(cores)
    assert lowered == dataclasses.replace(timing, cores=lowered.cores)


@given(
    limit=st.floats(1e-3, 1e-2),
    step_cpu=st.floats(0, 5e-3),
    cores=st.floats(1, 64),
    used=st.floats(0, 100),
    useful=st.floats(1e-3, 100),
)
def test_contention_adds_no_core_loses_at_most_those_used_and_leaves_the_useful_ones(
    limit, step_cpu, cores, used, useful
):
    read = stage("read", 1e-3, cpu=1e-3, limit=limit)
    timing = pipeline(transfers=(), workers=2, cores=cores, stages=(read,))
    timing = dataclasses.replace(timing, step=stage("step", 1e-3, cpu=step_cpu))
    lowered = timing.under_contention(used, useful)
    assert min(cores, useful) <= lowered.cores * (1 + 1e-9)
    assert lowered.cores <= cores
    wanted = max(used, 1e-3 / timing._ahead_seconds((read,)) + step_cpu / 1e-3)
    assert lowered.cores >= (cores - wanted) * (1 - 1e-9)
    if useful >= wanted:  # all cores were useful, so none is lost
        assert lowered == timing


FIRST_CHEAP = tuple(
    stage(name, cpu, cpu=cpu)
    for name, cpu in {"read": 1e-6, "decode": 1e-3, "augment": 1e-6, "batch": 1e-6}.items()
)


@pytest.mark.parametrize(
    ("timing", "insertion", "factor", "message"),
    [
        (pipeline(), None, 1, r"not the bottleneck \(R = 0\.00\): do not echo"),
        (pipeline(read=1e-3), None, 1, r"not the bottleneck \(R = 1\.00\)"),
        (pipeline(read=4e-3), "before_augmentation", 4, r"factor 4: 31\.2 steps.* 4\.0\d times"),
        (pipeline(read=20e-3), "before_augmentation", 8, "stays the bottleneck at every factor"),
        (pipeline(read=6.87e-3), "before_augmentation", 7, r"R = 6\.8\d\)\. (?!That is R rounded)"),
        (
            pipeline(read=2.3e-3),
            "before_augmentation",
            3,
            r"\(R = 2\.30\)\. That is R rounded up: e = 2\.3 is about as fast, and repeats less",
        ),
        (
            pipeline(augment=4e-3),
            "after_augmentation",
            4,
            r"repeats are identical.*move augmentation \(4 ms per example\).*at most 31\.2 steps",
        ),
        (
            pipeline(read=9e-3, augment=3e-3),
            "after_augmentation",
            8,
            r"^Echo after augmentation.*at most 3\.47 steps.*before it, where copies differ",
        ),
        (pipeline(decode=4e-3), "before_augmentation", 4, "factor 4: (?!.*(identical|move))"),
        (pipeline(read=1e-3, augment=1e-3), None, 1, r"Do not echo: .* before augmentation run on"),
        (pipeline(transfer=4e-3), None, 1, "^Transfer to the device is the bottleneck"),
        (
            pipeline(transfers=(stage("pin", 4e-3), stage("copy", 5e-3))),
            None,
            1,
            "^Copy to the device is the bottleneck",
        ),
        (  # the step's CPU time on few cores, not the transfer, sets the pace
            dataclasses.replace(
                pipeline(transfer=1.5e-3, cores=1), step=stage("step", 1e-3, cpu=2e-3)
            ),
            None,
            1,
            "not the bottleneck",
        ),
        (  # echoing saves the CPU time of reading
            dataclasses.replace(
                pipeline(cores=1, stages=(stage("decode", 3e-4, cpu=3e-4), *pipeline().stages[2:])),
                step=stage("step", 9e-4, cpu=1e-3),
            ),
            "before_augmentation",
            3,
            "With R below 1 the step does not wait for its input.*each repeat saves",
        ),
        (pipeline(read=4e-3, transfer=4e-3), None, 1, "store repeated examples on the device"),
    ],
)
def test_the_recommendation(timing, insertion, factor, message):
    advice = advice_on(timing)
    assert (advice.insertion, advice.factor) == (insertion, factor)
    assert re.search(message, advice.reason), advice.reason
    assert ("cannot be predicted" in advice.reason) == (timing.step.cpu_seconds > 0)  # on the host
    assert advice.reason in " ".join(str(advice).split())
    assert max(map(len, str(advice).splitlines())) <= 80


ALL_INSERTIONS = {f"after {name}": name for name in ("read", "decode", "augment", "batch")}


@pytest.mark.parametrize(
    ("timing", "stage", "factors", "message"),
    [
        (
            pipeline(augment=4e-3),
            "decode",
            FACTORS,
            r"augmentation after it takes 4 ms per example",
        ),
        (pipeline(read=4e-3), "batch", (1,), r"R = 4\.00\), but no factor up to 1 gains 10%"),
        (
            dataclasses.replace(
                pipeline(cores=1), step=stage("step", 1e-3, cpu=2e-3), stages=FIRST_CHEAP
            ),
            "read",
            FACTORS,
            "processor cores are the bottleneck",
        ),
    ],
)
def test_if_no_insertion_point_gains_the_report_names_the_bottleneck(
    timing, stage, factors, message
):
    advice = conclude(timing, {"here": stage}, collections.Counter(), factors)
    assert (advice.insertion, advice.factor) == (None, 1)
    assert re.search(message, advice.reason), advice.reason


@pytest.mark.parametrize(
    ("names", "insertion"),
    [
        (("read", "decode", "augment"), "after decode"),  # all take batches: augmentation follows
        (("read", "decode", "batch"), "after decode"),  # only batching follows
    ],
)
def test_repeats_are_called_identical_if_only_batching_follows(names, insertion):
    stages = (stage("read", 1e-6), stage("decode", 4e-3), stage(names[2], 1e-7))
    insertions = {f"after {name}": name for name in names}
    advice = conclude(pipeline(stages=stages), insertions, collections.Counter())
    assert advice.insertion == insertion
    assert ("repeats are identical" in advice.reason) == (names[2] == "batch")


def test_a_faster_point_elsewhere_is_no_reason_to_repeat_more():
    stages = (stage("read", 4e-3), stage("decode", 1e-4, 1e-4), stage("augment", 1.1e-4, 1.1e-4))
    step = stage("step", 1e-3, 1e-3)
    timing = pipeline(stages=(*stages, stage("batch", 0)), transfers=(), cores=1)
    advice = advice_on(dataclasses.replace(timing, step=step))
    first, *_, last = advice.points
    assert 1.05 < min(first.step_seconds.values()) / min(last.step_seconds.values()) < 1.1
    assert first.step_seconds[4] > min(last.step_seconds.values()) * 1.1
    assert (advice.insertion, advice.factor) == ("before_augmentation", 4)  # R = 3.6


seconds_per_example = st.one_of(st.sampled_from([0.0, 1e-3, 2e-3]), st.floats(1e-6, 1e-2))
a_stage = st.builds(
    stage, st.just(""), seconds_per_example, seconds_per_example, seconds_per_example
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    costs=st.lists(a_stage, min_size=4, max_size=4),
    transfers=st.lists(a_stage, max_size=2),
    step=st.builds(stage, st.just("step"), st.floats(1e-6, 1e-2), seconds_per_example),
    workers=st.integers(0, 8),
    cores=st.floats(1, 16),
    allowed=st.lists(st.sampled_from(sorted(ALL_INSERTIONS)), min_size=1, unique=True),
    factors=st.sampled_from([FACTORS, (1,), (1, 1.5), (8, 1, 2)]),
)
def test_the_recommended_cell_is_in_the_table_and_near_the_best(
    costs, transfers, step, workers, cores, allowed, factors
):
    names = ("read", "decode", "augment", "batch")
    timing = Timing(
        stages=tuple(dataclasses.replace(c, name=n) for c, n in zip(costs, names, strict=True)),
        transfers=tuple(transfers),
        step=step,
        batch_size=BATCH,
        workers=workers,
        cores=cores,
    )
    insertions = {name: ALL_INSERTIONS[name] for name in allowed}
    advice = conclude(timing, insertions, collections.Counter(), factors)
    best = min(min(point.step_seconds.values()) for point in advice.points)
    before = timing.baseline_seconds()

    def equal(seconds, fastest):
        return seconds <= max(fastest, min(fastest * (1 + TOLERANCE), before / (1 + TOLERANCE)))

    if advice.insertion is None:
        fastest = [(min(p.step_seconds.values()), p.step_seconds.get(1)) for p in advice.points]
        overlaps = [e1 and equal(e1, own) for own, e1 in fastest if equal(own, best)]
        assert before <= best * (1 + TOLERANCE) or any(overlaps)
        assert advice.factor == 1
        assert not advice.reason.startswith("Echo ")
        return
    (point,) = (point for point in advice.points if point.name == advice.insertion)
    cell = point.step_seconds[advice.factor]
    fastest = min(point.step_seconds.values())
    assert fastest <= best * (1 + TOLERANCE)
    assert cell <= fastest * (1 + TOLERANCE)
    assert cell * (1 + TOLERANCE) <= before * (1 + 1e-9)
    assert advice.reason.startswith(
        f"Echo {point.name}, factor {advice.factor:g}: {rate(cell)} steps per second"
    )
    assert f"(R = {point.ratio:.2f})" in advice.reason
    assert f" {rate(cell)}" in str(advice)
    assert max(map(len, str(advice).splitlines())) <= 80
    for other in advice.points:
        for factor, seconds in other.step_seconds.items():
            if other.count < point.count:
                assert not equal(seconds, best)
            elif other is point and factor < advice.factor:
                assert not equal(seconds, fastest)
    after = timing.stages[point.count :]
    if advice.movable:
        assert set(after) <= {timing.stages[-1]}
        assert f"move {advice.movable}" in advice.reason.replace("augmentation", "augment")


def waiting(limit_of_more):
    """A reader that waits for 8 ms per example, with 2 workers."""
    read = StageTime("read", 8e-3, 1e-5, 4e-3, limit_of_more=limit_of_more)
    return pipeline(workers=2, stages=(read, *pipeline().stages[1:]))


@pytest.mark.parametrize(
    ("limit_of_more", "workers", "insertion", "factor", "reason"),
    [
        (1e-3, 8, None, 1, r"^First use 8 workers instead of 2: read waits for 7\.99 ms of its 8"),
        (2e-3, 4, "before_augmentation", 2, r"First use 4 workers.* With them: Echo before"),
        (4e-3, 2, "before_augmentation", 4, "^Echo before augmentation"),  # a rate limit
        (None, 2, "before_augmentation", 4, "^Echo before augmentation"),
    ],
)
def test_a_reader_that_waits_needs_workers_before_echoing(
    limit_of_more, workers, insertion, factor, reason
):
    timing = waiting(limit_of_more)
    insertions = {"before_augmentation": "decode", "after_augmentation": "augment"}
    advice = conclude(timing, insertions, collections.Counter(), max_workers=16)
    assert (advice.workers, advice.insertion, advice.factor) == (workers, insertion, factor)
    assert re.search(reason, advice.reason)
    assert advice.measured == timing
    more = advice.alternatives[0]
    assert more.change == "16 workers instead of 2"
    seconds = BATCH * max(1e-3, limit_of_more or 4e-3)
    assert more.timing.baseline_seconds() == pytest.approx(seconds)


def test_workers_are_wanted_too_where_they_do_not_fill_the_cores():
    decode = StageTime("decode", 4e-3, 4e-3, 4e-3, limit_of_more=1e-3)
    timing = pipeline(stages=(decode, *pipeline().stages[-1:]), cores=4)
    advice = conclude(timing, {"here": "decode"}, collections.Counter(), max_workers=4)
    assert advice.workers == 4
    assert "1 do not fill the 4 processor cores" in advice.reason


def test_one_worker_instead_of_none_is_listed_first_if_it_helps():
    def advised(read, limit_of_more=None):
        read = StageTime("read", read, 1e-5, read, limit_of_more=limit_of_more)
        timing = pipeline(stages=(read,), transfers=(), workers=0)
        return conclude(timing, {"here": "read"}, collections.Counter(), max_workers=4)

    advice = advised(1e-3)
    assert [a.change for a in advice.alternatives][:2] == [
        "1 worker instead of 0",
        "4 workers instead of 0",
    ]
    assert re.search("^as it is +15.6 *$", str(advice), re.MULTILINE)
    assert (advice.workers, advice.insertion) == (1, None)
    assert "1 worker instead of 0: without workers, input and step take turns" in advice.reason
    assert "predicted, 2.00 times the current 15.6" in advice.reason
    assert advised(4e-3, limit_of_more=1e-3).workers == 4
    little = advised(1e-5)
    assert [a.change for a in little.alternatives] == ["4 workers instead of 0"]
    assert re.search("^Your input is not the bottleneck", little.reason)


def test_without_workers_to_add_repeats_save_reading():
    read = stage("read", 5e-4)
    timing = pipeline(stages=(read,), transfers=(), workers=0)
    advice = conclude(timing, {"here": "read"}, collections.Counter())
    assert advice.factor > 1
    assert "Input and step take turns here" in advice.reason
    assert "cores" not in advice.reason
    advice = conclude(timing, {"here": "read"}, collections.Counter(), (1,))
    assert re.search(r"^Input and step take turns \(R = 0\.50\), but no factor", advice.reason)


def test_alternatives_are_a_faster_stage_and_augmentation_on_the_accelerator():
    timing = pipeline(read=4e-3, decode=1e-3, augment=3e-3)
    expected = {
        "augmentation on the accelerator, at most": 5e-3,
        "read in half the time": 6e-3,
        "decode in half the time": 7.5e-3,
        "augmentation in half the time": 6.5e-3,
    }
    changes = advice_on(timing).alternatives
    assert {c.change: c.timing.baseline_seconds() for c in changes} == pytest.approx(
        {name: BATCH * seconds for name, seconds in expected.items()}, rel=0.01
    )
    assert "1.60 times" in str(advice_on(timing))  # 8 / 5
    assert advice_on(pipeline()).alternatives == ()  # the step sets the pace


def varying(time, low, high):
    """A stage time whose fastest and slowest rounds took `low` and `high`."""
    return dataclasses.replace(time, low=low, high=high)


def with_varying_step(read, low, seconds, high):
    timing = pipeline(read=read)
    return dataclasses.replace(timing, step=varying(stage("step", seconds), low, high))


def with_varying_read(low, seconds, high):
    timing = pipeline()
    read = varying(stage("read", seconds), low, high)
    return dataclasses.replace(timing, stages=(read, *timing.stages[1:]))


@pytest.mark.parametrize(
    ("timing", "message"),
    [
        (  # its threads competed with those of the input: R is 0.9, and would be 22
            with_varying_step(1.125e-3, 5.06e-5, 1.25e-3, 1.89e-3),
            r"step took 50\.6 µs to 1\.89 ms per example.*with R from 0\.6 to 22\. .*Measure again",
        ),
        (with_varying_read(2e-3, 4e-3, 4.1e-3), r"read took 2 ms to 4\.1 ms .*R from 2 to 4\.1"),
        (with_varying_read(0.9e-3, 0.9e-3, 3e-3), r"R from 0\.9 to 3.*torch\.set_num_threads"),
        (with_varying_read(3e-3, 3.5e-3, 4e-3), ""),  # about the same in every round
        (with_varying_read(1e-5, 2e-5, 3e-4), ""),  # whatever it takes, the step takes longer
        (with_varying_read(8e-3, 20e-3, 40e-3), ""),  # e = 8 in any case
        (with_varying_read(0.0, 4e-3, 0.0), ""),  # not known
    ],
)
def test_timings_that_vary_so_much_that_the_advice_could_change_are_flagged(timing, message):
    advice = advice_on(timing)
    assert bool(advice.warning) == bool(message)
    assert re.search(message, advice.warning), advice.warning
    printed = " ".join(str(advice).split())
    assert f"{advice.warning} {advice.reason}".strip() in printed
    assert max(map(len, str(advice).splitlines())) <= 80


def test_a_stage_that_waits_may_stall():
    """In fewer than half of the rounds, so the median leaves that out."""
    waits = with_varying_read(0.9e-3, 0.9e-3, 3e-3)
    computes = dataclasses.replace(waits.stages[0], cpu_seconds=0.9e-3)
    computes = dataclasses.replace(waits, stages=(computes, *waits.stages[1:]))
    assert "stalls now and then" in advice_on(waits).warning
    assert "stalls now and then" not in advice_on(computes).warning
    step = with_varying_step(1.125e-3, 5.06e-5, 1.25e-3, 1.89e-3)
    assert "stalls now and then" not in advice_on(step).warning


@given(factor=st.floats(1.6, 100), place=st.integers(0, 2))
def test_a_warning_follows_from_rounds_that_would_change_the_advice(factor, place):
    names = ("read", "decode", "step")
    calm = pipeline(read=2e-3, decode=2e-3)
    parts = [*calm.stages, calm.step]
    name = names[place]
    (part,) = (p for p in parts if p.name == name)
    part = varying(part, part.seconds, part.seconds * factor)
    changed = part.scaled(factor)

    def replaced(by):
        stages = tuple(by if p.name == name else p for p in calm.stages)
        return dataclasses.replace(calm, stages=stages, step=by if name == "step" else calm.step)

    usual, slow = advice_on(replaced(part)), advice_on(replaced(changed))
    assert bool(usual.warning) == (usual.recommended != slow.recommended)


def test_a_scaled_stage_is_scaled_in_all_its_times():
    time = StageTime("read", 1.0, 2.0, 3.0, 0.5, 4.0, limit_of_more=0.25)
    assert time.scaled(2) == StageTime("read", 2.0, 4.0, 6.0, 1.0, 8.0, limit_of_more=0.5)
    assert stage("read", 1.0).scaled(2).limit_of_more is None


@pytest.mark.parametrize("step", [1.2345e-5, 1.2345e-6])
def test_the_report_fits_80_columns_with_long_names_and_large_numbers(step):
    names = [f"a_stage_with_a_rather_long_name_{n}" for n in range(5)]
    stages = tuple(stage(name, 1.2345e-9) for name in names)
    timing = pipeline(stages=stages, transfers=(), step=step)
    insertions = {f"after {name}": name for name in names}
    advice = conclude(timing, insertions, dict.fromkeys(names, 10**6))
    assert max(map(len, str(advice).splitlines())) <= 80


def test_buffer_bytes_are_those_of_the_items_at_each_place():
    points = advice_on(pipeline()).points
    assert [point.buffer_bytes for point in points] == [1_000_000, 2_000_000, 2_000_000]


def read(call):
    return {"x": np.full((8, 4), call % 256, np.uint8), "label": np.zeros(8, np.int32)}


def join(items):
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def test_each_stage_takes_the_result_of_the_one_before_and_the_step_takes_whole_batches():
    lengths, threads = set(), set()

    def decode(item):
        assert len(item["x"]) == 8
        threads.add(threading.current_thread())
        return item

    def step(batch):
        lengths.add(len(batch["x"]))

    stages = [("read", read), ("decode", decode), ("batch", join)]
    advice = echo.advise(
        stages,
        step,
        batch_size=32,
        examples_per_call=8,
        workers=3,
        max_workers=5,
        seconds=0.02,
        shuffle_buffer=10,
    )
    assert lengths == {32}
    assert len(threads) == 12  # alone, then three and five at once, then three alongside the step
    assert [t.name for t in advice.timing.stages] == ["read", "decode", "batch"]
    assert [p.name for p in advice.points] == ["after read", "after decode", "after batch"]
    assert {p.item_bytes for p in advice.points} == {8}
    assert {p.buffer_bytes for p in advice.points} == {80}
    for cost in (*advice.timing.stages, advice.timing.step):
        assert 0 < cost.low <= cost.seconds <= cost.high
        assert cost.limit <= cost.seconds
    assert set(FACTORS) == set(advice.points[0].step_seconds)


def test_stages_and_the_step_may_change_their_arguments():
    def stack(items):
        pixels, labels = (np.stack([item.pop(name) for item in items]) for name in ("x", "label"))
        return {"x": pixels, "label": labels}, [{"names": ["a"]}]

    def decode(item):
        item["x"] = np.frombuffer(item.pop("bytes"), np.uint8)
        return item

    def step(arguments):
        batch, (more,) = arguments
        assert batch.pop("x").shape == (8, 4)
        more["names"].append("b")
        assert more["names"] == ["a", "b"]

    stages = [("read", lambda i: {"bytes": bytes(4), "label": i}), ("decode", decode)]
    advice = echo.advise(
        [*stages, ("batch", stack)], step, batch_size=8, workers=2, cores=2, seconds=0.02
    )
    assert advice.steps > 0


def test_containers_of_all_kinds_are_renewed_and_leaves_are_shared():
    pair = collections.namedtuple("Pair", "first second")
    leaf = np.zeros(2)
    items = [
        pair({"x": leaf}, [leaf]),
        collections.Counter("aab"),
        collections.OrderedDict(x=(leaf, {"y": leaf})),
        collections.UserDict(x=[leaf]),
        collections.defaultdict(list, x=[leaf]),
    ]
    for item in items:
        new = profile.renewed(item)
        assert (type(new), new) == (type(item), item)
        assert new is not item
    assert profile.renewed(items[0]).first is not items[0].first
    assert profile.renewed(items[2])["x"][1] is not items[2]["x"][1]
    assert profile.renewed(items[2])["x"][0] is leaf


def test_an_image_that_pil_has_only_opened_costs_its_decoding():
    encoded = io.BytesIO()
    Image.new("RGB", (40, 30)).save(encoded, "JPEG")
    images = [Image.open(io.BytesIO(encoded.getvalue())) for _ in range(3)]
    assert all(image.tile for image in images)  # what is left to decode
    for result in (images[0], {"image": images[1]}, [(images[2], 0)]):
        profile.wait_for(result)
    assert not any(image.tile for image in images)


def test_the_report_counts_the_calls_of_the_step_which_may_train_a_model():
    calls = []
    advice = echo.advise([np.zeros((8, 2))] * 3, calls.append, batch_size=8, cores=2, seconds=0.02)
    assert advice.steps == len(calls) > 0
    said = f"called the step {len(calls):,} times. A model that it trains has changed."
    assert said in " ".join(str(advice).split())
    assert "called the step" not in str(advice_on(pipeline()))  # nothing was called


def sleeps(item):
    time.sleep(0.002)
    return item


def hashes(item):
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000)  # releases the interpreter's lock
    return item


def counts(item):
    sum(range(20_000))  # keeps the interpreter's lock
    return item


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "step", "min_cores"),
    [
        (sleeps, sleeps, 7.0),  # nearly no CPU time, of which nearly nothing is lost
        (sleeps, counts, 6.0),  # one thread at work
        (counts, sleeps, 6.0),  # one at a time, by the interpreter's lock
        (counts, counts, 5.0),
        (hashes, sleeps, 5.0),  # two at once
        (hashes, hashes, 4.0),  # three at once
    ],
)
def test_no_more_cores_are_lost_than_are_used(stage, step, min_cores, monkeypatch):
    monkeypatch.setattr("echo.advice.recommend.available_cores", lambda seconds: 8.0)
    stages = [("read", stage), ("batch", list)]
    advice = echo.advise(stages, step, batch_size=4, workers=2, seconds=0.1)
    assert min_cores <= advice.timing.cores <= 8


def test_the_argument_cores_replaces_the_measurement():
    advice = echo.advise([("batch", hashes)], hashes, batch_size=4, cores=2, seconds=0.02)
    assert advice.timing.cores == 2


def test_contention_calls_stages_in_proportion_to_their_examples():
    called = collections.defaultdict(collections.Counter)  # by thread

    def call(name, examples, cpu=0.0):
        def function(item):
            time.sleep(0.001)
            called[threading.current_thread()][name] += 1

        return profile.Call(function, itertools.count(), examples, stage(name, 0, cpu=cpu))

    ahead = [call("read", 8, cpu=1.0), call("batch", 32)]
    behind = [call("transfer", 32), call("step", 32, cpu=2.0)]
    start = time.perf_counter()
    used, useful = profile.contention(ahead, behind, 2, 0.1)
    elapsed = time.perf_counter() - start
    here, workers = called.pop(threading.main_thread()), called.values()
    assert len(workers) == 2
    assert set(here) <= {"transfer", "step"}
    assert 0 <= here["transfer"] - here["step"] <= 1  # the last call may be either
    for names in workers:
        assert set(names) <= {"read", "batch"}
        assert 0 <= -(-names["read"] // 4) - names["batch"] <= 1
    # A sleep may be too long, but is never too short.
    reads, steps = sum(names["read"] for names in workers), here["step"]
    assert (8 * reads + 32 * 2 * steps) / elapsed <= useful
    assert useful <= 2 * 8 / 0.001 + 32 * 2 / 0.002
    assert 0 < used <= 3


@pytest.mark.parametrize("place", ["ahead", "behind"])
def test_an_error_under_contention_ends_all_threads_and_is_raised(place):
    def fails(item):
        if item == 3:
            raise OSError("damaged")

    calls = {
        name: [profile.Call(fails if name == place else sleeps, itertools.count(), 1, stage("", 0))]
        for name in ("ahead", "behind")
    }
    before = threading.active_count()
    with pytest.raises(OSError, match="damaged"):
        profile.contention(**calls, workers=2, seconds=60)
    assert threading.active_count() == before


def test_an_iterable_gives_only_r_after_batching():
    batches = [(np.zeros((16, 2)), np.zeros(16))] * 3
    advice = echo.advise(batches, len, batch_size=16, seconds=0.02)
    assert [point.name for point in advice.points] == ["after batching"]
    assert advice.points[0].item_bytes == 24


def test_what_is_not_read_ahead_takes_the_sum_of_both_times():
    def batches():
        while True:
            time.sleep(0.01)
            yield np.zeros((16, 2))

    def step(batch):
        time.sleep(0.01)

    advice = echo.advise(batches(), step, batch_size=16, seconds=0.1)
    assert "assumes that batches are read ahead while the step runs" in advice.reason
    stages = [("read", lambda _: next(batches()))]  # run by workers
    assert "assumes" not in echo.advise(stages, step, batch_size=16, seconds=0.1).reason


def test_the_sum_of_both_times_is_given_where_it_matters():
    equal = recommend._in_turns(pipeline(read=1e-3, step=1e-3))
    assert "15.6 steps per second without echoing instead of 31.2" in equal
    assert not recommend._in_turns(pipeline(read=1e-5, step=1e-3))


def test_memory_counts_the_elements_of_tensors_that_do_not_tell_their_bytes():
    class Tensor:  # as TensorFlow's: an array by __array__, without nbytes
        def __array__(self, dtype=None, copy=None):
            return np.zeros((16, 100), np.int64)

    advice = echo.advise([Tensor()] * 3, lambda _: None, batch_size=16, seconds=0.02)
    assert advice.points[0].item_bytes == 800


def test_memory_counts_the_fields_of_a_dataclass():
    @dataclasses.dataclass
    class Images:
        pixels: np.ndarray
        labels: dict

    batch = Images(np.zeros((16, 100), np.int64), {"y": np.zeros(16, np.int32)})
    advice = echo.advise([batch] * 3, lambda _: None, batch_size=16, seconds=0.02)
    assert advice.points[0].item_bytes == 804


class Clock:
    """Seconds that pass by a millisecond when they are read, or when a call takes some."""

    def __init__(self, monkeypatch):
        self._lock, self._now = threading.Lock(), 0.0
        clock = types.SimpleNamespace(perf_counter=self.pass_by, process_time=time.process_time)
        monkeypatch.setattr(profile, "time", clock)

    def pass_by(self, seconds=1e-3):
        with self._lock:
            self._now += seconds
            return self._now


@pytest.mark.parametrize(
    ("calls", "warm_up", "num_rounds"),
    [
        ([10.0] * 3, 8, 2),
        ([10.0] * 3, 1, 2),
        ([10.0] + [0.5] * 16, 8, 9),  # the first one compiles
        ([0.5] * 4 + [10.0] * 3, 8, 2),  # read ahead
        ([0.5] * 4 + [10.0] * 3, 1, 6),
        ([0.5, 10.0, 10.0] * 4, 1, 9),
    ],
)
def test_after_three_calls_that_take_longer_than_all_rounds_there_are_no_more(
    calls, warm_up, num_rounds, monkeypatch
):
    clock, left = Clock(monkeypatch), iter(calls)
    rounds = profile.rounds(lambda: clock.pass_by(next(left)), 1.0, warm_up)
    assert len(rounds) == num_rounds
    if len(calls) == 7:
        assert [round(wall, 1) for wall, _ in rounds[-2:]] == [10.0, 10.0]


def test_long_calls_behind_a_rate_limit_are_few(monkeypatch):
    clock, called = Clock(monkeypatch), []

    def read(call):
        called.append(call)
        clock.pass_by(10.0)  # one after another, in whatever thread
        return call

    stages = [("read", read), ("batch", list)]
    advice = echo.advise(stages, len, batch_size=4, workers=8, max_workers=32, cores=8)
    assert len(called) == 3 + 2  # alone, and by two threads at once
    (time, _), step = advice.measured.stages, advice.measured.step
    assert (time.seconds, time.limit) == pytest.approx((10.0, 10.0), rel=0.01)
    assert time.limit_of_more is None
    assert step.seconds < 1


@pytest.mark.parametrize(
    ("alone", "parallel", "counts"),
    [
        (0.1, 8, [1, 3, 12]),
        (10.0, 100, [1, 2, 3, 4, 8, 12]),
        (10.0, 3, [1, 2, 3, 4, 8]),  # 8 threads gain nothing over 4
        (10.0, 1, [1, 2]),
    ],
)
def test_threads_are_doubled_for_long_calls_while_that_gains(alone, parallel, counts, monkeypatch):
    def seconds_per_call(name, function, inputs, workers, seconds):
        return alone / min(workers, parallel)

    monkeypatch.setattr(profile, "_seconds_per_parallel_call", seconds_per_call)
    measured = profile._seconds_by_threads("", len, itertools.count(), [3, 12], alone, 1.0)
    assert measured == {count: alone / min(count, parallel) for count in counts}


@pytest.mark.parametrize(
    ("seconds", "cpu", "skipped"), [(2.0, 0.01, True), (2.0, 1.0, False), (0.5, 0.01, False)]
)
def test_contention_is_not_measured_for_an_input_that_waits_long(seconds, cpu, skipped):
    time = stage("read", seconds / 8, cpu=cpu / 8)
    call = profile.Call(read, itertools.count(), 8, time)
    assert recommend._only_waits(pipeline(stages=(time,)), [call], seconds=1.0) == skipped


def test_an_input_that_only_waits_keeps_its_cores(monkeypatch):
    monkeypatch.setattr(recommend, "available_cores", lambda seconds: 3.0)
    monkeypatch.setattr(recommend, "_only_waits", lambda *_: True)
    monkeypatch.setattr(recommend, "contention", None)
    assert echo.advise([("batch", list)], len, batch_size=4, seconds=0.02).timing.cores == 3.0


def test_what_is_measured_is_logged(caplog):
    caplog.set_level("INFO", "echo.advice")
    echo.advise([("read", read), ("batch", join)], len, batch_size=8, seconds=0.02)
    parts = ("read", "batch", "the step", "stages and step at once")
    assert caplog.messages == [f"measuring {part}" for part in parts]


def test_an_index_beyond_a_list_of_files_advises_the_modulo():
    files = [np.zeros(2)] * 5
    stages = [("read", lambda call: files[call]), ("batch", np.stack)]
    with pytest.raises(IndexError) as raised:
        echo.advise(stages, len, batch_size=8, workers=1, max_workers=1, seconds=0.02)
    where, advice = raised.value.__notes__
    assert where == "Raised by the stage 'read', called with 5"
    assert "files[i % len(files)]" in advice


def test_a_result_that_jax_cannot_flatten_is_accepted():
    pytest.importorskip("jax")
    result = {1: 2, "a": 3}
    assert profile.wait_for(result) is result
    echo.advise([np.zeros((8, 2))] * 3, lambda _: result, batch_size=8, seconds=0.02)


def test_an_error_in_a_stage_is_raised():
    def decode(item):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("damaged")
        return item

    with pytest.raises(OSError, match="damaged") as raised:
        echo.advise([("read", read), ("batch", decode)], len, batch_size=8, workers=2, seconds=0.02)
    where, advice = raised.value.__notes__
    assert where == "Raised by the stage 'batch'"
    assert "for batch in loader), and the number of cores (cores=N)" in advice


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"examples_per_call": 5}, "examples_per_call is 5, which does not divide batch_size 32"),
        ({"insertions": {"here": "mix"}}, r"insertions\['here'\] is 'mix'; allowed: read, batch"),
    ],
)
def test_arguments_that_do_not_match_the_stages_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        echo.advise([("read", read), ("batch", join)], len, batch_size=32, **fields)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("examples_per_call", 4, "1"),
        ("batch_stage", "typo", "'batch'"),
        ("insertions", {"x": "nope"}, "None"),
        ("workers", 8, "0"),
        ("max_workers", 8, "0"),
    ],
)
def test_arguments_that_only_stages_have_are_refused_for_an_iterable(field, value, allowed):
    with pytest.raises(EchoSpecError, match=f"^{field} is .*; allowed: {allowed} for an iterable"):
        echo.advise([np.zeros(4)] * 3, len, batch_size=4, **{field: value})


@pytest.mark.parametrize("stages", [{"read": read, "batch": join}, {"x": np.zeros((8, 2))}])
def test_a_dict_is_refused_whose_keys_would_be_the_batches(stages):
    with pytest.raises(TypeError, match=r"stages has type dict; allowed: a list of \(name"):
        echo.advise(stages, len, batch_size=8)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("read", read), r"^stages\[0\] is 'read'; allowed: a list of \(name, function\)"),
        ([("read", read), ("batch", None)], r"^stages\[1\] is \('batch', None\); allowed"),
        ([read, join], r"^stages\[0\] is <function read"),
        ([("read", read, 1)], r"^stages\[0\] is \('read', <function read"),
    ],
)
def test_functions_that_are_not_in_pairs_are_not_taken_for_batches(stages, message):
    with pytest.raises(TypeError, match=message):
        echo.advise(stages, len, batch_size=8)


def test_stages_may_be_lists_as_well_as_tuples():
    advice = echo.advise([["read", read], ["batch", join]], len, batch_size=8, seconds=0.02)
    assert [point.name for point in advice.points] == ["after read", "after batch"]


@pytest.mark.parametrize(
    ("example", "found"),
    [
        ({"image": np.zeros((3, 8, 8)), "label": 3}, "arrays of length 3"),
        ((np.zeros((64, 2)), [np.zeros(5)]), "arrays of length 5, 64"),
        ({"text": "a b", "label": 3}, "single numbers or strings"),
        (np.zeros(()), "single numbers or strings"),
    ],
)
def test_single_examples_are_not_taken_for_batches(example, found):
    calls = []
    message = rf"^stages has type repeat and a first item with {found}, but batch_size is 128; give"
    with pytest.raises(ValueError, match=message):
        echo.advise(itertools.repeat(example), calls.append, batch_size=128)
    assert not calls


@pytest.mark.parametrize(
    ("batch", "batch_size"),
    [
        ({"x": np.zeros((8, 2)), "mask": np.zeros((3, 3)), "epoch": 1}, 8),
        (["a b"] * 8, 8),
        (object(), 8),  # of whatever kind
        (types.SimpleNamespace(shape=None), 8),
        (np.zeros(5), 1),  # a batch of one may do without an axis
    ],
)
def test_what_may_be_a_batch_is_taken_for_one(batch, batch_size):
    batches = itertools.repeat(batch)
    assert echo.advise(batches, lambda _: 0, batch_size=batch_size, cores=2, seconds=0.02)


def test_an_empty_iterable_is_refused():
    with pytest.raises(ValueError, match="without batches"):
        echo.advise(iter(()), len, batch_size=8)


def test_a_generator_that_ends_during_the_measurement_is_refused_for_a_list():
    batches = (np.zeros((8, 2)) for _ in range(3))
    with pytest.raises(ValueError, match=r"has type generator, ended after 3 .*a list of batches"):
        echo.advise(batches, len, batch_size=8)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (0.99996e-3, "1 ms"),
        (0.9996e-6, "1 µs"),
        (2e-10, "0.2 ns"),
        (0, "0 ns"),
    ],
)
def test_times_have_three_digits_and_no_powers_of_ten(seconds, text):
    assert time_text(seconds) == text


def test_cores_are_at_least_one_and_no_more_than_there_are():
    assert 1 <= profile.available_cores(0.02) <= (os.cpu_count() or 1)
