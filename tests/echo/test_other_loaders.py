"""Echoed streams inside and around the loaders of torchdata and Hugging Face `datasets`."""

import pickle
import random

import numpy as np
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
KINDS = ("plain", "mapped", "tensors")


def examples(kind="plain"):
    """A Hugging Face data set that reads in an order of its own in each epoch."""
    table = datasets.Dataset.from_dict({"x": list(range(NUM_EXAMPLES))})
    stream = table.to_iterable_dataset(num_shards=4)
    if kind == "mapped":
        return stream.map(lambda batch: {"y": batch["x"]}, batched=True, batch_size=7)
    return stream.with_format("torch") if kind == "tensors" else stream


def around_a_stateful_loader():
    generator = torch.Generator().manual_seed(1)
    batches = stateful.StatefulDataLoader(
        list(range(NUM_EXAMPLES)), batch_size=2, shuffle=True, generator=generator
    )
    return echo_iterable(batches, 2, 7)


def in_a_stateful_loader(workers):
    echoed = echo_iterable(examples(), 2, 30)
    return stateful.StatefulDataLoader(echoed, batch_size=2, num_workers=workers)


def in_nodes():
    return nodes.Loader(nodes.IterableWrapper(echo_iterable(range(NUM_EXAMPLES), 2, 20)))


def around_nodes():
    return echo_iterable(nodes.Loader(nodes.IterableWrapper(range(NUM_EXAMPLES))), 2, 20)


def outputs(loader, passes):
    out = []
    for epoch in range(passes):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        out.append([values(item) for item in loader])
    return out


def values(item):
    item = item["x"] if isinstance(item, dict) else item
    return np.asarray(item).tolist()


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
        saved = pickle.dumps(loader.state_dict())
    return out


@pytest.mark.parametrize(
    ("make", "passes", "restarts"),
    [
        *((lambda k=k: echo_iterable(examples(k), 2, 30, 1), 3, 100) for k in KINDS),
        (lambda: in_a_stateful_loader(0), 3, 100),
        (lambda: in_a_stateful_loader(2), 1, 5),
        (around_a_stateful_loader, 1, 50),
        (in_nodes, 1, 100),
        (around_nodes, 1, 100),
    ],
)
def test_a_stream_inside_or_around_a_loader_resumes_exactly(make, passes, restarts):
    expected = outputs(make(), passes)
    rows = [np.hstack(one).tolist() for one in expected]
    assert all(sorted(one) == sorted(2 * list(range(NUM_EXAMPLES))) for one in rows)
    assert len({tuple(one) for one in rows}) == passes  # an order for each
    assert restarted(make, expected, restarts) == [item for one in expected for item in one]


def test_the_state_is_small_beside_one_of_the_parent():
    echoed = echo_iterable(examples(), 2, 5, seed=2**128 - 1)
    assert len([item for item, _ in zip(echoed, range(150), strict=False)]) == 150
    state = echoed.state_dict()
    assert state["parent"]["state"].keys() == examples().state_dict().keys()
    assert len(repr(state)) - len(repr(state["parent"]["state"])) <= 200


def test_set_epoch_gives_new_workers_an_order_of_the_pass():
    echoed = echo_iterable(examples(), 1, 40)
    loader = stateful.StatefulDataLoader(echoed, batch_size=None, num_workers=2)
    orders = []
    for epoch in (0, 1, 0):
        echoed.set_epoch(epoch)
        orders.append([values(item) for item in loader])
    assert orders[0] == orders[2] != orders[1]


def test_a_plain_loader_takes_an_echoed_stream_for_an_iterable_data_set():
    loader = torch.utils.data.DataLoader(echo_iterable(examples(), 2, 30), batch_size=4)
    assert sorted(np.hstack(outputs(loader, 1)[0])) == sorted(2 * list(range(NUM_EXAMPLES)))
