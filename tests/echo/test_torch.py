"""PyTorch: its tensors, which are copied, and echoed streams around its loaders."""

import collections
import itertools
import types
import warnings

import numpy as np
import pytest

import echo
from echo.stores import Structure, nbytes
from echo.torch import copied as copied_item

pytestmark = pytest.mark.extras

torch = pytest.importorskip("torch", reason="see requirements-extras.txt")


class Shares(torch.utils.data.IterableDataset):
    """Each worker reads its share."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return iter(range(50)[worker.id :: worker.num_workers] if worker else range(50))


def numbers(items) -> list[int]:
    return [number for item in items for number in np.ravel(item).tolist()]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (range(50), {"shuffle": True}),
        (range(50), {"shuffle": True, "num_workers": 1}),
        (Shares(), {}),
    ],
)
def test_an_echoed_stream_resumes_around_a_seeded_loader(data, options):
    def echoed():
        generator = torch.Generator().manual_seed(3)
        loader = torch.utils.data.DataLoader(data, batch_size=5, generator=generator, **options)
        return echo.echo_iterable(loader, 2, 3)

    interrupted, resumed = echoed(), echoed()
    head = numbers(itertools.islice(interrupted, 7))
    resumed.load_state_dict(interrupted.state_dict())
    assert head + numbers(resumed) == numbers(echoed())


def copied(item):
    return copied_item(item, 0)


def memory_of(tensor) -> int:
    return tensor.untyped_storage().nbytes()


def big_data() -> torch.Tensor:  # pyright: ignore[reportInvalidTypeForm]
    return torch.arange(100 * 64.0).reshape(100, 64)


@pytest.mark.parametrize(
    ("items", "item_bytes"),
    [
        (lambda big: ({"x": row} for row in big), 256),
        (lambda big: (batch for batch in big.split(5)), 5 * 256),
        (lambda big: (torch.from_numpy(big.numpy())[i] for i in range(100)), 256),
        (lambda big: torch.utils.data.TensorDataset(big), 256),
        (
            lambda big: torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(big), batch_size=None
            ),
            256,
        ),
    ],
)
def test_a_copy_of_a_view_takes_the_memory_of_the_view(items, item_bytes):
    big = big_data()
    made = [
        leaf
        for item in echo.echo_iterable(items(big), 2, 5)
        for leaf in Structure(item).leaves(item)
    ]
    assert {memory_of(item) for item in made} == {nbytes(made[0])} == {item_bytes}
    assert len({item.data_ptr() for item in made}) == len(made)
    rows = torch.cat([item.reshape(-1, 64) for item in made])
    assert collections.Counter(rows[:, 0].tolist()) == dict.fromkeys(big[:, 0].tolist(), 2)


Pair = collections.namedtuple("Pair", "left right")


def test_a_tensor_is_found_in_dicts_lists_and_tuples():
    row = big_data()[3]
    made = copied({"a": [row, (Pair(row, 5), "text")]})
    first, (pair, text) = made["a"]
    assert (type(pair), pair.right, text) == (Pair, 5, "text")
    for copy in (first, pair.left):
        assert copy is not row
        assert torch.equal(copy, row)
        assert memory_of(copy) == nbytes({"x": copy}) == 256


def test_copies_keep_what_a_tensor_is():
    row = big_data()[3]
    assert not copied(row).requires_grad
    assert copied(row.requires_grad_()).requires_grad
    assert copied(row).is_leaf
    parameter = copied(torch.nn.Parameter(big_data()[3]))
    assert type(parameter) is torch.nn.Parameter
    assert memory_of(parameter) == 256
    frozen = torch.nn.Parameter(big_data()[3], requires_grad=False)
    assert not copied(frozen).requires_grad
    wide = torch.zeros(1, 64).expand(1_000, 64)
    assert memory_of(copied(wide)) == 256
    columns = big_data().t()[:3]
    assert torch.equal(copied(columns), columns)
    pair = torch.view_as_complex(torch.arange(20.0).reshape(10, 2))[3:5].conj()
    assert torch.equal(copied(pair), pair)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copied(sparse).to_dense(), torch.eye(3))
    with pytest.raises(TypeError, match="item 0, of type Tensor"):
        copied(2 * row)


class BatchesByEpoch(list):
    """A batch sampler that shuffles by epochs itself."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.copy()).tolist())


def by_sampler(**settings):
    sampler = torch.utils.data.DistributedSampler(range(50), num_replicas=2, rank=0)
    return torch.utils.data.DataLoader(range(50), sampler=sampler, **settings)


