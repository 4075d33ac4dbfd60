"""The stores: each item once, copies counted, nothing shared between copies."""

import collections

import numpy as np
import pytest

from echo import stores
from echo.schedule import EchoSchedule
from echo.stores import ArrayStore, ItemStore, RowAllocator
from tests.helpers.echo_parents import emit

Pair = collections.namedtuple("Pair", "left right")


def example(number: int) -> dict:
    """An example all of whose values are its number."""
    image = np.full((2, 3), number, np.uint16)
    return {"image": image, "more": (np.int64(number), [float(number)], Pair(number, b"ab"))}


def filled(numbers, copies, rows=8) -> ArrayStore:
    store = ArrayStore(rows)
    store.put(np.asarray(numbers), map(example, numbers), np.asarray(copies))
    return store


def test_structure_types_and_order_are_preserved():
    store = filled([3, 4], [1, 2])
    batch = emit(store, [4, 3, 4])
    assert list(batch) == ["image", "more"]
    assert batch["image"].shape == (3, 2, 3)
    assert batch["image"].dtype == np.uint16
    number, (same,), pair = batch["more"]
    assert isinstance(pair, Pair)
    for column in (number, same, pair.left):
        np.testing.assert_array_equal(column, [4, 3, 4])
    assert pair.right.tolist() == [b"ab"] * 3
    assert len(store) == 0


def test_only_as_many_rows_as_are_in_use_together_are_touched():
    store = ArrayStore(10)
    table = len(store.rows._row_of)
    for number in range(0, 300, 2):
        pair = [number, number + 1]
        store.put(np.asarray(pair), [example(number), example(number + 1)], np.asarray([1, 1]))
        assert sorted(*store.take(np.asarray([pair])).tolist()) == [0, 1]
    assert len(store.rows._row_of) == table  # which grows only where pending items would meet


@pytest.mark.parametrize("first_rows", [1, 3, 50])
def test_rows_are_the_same_however_many_a_store_begins_with(first_rows, monkeypatch):
    schedule, num_read, monitored = EchoSchedule(2, 100), 0, []
    all_at_once = RowAllocator(schedule.max_pending(8))
    monkeypatch.setattr(stores, "_FIRST_ROWS", first_rows)
    growing, cursor = RowAllocator(schedule.max_pending(8)), schedule.cursor()
    for _ in range(200):
        stop = schedule.admitted(cursor.position + 8)
        fresh, (emitted, _) = np.arange(num_read, stop), cursor.take(8)
        num_read = stop
        for rows in (all_at_once, growing):
            free = rows.next_free(len(fresh))
            rows.occupy(free, fresh, np.full(len(fresh), 2))
            monitored.append([*free, *rows.take(emitted), len(rows)])
    assert monitored[::2] == monitored[1::2]


def test_a_buffer_takes_memory_for_the_items_that_it_holds():
    store = filled([0, 1], [1, 1], rows=2**24)
    kept = [array for array in vars(store.rows).values() if isinstance(array, np.ndarray)]
    assert sum(array.nbytes for array in kept) < 200_000


def test_a_buffer_for_which_no_memory_can_be_reserved_is_named():
    for rows in (2**50, 2**62):
        with pytest.raises(MemoryError, match=rf"room for {rows} items of 800 bytes, more"):
            ArrayStore(rows).put(np.arange(1), [np.zeros(100)], np.ones(1, int))


def test_batches_share_no_memory_with_the_store_or_each_other():
    store = filled([0, 1], [3, 3])
    first = emit(store, [0, 1, 0])
    first["image"][:] = 77
    second = emit(store, [0, 1])
    np.testing.assert_array_equal(second["image"][:, 0, 0], [0, 1])


def test_a_dict_in_another_order_is_the_same_structure():
    store = ArrayStore(4)
    items = [{"a": np.int32(1), "b": np.int32(2)}, {"b": np.int32(4), "a": np.int32(3)}]
    store.put(np.arange(2), items, np.ones(2, int))
    batch = emit(store, range(2))
    assert batch["a"].tolist() == [1, 3]
    assert batch["b"].tolist() == [2, 4]


def test_the_item_store_emits_independent_copies():
    store, item = ItemStore(), {"x": np.zeros(3), "y": [1]}
    store.put(np.asarray([7]), [item], np.asarray([3]))
    item["x"][:] = 9
    copies = []
    for _ in range(3):
        copies.append(emit(store, [7]))
        assert copies[-1]["x"].tolist() == [0, 0, 0]
        assert copies[-1]["y"] == [1]
        copies[-1]["x"][:] = 5
        copies[-1]["y"].append(2)
    assert len(store) == 0
    assert not any(np.shares_memory(copies[i]["x"], copies[j]["x"]) for i, j in [(0, 1), (1, 2)])
