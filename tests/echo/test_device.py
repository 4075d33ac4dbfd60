"""Echoing on the device: orders that give what the host stage gives, and the store that follows."""

import grain
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from echo import EchoIterDataset, EchoSpecError, gather_plan
from echo.device import DeviceStore
from tests.helpers.echo_parents import KINDS, NO_THREADS, THREADS, parent_of


class FollowedByHand:
    """A store of plain arrays that follows orders in the most obvious way."""

    def __init__(self, capacity):
        self.capacity, self.stored = capacity, {}
        self.rounds, self.placed = [], []

    def follow(self, order):
        self.rounds.append(len(order.rows))
        for number, rows in enumerate(order.rows[:, 0]):
            assert len(set(rows.tolist())) == len(rows)
            for place, row in enumerate(rows.tolist()):
                if row < gather_plan.NOWHERE:
                    assert row < self.capacity
                    item = {k: v[number, 0, place] for k, v in order.items.items()}
                    assert item["y"] == -order.fresh[number, 0, place]
                    self.stored[row] = item
                    self.placed.append(int(order.fresh[number, 0, place]))
        shown = [self.stored[row] for row in order.gather[0].tolist()]
        return {key: np.stack([item[key] for item in shown]) for key in shown[0]}


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    kind=st.sampled_from(KINDS),
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.sampled_from([0, 1, 6, 200]),
    batch_size=st.sampled_from([None, 1, 4, 10]),
    n=st.integers(0, 60),
    drop=st.booleans(),
    stop_at=st.integers(0, 30),
    read_options=st.sampled_from([THREADS, NO_THREADS]),
)
def test_orders_that_are_followed_give_what_the_host_stage_gives_also_from_a_state(
    kind, factor, buffer, batch_size, n, drop, stop_at, read_options
):
    def stage(placement):
        return EchoIterDataset(
            parent_of(kind, n)[0],
            factor=factor,
            shuffle_buffer=buffer,
            seed=3,
            batch_size=batch_size,
            drop_remainder=drop,
            annotate=True,
            read_options=read_options,
            placement=placement,
        )

    host, device = iter(stage("host")), iter(stage("device"))
    capacity = stage("device").store_rows()
    store = FollowedByHand(capacity)
    steps = 0
    while (wanted := next(host, None)) is not None:
        if steps == stop_at:
            state = device.get_state()
            device.close()
            device, store = iter(stage("device")), FollowedByHand(capacity)
            device.set_state(state)
        order = next(device)
        found = store.follow(order.item)
        np.testing.assert_array_equal(order.index, wanted.index)
        np.testing.assert_array_equal(order.copy, wanted.copy)
        assert order.fresh == wanted.fresh
        for key in ("x", "y"):
            item = wanted.item[key] if batch_size else wanted.item[key][None]
            np.testing.assert_array_equal(found[key], item)
            assert found[key].dtype == item.dtype
        steps += 1
    assert next(device, None) is None
    for iterator in (host, device):
        iterator.close()
    assert len(set(store.placed)) == len(store.placed)  # each item once
    assert max(store.rounds[1:], default=0) <= 1  # the buffer's filling, or what was pending, aside


