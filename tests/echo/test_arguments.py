"""Invalid arguments and states: one sentence each, and a refused state changes nothing."""

import copy
import fractions
import math
import re

import grain
import jax
import numpy as np
import pytest

import echo
from echo import schedule

WRONG_COUNTS = [1.5, -1, 2**70, 10**6000, None, "1", True, math.nan, math.inf, np.float32(1), [1]]
WRONG_FACTORS = [math.nan, math.inf, 0, 0.5, -1, 1e7, "1e400", "1e999999999", "x", "1/0", "", None]
WRONG_FACTORS += [True, [2], 10**6000, "9" * 5000, "9" * 5000 + "/1", object(), np.eye(3)]


def refuses(function, *arguments, error=echo.EchoSpecError, **named):
    with pytest.raises(error) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert "; allowed: " in message
    assert "\n" not in message
    assert len(message) < 300


def numbers(n=40):
    return grain.MapDataset.source(np.arange(n))


STAGES = {
    "schedule": lambda **s: echo.EchoSchedule(**{"factor": 2} | s),
    "iterable": lambda **s: echo.echo_iterable([1, 2], **{"factor": 2} | s),
    "dataset": lambda **s: echo.EchoIterDataset(numbers(), **{"factor": 2} | s),
    "tf": lambda **s: echo.tf_data.echo(**{"factor": 2} | s),
}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_checks_factor_buffer_and_seed(stage):
    for factor in WRONG_FACTORS:
        refuses(STAGES[stage], factor=factor)
    for count in WRONG_COUNTS:
        refuses(STAGES[stage], shuffle_buffer=count)
    for seed in [x for x in WRONG_COUNTS if x != 2**70] + [2**128]:
        refuses(STAGES[stage], seed=seed)


SWITCHES = {
    "iterable": "reshuffle_each_iteration",
    "tf": "reshuffle_each_iteration",
    "dataset": "drop_remainder",
    "opportunistic": "annotate",
}


@pytest.mark.parametrize("stage", SWITCHES)
def test_a_switch_is_true_or_false(stage):
    make = opportunistic if stage == "opportunistic" else STAGES[stage]
    for value in ("no", "False", 0, 1, None, [True]):
        refuses(make, **{SWITCHES[stage]: value})
    make(**{SWITCHES[stage]: np.bool_(True)})


def opportunistic(**settings):
    settings = {"max_factor": 2, "shuffle_buffer": 8} | settings
    return echo.OpportunisticIterDataset(numbers(), **settings)


def test_grain_stages_check_their_other_arguments():
    for stage in (STAGES["dataset"], opportunistic):
        for size in [0, *(x for x in WRONG_COUNTS if x is not None)]:
            refuses(stage, batch_size=size)
        for options in (None, 4, {"num_threads": 1}, grain.MultiprocessingOptions()):
            refuses(stage, read_options=options, error=TypeError)
        refuses(stage, placement="disk")
    for count in [0, *WRONG_COUNTS]:
        refuses(opportunistic, max_factor=count)
        refuses(opportunistic, shuffle_buffer=count)
    for name in ("slack", "limit", "waited", "earlier"):
        refuses(opportunistic, **{name: 1.0}, error=TypeError)
    for decisions in ([-1], [9], [1.5], ["1"], [[1]], 3):
        refuses(opportunistic, decisions=decisions, batch_size=8)


def test_outputs_are_counted_for_counts():
    for count in [x for x in WRONG_COUNTS if x is not None]:
        refuses(echo.EchoSchedule(2).num_outputs, count)


@pytest.mark.parametrize("value", ["gpu", None, 1, ["host"], np.array(["host"])])
def test_a_placement_is_one_of_those_listed(value):
    with pytest.raises(echo.EchoSpecError, match=r"placement is .*; allowed: 'host', 'device'"):
        STAGES["dataset"](placement=value)


def test_iterables_are_checked():
    refuses(echo.echo_iterable, 5, 2, error=TypeError)
    refuses(echo.EchoIterable, [1], 2, error=TypeError)
    for epoch in WRONG_COUNTS:
        refuses(echo.echo_iterable([1, 2], 2).set_epoch, epoch)
    for position in (-1, 1.5, 2**70, None):
        refuses(echo.EchoSchedule(2).cursor, position)


