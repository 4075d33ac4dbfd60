"""Echoing against buffer, size of an item, and streams, beside Grain and tf.data.

    python -m benchmarks.echo_grid --out=results/echo_grid.md     about 10 minutes
    python -m benchmarks.echo_grid --quick                        a smoke run

Batches of 128 items at e = 4, read from memory in order. Each cell runs in a process of its own. It
fills its buffer, then counts items and takes the state of its iterator, from which a new one
continues. Seconds are CPU time, of all threads, since the machine may do other work.
`device` keeps the items in the memory of JAX's default device, which without an
accelerator is that of the host. A cell is left out if its buffer would hold more than
--max-gigabytes.
"""

import dataclasses
import functools
import importlib.util
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import echo
from benchmarks import common, echo_overhead
from echo.device import DeviceStore
from pipeline.map_datasets import Batch
from pipeline.streams import ConcatenatedStreams, concatenate

FACTOR = 4
POOL_BYTES = 2**25  # of distinct items, which are read over and over


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    item_bytes: tuple[int, ...] = (3_072, 43_200, 602_112)  # pixels: 32 x 32, 120 x 120, 448 x 448
    buffers: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    streams: tuple[int, ...] = (8, 64)  # for the smallest items; one stream elsewhere
    seconds: float = 0.5
    max_gigabytes: float = 2.0


QUICK = Grid(item_bytes=(3_072,), buffers=(1_000,), streams=(8,), seconds=0.05)


class Cell(NamedTuple):
    """A row of the tables: bytes of an item, slots of the shuffle buffer, and streams."""

    item_bytes: int
    buffer: int
    streams: int = 1

    @property
    def gigabytes(self) -> float:
        """Of the different items in a full buffer; see docs/echo.md."""
        harmonic = sum(1 / k for k in range(1, FACTOR + 1))
        return self.buffer * harmonic / FACTOR * self.item_bytes / 1e9


class Measured(NamedTuple):
    """What a cell shows; None where that does not exist.

    Attributes:
        rate: items per processor second, once the buffer is full.
        increase: bytes by which resident memory peaks.
        state_bytes: of the iterator's state as JSON.
        restore_seconds: of CPU time, from a new iterator and that state to the next batch.
    """

    rate: float
    increase: int | None
    state_bytes: int | None
    restore_seconds: float | None


def items(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 [n, item_bytes], int32 [n]), of POOL_BYTES in all."""
    count = max(1, POOL_BYTES // cell.item_bytes)
    pixels = np.random.default_rng(0).integers(0, 256, (count, cell.item_bytes), np.uint8)
    return pixels, np.arange(count, dtype=np.int32)


class EndlessStreams:
    """Concatenates streams that do not end; see `pipeline.streams.Streams`."""

    read_ahead = True

    def echo_stage(self, stream: int) -> Callable[..., Any]:
        raise NotImplementedError  # the stages exist already

    def ended(self, taken: int) -> bool:
        return False

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        assert blocks is not None
        return concatenate(list(blocks.values()))

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def stage(data, cell: Cell, placement: str, stream: int) -> echo.EchoIterDataset:
    return echo.EchoIterDataset(
        echo_overhead.StackedSource(*data, shuffle=False),
        factor=FACTOR,
        shuffle_buffer=cell.buffer // cell.streams,
        seed=stream,
        batch_size=echo_overhead.BATCH // cell.streams,
        annotate=True,
        read_options=echo_overhead.NO_THREADS,
        placement=placement,
    )


def echo_side(placement: str, data, cell: Cell) -> Iterator[Any]:
    """As in training: the streams' batches, concatenated."""
    parts = {
        stream: stage(data, cell, placement, stream).map(lambda echoed: Batch(*echoed))
        for stream in range(cell.streams)
    }
    return iter(ConcatenatedStreams(parts, EndlessStreams(), "echo"))


def other_side(batches: Callable, data, cell: Cell) -> Iterator[Any]:
    """A side of benchmarks/echo_overhead.py, which knows no streams."""
    sizes = echo_overhead.Sizes(buffer=cell.buffer)
    return batches(data, sizes, False, FACTOR)


SIDES = {
    "echo": functools.partial(echo_side, "host"),
    "echo, device": functools.partial(echo_side, "device"),
    "Grain": functools.partial(other_side, echo_overhead.grain_alone),
    "tf.data, as in the paper": functools.partial(other_side, echo_overhead.tf_as_in_the_paper),
    "tf.data, in chunks": functools.partial(other_side, echo_overhead.tf_in_chunks),
}


def available_sides(cell: Cell) -> list[str]:
    """The sides that a cell has here."""
    no_tensorflow = importlib.util.find_spec("tensorflow") is None
    known = [name for name in SIDES if not (no_tensorflow and name.startswith("tf.data"))]
    return [name for name in known if cell.streams == 1 or name.startswith("echo")]


