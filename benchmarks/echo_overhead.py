"""Cost of echoing: the library's stage compared with copying, and with Grain and tf.data.

    python -m benchmarks.echo_overhead --out=results/echo_overhead.md      about 10 minutes
    python -m benchmarks.echo_overhead --quick                             a smoke run of seconds
    python -m benchmarks.echo_overhead --processor-time                    on a machine that is busy

Every side repeats CIFAR-shaped examples (uint8 [32, 32, 3] and a label) e times, mixes the copies
in a shuffle buffer, and returns batches of 128. Two paths are measured: the stage alone, fed with
chunks of consecutive examples, beside the copying that it cannot avoid; and the whole path, endless
reshuffled epochs over examples in memory, where echo, Grain, and tf.data all read example by
example. Rounds of the sides are interleaved; memory is measured in one process per side.
"""

import dataclasses
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

import echo
from benchmarks import common

BATCH = 128
CHUNK = 256  # examples that tf.data repeats in one call, in the side "in chunks"

# Threads only help a source that waits or releases the GIL; reading from memory does neither.
NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured."""

    examples: int = 50_000
    buffer: int = 10_000
    seconds: float = 1.0
    rounds: int = 5
    batches_for_memory: int = 600
    processor_time: bool = False  # of all threads, instead of wall time


QUICK = Sizes(examples=1_000, buffer=200, seconds=0.01, rounds=1, batches_for_memory=20)


class Source:
    """A random-access source of examples in memory that can be read in chunks."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": self._images[index], "label": self._labels[index]}

    def _getitems(self, indices) -> list[dict[str, np.ndarray]]:
        return [self[index] for index in indices]


class StackedSource(grain.MapDataset):
    """Endless epochs over examples in memory, read in stacked chunks."""

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


def examples(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (sizes.examples, 32, 32, 3), np.uint8)
    return images, np.arange(sizes.examples, dtype=np.int32)


