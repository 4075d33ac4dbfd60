"""Cost of echoing: the library's stage beside copying alone, Grain, and tf.data.

    python -m benchmarks.stage --out=results/stage.md      about 10 minutes
    python -m benchmarks.stage --quick                     a smoke run of seconds
    python -m benchmarks.stage --processor-time            on a machine that is busy
    python -m benchmarks.stage --grid                      against buffer, size of an item, streams

Every side repeats items e times, mixes the copies in a shuffle buffer, and returns batches of 128.
Two paths are measured: the stage alone, fed with chunks of consecutive items, beside the copying
that it cannot avoid; and the whole path, endless reshuffled epochs over items in memory, where
echo, Grain, and tf.data all read item by item. Rounds of the sides are interleaved.

With `--grid`, each cell reads from memory in order, in a process of its own, at e = 4. It fills its
buffer, then counts items and takes the state of its iterator, from which a new one continues.
Seconds are CPU time of all threads. A cell is left out if its buffer would hold more than 2 GB.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grain
import numpy as np

import echo
from benchmarks import common

BATCH = 128
CHUNK = 256  # items that tf.data repeats in one call, in the side "in chunks"
GRID_FACTOR = 4
POOL_BYTES = 2**25  # of distinct items of the grid, which are read over and over
MAX_BYTES = 2e9  # of a buffer of the grid
CIFAR_BYTES = 32 * 32 * 3

# Threads only help a source that waits or releases the GIL; reading from memory does neither.
NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

Items = tuple[np.ndarray, np.ndarray]  # uint8 [N, bytes], int32 [N]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    examples: int = 50_000
    buffer: int = 10_000
    seconds: float = 1.0
    rounds: int = 5
    grid_bytes: tuple[int, ...] = (3_072, 43_200, 602_112)  # 32, 120, and 448 pixels per side
    grid_buffers: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)


QUICK = Plan(1_000, 200, seconds=0.01, rounds=1, grid_bytes=(3_072,), grid_buffers=(1_000,))


def items(count: int, size: int = CIFAR_BYTES) -> Items:
    """Random items and their numbers."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, size), np.uint8)
    return pixels, np.arange(count, dtype=np.int32)


# --- sides: functions of (items, whether epochs are shuffled, factor, buffer) that return batches


class Source:
    """A random-access source of items in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": self._images[index], "label": self._labels[index]}


class StackedSource(grain.MapDataset):
    """Endless epochs over items in memory, read in stacked chunks."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, shuffle: bool):
        super().__init__()
        self._images, self._labels, self._shuffle = images, labels, shuffle
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {key: leaf[0] for key, leaf in self.stacked_items(np.asarray([index])).items()}

    def stacked_items(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        epoch, place = np.divmod(indices, len(self._images))
        if self._shuffle:
            for number in np.unique(epoch).tolist():
                place[epoch == number] = self._order(number)[place[epoch == number]]
        elif len(place) == place[-1] - place[0] + 1:
            place = slice(place[0], place[-1] + 1)  # a view, not a copy
        return {"image": self._images[place], "label": self._labels[place]}

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k >= epoch - 1}
            self._orders[epoch] = np.random.default_rng((1, epoch)).permutation(len(self._images))
        return self._orders[epoch]


def in_memory(data: Items, whole: bool) -> grain.MapDataset:
    """Epochs over the source, made with Grain alone."""
    source = grain.MapDataset.source(Source(*data))
    return source.shuffle(seed=1).repeat() if whole else source.repeat()


def echoed(read: grain.MapDataset, factor: int, buffer: int, batch: int = BATCH, seed: int = 0):
    return iter(
        echo.EchoIterDataset(
            read,
            factor=factor,
            shuffle_buffer=buffer,
            seed=seed,
            batch_size=batch,
            read_options=NO_THREADS,
        )
    )