def measure(name: str, cell: Cell, seconds: float) -> Measured:
    """Measures one side of a cell, in this process."""
    data: Any = items(cell)
    if name.startswith("tf.data"):
        data = echo_overhead.as_tensors(data)
    take = taker(name, data, cell)
    iterator: Any = SIDES[name](data, cell)

    def fill_and_run() -> float:
        next(batches)
        return common.rate(batches, echo_overhead.BATCH, seconds, time.process_time)

    batches = (take(iterator) for _ in itertools.count())
    rate, increase = common.peak_during(fill_and_run)
    if name.startswith("tf.data"):  # saves its buffer, as files
        return Measured(rate, increase, None, None)
    state = json.dumps(iterator.get_state())
    iterator.close()
    restored: Any = SIDES[name](data, cell)
    start = time.process_time()
    restored.set_state(json.loads(state))
    take(restored)
    return Measured(rate, increase, len(state), time.process_time() - start)


def taker(name: str, data, cell: Cell) -> Callable[[Iterator[Any]], Any]:
    """A function that takes a batch from an iterator, and gathers it if a store has its items."""
    if name != "echo, device":
        return next
    import jax

    one = stage(data, cell, "device", 0)
    item = {"image": data[0][0], "label": data[1][0]}
    store = DeviceStore(item, one.store_rows(), one.round_size, streams=cell.streams)
    return lambda iterator: jax.block_until_ready(store.apply(next(iterator).data))


def cells(grid: Grid) -> list[Cell]:
    """One stream for every size and buffer that fits, then more streams of small items."""
    single = [Cell(size, buffer) for size in grid.item_bytes for buffer in grid.buffers]
    several = [
        Cell(grid.item_bytes[0], buffer, streams)
        for buffer in grid.buffers
        for streams in grid.streams
    ]
    return [cell for cell in (*single, *several) if cell.gigabytes <= grid.max_gigabytes]


def table(
    results: dict[Cell, dict[str, Measured]], names: list[str], text: Callable[[Measured], str]
) -> str:
    header = ["item", "buffer", "streams", *names]
    rows = [
        [
            f"{cell.item_bytes / 1000:,.0f} kB",
            f"{cell.buffer:,}",
            str(cell.streams),
            *(text(by_side[name]) if name in by_side else "" for name in names),
        ]
        for cell, by_side in results.items()
    ]
    return common.markdown_table(header, rows)


def report(grid: Grid, results: dict[Cell, dict[str, Measured]]) -> str:
    """The report as Markdown."""
    names = [name for name in SIDES if any(name in by_side for by_side in results.values())]
    stateful = [name for name in names if not name.startswith("tf.data")]

    def megabytes(measured: Measured) -> str:
        return "" if measured.increase is None else f"{measured.increase / 1e6:,.0f}"

    def state(measured: Measured) -> str:
        assert measured.restore_seconds is not None
        return f"{measured.state_bytes:,} B, {measured.restore_seconds * 1e3:,.0f} ms"

    return "\n\n".join(
        [
            "# Echoing against buffer, size of an item, and streams",
            "How do speed, memory, state, and the time to restore grow with the buffer, the items, "
            "and the streams? Measured by `python -m benchmarks.echo_grid` on "
            + common.machine(["numpy", "grain", "jax", "tensorflow-cpu", "tensorflow"]),
            f"Batches of {echo_overhead.BATCH} at e = {FACTOR}; each cell once, for "
            f"{grid.seconds:g} s. Buffers of more than {grid.max_gigabytes:g} GB are left out. "
            "`echo` reads chunks from memory, the other sides example by example, as their sources "
            "do. So the tables show how each side grows; [echo_overhead](echo_overhead.md) "
            "compares sides that read alike.",
            "## Items per processor second, once the buffer is full",
            table(results, names, lambda measured: f"{measured.rate:,.0f}"),
            "## Memory (MB)",
            "The peak above the process before the first batch.",
            table(results, names, megabytes),
            "## State, and CPU time from a state to the next batch",
            "tf.data saves its buffer as files, which is not measured.",
            table(results, stateful, state),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Grid(),
        QUICK,
        seconds="seconds per cell",
        max_gigabytes="largest buffer",
    )
    options = parser.parse_args(argv)
    grid = common.plan(options, Grid(), QUICK)
    results: dict[Cell, dict[str, Measured]] = {}
    for cell in cells(grid):
        results[cell] = {}
        for name in available_sides(cell):
            measured = common.in_new_process(measure, name, cell, grid.seconds)
            results[cell][name] = measured
            common.progress(f"{cell}, {name}: {measured}")
    common.publish(report(grid, results), options.out)


if __name__ == "__main__":
    main()
