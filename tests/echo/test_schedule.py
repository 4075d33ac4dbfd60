"""The schedule against exact fractions and against a naive shuffle buffer written with lists."""

import collections
import fractions

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import EchoSchedule
from echo.schedule import _BLOCK

examples = hypothesis.settings(max_examples=200, deadline=None)

FACTORS = st.one_of(
    st.integers(1, 6),
    st.decimals(1, 6, places=2),
    st.decimals(1, 6, places=2).map(str),
    st.decimals(1, 4, places=1).map(float),
    st.floats(1, 8),  # sixteen digits
    st.fractions(1, 5, max_denominator=12),
    st.sampled_from([1.1, 1.15, 1.3333333333333333, "2.718281828459045235360287", 1.0]),
)


def written(factor) -> fractions.Fraction:
    return fractions.Fraction(str(factor))


def naive_outputs(factor, slots: int, seed: int, num_fresh: int):
    """The streaming shuffle buffer as one would explain it, and the fresh items admitted at each.

    Shares the draws with the schedule (word t of a Philox generator) and nothing else.
    """
    e = written(factor)
    stream = collections.deque(
        (item, copy)
        for item in range(num_fresh)
        for copy in range(int((item + 1) * e) - int(item * e))
    )
    draws = np.random.Philox(key=seed).random_raw(len(stream)).tolist()
    buffer, hole, outputs, admitted, seen = [], None, [], [], set()
    for draw in draws:
        while stream and len(buffer) < max(1, slots):
            buffer.append(stream.popleft())
        if hole is not None and stream:
            buffer[hole] = stream.popleft()
        elif hole is not None:
            last = buffer.pop()
            if hole < len(buffer):
                buffer[hole] = last
        seen.update(item for item, _ in buffer)
        hole = draw % len(buffer)
        outputs.append(buffer[hole])
        admitted.append(len(seen))
    return outputs, admitted


def outputs_of(schedule: EchoSchedule, position=0, num_fresh=None, n=100_000, step=7):
    """All outputs from `position` on, at most n, taken a few at a time."""
    cursor, outputs = schedule.cursor(position, num_fresh), []
    while len(outputs) < n:
        fresh, copy = cursor.take(min(step, n - len(outputs)))
        if not len(fresh):
            break
        outputs += zip(fresh.tolist(), copy.tolist(), strict=True)
    return outputs


