"""Echoing on the device: gather plans, and the store that applies them."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from echo import EchoIterDataset, device, gather_plan
from echo.device import DeviceStore
from tests.helpers.echo_parents import emit, parent_of


def test_each_batch_places_the_same_number_of_new_items_although_they_are_read_in_chunks():
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
    """Examples whose values are their number, with a label whose dtype JAX changes."""
    numbers = grain.MapDataset.range(n)
    return numbers.map(lambda i: {"x": np.full((4, 3, 1), i, np.uint8), "y": np.int64(-i)})


ITEM = {"x": np.zeros((4, 3, 1), np.uint8), "y": np.int64(0)}
ITEM_BYTES = 12 + 4


def test_the_store_sends_each_item_once_and_counts_bytes():
    options = {"factor": 2.5, "shuffle_buffer": 40, "batch_size": 16, "seed": 1}
    stage = EchoIterDataset(images(200), **options, placement="device")
    store = DeviceStore(ITEM, stage.store_rows(200), stage.round_size)
    rounds = steps = 0
    for wanted, plan in zip(EchoIterDataset(images(200), **options), stage, strict=True):
        batch = jax.device_get(store.apply(plan))
        np.testing.assert_array_equal(batch["x"], wanted["x"])
        np.testing.assert_array_equal(batch["y"], wanted["y"])
        rounds, steps = rounds + len(plan.rows), steps + 1
    assert steps == 500 // 16
    # ceil(16 / 2.5) items per round and their rows; a row to gather for each example
    assert store.bytes_sent == rounds * 7 * (ITEM_BYTES + 4) + steps * 16 * 4
    assert rounds * 7 < 1.2 * 200


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto])
def test_a_store_may_be_used_where_a_mesh_is_set(kind):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
    examples = grain.MapDataset.range(8).map(lambda n: np.full(2, n, np.float32))
    stage = EchoIterDataset(examples, factor=2, batch_size=4, placement="device")
    store = DeviceStore(examples[0], stage.store_rows(8), stage.round_size, mesh=mesh)
    step = jax.jit(lambda batch: 2 * batch, donate_argnums=0)
    with jax.set_mesh(mesh):
        batches = [step(store.apply(plan)) for plan in stage]
    np.testing.assert_array_equal(np.concatenate(batches)[:, 0], 2 * np.repeat(np.arange(8), 2))


def test_batches_are_items_too():
    options = {"factor": 2, "shuffle_buffer": 3, "seed": 1}
    batches = images(64).batch(8)
    stage = EchoIterDataset(batches, **options, placement="device")
    item = {"x": np.zeros((8, 4, 3, 1), np.uint8), "y": np.zeros(8, np.int64)}
    store = DeviceStore(item, stage.store_rows(8), stage.round_size, batches=True)
    for wanted, plan in zip(EchoIterDataset(batches, **options), stage, strict=True):
        batch = jax.device_get(store.apply(plan))
        np.testing.assert_array_equal(batch["x"], wanted["x"])
        np.testing.assert_array_equal(batch["y"], wanted["y"])


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("enter", [None, lambda examples, fresh: examples])
def test_items_may_have_leaves_without_elements(batches, enter):
    parent = grain.MapDataset.range(8).map(lambda i: {"x": np.int32(i), "none": np.zeros((0, 3))})
    parent, rows = (parent.batch(2), (2,)) if batches else (parent, ())
    options = {"factor": 2, "batch_size": None if batches else 2}
    stage = EchoIterDataset(parent, **options, placement="device")
    item = {"x": np.zeros(rows, np.int32), "none": np.zeros((*rows, 0, 3))}
    store = DeviceStore(item, stage.store_rows(), stage.round_size, batches=batches, enter=enter)
    for wanted, plan in zip(EchoIterDataset(parent, **options), stage, strict=True):
        batch = store.apply(plan)
        assert batch["x"].tolist() == wanted["x"].tolist()
        assert batch["none"].shape == wanted["none"].shape == (2, 0, 3)


def _crop_and_number(examples, fresh):
    return {"x": examples["x"][:, :2], "number": fresh.astype(jnp.int32)}


@pytest.mark.parametrize("batches", [False, True])
def test_items_can_be_changed_on_entry(batches):
    parent = images(48).batch(4) if batches else images(48)
    options = {"factor": 3, "batch_size": None if batches else 4, "annotate": True}
    stage = EchoIterDataset(parent, **options, placement="device")
    item = {"x": np.zeros((4, 4, 3, 1), np.uint8)} if batches else {"x": ITEM["x"]}
    store = DeviceStore(
        item, stage.store_rows(), stage.round_size, batches=batches, enter=_crop_and_number
    )
    for output in stage:
        item, fresh = output.item, output.item.fresh
        item = item._replace(items={"x": item.items["x"]})
        if batches:
            item = item._replace(fresh=fresh[..., None] * 4 + np.arange(4))
        batch = jax.device_get(store.apply(item))
        index = np.ravel(output.index[..., None] * 4 + np.arange(4)) if batches else output.index
        assert batch["number"].tolist() == index.tolist()
        assert batch["x"].shape == (4, 2, 3, 1)
        assert batch["x"][:, 0, 0, 0].tolist() == index.tolist()


def test_padding_is_not_stored():
    store = gather_plan.PlanStore(3, round_size=8)
    store.put(np.arange(3), [{"x": np.int32(7 + i)} for i in range(3)], np.ones(3, int))
    batch = DeviceStore({"x": np.int32(0)}, 3, 8).apply(emit(store, range(3)))
    assert batch["x"].tolist() == [7, 8, 9]


def _plan(rounds, start):
    numbers = np.arange(start, start + rounds * 2).reshape(rounds, 1, 2)
    rows = numbers.astype(np.int32) - start
    return gather_plan.GatherPlan(
        {"x": numbers * 10}, rows, numbers, np.asarray([[0, 1, 1]], np.int32)
    )


def test_joined_plans_have_a_column_per_stream_and_the_maximum_number_of_rounds():
    plan = gather_plan.joined([_plan(1, 100), _plan(3, 200), _plan(0, 300)])
    placed = np.where(plan.rows < gather_plan.NOWHERE, plan.rows, -1)
    assert placed[:, 0].tolist() == [[0, 1], [-1, -1], [-1, -1]]
    assert placed[:, 1].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (placed[:, 2] == -1).all()
    assert all(len(set(rows)) == 2 for rows in plan.rows.reshape(-1, 2).tolist())
    assert plan.fresh[:, 1].tolist() == [[200, 201], [202, 203], [204, 205]]
    assert plan.items["x"].shape == (3, 3, 2)
    assert plan.items["x"][0].tolist() == [[1000, 1010], [2000, 2010], [0, 0]]
    assert plan.gather.tolist() == [[0, 1, 1]] * 3


def test_rows_copied_one_by_one_are_those_of_a_scatter_and_of_a_gather():
    """What runs on a TPU only, for large items."""
    rng = np.random.default_rng(0)
    leaf = rng.integers(0, 256, (3, 5, 4, 2), np.uint8)
    items = rng.integers(0, 256, (3, 2, 4, 2), np.uint8)
    rows_SxK = np.asarray([[4, 0], [2, gather_plan.NOWHERE], [gather_plan.NOWHERE, 1]], np.int32)
    placed = jax.jit(device._place_one_by_one)(leaf, rows_SxK, items)
    np.testing.assert_array_equal(placed, device._scatter(leaf, rows_SxK, items))
    assert (placed[1, 2] == items[1, 0]).all()
    rows_SxN = rng.integers(0, 5, (3, 7), np.int32)
    taken = jax.jit(device._take_one_by_one)(leaf, rows_SxN)
    np.testing.assert_array_equal(taken, device._take(leaf, rows_SxN))


@pytest.mark.parametrize(("side", "sliced"), [(8, False), (256, True)])
def test_large_items_are_sliced_on_a_tpu_and_only_there(side, sliced):
    """In the lowered programs; benchmarks/tpu.py compiles them."""
    store = DeviceStore(np.zeros((side, side, 3), np.uint8), 20, 4)
    stored = jax.ShapeDtypeStruct((1, 20, *device._in_row((side, side, 3))), np.uint8)
    items = jax.ShapeDtypeStruct((1, 4, side, side, 3), np.uint8)
    rows = jax.ShapeDtypeStruct((1, 4), np.int32)
    for program, arguments, slices in (
        (store._place, (stored, items, rows, None), "stablehlo.dynamic_update_slice"),
        (store._gather, (stored, rows), "stablehlo.dynamic_slice"),
    ):
        for platform in ("tpu", "cuda", "cpu"):
            text = jax.export.export(program, platforms=[platform])(*arguments).mlir_module()
            whole = f"tensor<1x20x{'x'.join(map(str, stored.shape[2:]))}xui8>"
            found = any(slices in line and whole in line for line in text.splitlines())
            assert found == (sliced and platform == "tpu"), (platform, slices)
