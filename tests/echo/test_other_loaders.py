"""Echoed streams inside and around the loaders of torchdata and Hugging Face `datasets`."""

import pickle
import random

import pytest

from echo import echo_iterable

pytestmark = pytest.mark.extras

datasets = pytest.importorskip("datasets", reason="see requirements-extras.txt")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="see requirements-extras.txt"
)
torch = pytest.importorskip("torch", reason="see requirements-extras.txt")
nodes = pytest.importorskip("torchdata.nodes", reason="see requirements-extras.txt")

NUM_EXAMPLES = 101
RESTARTS = 200


@pytest.fixture(scope="module")
def table():
    return datasets.Dataset.from_dict({"x": list(range(NUM_EXAMPLES))})


def examples(table, kind="plain"):
    """A Hugging Face data set that reads in an order of its own in each epoch."""
    stream = table.to_iterable_dataset(num_shards=4)
    if kind == "mapped":
        return stream.map(lambda batch: {"y": batch["x"]}, batched=True, batch_size=7)
    return stream.with_format("torch") if kind == "tensors" else stream


def outputs(loader, passes):
    out = []
    for epoch in range(passes):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        out.append([values(item) for item in loader])
    return out


def values(item):
    item = item["x"] if isinstance(item, dict) else item
    return item.tolist() if hasattr(item, "tolist") else item


def restarted(make, expected, restarts):
    """What a chain of loaders made by `make` emits, each resuming where the one before stopped."""
    total = sum(map(len, expected))
    stops = [*sorted(random.Random(0).sample(range(total), restarts)), None]
    ends = [sum(map(len, expected[: epoch + 1])) for epoch in range(len(expected))]
    out, saved = [], None
    for stop in stops:
        loader = make()
        if saved is not None:
            loader.load_state_dict(pickle.loads(saved))
        while len(out) < total and len(out) != stop:
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(sum(len(out) >= end for end in ends))
            for item in loader:
                out.append(values(item))
                if len(out) == stop or len(out) in ends:
                    break
        state = loader.state_dict()
        saved = pickle.dumps(state)
    return out


def flat(passes):
    return [item for one in passes for item in one]


@pytest.mark.parametrize("kind", ["plain", "mapped", "tensors"])
def test_a_hugging_face_stream_resumes_exactly(table, kind):
    def make():
        return echo_iterable(examples(table, kind), 2.5, 30, seed=1)

    expected = outputs(make(), 3)
    assert all(sorted(one) == sorted(expected[0]) for one in expected)
    assert expected[0] != expected[1] != expected[2]
    assert restarted(make, expected, RESTARTS) == flat(expected)


def test_the_state_is_small_beside_one_of_the_parent(table):
    echoed = echo_iterable(examples(table), 2, 5, seed=2**128 - 1)
    assert len([item for item, _ in zip(echoed, range(150), strict=False)]) == 150
    state = echoed.state_dict()
    assert state["parent"]["state"].keys() == examples(table).state_dict().keys()
    assert len(repr(state)) - len(repr(state["parent"]["state"])) <= 200


def test_a_stateful_loader_resumes_an_echoed_stream_inside(table):
    def make():
        return stateful.StatefulDataLoader(echo_iterable(examples(table), 2, 30), batch_size=2)

    expected = outputs(make(), 3)
    assert sorted(flat(flat(expected))) == sorted(6 * list(range(NUM_EXAMPLES)))
    assert restarted(make, expected, RESTARTS) == flat(expected)


def test_a_stateful_loader_resumes_echoed_streams_in_its_workers(table):
    def make():
        echoed = echo_iterable(examples(table), 2, 10)
        return stateful.StatefulDataLoader(echoed, batch_size=2, num_workers=2)

    expected = outputs(make(), 1)
    assert sorted(flat(flat(expected))) == sorted(2 * list(range(NUM_EXAMPLES)))
    assert restarted(make, expected, 5) == flat(expected)


def test_set_epoch_gives_new_workers_an_order_of_the_pass(table):
    echoed = echo_iterable(examples(table), 1, 40)
    loader = stateful.StatefulDataLoader(echoed, batch_size=None, num_workers=2)
    orders = []
    for epoch in (0, 1, 0):
        echoed.set_epoch(epoch)
        orders.append([values(item) for item in loader])
    assert orders[0] == orders[2] != orders[1]


def test_an_echoed_stream_resumes_around_a_stateful_loader():
    def make():
        generator = torch.Generator().manual_seed(1)
        batches = stateful.StatefulDataLoader(
            list(range(800)), batch_size=2, shuffle=True, generator=generator
        )
        return echo_iterable(batches, 2, 7)

    expected = outputs(make(), 1)
    assert sorted(flat(flat(expected))) == sorted(2 * list(range(800)))
    assert restarted(make, expected, RESTARTS) == flat(expected)


@pytest.mark.parametrize("inside", [True, False])
def test_nodes_resume_an_echoed_stream(inside):
    def make():
        if inside:
            return nodes.Loader(nodes.IterableWrapper(echo_iterable(range(150), 2, 20)))
        return echo_iterable(nodes.Loader(nodes.IterableWrapper(range(150))), 2, 20)

    expected = outputs(make(), 1)
    assert sorted(flat(expected)) == sorted(2 * list(range(150)))
    assert restarted(make, expected, RESTARTS) == flat(expected)


def test_a_plain_loader_takes_an_echoed_stream_for_an_iterable_data_set(table):
    loader = torch.utils.data.DataLoader(echo_iterable(examples(table), 2, 30), batch_size=4)
    assert sorted(flat(flat(outputs(loader, 1)))) == sorted(2 * list(range(NUM_EXAMPLES)))