@examples
@hypothesis.given(factor=FACTORS, start=st.sampled_from([0, 1, 999, 10**9, 10**12]))
def test_any_first_k_items_have_floor_k_e_copies(factor, start):
    schedule, e = EchoSchedule(factor), written(factor)
    copies = schedule.copies(start, start + 50).tolist()
    before = int(start * e)
    for k in range(51):
        assert schedule.num_outputs(start + k) == int((start + k) * e)
        assert before + sum(copies[:k]) == int((start + k) * e)
    assert set(copies) <= {int(e), -int(-e // 1)}


def test_factors_are_the_decimals_that_were_written():
    # 1.15 as a binary float is a little less, which would lose an output in twenty items.
    assert EchoSchedule(1.15).num_outputs(20) == 23
    assert EchoSchedule("1.15").factor == EchoSchedule(1.15).factor == fractions.Fraction(23, 20)
    assert EchoSchedule(fractions.Fraction(4, 3)).num_outputs(3 * 10**15) == 4 * 10**15
    assert EchoSchedule(1.3333333333333333).num_outputs(3 * 10**15) == 4 * 10**15 - 1
    thirds = (4 / 3, "4/3", fractions.Fraction(4, 3))
    assert [EchoSchedule(factor).num_outputs(30) for factor in thirds] == [39, 40, 40]
    digits = EchoSchedule("999999.0000000000001")  # whose numerator alone is beyond 64 bits
    assert digits.copies(0, 2).tolist() == [999_999, 999_999]
    assert [x.tolist() for x in digits.cursor().take(2)] == [[0, 0], [0, 1]]
    assert EchoSchedule(np.float32(1.1)).factor == fractions.Fraction(11, 10)
    assert EchoSchedule(np.int64(3)).factor == 3


@examples
@hypothesis.given(factor=FACTORS, position=st.integers(0, 10**13))
def test_the_item_of_an_echoed_position_is_exact_far_into_the_stream(factor, position):
    e = written(factor)
    (fresh,), (copy,) = EchoSchedule(factor).cursor(position).take(1)
    fresh = int(fresh)
    assert int(fresh * e) <= position < int((fresh + 1) * e)
    assert copy == position - int(fresh * e)


@examples
@hypothesis.given(
    factor=FACTORS, slots=st.integers(0, 40), seed=st.integers(0, 2**64), n=st.integers(0, 40)
)
def test_a_finite_stream_equals_the_naive_shuffle_buffer(factor, slots, seed, n):
    schedule = EchoSchedule(factor, slots, seed)
    expected, admitted = naive_outputs(factor, slots, seed, n)
    outputs = outputs_of(schedule, num_fresh=n)
    assert outputs == expected
    assert [schedule.admitted(t, n) for t in range(len(expected) + 1)] == [0, *admitted]
    # Every (item, copy) pair exactly once, each item as often as its share says.
    assert len(set(outputs)) == len(outputs) == int(n * written(factor))
    counts = collections.Counter(item for item, _ in outputs)
    assert [counts[i] for i in range(n)] == schedule.copies(0, n).tolist()


@examples
@hypothesis.given(
    factor=FACTORS, slots=st.integers(0, 30), n=st.integers(0, 25), at=st.floats(0, 1.0)
)
def test_a_cursor_can_start_anywhere(factor, slots, n, at):
    schedule = EchoSchedule(factor, slots, seed=5)
    whole = outputs_of(schedule, num_fresh=n)
    position = round(at * len(whole))
    assert outputs_of(schedule, position, n, step=3) == whole[position:]
    # The same where the end becomes known only later, as late as it can be.
    steady = max(0, min(position, len(whole) - schedule.slots + 1))
    cursor = schedule.cursor(max(0, steady - 3))
    cursor.take(min(3, steady))
    cursor.end(n)
    fresh, copy = cursor.take(len(whole) + 1)
    assert list(zip(fresh.tolist(), copy.tolist(), strict=True)) == whole[steady:]


@examples
@hypothesis.given(
    factor=FACTORS, slots=st.integers(0, 30), n=st.integers(1, 25), at=st.floats(0, 1.0)
)
def test_live_items_are_those_admitted_with_copies_left(factor, slots, n, at):
    schedule = EchoSchedule(factor, slots, seed=3)
    whole = outputs_of(schedule, num_fresh=n)
    position = round(at * len(whole))
    to_come = collections.Counter(item for item, _ in whole[position:])
    admitted = schedule.admitted(position, n)
    cursor = schedule.cursor(position, n)
    expected = {item: to_come[item] for item in range(admitted) if to_come[item]}
    assert cursor.pending() == expected
    assert list(cursor.pending()) == sorted(expected)
    if whole[position:]:
        assert cursor.oldest() == min(to_come)
        cursor.take(1)  # now some of the future is planned
        if whole[position + 1 :]:
            assert cursor.oldest() == min(item for item, _ in whole[position + 1 :])


def test_an_endless_stream_begins_like_a_finite_one():
    schedule = EchoSchedule(2, 10, seed=1)
    endless = outputs_of(schedule, n=9_000)
    assert endless[:100] == outputs_of(schedule, num_fresh=55)[:100]
    assert outputs_of(schedule, 4_990, n=4_010, step=1_000) == endless[4_990:]
    assert schedule.admitted(9_000) == (9_000 + 10 - 1 + 1) // 2
    at_once = np.stack(schedule.cursor().take(3 * _BLOCK))
    np.testing.assert_array_equal(at_once[:, 20_000:], schedule.cursor(20_000).take(29_152))


def test_starting_late_does_not_scan_from_the_start():
    schedule, late = EchoSchedule(4, 5_000, seed=2), 10**14
    tail = outputs_of(schedule, late, n=300)  # a scan would take years
    assert outputs_of(schedule, late - 10_000, n=10_300, step=1_000)[10_000:] == tail


@pytest.mark.parametrize("factor", [1, 2, 4, 16])
def test_the_number_of_stored_items_matches_the_formula(factor):
    # Holding times are geometric with mean S, so the last of e copies leaves after S*H_e on
    # average, and items enter every e outputs.
    slots, outputs = 2_000, 120_000
    schedule = EchoSchedule(factor, slots, seed=4)
    fresh, _ = schedule.cursor().take(outputs)
    last_output = np.zeros(int(fresh.max()) + 1, np.int64)
    np.maximum.at(last_output, fresh, np.arange(outputs))
    formula = slots * sum(1 / k for k in range(1, factor + 1)) / factor
    stored = []
    for position in range(40_000, 70_000, 2_000):  # steady, and far enough from the end
        admitted = schedule.admitted(position)
        stored.append(np.count_nonzero(last_output[:admitted] >= position))
    assert np.mean(stored) == pytest.approx(formula, rel=0.03)
    assert len(schedule.cursor(50_000).pending()) == pytest.approx(formula, rel=0.06)
