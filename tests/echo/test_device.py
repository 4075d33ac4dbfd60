"""Echoing on the device: items are sent when they are read, and batches gathered there."""

import functools
import itertools
import threading

import grain
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from echo import PLACEMENTS, EchoIterDataset, device
from echo.device import NOWHERE, DeviceStore
from echo.stores import Stacked
from tests.helpers.echo_parents import emit, parent_of


def images(n):
    """Examples whose values are their number, with a label whose dtype JAX changes."""
    numbers = grain.MapDataset.range(n)
    return numbers.map(lambda i: {"x": np.full((4, 3, 1), i, np.uint8), "y": np.int64(-i)})


WITHOUT_ELEMENTS = grain.MapDataset.range(8).map(
    lambda i: {"x": np.int32(i), "none": np.zeros((0, 3))}
)


@pytest.mark.parametrize(
    ("parent", "options"),
    [
        (images(203), {"shuffle_buffer": 40, "batch_size": 16, "drop_remainder": False}),
        (images(64).batch(8), {"shuffle_buffer": 3}),
        (WITHOUT_ELEMENTS, {"batch_size": 2}),
        (WITHOUT_ELEMENTS.batch(2), {}),
        (parent_of("reusing", 500)[0], {"shuffle_buffer": 100, "batch_size": 64}),
    ],
)
def test_outputs_are_those_of_the_host(parent, options):
    options = {"factor": 2.5, "seed": 1} | options
    host, on_device = (EchoIterDataset(parent, **options, placement=p) for p in PLACEMENTS)
    for wanted, batch in zip(host, on_device, strict=True):
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(batch), wanted)


@pytest.fixture
def sent(monkeypatch):
    """(numbers of the items, name of the thread) of each call of `send`."""
    sent, send = [], DeviceStore.send

    def noting(self, fresh, items):
        sent.append((fresh.tolist(), threading.current_thread().name))
        return send(self, fresh, items)

    monkeypatch.setattr(DeviceStore, "send", noting)
    return sent


def test_items_are_sent_once_by_the_threads_that_read_them(sent):
    parent, _ = parent_of("stacked", 3000)
    options = {"factor": 4, "shuffle_buffer": 100, "batch_size": 32, "annotate": True}
    iterator = iter(EchoIterDataset(parent, **options, placement="device"))
    assert iterator._pass.store.num_rows < 140
    admitted = []
    for _ in range(300):
        admitted.append(next(iterator).fresh)
    iterator.close()
    assert np.diff(admitted).tolist() == [8] * 299  # although they are read in chunks
    (first, _), *others = sorted(sent)  # the first one is read by the caller
    numbers = itertools.chain(first, *(numbers for numbers, _ in others))
    assert list(numbers)[: admitted[-1]] == list(range(admitted[-1]))
    assert {name for _, name in others if "echo-read" not in name} == set()


def test_items_of_an_iterator_are_sent_together(sent):
    options = {"factor": 2, "shuffle_buffer": 100, "batch_size": 64, "placement": "device"}
    list(EchoIterDataset(parent_of("reusing", 500)[0], **options))
    sizes = [len(numbers) for numbers, _ in sent]
    assert sizes == [64, (100 + 64) // 2 - 64, *[32] * 13, 2]  # the buffer's, those of each batch


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto])
@pytest.mark.parametrize("placed", [False, True])
def test_a_store_may_be_used_where_a_mesh_is_set(kind, placed):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
    examples = grain.MapDataset.range(8).map(lambda n: np.full(2, n, np.float32))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placement = functools.partial(DeviceStore, sharding=sharding) if placed else "device"
    stage = EchoIterDataset(examples, factor=2, batch_size=4, placement=placement)
    step = jax.jit(lambda batch: 2 * batch, donate_argnums=0)
    with jax.set_mesh(mesh):
        batches = [step(batch) for batch in stage]
    np.testing.assert_array_equal(np.concatenate(batches)[:, 0], 2 * np.repeat(np.arange(8), 2))