def test_a_device_store_checks_its_arguments():
    item = np.zeros(3, np.float32)
    for count in [0, 2**30, *WRONG_COUNTS]:
        refuses(echo.DeviceStore, item, count, 1)
        refuses(echo.DeviceStore, item, 1, count)
        refuses(echo.DeviceStore, item, 1, 1, streams=count)
    for leaf in (1.0, None, np.asarray("text"), np.zeros(2, [("a", int)])):
        refuses(echo.DeviceStore, {"x": leaf}, 1, 1, error=TypeError)
    for mesh in ("mesh", jax.make_mesh((1,), ("model",))):
        refuses(echo.DeviceStore, item, 1, 1, mesh=mesh, error=ValueError)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("batch_size", [0, *WRONG_COUNTS]),
        ("examples_per_call", [0, *WRONG_COUNTS]),
        ("shuffle_buffer", WRONG_COUNTS),
        ("workers", WRONG_COUNTS),
        ("cores", [-1, math.nan, math.inf, None, "2", True]),
        ("seconds", [0, -1, math.nan, math.inf, 1e-320, 1e308, None, "1"]),
        ("factors", [4, None, "12", [], [0], [math.nan], [math.inf], ["2"], [1, None]]),
    ],
)
def test_advise_checks_its_numbers_before_it_measures(name, wrong):
    def never(item):
        raise AssertionError

    for value in wrong:
        refuses(echo.advise, [("read", never)], never, **{"batch_size": 4} | {name: value})


def test_advise_takes_any_iterable_of_factors_of_any_kind():
    factors = iter([1, np.int32(2), fractions.Fraction(5, 2)])
    advice = echo.advise([("read", abs)], abs, batch_size=1, seconds=0.01, factors=factors)
    assert list(advice.points[0].step_seconds) == [1, 2, 2.5]
    assert re.search("e=1 .* e=2 .*e=2.5", str(advice))


def test_advise_adds_the_factor_1():
    advice = echo.advise([("read", abs)], abs, batch_size=1, seconds=0.01, factors=[4, 2])
    assert list(advice.points[0].step_seconds) == [1, 4, 2]


def stages():
    sequential = numbers().to_iter_dataset()
    fixed = {"factor": 2, "shuffle_buffer": 5, "batch_size": 4}
    auto = {"max_factor": 3, "shuffle_buffer": 5, "batch_size": 4}
    return {
        "random access": echo.EchoIterDataset(numbers(), **fixed),
        "sequential": echo.EchoIterDataset(sequential, **fixed),
        "opportunistic": echo.OpportunisticIterDataset(numbers(), **auto),
        "opportunistic, sequential": echo.OpportunisticIterDataset(sequential, **auto),
    }


WRONG_STATES = {
    "position": [-1, 10**9, 2**70, 1.5, None, "8", True],
    "batches": [-1, 1.5, None, 2**70],
    "admitted": [-1, 41, 1.5, None],
    "num_items": [-2, 2**70, None, 0],
    "next_index": [-1, 30, 2**70, None, "0"],
    "schedule": [None, "3, 5, 0", 7],
    "settings": [None, "max_factor 4", 7],
    "stored": [
        None,
        7,
        "",
        [[0], [1], [0], [2]],
        [[3, 2], [1, 1], [0, 0]],
        [[-1, 2], [1, 1], [0, 0]],
        [[0, 99], [1, 1], [0, 0]],
        [[0, 1], [0, 1], [0, 0]],
        [[0, 1], [3, 1], [0, 0]],
        [[0, 1], [1, 1], [0, 3]],
        [[0, 1], [1, 1], [0, -1]],
        [list(range(6)), [1] * 6, [0] * 6],
    ],
    "batch_size": [3, None],
    "kept_all_since": [-1, 1.5, None],
    "evicted": [-1, 1.5, None],
}


@pytest.mark.parametrize("kind", stages())
def test_an_invalid_state_is_refused_and_changes_nothing(kind):
    iterator, other = iter(stages()[kind]), iter(stages()[kind])
    for _ in range(3):
        next(iterator)
        next(other)
    state = iterator.get_state()
    wrong = [None, 7, "state", [], {}, {1: 2, "a": 3}, state | {"more": 1}]
    wrong += [{k: v for k, v in state.items() if k != name} for name in state]
    wrong += [state | {k: value} for k, vs in WRONG_STATES.items() if k in state for value in vs]
    for damaged in wrong:
        with pytest.raises(ValueError, match=r"state|allowed|beyond") as caught:
            iterator.set_state(copy.deepcopy(damaged))
        assert "\n" not in str(caught.value)
    assert iterator.get_state() == state
    if kind.startswith("opportunistic"):  # what comes next depends on what is ready
        next(iterator)
    else:
        for _ in range(5):
            np.testing.assert_array_equal(next(iterator), next(other))
    iterator.close()
    other.close()


def test_a_cursor_that_refuses_a_count_stays_where_it_is():
    cursor = echo.EchoSchedule(2).cursor()
    cursor.peek(8)  # outputs computed ahead, from whose end -1 would count
    for count in WRONG_COUNTS:
        refuses(cursor.take, count)
    assert cursor.position == 0


def test_the_largest_seeds_and_factors_work():
    largest = schedule.EchoSchedule(10**6, 4, 2**128 - 1)
    fresh, copies = largest.cursor().take(1000)
    assert (fresh == 0).all()
    assert copies.max() < 1003
