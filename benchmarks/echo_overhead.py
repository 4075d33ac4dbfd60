"""What echoing costs: the library's stage beside Grain's and tf.data's own means.

    python -m benchmarks.echo_overhead --out=results/echo_overhead.md      about 10 minutes
    python -m benchmarks.echo_overhead --quick                             seconds, to see it work

Every side repeats CIFAR-shaped examples (uint8 [32, 32, 3] and a label) e times, mixes the copies
by a shuffle buffer, and hands over batches of 128. Two paths are measured: the stage alone, fed
from memory in order; and the whole path, an endless run of epochs over examples in memory, each
epoch in another order. Sides take turns, and memory is measured in a process for each side.
"""

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

import echo
from benchmarks import common

BATCH = 128
CHUNK = 256  # examples that tf.data repeats in one go, where it does

# Threads help where upstream waits, or lets other threads run; reading from memory does neither.
NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    examples: int = 50_000
    buffer: int = 10_000
    seconds: float = 1.0
    rounds: int = 5
    batches_for_memory: int = 600


QUICK = Sizes(examples=1_000, buffer=200, seconds=0.01, rounds=1, batches_for_memory=20)


class Source:
    """Examples in memory as a random-access source that can be read in chunks."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": self._images[index], "label": self._labels[index]}

    def _getitems(self, indices) -> list[dict[str, np.ndarray]]:
        return [self[index] for index in indices]


class StackedSource(grain.MapDataset):
    """The same, endless, handing over whole chunks as arrays: what a source of ours can offer."""

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
            for one in np.unique(epoch).tolist():
                place[epoch == one] = self._order(one)[place[epoch == one]]
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


def ours_stacked(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
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
    """Epochs of the source in Grain's own terms."""
    source = grain.MapDataset.source(Source(*data))
    return source.shuffle(seed=1).repeat() if whole else source.repeat()


