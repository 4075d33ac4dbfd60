"""The stores: each item once, copies counted, nothing shared between copies."""

import collections
import functools
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from flax.core import FrozenDict

from echo.device import DeviceStore
from echo.schedule import EchoSchedule
from echo.stores import ArrayStore, ItemStore, RowAllocator, Stacked
from tests.helpers.echo_parents import emit

Pair = collections.namedtuple("Pair", "left right")


def example(number: int) -> dict:
    """An example all of whose values are its number."""
    image = np.full((2, 3), number, np.uint16)
    return {"image": image, "more": (np.int64(number), [float(number)], Pair(number, b"ab"))}


def arrays(number: int) -> dict:
    """An example of arrays alone, which are stored column by column."""
    return {"image": np.full((2, 3), number, np.uint16), "more": np.int64(number)}


def stacked(numbers):
    items = [arrays(number) for number in numbers]
    return Stacked({key: np.stack([item[key] for item in items]) for key in ("image", "more")})


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_the_array_store_emits_items_and_keeps_those_with_copies_left(data):
    capacity = data.draw(st.integers(1, 12))
    store, left, next_item, seen = ArrayStore(capacity), {}, 0, []
    make = data.draw(st.sampled_from([example, arrays]))
    for _ in range(data.draw(st.integers(1, 12))):
        n = data.draw(st.integers(0, capacity - len(left)))
        if n:
            new = np.arange(next_item, next_item + n)
            copies = np.asarray(data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)))
            ways = [list(map(make, new.tolist()))] + [stacked(new)] * (make is arrays)
            store.put(new, data.draw(st.sampled_from(ways)), copies)
            left |= dict(zip(new.tolist(), copies.tolist(), strict=True))
            next_item += n
        pending = [item for item, count in left.items() for _ in range(count)]
        batch = data.draw(st.permutations(pending).map(lambda p: p[: len(p) // 2 + 1]))
        if batch:
            emitted = emit(store, batch)
            assert emitted["image"].tolist() == [[[item] * 3] * 2 for item in batch]
            left = dict(collections.Counter(left) - collections.Counter(batch))
            seen.append((emitted["image"], batch))
        elif left and data.draw(st.booleans()):
            dropped = data.draw(st.sampled_from(sorted(left)))
            store.drop(np.asarray([dropped]))
            del left[dropped]
    for batch, items in seen:  # nothing that was put later has changed it
        assert batch[:, 0, 0].tolist() == items


def test_structure_types_and_order_are_preserved():
    store = ArrayStore(8)
    store.put(np.asarray([3, 4]), [example(3), example(4)], np.asarray([1, 2]))
    batch = emit(store, [4, 3, 4])
    assert list(batch) == ["image", "more"]
    assert batch["image"].dtype == np.uint16
    number, (same,), pair = batch["more"]
    assert isinstance(pair, Pair)
    for column in (number, same, pair.left):
        np.testing.assert_array_equal(column, [4, 3, 4])
    assert pair.right.tolist() == [b"ab"] * 3


@pytest.mark.parametrize("kind", [collections.UserDict, types.MappingProxyType, FrozenDict])
def test_mappings_of_any_kind_and_order_become_dicts(kind):
    first = kind({"x": np.zeros(2), "inner": kind({"y": np.int64(1)})})
    second = kind({"inner": kind({"y": np.int64(2)}), "x": np.ones(2)})
    store = ArrayStore(4)
    for number, item in enumerate((first, second)):
        store.put(np.asarray([number]), [item], np.asarray([1]))
    batch = emit(store, [1, 0])
    assert type(batch) is type(batch["inner"]) is dict
    assert batch["x"].tolist() == [[1, 1], [0, 0]]
    assert batch["inner"]["y"].tolist() == [2, 1]


ITEM = {"x": np.zeros(2, np.int16)}
OTHER_ITEMS = [
    {"x": np.zeros(3, np.int16)},
    {"x": np.zeros(2, np.int32)},
    {"y": np.zeros(2, np.int16)},
    ITEM | {"y": 0},
    [np.zeros(2, np.int16)],
    np.zeros(2, np.int16),
    {"x": {}},
    {"x": np.ma.zeros(2, np.int16)},
]
# Objects would be shared, masks and zero bytes at the end of a string lost.
BAD_ITEMS = [np.array([None, 1]), np.ma.zeros(2, int), b"ab\0", "ab\0", b"\0"]


@pytest.mark.parametrize("new_store", [ArrayStore, DeviceStore])
@pytest.mark.parametrize("item", [*OTHER_ITEMS, *BAD_ITEMS])
def test_what_a_batch_could_not_hold_is_refused(new_store, item):
    store, bad = new_store(4), any(item is other for other in BAD_ITEMS)
    store.put(np.asarray([0]), [ITEM], np.asarray([1]))
    with pytest.raises(ValueError, match="item 2"):
        store.put(np.asarray([1, 2]), [ITEM, item], np.asarray([1, 1]))
    if bad:  # also as the first one
        with pytest.raises(ValueError, match="item 1"):
            new_store(4).put(np.asarray([1]), [item], np.asarray([1]))


@pytest.mark.parametrize("new_store", [ArrayStore, functools.partial(DeviceStore, batch_size=4)])
def test_one_row_does_not_stand_for_several_items(new_store):
    items = Stacked({"x": np.zeros((3, 2)), "y": np.zeros(1)})
    with pytest.raises(ValueError, match="item 7"):
        new_store(4).put(np.arange(7, 10), items, np.ones(3, int))


def test_items_are_not_converted_to_the_dtype_of_others():
    wide, store = {"x": np.zeros(2, np.int32)}, ArrayStore(4)
    store.put(np.asarray([0]), [wide], np.asarray([1]))
    with pytest.raises(ValueError, match="item 2"):
        store.put(np.asarray([1, 2]), [wide, ITEM], np.asarray([1, 1]))


def test_rows_stay_below_the_most_that_are_pending_together():
    schedule, rows, num_read, most = EchoSchedule(2, 100), RowAllocator(), 0, 0
    cursor, left = schedule.cursor(), collections.Counter()
    for _ in range(200):
        stop = schedule.admitted(cursor.position + 8)
        fresh, (emitted, _) = np.arange(num_read, stop), cursor.take(8)
        num_read = stop
        copies = schedule.copies(fresh[0], fresh[-1] + 1)
        rows.add(fresh, copies)
        left += dict(zip(fresh.tolist(), copies.tolist(), strict=True))
        most = max(most, len(left))
        left -= collections.Counter(emitted.tolist())
        assert rows.take(emitted).max() < most <= cursor.max_pending(8)


def test_the_item_store_emits_independent_copies():
    original = {"list": [1]}
    store = ItemStore()
    store.put(np.asarray([5, 6]), [original, {"list": [2]}], np.asarray([3, 1]))
    copies = [store.emit(taken) for taken in store.take(np.asarray([[5], [5], [5]]))]
    assert copies == [original] * 3
    assert len({id(copy["list"]) for copy in [*copies, original]}) == 4
    store.drop(np.asarray([6]))
    for number in (5, 6):  # all copies of one are emitted, the other is dropped
        with pytest.raises(KeyError):
            store.emit(np.asarray([number]))
