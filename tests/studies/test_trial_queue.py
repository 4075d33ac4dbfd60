"""The rule of which trials run and count, for any number of workers and any order of ends."""

import os
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import locks
from studies.study_progress import StudyProgress
from studies.trial_queue import COUNTED, Search
from tests.helpers.runs import HANGS, ROOT

STATUSES = st.sampled_from(["reached", "exhausted", "diverged", "failed"])


def one_after_another(statuses, wanted):
    """The protocol as it is said: trials that run, and those that count."""
    run, counted = [], []
    for trial, status in enumerate(statuses):
        run.append(trial)
        if status in COUNTED:
            counted.append(trial)
        if len(counted) == wanted:
            break
    return run, counted


@settings(max_examples=300, deadline=None)
@given(
    wanted=st.integers(1, 6),
    statuses=st.lists(STATUSES, min_size=12, max_size=12),
    workers=st.integers(1, 9),
    lanes=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_any_workers_in_any_order_run_and_count_what_one_alone_does(
    wanted, statuses, workers, lanes, seed
):
    statuses = statuses[: 2 * wanted]
    order, now = random.Random(seed), [0.0]
    search = Search("c", 0, wanted, 2 * wanted, clock=lambda: now[0])
    under_way, ran = [], []
    while not search.over:
        while len(under_way) < workers and (taken := search.take(lanes)):
            under_way += taken
        if not under_way:
            now[0] += 1  # what is left is held elsewhere
            continue
        trial = under_way.pop(order.randrange(len(under_way)))
        if order.random() < 0.2:  # killed, or held by another launch
            search.again(trial, order.choice([0, 1]))
        else:
            ran.append(trial)
            search.end(trial, statuses[trial])
    run, counted = one_after_another(statuses, wanted)
    assert sorted(ran) == run
    assert [trial for trial in sorted(ran) if statuses[trial] in COUNTED][:wanted] == counted
    assert search.counted == len(counted)


def test_time_left_weighs_trials_by_their_steps():
    now = [0.0]
    searches = [Search("short", 0, 2, 4), Search("long", 0, 2, 4)]
    tally = StudyProgress(searches, {"short": 10, "long": 40}, clock=lambda: now[0])
    assert tally.seconds_left() is None
    searches[0].take(1)
    now[0] = 5.0
    searches[0].end(0, "exhausted")
    tally.trial_done("short", "exhausted", trained=True)
    assert tally.seconds_left() == pytest.approx((10 + 2 * 40) * 0.5)
    assert str(tally) == "[1/4]"


def test_a_lock_is_held_once_and_free_again_when_its_owner_is_killed(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import pathlib, sys; from runs import locks\n"
        "with locks.held(pathlib.Path(sys.argv[1])) as here:\n"
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
        with locks.held(path) as here:
            assert not here
    finally:
        os.kill(owner.pid, 9)
        owner.wait()
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        with locks.held(path) as here:
            if here:
                return
    raise AssertionError("the lock of a killed process is still held")