def echo_stacked(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    return iter(
        echo.EchoIterDataset(
            StackedSource(*data, shuffle=whole),
            factor=factor,
            shuffle_buffer=sizes.buffer,
            batch_size=BATCH,
            read_options=NO_THREADS,
        )
    )


def in_memory(data, whole: bool) -> grain.MapDataset:
    """Epochs over the source, made with Grain alone."""
    source = grain.MapDataset.source(Source(*data))
    return source.shuffle(seed=1).repeat() if whole else source.repeat()


def echo_grain(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    return iter(
        echo.EchoIterDataset(
            in_memory(data, whole),
            factor=factor,
            shuffle_buffer=sizes.buffer,
            batch_size=BATCH,
            read_options=NO_THREADS,
        )
    )


class Repeat(grain.experimental.FlatMapTransform):
    """Repeats an item; unlike the library's copies, the repeats are one object."""

    def __init__(self, factor: int):
        self.max_fan_out = self._factor = factor

    def flat_map(self, element):
        return [element] * self._factor


def grain_alone(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    read = in_memory(data, whole).to_iter_dataset(NO_THREADS)
    echoed = grain.experimental.FlatMapIterDataset(read, Repeat(factor))
    mixed = grain.experimental.WindowShuffleIterDataset(echoed, window_size=sizes.buffer, seed=1)
    return iter(mixed.batch(BATCH, drop_remainder=True))


def tensors(sizes: Sizes) -> Any:
    return as_tensors(examples(sizes))


def as_tensors(arrays: tuple[np.ndarray, ...]) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tuple(tf.constant(array) for array in arrays)


def tf_epochs(data, whole: bool):
    import tensorflow as tf

    read = tf.data.Dataset.from_tensor_slices(data)
    return (read.shuffle(len(data[1])) if whole else read).repeat()


def tf_batches(echoed, sizes: Sizes) -> Iterator[Any]:
    import tensorflow as tf

    mixed = echoed.shuffle(sizes.buffer)
    batches = mixed.batch(BATCH, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def tf_as_in_the_paper(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    import tensorflow as tf

    def copies(*example):
        return tf.data.Dataset.from_tensors(example).repeat(factor)

    return tf_batches(tf_epochs(data, whole).flat_map(copies), sizes)


def tf_in_chunks(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    import tensorflow as tf

    def copies(*chunk):
        return tuple(tf.repeat(leaf, factor, axis=0) for leaf in chunk)

    return tf_batches(tf_epochs(data, whole).batch(CHUNK).map(copies).unbatch(), sizes)


def copying_alone(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    """An upper bound: one gather per batch from a buffer in a precomputed random order, and copying
    as many new examples as a batch has to where some of these were."""
    images, labels = data
    kept = sizes.buffer * sum(1 / k for k in range(1, factor + 1)) / factor
    rng, rows = np.random.default_rng(0), min(round(kept), sizes.examples)
    stored = images[:rows].copy(), labels[:rows].copy()
    orders = rng.integers(0, rows, (64, BATCH))
    start = 0
    while not whole:
        for order in orders:
            yield tuple(leaf.take(order, axis=0) for leaf in stored)
            free = order[: max(1, BATCH // factor)]
            new = slice(start, start + len(free))
            for leaf, source in zip(stored, data, strict=True):
                leaf[free] = source[new]
            start = (start + len(free)) % (sizes.examples - BATCH)


@dataclasses.dataclass(frozen=True)
class Side:
    """A way to echo: `load` prepares the data, `batches` builds and starts the pipeline."""

    load: Callable[[Sizes], Any]
    batches: Callable[[Any, Sizes, bool, int], Iterator[Any]]


# By path, then by name in the tables; ratios compare the first side with the others.
SIDES = {
    "stage": {
        "echo": Side(examples, echo_stacked),
        "copying alone": Side(examples, copying_alone),
    },
    "whole": {
        "echo": Side(examples, echo_grain),
        "Grain": Side(examples, grain_alone),
        "tf.data, as in the paper": Side(tensors, tf_as_in_the_paper),
        "tf.data, in chunks": Side(tensors, tf_in_chunks),
        "echo, stacked source": Side(examples, echo_stacked),
    },
}
TITLES = {
    "stage": "The stage alone, fed with chunks of consecutive examples",
    "whole": "The whole path: shuffled epochs over examples in memory, echo, buffer, batch",
}


def available_sides(path: str) -> dict[str, Side]:
    """The sides of a path whose packages are installed."""
    no_tensorflow = importlib.util.find_spec("tensorflow") is None
    return {
        name: side
        for name, side in SIDES[path].items()
        if not (no_tensorflow and name.startswith("tf.data"))
    }


def speeds(path: str, factor: int, sizes: Sizes) -> dict[str, common.Spread]:
    """Examples per second by side."""
    data, running = {}, {}
    clock = time.process_time if sizes.processor_time else time.perf_counter
    for name, side in available_sides(path).items():
        if side.load not in data:
            data[side.load] = side.load(sizes)
        running[name] = side.batches(data[side.load], sizes, path == "whole", factor)
    try:
        return common.interleaved(
            {
                name: lambda it=iterator: common.rate(it, BATCH, sizes.seconds, clock)
                for name, iterator in running.items()
            },
            sizes.rounds,
        )
    finally:
        for iterator in running.values():
            if hasattr(iterator, "close"):
                iterator.close()


def loaded(path: str, name: str, factor: int, sizes: Sizes) -> Callable[[], None]:
    """Loads the data of a side; returns a function that runs `batches_for_memory` batches."""
    side = SIDES[path][name]
    data = side.load(sizes)

    def run():
        batches = side.batches(data, sizes, path == "whole", factor)
        for _ in range(sizes.batches_for_memory):
            next(batches)

    return run


def call(function: Callable[[], None]) -> None:
    function()


def speed_table(path: str, by_factor: dict[int, dict[str, common.Spread]]) -> str:
    names = list(next(iter(by_factor.values())))
    first, others = names[0], [name for name in names[1:] if name[:2] in ("Gr", "tf", "co")]
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


def memory_table(path: str, factors: list[int], sizes: Sizes) -> str:
    rows = []
    for name in available_sides(path):
        row = [name]
        for factor in factors:
            increase = common.memory_increase(loaded, call, path, name, factor, sizes)
            row.append("not measured here" if increase is None else f"{increase / 1e6:,.0f}")
            common.progress(f"memory of {name} at e = {factor}: {row[-1]} MB")
        rows.append(row)
    return common.markdown_table(["MB", *(f"e = {factor}" for factor in factors)], rows)


def report(factors: list[int], sizes: Sizes, memory: bool) -> str:
    """The report as Markdown."""
    parts = [
        "# Echoing: speed and memory compared with Grain and tf.data",
        "How fast is the echo stage? Measured by `python -m benchmarks.echo_overhead` on "
        + common.machine(["numpy", "grain", "tensorflow-cpu", "tensorflow"]),
        f"Examples per {'processor ' * sizes.processor_time}second, median of {sizes.rounds} "
        "interleaved rounds (smallest to largest), "
        f"batches of {BATCH} CIFAR-shaped examples, shuffle buffer {sizes.buffer:,}. *Copying "
        "alone* gathers a batch and then writes to where it has read, as a buffer must.",
    ]
    if importlib.util.find_spec("tensorflow") is None:
        parts.append("TensorFlow is not installed here, so tf.data is left out.")
    for path, title in TITLES.items():
        by_factor = {}
        for factor in factors:
            common.progress(f"{title}, e = {factor}")
            by_factor[factor] = speeds(path, factor, sizes)
        parts += [f"## {title}", speed_table(path, by_factor)]
        if memory:
            parts += [
                f"Memory increase over {sizes.batches_for_memory} batches, without the data:",
                memory_table(path, sorted({factors[0], factors[-1]}), sizes),
            ]
    return "\n\n".join(parts)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Sizes(),
        QUICK,
        rounds="number of rounds",
        seconds="seconds per side and round",
    )
    common.add_list(parser, "--factors", common.number(1), "1,2,4,8")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count processor seconds of all threads, which other work disturbs less",
    )
    options = parser.parse_args(argv)
    sizes = common.plan(options, Sizes(), QUICK)
    common.publish(report(options.factors, sizes, not options.no_memory), options.out)


if __name__ == "__main__":
    main()