def test_each_batch_places_an_equal_share_of_new_items_although_reading_goes_in_chunks():
    parent, _ = parent_of("stacked", 3000)
    options = {"factor": 4, "shuffle_buffer": 100, "batch_size": 32, "annotate": True}
    stage = EchoIterDataset(parent, **options, placement="device")
    iterator = iter(stage)
    placed = [np.sum(next(iterator).item.rows < gather_plan.NOWHERE) for _ in range(300)]
    iterator.close()
    assert stage.round_size == 8
    assert placed[0] == -(-(32 + 100 - 1) // 4)
    assert set(placed[1:]) == {8}


def images(n):
    """Examples that tell their number, with a label whose dtype JAX does not keep."""
    numbers = grain.MapDataset.range(n)
    return numbers.map(lambda i: {"x": np.full((4, 3, 1), i, np.uint8), "y": np.int64(-i)})


ITEM = {"x": np.zeros((4, 3, 1), np.uint8), "y": np.int64(0)}
ITEM_BYTES = 12 + 4


def test_the_store_sends_each_item_once_and_says_how_much():
    options = {"factor": 2.5, "shuffle_buffer": 40, "batch_size": 16, "seed": 1}
    stage = EchoIterDataset(images(200), **options, placement="device")
    store = DeviceStore(ITEM, stage.store_rows(200), stage.round_size)
    assert (store.item_bytes, store.device_bytes) == (ITEM_BYTES, ITEM_BYTES * (40 + 16))
    rounds = steps = 0
    for wanted, order in zip(EchoIterDataset(images(200), **options), stage, strict=True):
        found = jax.device_get(store.follow(order))
        np.testing.assert_array_equal(found["x"], wanted["x"])
        np.testing.assert_array_equal(found["y"], wanted["y"])
        rounds, steps = rounds + len(order.rows), steps + 1
    assert steps == 500 // 16
    # ceil(16 / 2.5) items a round and their rows; a row to gather for each example
    assert store.bytes_sent == rounds * 7 * (ITEM_BYTES + 4) + steps * 16 * 4
    assert rounds * 7 < 1.2 * 200


def test_batches_are_items_too():
    options = {"factor": 2, "shuffle_buffer": 3, "seed": 1}
    batches = images(64).batch(8)
    stage = EchoIterDataset(batches, **options, placement="device")
    item = {"x": np.zeros((8, 4, 3, 1), np.uint8), "y": np.zeros(8, np.int64)}
    store = DeviceStore(item, stage.store_rows(8), stage.round_size, batches=True)
    for wanted, order in zip(EchoIterDataset(batches, **options), stage, strict=True):
        found = jax.device_get(store.follow(order))
        np.testing.assert_array_equal(found["x"], wanted["x"])
        np.testing.assert_array_equal(found["y"], wanted["y"])


def _crop_and_number(examples, fresh):
    return {"x": examples["x"][:, :2], "number": fresh.astype(jnp.int32)}


@pytest.mark.parametrize("batches", [False, True])
def test_items_can_be_changed_as_they_enter(batches):
    parent = images(48).batch(4) if batches else images(48)
    options = {"factor": 3, "batch_size": None if batches else 4, "annotate": True}
    stage = EchoIterDataset(parent, **options, placement="device")
    item = {"x": np.zeros((4, 4, 3, 1), np.uint8)} if batches else {"x": ITEM["x"]}
    store = DeviceStore(
        item, stage.store_rows(), stage.round_size, batches=batches, enter=_crop_and_number
    )
    assert store.item_bytes == (6 + 4) * (4 if batches else 1)
    for order in stage:
        item, fresh = order.item, order.item.fresh
        item = item._replace(items={"x": item.items["x"]})
        if batches:
            item = item._replace(fresh=fresh[..., None] * 4 + np.arange(4))
        found = jax.device_get(store.follow(item))
        index = np.ravel(order.index[..., None] * 4 + np.arange(4)) if batches else order.index
        assert found["number"].tolist() == index.tolist()
        assert found["x"].shape == (4, 2, 3, 1)
        assert found["x"][:, 0, 0, 0].tolist() == index.tolist()


def test_what_fills_up_a_round_goes_nowhere():
    kept = gather_plan.OrderStore(3, round_size=8)
    kept.put(np.arange(3), ({"x": np.int32(7 + i)} for i in range(3)), np.ones(3, int))
    batch = DeviceStore({"x": np.int32(0)}, 3, 8).follow(kept.show(np.arange(3)))
    assert batch["x"].tolist() == [7, 8, 9]


def test_an_emptied_store_can_be_used_again():
    stage = EchoIterDataset(images(20), factor=2, batch_size=4, placement="device")
    store = DeviceStore(ITEM, stage.store_rows(), stage.round_size)
    for order in stage:
        first = store.follow(order)
    store.allocate(4)
    assert store.bytes_sent == 0
    for order in stage:
        again = store.follow(order)
    np.testing.assert_array_equal(first["x"], again["x"])


def _order(rounds, start):
    numbers = np.arange(start, start + rounds * 2).reshape(rounds, 1, 2)
    rows = numbers.astype(np.int32) - start
    return gather_plan.GatherPlan(
        {"x": numbers * 10}, rows, numbers, np.asarray([[0, 1, 1]], np.int32)
    )


def test_joined_orders_have_a_column_a_sub_stream_and_rounds_for_the_longest():
    order = gather_plan.joined([_order(1, 100), _order(3, 200), _order(0, 300)])
    nowhere = [gather_plan.NOWHERE, gather_plan.NOWHERE + 1]
    assert order.rows.tolist() == [
        [[0, 1], [0, 1], nowhere],
        [nowhere, [2, 3], nowhere],
        [nowhere, [4, 5], nowhere],
    ]
    assert order.fresh[:, 1].tolist() == [[200, 201], [202, 203], [204, 205]]
    assert order.items["x"].shape == (3, 3, 2)
    assert order.items["x"][0].tolist() == [[1000, 1010], [2000, 2010], [0, 0]]
    assert order.gather.tolist() == [[0, 1, 1]] * 3


def test_what_came_before_an_error_is_in_the_next_order():
    def breaking():
        yield {"x": np.int32(5)}
        raise OSError("the disk is gone")

    store = gather_plan.OrderStore(8, round_size=2)
    with pytest.raises(OSError, match="the disk is gone"):
        store.put(np.arange(3), breaking(), np.full(3, 2))
    store.put(np.asarray([1]), [{"x": np.int32(6)}], np.asarray([1]))
    order = store.show(np.asarray([0, 1]))
    assert order.items["x"].tolist() == [[[5, 6]]]
    assert len(store) == 1
    store.drop(np.asarray([0]))
    assert len(store) == 0


def test_an_item_in_a_reused_buffer_is_copied_as_it_comes():
    buffer = np.zeros(2, np.int32)

    def reusing():
        for number in range(3):
            buffer[:] = number
            yield buffer

    store = gather_plan.OrderStore(4, round_size=3)
    store.put(np.arange(3), reusing(), np.ones(3, int))
    assert store.show(np.arange(3)).items[0, 0, :, 0].tolist() == [0, 1, 2]


def test_a_placement_that_does_not_exist_is_refused():
    with pytest.raises(EchoSpecError, match="placement is 'disk'; allowed: 'host', 'device'"):
        EchoIterDataset(images(4), factor=2, placement="disk")