def echo_stacked(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    return echoed(StackedSource(*data, shuffle=whole), factor, buffer)


def echo_grain(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    return echoed(in_memory(data, whole), factor, buffer)


class Repeat(grain.experimental.FlatMapTransform):
    """Repeats an item; unlike the library's copies, the repeats are one object."""

    def __init__(self, factor: int):
        self.max_fan_out = self._factor = factor

    def flat_map(self, element):
        return [element] * self._factor


def grain_alone(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    read = in_memory(data, whole).to_iter_dataset(NO_THREADS)
    repeated = grain.experimental.FlatMapIterDataset(read, Repeat(factor))
    mixed = grain.experimental.WindowShuffleIterDataset(repeated, window_size=buffer, seed=1)
    return iter(mixed.batch(BATCH, drop_remainder=True))


def _tf_data(data: Items, whole: bool, buffer: int, repeat: Callable) -> Iterator[Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    read = tf.data.Dataset.from_tensor_slices(tuple(tf.constant(array) for array in data))
    epochs = (read.shuffle(len(data[1])) if whole else read).repeat()
    mixed = repeat(tf, epochs).shuffle(buffer)
    batches = mixed.batch(BATCH, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def tf_as_in_the_paper(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    def repeat(tf, epochs):
        return epochs.flat_map(lambda *item: tf.data.Dataset.from_tensors(item).repeat(factor))

    return _tf_data(data, whole, buffer, repeat)


def tf_in_chunks(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    def repeat(tf, epochs):
        chunks = epochs.batch(CHUNK)
        return chunks.map(lambda *c: tuple(tf.repeat(x, factor, axis=0) for x in c)).unbatch()

    return _tf_data(data, whole, buffer, repeat)


def copying_alone(data: Items, whole: bool, factor: int, buffer: int) -> Iterator[Any]:
    """An upper bound: one gather per batch from a buffer in a precomputed random order, and copying
    as many new items as a batch has to where some of these were."""
    del whole  # it reads in order
    images, labels = data
    kept = buffer * sum(1 / k for k in range(1, factor + 1)) / factor
    rng, rows = np.random.default_rng(0), min(round(kept), len(labels))
    stored = images[:rows].copy(), labels[:rows].copy()
    orders = rng.integers(0, rows, (64, BATCH))
    start = 0
    while True:
        for order in orders:
            yield tuple(leaf.take(order, axis=0) for leaf in stored)
            free = order[: max(1, BATCH // factor)]
            new = slice(start, start + len(free))
            for leaf, source in zip(stored, data, strict=True):
                leaf[free] = source[new]
            start = (start + len(free)) % (len(labels) - BATCH)


# By path, then by name in the tables; ratios compare the first side with the others.
SIDES: dict[str, dict[str, Callable[[Items, bool, int, int], Iterator[Any]]]] = {
    "stage": {"echo": echo_stacked, "copying alone": copying_alone},
    "whole": {
        "echo": echo_grain,
        "Grain": grain_alone,
        "tf.data, as in the paper": tf_as_in_the_paper,
        "tf.data, in chunks": tf_in_chunks,
        "echo, stacked source": echo_stacked,
    },
}
TITLES = {
    "stage": "The stage alone, fed with chunks of consecutive items",
    "whole": "The whole path: shuffled epochs over items in memory, echo, buffer, batch",
}


def available_sides(path: str) -> list[str]:
    """The sides of a path whose packages are installed."""
    tensorflow = importlib.util.find_spec("tensorflow")
    return [name for name in SIDES[path] if tensorflow or not name.startswith("tf.data")]


def speeds(path: str, factor: int, plan: Plan, clock: Callable[[], float]) -> common.Spreads:
    """Items per second by side."""
    data = items(plan.examples)
    running = {
        name: SIDES[path][name](data, path == "whole", factor, plan.buffer)
        for name in available_sides(path)
    }
    return common.interleaved(
        {
            name: lambda it=iterator: common.rate(it, BATCH, plan.seconds, clock)
            for name, iterator in running.items()
        },
        plan.rounds,
    )


def speed_table(by_factor: dict[int, common.Spreads]) -> str:
    names = list(next(iter(by_factor.values())))
    first, *others = names
    header = ["e", *names, *(f"{first} / {name}" for name in others)]
    rows = [
        [
            str(factor),
            *(f"{spread:,.0f}" for spread in spreads.values()),
            *(f"{spreads[first].median / spreads[name].median:.3g}" for name in others),
        ]
        for factor, spreads in by_factor.items()
    ]
    return common.markdown_table(header, rows)


# --- the grid


class Cell(NamedTuple):
    """Bytes of an item, slots of the shuffle buffer, and streams, whose batches are
    concatenated."""

    item_bytes: int
    buffer: int
    streams: int = 1

    @property
    def bytes(self) -> float:
        """Of the different items in a full buffer; see docs/echo.md."""
        harmonic = sum(1 / k for k in range(1, GRID_FACTOR + 1))
        return self.buffer * harmonic / GRID_FACTOR * self.item_bytes


class Measured(NamedTuple):
    """Items per processor second once the buffer is full, bytes by which resident memory peaks,
    and, except for tf.data, which saves its buffer as files, bytes of the state and CPU seconds
    from the state to the next batch."""

    rate: float
    increase: int | None
    state_bytes: int | None = None
    restore_seconds: float | None = None


def cells(plan: Plan) -> list[Cell]:
    """One stream for every size and buffer that fits, then more streams of small items."""
    single = [Cell(size, buffer) for size in plan.grid_bytes for buffer in plan.grid_buffers]
    several = [
        Cell(plan.grid_bytes[0], b, streams) for b in plan.grid_buffers for streams in (8, 64)
    ]
    return [cell for cell in (*single, *several) if cell.bytes <= MAX_BYTES]


class Streams:
    """Batches of several echoed streams, concatenated."""

    def __init__(self, data: Items, cell: Cell):
        self._streams = [
            echoed(
                StackedSource(*data, shuffle=False),
                GRID_FACTOR,
                cell.buffer // cell.streams,
                BATCH // cell.streams,
                seed,
            )
            for seed in range(cell.streams)
        ]

    def __iter__(self) -> "Streams":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        parts = [next(stream) for stream in self._streams]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def get_state(self) -> list[Any]:
        return [stream.get_state() for stream in self._streams]

    def set_state(self, states: list[Any]) -> None:
        for stream, state in zip(self._streams, states, strict=True):
            stream.set_state(state)


def measure(name: str, cell: Cell, seconds: float) -> Measured:
    """Measures one side of a cell, in this process."""
    data = items(max(1, POOL_BYTES // cell.item_bytes), cell.item_bytes)

    def started() -> Any:
        if name == "echo":
            return Streams(data, cell)
        return SIDES["whole"][name](data, False, GRID_FACTOR, cell.buffer)

    def fill_and_run() -> float:
        next(iterator)
        return common.rate(iterator, BATCH, seconds, time.process_time)

    iterator = started()
    rate, increase = common.peak_during(fill_and_run)
    if name.startswith("tf.data"):
        return Measured(rate, increase)
    state = json.dumps(iterator.get_state())
    restored = started()
    start = time.process_time()
    restored.set_state(json.loads(state))
    next(restored)
    return Measured(rate, increase, len(state), time.process_time() - start)


def grid_row(cell: Cell, name: str, measured: Measured) -> list[str]:
    megabytes = "-" if measured.increase is None else f"{measured.increase / 1e6:,.0f}"
    state = "-" if measured.state_bytes is None else f"{measured.state_bytes:,} B"
    restore = measured.restore_seconds
    return [
        f"{cell.item_bytes / 1000:,.0f} kB",
        f"{cell.buffer:,}",
        str(cell.streams),
        name,
        f"{measured.rate:,.0f}",
        megabytes,
        state,
        "-" if restore is None else f"{restore * 1e3:,.0f} ms",
    ]


def grid_report(plan: Plan) -> list[str]:
    rows = []
    for cell in cells(plan):
        for name in [name for name in available_sides("whole") if "stacked" not in name]:
            if cell.streams == 1 or name == "echo":
                measured = common.in_new_process(measure, name, cell, plan.seconds)
                rows.append(grid_row(cell, name, measured))
                common.progress(", ".join(rows[-1]))
    header = ["item", "buffer", "streams", "side", "items per processor second", "MB at the peak"]
    about = (
        f"e = {GRID_FACTOR}; each cell once, for {plan.seconds:g} s. Memory is the peak above the "
        "process before the first batch. `echo` reads chunks, the other sides item by item."
    )
    return [about, common.markdown_table([*header, "state", "restoring"], rows)]


def main(argv: list[str] | None = None) -> None:
    rounds, seconds = "number of rounds", "seconds per side and round, or per cell"
    parser = common.arguments(__spec__.name, __doc__, Plan(), QUICK, rounds=rounds, seconds=seconds)
    common.add_list(parser, "--factors", common.number(1), "1,2,4,8")
    parser.add_argument(
        "--processor-time", action="store_true", help="count processor seconds of all threads"
    )
    parser.add_argument("--grid", action="store_true", help="measure the grid instead")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    clock = time.process_time if options.processor_time else time.perf_counter
    parts = [
        "# The echo stage: speed, memory, and state",
        "How fast is the echo stage? Measured by `python -m benchmarks.stage` on "
        + common.machine(["numpy", "grain", "tensorflow-cpu", "tensorflow"]),
    ]
    if options.grid:
        parts += grid_report(plan)
    else:
        parts.append(
            f"Items per {'processor ' * options.processor_time}second, median of {plan.rounds} "
            f"interleaved rounds (smallest to largest), batches of {BATCH} CIFAR-sized items, "
            f"shuffle buffer {plan.buffer:,}. *Copying alone* gathers a batch and then writes to "
            "where it has read, as a buffer must."
        )
        for path, title in TITLES.items():
            by_factor = {factor: speeds(path, factor, plan, clock) for factor in options.factors}
            parts += [f"## {title}", speed_table(by_factor)]
    common.publish("\n\n".join(parts), options.out)


if __name__ == "__main__":
    main()