def by_batch_sampler(wraps):
    sampler = torch.utils.data.DistributedSampler(range(50), num_replicas=2, rank=0)
    batches = torch.utils.data.BatchSampler(sampler, 2, drop_last=False)
    batches = batches if wraps else BatchesByEpoch([[i, i + 1] for i in range(0, 50, 2)])
    return torch.utils.data.DataLoader(range(50), batch_sampler=batches)


LOADERS_WITH_EPOCHS = [
    lambda: by_sampler(batch_size=None),
    lambda: by_sampler(batch_size=2),
    lambda: by_batch_sampler(wraps=True),
    lambda: by_batch_sampler(wraps=False),
]


@pytest.mark.parametrize("loader", LOADERS_WITH_EPOCHS)
@pytest.mark.parametrize("cut", [0, 7])
def test_an_epoch_reaches_the_sampler_of_a_loader_also_in_a_resumed_pass(loader, cut):
    whole, interrupted, resumed = (echo.echo_iterable(loader(), 2, 3) for _ in range(3))
    orders = []
    for epoch in range(3):
        whole.set_epoch(epoch)
        orders.append(numbers(whole))
    assert len({tuple(dict.fromkeys(order)) for order in orders}) == 3
    interrupted.set_epoch(2)
    head = numbers(itertools.islice(interrupted, cut))
    resumed.load_state_dict(interrupted.state_dict())
    assert head + numbers(resumed) == orders[2]


@pytest.mark.parametrize(
    ("sampler", "generator", "warned"),
    [
        (None, None, 1),
        (None, torch.Generator(), 0),
        (torch.utils.data.SequentialSampler(range(50)), None, 0),
    ],
)
@pytest.mark.parametrize("make", [lambda x: echo.echo_iterable(x, 2), echo.auto])
def test_resuming_over_a_loader_that_shuffles_unseeded_warns(make, sampler, generator, warned):
    loader = torch.utils.data.DataLoader(
        range(50), 5, shuffle=sampler is None, sampler=sampler, generator=generator
    )
    echoed, resumed = make(loader), make(loader)
    start = echoed.state_dict()
    next(iter(echoed))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.load_state_dict(start)  # of which no item has been read
        assert not caught
        resumed.load_state_dict(echoed.state_dict())
    assert [w.filename for w in caught] == [__file__] * warned


@pytest.mark.parametrize(
    ("iterable", "workers"),
    [
        (range(50), 2),
        (torch.utils.data.DataLoader(range(50)), 2),
        (torch.utils.data.DataLoader(range(50), num_workers=1), 1),
        (torch.utils.data.DataLoader(Shares(), num_workers=1), 2),
        (echo.echo_iterable(range(50), 1), 2),
    ],
)
def test_workers_that_would_each_read_all_or_start_workers_are_refused(
    iterable, workers, monkeypatch
):
    worker = types.SimpleNamespace(id=0, num_workers=workers)  # starting it takes 5 s
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: worker)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(echo.echo_iterable(iterable, 2)))


def test_a_loader_raises_the_error_of_its_workers():
    echoed = echo.echo_iterable(range(50), 2)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(torch.utils.data.DataLoader(echoed, batch_size=None, num_workers=2))


@pytest.mark.parametrize(
    ("iterable", "workers"),
    [
        (lambda: range(50), 0),
        (lambda: range(50), 1),
        (lambda: torch.utils.data.DataLoader(range(50), num_workers=2), 0),
        (lambda: torch.utils.data.DataLoader(Shares()), 2),
        (Shares, 2),
        (lambda: echo.echo_iterable(Shares(), 1), 2),
    ],
)
def test_each_example_comes_as_often_as_the_factor_says(iterable, workers):
    echoed = echo.echo_iterable(iterable(), 2)
    loader = torch.utils.data.DataLoader(echoed, batch_size=None, num_workers=workers)
    assert sorted(numbers(loader)) == sorted(2 * list(range(50)))


@pytest.mark.parametrize(("processes", "warned"), [(1, 0), (2, 1)])
def test_a_loader_that_accelerate_did_not_prepare_is_named(processes, warned, monkeypatch):
    accelerate = pytest.importorskip("accelerate", reason="see requirements-extras.txt")
    loader = torch.utils.data.DataLoader(range(4))
    prepared = accelerate.Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(range(4)))
    monkeypatch.setitem(accelerate.PartialState().__dict__, "num_processes", processes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(echo.echo_iterable(prepared, 1))
        assert not [w for w in caught if "prepare" in str(w.message)]
        list(echo.echo_iterable(loader, 1))
    assert len([w for w in caught if "prepare" in str(w.message)]) == warned
