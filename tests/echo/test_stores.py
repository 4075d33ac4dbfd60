"""The stores: each item once, copies counted, nothing shared between copies."""

import collections
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from flax.core import FrozenDict

from echo import stores
from echo.schedule import EchoSchedule
from echo.stores import ArrayStore, ItemStore, RowAllocator
from echo.tree import Structure
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


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_the_array_store_emits_items_and_keeps_those_with_copies_left(data):
    store, left, newest = ArrayStore(40), {}, 0
    for _ in range(data.draw(st.integers(1, 30))):
        n = data.draw(st.integers(0, 40 - len(left)))
        if n:
            gaps = st.lists(
                st.sampled_from([1, 1, 1, 127, 128, 129, 5_000]), min_size=n, max_size=n
            )
            numbers = newest + np.cumsum(data.draw(gaps))  # some would share a place in the table
            copies = np.asarray(data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)))
            items = {"x": np.stack([numbers, -numbers], axis=1)}
            form = data.draw(st.sampled_from(["stacked", "list", "one by one"]))
            if form == "stacked":
                store.put_stacked(numbers, items, copies)
            else:
                single = ({"x": row} for row in items["x"])
                store.put(numbers, list(single) if form == "list" else single, copies)
            left |= zip(numbers.tolist(), copies.tolist(), strict=True)
            newest = int(numbers[-1])
        waiting = [number for number, count in left.items() for _ in range(count)]
        if waiting:
            emitted = data.draw(st.permutations(waiting))[: data.draw(st.integers(1, 12))]
            sizes = [size for size in range(1, len(emitted) + 1) if len(emitted) % size == 0]
            index = np.reshape(emitted, (-1, data.draw(st.sampled_from(sizes))))
            for numbers, taken in zip(index, store.take(index), strict=True):
                batch = store.emit(taken)
                np.testing.assert_array_equal(batch["x"][:, 0], numbers)
                np.testing.assert_array_equal(batch["x"][:, 1], -numbers)
            for number in emitted:
                left[number] -= 1
                if not left[number]:
                    del left[number]
        if left and data.draw(st.booleans()):
            dropped = sorted(left)[: data.draw(st.integers(1, 3))]
            store.drop(np.asarray(dropped))
            left = {number: count for number, count in left.items() if number not in dropped}
        assert len(store) == len(left)


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


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"x": np.zeros(3, np.int16)},
            r"fresh item 5 .*\(3,\).*before have .*\(2,\).*pad or resize",
        ),
        ({"x": np.zeros(2, np.int32)}, "int32.*before have.*int16"),
        ({"y": np.zeros(2, np.int16)}, r"a dict of 'y' where earlier items hold a dict of 'x'"),
        ({"x": np.zeros(2, np.int16), "y": 0}, "a dict of 'x', 'y' where earlier"),
        ([np.zeros(2, np.int16)], "a list of 0 where earlier items hold a dict of 'x'"),
        (np.zeros(2, np.int16), "hold"),
        ({"x": {"z": np.zeros(2, np.int16)}}, r"dtype\('O'\).*before have"),
        ({"x": np.ma.array(np.zeros(2, np.int16), mask=[0, 1])}, "item 5 has a masked array"),
    ],
)
def test_items_of_another_kind_are_refused_and_leave_the_store_intact(item, message):
    store = ArrayStore(4)
    store.put(np.asarray([4]), [{"x": np.ones(2, np.int16)}], np.ones(1, int))
    with pytest.raises(ValueError, match=message):
        store.put(np.asarray([5, 6]), [item, item], np.ones(2, int))
    assert len(store) == 1
    assert emit(store, [4])["x"].tolist() == [[1, 1]]


def test_python_objects_are_refused_since_a_gather_would_share_them():
    with pytest.raises(ValueError, match=r"not from Python objects.*leave batch_size out.*host"):
        ArrayStore(4).put(np.asarray([0]), [{"x": np.asarray([None, {}])}], np.ones(1, int))


def test_masked_arrays_are_refused_since_a_gather_would_drop_the_mask():
    with pytest.raises(ValueError, match=r"masked.*as two arrays.*leave batch_size out"):
        ArrayStore(4).put(np.asarray([0]), [np.ma.array([1, 2], mask=[0, 1])], np.ones(1, int))


@pytest.mark.parametrize("string", [b"ab\0", "ab\0", b"\0"])
def test_strings_that_end_in_a_zero_byte_are_refused_since_an_array_would_drop_it(string):
    for items in ([string], [{"x": b"abc"}, {"x": string}]):
        with pytest.raises(ValueError, match=r"zero byte.*np\.frombuffer"):
            ArrayStore(4).put(np.arange(len(items)), items, np.ones(len(items), int))


def test_items_before_an_error_are_kept():
    def breaking():
        yield example(0)
        yield example(1)
        raise OSError("the disk is gone")

    store = ArrayStore(8)
    with pytest.raises(OSError, match="the disk is gone"):
        store.put(np.arange(5), breaking(), np.full(5, 2))
    assert len(store) == 2
    store.put(np.arange(2, 4), [example(2), example(3)], np.ones(2, int))
    np.testing.assert_array_equal(emit(store, range(4))["image"][:, 0, 0], range(4))
    assert len(store) == 2


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


def test_a_structure_rebuilds_items_from_leaves():
    item = {"b": (1, [2, 3]), "a": Pair(4, {})}
    structure = Structure(item)
    assert structure.leaves(item) == [1, 2, 3, 4]
    assert structure.build([1, 2, 3, 4]) == item
    assert list(Structure({"b": 1, "a": 2}).build([3, 4]).items()) == [("b", 3), ("a", 4)]
    with pytest.raises(ValueError, match="longer"):
        Structure({"b": 1, "a": 2}).build([3, 4, 5])
    assert Structure(5).leaves(6) == [6]
    assert Structure(5).build([6]) == 6


@pytest.mark.parametrize("kind", [collections.UserDict, types.MappingProxyType, FrozenDict])
def test_batches_of_any_mapping_hold_its_values(kind):
    store = ArrayStore(4)
    items = [kind({"x": np.full(2, n), "inner": kind({"y": n})}) for n in range(3)]
    store.put(np.arange(2), items[:2], np.ones(2, int))
    store.put(np.arange(2, 3), items[2:], np.ones(1, int))
    batch = emit(store, range(3))
    assert type(batch) is dict
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["inner"]["y"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"'x' where earlier items hold .*'x', 'inner'"):
        store.put(np.asarray([4]), [kind({"x": np.full(2, 4)})], np.ones(1, int))
