"""Which trials run and count, for any number of workers and any order of completion."""

import os
import random
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from runs import records, workdirs
from studies.queue import SearchQueue
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