def _crop_and_number(items, numbers):
    return {"x": items["x"][..., :2, :, :], "number": numbers.astype(jnp.int32)}


@pytest.mark.parametrize("batches", [False, True])
def test_items_can_be_changed_on_entry(batches):
    parent = images(48).batch(4) if batches else images(48)

    def numbered(fresh):
        return 100 + (fresh[:, None] * 4 + np.arange(4) if batches else fresh)

    place = functools.partial(DeviceStore, enter=_crop_and_number, numbered=numbered)
    options = {"factor": 3, "batch_size": None if batches else 4, "annotate": True}
    for output in EchoIterDataset(parent, **options, placement=place):
        index = np.ravel(output.index[..., None] * 4 + np.arange(4)) if batches else output.index
        batch = jax.device_get(output.item)
        assert batch["number"].tolist() == (100 + index).tolist()
        assert batch["x"].shape == (4, 2, 3, 1)
        assert batch["x"][:, 0, 0, 0].tolist() == index.tolist()


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(n=st.integers(1, 150), cuts=st.lists(st.integers(0, 150), max_size=3))
def test_parts_of_what_was_sent_are_stored(n, cuts):
    store, numbers = DeviceStore(200, batch_size=64), np.arange(n)
    sent = store.send(numbers, Stacked({"x": numbers * 3}))
    bounds = sorted({0, n, *(cut for cut in cuts if cut < n)})
    for start, stop in itertools.pairwise(bounds):
        part, sent = sent[: stop - start], sent[stop - start :]
        assert len(part) == stop - start
        store.put(numbers[start:stop], part, np.full(stop - start, 65))  # all copies of one item
    order = np.random.default_rng(n).choice(n, 64)
    assert emit(store, order)["x"].tolist() == (order * 3).tolist()


def test_rows_copied_one_by_one_are_those_of_a_scatter_and_of_a_gather():
    """What runs on a TPU only, for large items."""
    rng = np.random.default_rng(0)
    leaf = rng.integers(0, 256, (5, 4, 2), np.uint8)
    items = rng.integers(0, 256, (3, 4, 2), np.uint8)
    rows_K = np.asarray([4, NOWHERE, 0], np.int32)
    placed = jax.jit(device._place_one_by_one)(leaf, rows_K, items)
    np.testing.assert_array_equal(placed, device._scatter(jnp.asarray(leaf), rows_K, items))
    assert (placed[0] == items[2]).all()
    rows_N = rng.integers(0, 5, 7, np.int32)
    taken = jax.jit(device._take_one_by_one)(leaf, rows_N)
    np.testing.assert_array_equal(taken, device._take(jnp.asarray(leaf), rows_N))


@pytest.mark.parametrize(("side", "sliced"), [(8, False), (256, True)])
def test_large_items_are_sliced_on_a_tpu_and_only_there(side, sliced):
    """In the lowered programs; benchmarks/tpu.py compiles them."""
    row = device._in_row((side, side, 3))
    stored = jax.ShapeDtypeStruct((20, *row), np.uint8)
    items, rows = jax.ShapeDtypeStruct((4, *row), np.uint8), jax.ShapeDtypeStruct((4,), np.int32)
    for function, arguments, slices in (
        (device._place, (stored, rows, items), "stablehlo.dynamic_update_slice"),
        (device._gather, (stored, rows), "stablehlo.dynamic_slice"),
    ):
        for platform in ("tpu", "cuda", "cpu"):
            exported = jax.export.export(jax.jit(function), platforms=[platform])(*arguments)
            whole = f"tensor<20x{'x'.join(map(str, row))}xui8>"
            lines = exported.mlir_module().splitlines()
            found = any(slices in line and whole in line for line in lines)
            assert found == (sliced and platform == "tpu"), (platform, slices)
