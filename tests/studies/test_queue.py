"""Which trials run and count, for any number of workers and any order of completion."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from runs import records
from studies.queue import SearchQueue

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
