"""Invalid arguments, items, and states: an error that names the field, and nothing changes."""

import copy
import math
import pickle
import re

import grain
import numpy as np
import pytest

import echo
from echo.spec import abbreviated
from tests.helpers.echo_parents import THREADS, parent_of
from tests.helpers.runs import run_python

COUNTS = [1.5, -1, 2**70, 10**6000, None, "1", True, math.nan, math.inf, np.float32(1), [1]]
FACTORS = [math.nan, math.inf, 0, 0.5, -1, 1e7, "1e400", "1e999999999", "x", "1/0", "", None]
FACTORS += [True, [2], 10**6000, "9" * 5000, "9" * 5000 + "/1", object(), np.eye(3)]
SWITCHES = ["no", "False", 0, 1, None, [True]]
SEEDS = [count for count in COUNTS if count != 2**70] + [2**128]
SIZES = [0, *(count for count in COUNTS if count is not None)]


def parent(n=40):
    return parent_of("map", n)[0]


def fixed(**given):
    return echo.EchoIterDataset(parent(), **{"factor": 2} | given)


def auto(**given):
    settings = {"max_factor": 3, "shuffle_buffer": 8, "batch_size": 8, "read_options": THREADS}
    return echo.OpportunisticIterDataset(parent(), **settings | given)


def iterable(**given):
    return echo.echo_iterable([1, 2], **{"factor": 2} | given)


def tf(**given):
    return echo.tf_data.echo(**{"factor": 2} | given)


def schedule(**given):
    return echo.EchoSchedule(**{"factor": 2} | given)


def store(**given):
    return echo.DeviceStore(**{"rows": 4} | given)


SPEC = echo.EchoSpecError
# (call, its wrong arguments, error)
WRONG = [
    *[(f, {"factor": FACTORS}, SPEC) for f in (schedule, iterable, fixed)],
    *[(f, {"shuffle_buffer": COUNTS, "seed": SEEDS}, SPEC) for f in (schedule, iterable, fixed)],
    (tf, {"factor": [*FACTORS, "1.0123456789"], "shuffle_buffer": [*COUNTS, 2**29]}, SPEC),
    (tf, {"seed": SEEDS, "reshuffle_each_iteration": SWITCHES}, SPEC),
    (iterable, {"reshuffle_each_iteration": SWITCHES}, SPEC),
    (fixed, {"drop_remainder": SWITCHES, "annotate": SWITCHES, "batch_size": SIZES}, SPEC),
    (fixed, {"placement": ["gpu", None, 1, ["host"], np.array(["host"])]}, SPEC),
    (auto, {"max_factor": [0, *COUNTS], "shuffle_buffer": [0, *COUNTS]}, SPEC),
    (auto, {"placement": ["disk"]}, SPEC),
    (auto, {"read_options": [grain.ReadOptions(0, 4), grain.ReadOptions(4, 0)]}, SPEC),
    (lambda num_fresh: schedule().num_outputs(num_fresh), {"num_fresh": COUNTS[:4]}, SPEC),
    (lambda position: schedule().cursor(position), {"position": COUNTS}, SPEC),
    (lambda n: schedule().cursor().take(n), {"n": COUNTS}, SPEC),
    (lambda epoch: iterable().set_epoch(epoch), {"epoch": COUNTS}, SPEC),
    (lambda iterable: echo.echo_iterable(iterable, 2), {"iterable": [5]}, TypeError),
    (lambda parent: echo.EchoIterDataset(parent, factor=2), {"parent": [[1], None]}, TypeError),
    (store, {"rows": [0, 2**30, *COUNTS]}, SPEC),
]


@pytest.mark.parametrize(
    ("call", "name", "values", "error"),
    [(call, name, vs, error) for call, wrong, error in WRONG for name, vs in wrong.items()],
)
def test_a_wrong_argument_is_one_sentence_that_names_it(call, name, values, error):
    for value in values:
        with pytest.raises(error) as caught:
            call(**{name: value})
        assert re.search(rf"\b{name}\b", str(caught.value))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
        if error is echo.EchoSpecError:
            assert caught.value.field == name


def test_an_error_can_be_raised_in_another_process():
    received = pickle.loads(pickle.dumps(echo.EchoSpecError("factor", 0.5, "more")))
    assert (received.field, received.value, received.allowed) == ("factor", 0.5, "more")


def test_the_limits_themselves_are_allowed():
    largest = echo.EchoSchedule(10**6, 4, 2**128 - 1)
    fresh, copies = largest.cursor().take(1000)
    assert (fresh == 0).all()
    assert copies.max() < 1003
    store(rows=1)
    assert not fixed(annotate=np.bool_(False), batch_size=2**31 - 1).annotate
    assert abbreviated("x" * 78) == repr("x" * 78)
    assert abbreviated("x" * 79) == f"'{'x' * 79}... (81 characters)"


def stages():
    sequential = parent_of("sequential", 40)[0]
    options = {"shuffle_buffer": 5, "batch_size": 4}
    return {
        "random access": echo.EchoIterDataset(parent(), factor=2, **options),
        "sequential": echo.EchoIterDataset(sequential, factor=2, **options),
        "auto": auto(**options, slack=lambda: 0.0),
        "auto, sequential": echo.OpportunisticIterDataset(sequential, max_factor=3, **options),
    }


WRONG_STATES = {
    "position": [-1, 10**9, 2**70, 1.5, None, "8", True],
    "schedule": [None, "3, 5, 0", "2, 4, 0", "2, 5, 1", 7],
    "max_factor": [None, 4, "3"],
    "shuffle_buffer": [None, 6],
    "batch_size": [3, None],
    "admitted": [41],
    "batches": [-1, 1.5, None],
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
    given = {k: vs for k, vs in WRONG_STATES.items() if k in state}
    if kind == "auto, sequential":  # whose end is not known
        del given["admitted"]
    if kind == "sequential":
        given["position"] = [value for value in given["position"] if value != 10**9]
    wrong += [state | {k: value} for k, vs in given.items() for value in vs]
    for damaged in wrong:
        with pytest.raises(ValueError, match=r"state|allowed|beyond|items") as caught:
            iterator.set_state(copy.deepcopy(damaged))
        assert "\n" not in str(caught.value)
    assert iterator.get_state() == state
    if kind.startswith("auto"):  # what comes next depends on what is ready
        next(iterator)
    else:
        for _ in range(5):
            np.testing.assert_array_equal(next(iterator)["y"], next(other)["y"])
    iterator.close()
    other.close()


def test_the_library_exports_what_it_lists_and_documents_it(request):
    reference = (request.config.rootpath / "docs" / "api.md").read_text()
    for name in echo.__all__:
        assert getattr(echo, name) is not None
        assert re.search(rf"echo\.{name}\b", reference), name
    assert (request.config.rootpath / "echo" / "py.typed").exists()  # hints reach users
    with pytest.raises(AttributeError, match="EchoStage"):
        _ = echo.EchoStage


def test_a_name_whose_package_is_missing_says_which():
    program = """
import sys
sys.modules |= dict.fromkeys(['grain', 'jax', 'tensorflow'])
import echo
for call in (lambda: echo.EchoIterDataset, lambda: echo.DeviceStore, lambda: echo.tf_data.echo(2)):
    try:
        call()
    except ImportError as error:
        print(error.name)
"""
    assert run_python(["-c", program]).stdout.split() == ["grain", "jax", "tensorflow"]
