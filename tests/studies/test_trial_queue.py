"""Which trials run and count, for any number of workers and any order of completion."""

import dataclasses
import os
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import records, workdirs
from studies.study_progress import StudyProgress
from studies.trial_queue import SearchQueue
from tests.helpers.runs import HANGS, ROOT

STATUSES = st.sampled_from(records.ENDED)


def sequential(statuses, needed):
    """The protocol with one worker: trials that run, and those that count."""
    run, counted = [], []
    for trial, status in enumerate(statuses):
        run.append(trial)
        if status in records.COUNTABLE:
            counted.append(trial)
        if len(counted) == needed:
            break
    return run, counted


@settings(max_examples=300, deadline=None)
@given(
    needed=st.integers(1, 6),
    statuses=st.lists(STATUSES, min_size=12, max_size=12),
    workers=st.integers(1, 9),
    lanes=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_any_number_of_workers_runs_and_counts_the_same_trials(
    needed, statuses, workers, lanes, seed
):
    statuses = statuses[: 2 * needed]
    order, now = random.Random(seed), [0.0]
    queue = SearchQueue("c", 0, needed, 2 * needed, clock=lambda: now[0])
    running, ran = [], []
    while not queue.over:
        while len(running) < workers and (taken := queue.take(lanes)):
            running += taken
        if not running:
            now[0] += 1  # the remaining trials are held by other launches
            continue
        trial = running.pop(order.randrange(len(running)))
        if order.random() < 0.2:  # killed, or held by another launch
            queue.postpone(trial, order.choice([0, 1]))
        else:
            ran.append(trial)
            queue.end(trial, statuses[trial])
    run, counted = sequential(statuses, needed)
    assert sorted(ran) == run
    countable = [trial for trial in sorted(ran) if statuses[trial] in records.COUNTABLE]
    assert countable[:needed] == counted
    assert queue.counted == len(counted)


def test_time_left_weights_trials_by_their_steps():
    now = [0.0]
    queues = [SearchQueue("short", 0, 2, 4), SearchQueue("long", 0, 2, 4)]
    progress = StudyProgress(queues, {"short": 10, "long": 40}, clock=lambda: now[0])
    for trial in (0, 1):
        queues[0].take(1)
        assert progress.seconds_left() is None
        now[0] += 5.0
        queues[0].end(trial, "exhausted")
        progress.trial_ended("short", "exhausted", trained=True)
    assert progress.seconds_left() is None  # two trials may be mostly compilation
    queues[1].take(1)
    now[0] += 20.0
    queues[1].end(0, "exhausted")
    progress.trial_ended("long", "exhausted", trained=True)
    assert progress.seconds_left() == pytest.approx(40 * 0.5)
    assert str(progress) == "[3/4]"
    queues[1].take(1)
    assert str(progress.status()) == "[3/4] trials | 20 s left | 1 running | 0 diverged"
    assert progress.status() == dataclasses.replace(progress.status(), seconds_left=None)


def test_only_trials_of_other_launches_are_held():
    now = [0.0]
    queue = SearchQueue("a", 0, 3, 6, clock=lambda: now[0])
    progress = StudyProgress([queue], {"a": 10})
    assert queue.take(3) == (0, 1, 2)
    queue.postpone(0)  # it was stopped, or has lost its worker
    assert "held" not in str(progress.status())
    queue.hold(1, 2.0)
    assert str(progress.status()).endswith("1 running | 0 diverged | 1 held by other launches")
    now[0] = 3.0
    assert queue.take(2) == (0, 1)
    assert progress.status().held == 0


def test_lock_is_exclusive_and_released_when_its_owner_is_killed(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import pathlib, sys; from runs import workdirs\n"
        "with workdirs.held(pathlib.Path(sys.argv[1])) as here:\n"
        "    print(here, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout.readline() == "True\n"
        with workdirs.held(path) as here:
            assert not here
    finally:
        os.kill(owner.pid, 9)
        owner.wait()
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        with workdirs.held(path) as here:
            if here:
                return
    raise AssertionError("the lock of a killed process is still held")