def ours(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
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
    """An item and its copies. (They are one object: whoever changes one changes all.)"""

    def __init__(self, factor: int):
        self.max_fan_out = self._factor = factor

    def flat_map(self, element):
        return [element] * self._factor


def grains_own(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    read = in_memory(data, whole).to_iter_dataset(NO_THREADS)
    echoed = grain.experimental.FlatMapIterDataset(read, Repeat(factor))
    mixed = grain.experimental.WindowShuffleIterDataset(echoed, window_size=sizes.buffer, seed=1)
    return iter(mixed.batch(BATCH, drop_remainder=True))


def tensors(sizes: Sizes) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tuple(tf.constant(array) for array in examples(sizes))


def tf_epochs(data, whole: bool):
    import tensorflow as tf

    read = tf.data.Dataset.from_tensor_slices(data)
    return (read.shuffle(len(data[1])) if whole else read).repeat()


def tf_finished(echoed, sizes: Sizes) -> Iterator[Any]:
    import tensorflow as tf

    mixed = echoed.shuffle(sizes.buffer)
    batches = mixed.batch(BATCH, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def tf_as_in_the_study(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    import tensorflow as tf

    def copies(*example):
        return tf.data.Dataset.from_tensors(example).repeat(factor)

    return tf_finished(tf_epochs(data, whole).flat_map(copies), sizes)


def tf_in_chunks(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    import tensorflow as tf

    def copies(*chunk):
        return tuple(tf.repeat(leaf, factor, axis=0) for leaf in chunk)

    return tf_finished(tf_epochs(data, whole).batch(CHUNK).map(copies).unbatch(), sizes)


def copies_alone(data, sizes: Sizes, whole: bool, factor: int) -> Iterator[Any]:
    """A ceiling: only the copies into and out of a buffer, in a random order known beforehand."""
    images, labels = data
    kept = sizes.buffer * sum(1 / k for k in range(1, factor + 1)) / factor
    rng, rows = np.random.default_rng(0), min(round(kept), sizes.examples)
    stored = images[:rows].copy(), labels[:rows].copy()
    orders = rng.integers(0, rows, (64, BATCH))
    start = 0
    while not whole:
        for order in orders:
            new = order[: max(1, BATCH // factor)]
            read = slice(start, start + len(new))
            for leaf, source in zip(stored, data, strict=True):
                leaf[new] = source[read]
            start = (start + len(new)) % (sizes.examples - BATCH)
            yield tuple(leaf.take(order, axis=0) for leaf in stored)


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to echo: `load` gets the data ready, `batches` builds and starts the pipeline."""

    load: Callable[[Sizes], Any]
    batches: Callable[[Any, Sizes, bool, int], Iterator[Any]]


# By path and by name in the tables; ratios are those of the first side to the others.
SIDES = {
    "stage": {
        "echo": Side(examples, ours_stacked),
        "Grain": Side(examples, grains_own),
        "tf.data, as in the study": Side(tensors, tf_as_in_the_study),
        "tf.data, in chunks": Side(tensors, tf_in_chunks),
        "copying alone": Side(examples, copies_alone),
    },
    "whole": {
        "echo": Side(examples, ours),
        "Grain": Side(examples, grains_own),
        "tf.data, as in the study": Side(tensors, tf_as_in_the_study),
        "tf.data, in chunks": Side(tensors, tf_in_chunks),
        "echo, stacked source": Side(examples, ours_stacked),
    },
}
TITLES = {
    "stage": "The stage alone, fed from memory in order",
    "whole": "The whole path: shuffled epochs over examples in memory, echo, buffer, batch",
}


def sides_here(path: str) -> dict[str, Side]:
    """The sides of a path that can run on this installation."""
    no_tensorflow = importlib.util.find_spec("tensorflow") is None
    return {
        name: side
        for name, side in SIDES[path].items()
        if not (no_tensorflow and name.startswith("tf.data"))
    }


def speeds(path: str, factor: int, sizes: Sizes) -> dict[str, common.Spread]:
    """Examples a second of each side."""
    data, running = {}, {}
    for name, side in sides_here(path).items():
        if side.load not in data:
            data[side.load] = side.load(sizes)
        running[name] = side.batches(data[side.load], sizes, path == "whole", factor)
    try:
        return common.interleaved(
            {
                name: lambda it=iterator: common.rate(it, BATCH, sizes.seconds)
                for name, iterator in running.items()
            },
            sizes.rounds,
        )
    finally:
        for iterator in running.values():
            if hasattr(iterator, "close"):
                iterator.close()


def loaded(path: str, name: str, factor: int, sizes: Sizes) -> Callable[[], None]:
    """A side with its data in place, ready to run `batches_for_memory` batches."""
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
    first, others = names[0], [name for name in names[1:] if name[:2] in ("Gr", "tf")]
    header = ["e", *names, *(f"{first} / {name}" for name in others)]
    rows = [
        [
            str(factor),
            *(f"{s.median:,.0f} ({s.low:,.0f} to {s.high:,.0f})" for s in found.values()),
            *(f"{found[first].median / found[name].median:.1f}" for name in others),
        ]
        for factor, found in by_factor.items()
    ]
    return common.markdown_table(header, rows)


def memory_table(path: str, factors: list[int], sizes: Sizes) -> str:
    rows = []
    for name in sides_here(path):
        row = [name]
        for factor in factors:
            rise = common.rise_in_memory(loaded, call, path, name, factor, sizes)
            row.append("not measured here" if rise is None else f"{rise / 1e6:,.0f}")
            common.progress(f"memory of {name} at e={factor}: {row[-1]} MB")
        rows.append(row)
    return common.markdown_table(["MB", *(f"e = {factor}" for factor in factors)], rows)


def report(factors: list[int], sizes: Sizes, memory: bool) -> str:
    """The whole comparison as Markdown."""
    parts = [
        "# Echoing: speed and memory beside Grain and tf.data",
        f"Examples a second, median of {sizes.rounds} rounds in turns (smallest to largest), "
        f"batches of {BATCH} CIFAR-shaped examples, shuffle buffer {sizes.buffer:,}. "
        + common.machine(["numpy", "grain", "tensorflow-cpu", "tensorflow"]),
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
                f"Rise of resident memory over {sizes.batches_for_memory} batches, besides data:",
                memory_table(path, sorted({factors[0], factors[-1]}), sizes),
            ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = common.arguments("echo_overhead", __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="little data, short rounds: a smoke run"
    )
    parser.add_argument(
        "--factors", default="1,2,4,8", help="echoing factors, whole numbers (default: %(default)s)"
    )
    parser.add_argument("--no-memory", action="store_true", help="leaves memory out")
    parser.add_argument("--rounds", type=int, help="rounds that count (default: 5; quick: 1)")
    parser.add_argument("--seconds", type=float, help="seconds a side a round (default: 1)")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    for field in ("rounds", "seconds"):
        value = getattr(options, field)
        if value is not None:
            if value <= 0:
                parser.error(f"--{field} is {value}; allowed: a number above 0")
            sizes = dataclasses.replace(sizes, **{field: value})
    factors = options.factors.split(",")
    if not all(factor.isdecimal() and int(factor) >= 1 for factor in factors):
        parser.error(
            f"--factors is {options.factors!r}; allowed: whole numbers from 1, as in 1,2,4"
        )
    text = report([int(factor) for factor in factors], sizes, not options.no_memory)
    common.publish(text, options.out)


if __name__ == "__main__":
    main()
