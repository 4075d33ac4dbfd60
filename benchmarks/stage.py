"""Cost of echoing: the library's stage beside copying alone, Grain, and tf.data.

    python -m benchmarks.stage             about 10 minutes
    python -m benchmarks.stage --quick     a smoke run of seconds
    python -m benchmarks.stage --loop      echo.auto and echo.watch, 8 minutes

Every side repeats items e times, mixes the copies in a shuffle buffer, and returns batches of 128.
Two paths are measured: the stage alone, fed with chunks of consecutive items, beside the copying
that it cannot avoid; and the whole path, endless reshuffled epochs over items in memory, where
echo, Grain, and tf.data all read item by item. Rounds of the sides are interleaved.

With `--loop`, loaders sleep R times as long per batch as the loop's step does. `echo.auto` is
compared with the loader alone, in steps per second from the first batch on; and `echo.watch`, while
two processes keep the cores busy, with the times that loader and step really took.
"""

import concurrent.futures
import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

import echo
from benchmarks import common

BATCH = 128
CHUNK = 256  # items that tf.data repeats in one call, in the side "in chunks"
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


QUICK = Plan(1_000, 200, seconds=0.01, rounds=1)


def items(count: int) -> Items:
    """Random items and their numbers."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, CIFAR_BYTES), np.uint8)
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


def echoed(read: grain.MapDataset, factor: int, buffer: int):
    options = {"seed": 0, "batch_size": BATCH, "read_options": NO_THREADS}
    return iter(echo.EchoIterDataset(read, factor=factor, shuffle_buffer=buffer, **options))


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


def speeds(path: str, factor: int, plan: Plan) -> common.Spreads:
    """Items per second by side."""
    data = items(plan.examples)
    running = {
        name: SIDES[path][name](data, path == "whole", factor, plan.buffer)
        for name in available_sides(path)
    }
    return common.interleaved(
        {
            name: lambda it=iterator: common.rate(it, BATCH, plan.seconds)
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


LOOP_RATIOS, LOOP_STEP, LOOP_BATCHES = (2, 4, 8), 0.1, 48
WATCH_RUNS, WATCH_STEP, WATCH_BATCHES = 20, 0.02, 200


class SleepingBatches:
    """Batches by index, each of which takes so many seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __len__(self) -> int:
        return LOOP_BATCHES

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(self.seconds)
        return np.full((32, 4), index)


def sleeping_loaders(seconds: float) -> dict[str, Any]:
    """Loaders that deliver a batch in so many seconds."""
    batches = SleepingBatches(seconds)
    one_thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    loaders: dict[str, Any] = {
        "generator": (batches[i] for i in range(LOOP_BATCHES)),
        "Grain": grain.MapDataset.range(LOOP_BATCHES)
        .map(batches.__getitem__)
        .to_iter_dataset(one_thread),
    }
    if importlib.util.find_spec("torch"):
        import torch  # pyright: ignore[reportMissingImports]

        for workers in (0, 2):
            loaders[f"PyTorch, {workers} workers"] = torch.utils.data.DataLoader(
                SleepingBatches(seconds * max(1, workers)), batch_size=None, num_workers=workers
            )
    return loaders


def pace(batches: Any) -> tuple[float, float]:
    """Steps per second from the first batch on, and the share of the time that the loop waited."""
    iterator, waited, steps = iter(batches), 0.0, 0
    next(iterator)
    start = before = time.perf_counter()
    for _ in iterator:
        waited += time.perf_counter() - before
        time.sleep(LOOP_STEP)
        steps, before = steps + 1, time.perf_counter()
    return steps / (before - start), waited / (before - start)


def watched_error(ratio: float) -> float:
    """What `echo.watch` says of R, relative to the times that were taken."""
    took: dict[str, float] = {"loader": 0.0, "step": 0.0}

    def sleep(name: str, seconds: float) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        took[name] += time.perf_counter() - start

    def loader() -> Iterator[np.ndarray]:
        for number in range(WATCH_BATCHES):
            sleep("loader", ratio * WATCH_STEP)
            yield np.full((32, 4), number)

    watched, steps = echo.watch(loader(), replay=16), 0
    for _ in watched:
        sleep("step", WATCH_STEP)
        steps += 1
    truth = (took["loader"] / WATCH_BATCHES) / (took["step"] / steps)
    return float(np.mean(watched.report.ratio)) / truth - 1


def loop_report() -> str:
    rows = []
    for ratio in LOOP_RATIOS:
        bare = {name: pace(it)[0] for name, it in sleeping_loaders(ratio * LOOP_STEP).items()}
        for name, loader in sleeping_loaders(ratio * LOOP_STEP).items():
            auto, waited = pace(echo.auto(loader))
            shares = f"{auto / bare[name] / ratio:.2f}", f"{waited:.1%}"
            rows.append([str(ratio), name, f"{bare[name]:.1f}", f"{auto:.1f}", *shares])
            common.progress(" ".join(rows[-1]))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        ratios = [LOOP_RATIOS[run % len(LOOP_RATIOS)] for run in range(WATCH_RUNS)]
        with concurrent.futures.ThreadPoolExecutor(WATCH_RUNS) as pool:
            errors = np.abs(list(pool.map(watched_error, ratios)))
    finally:
        for process in busy:
            process.kill()
    header = ["R", "loader", "steps/s alone", "with `auto`", "gain / R", "`auto` waits"]
    return "\n\n".join(
        [
            "## A loop around a loader that sleeps",
            f"Measured by `python -m benchmarks.stage --loop`. A step sleeps for "
            f"{LOOP_STEP * 1e3:.0f} ms. {common.machine(['grain', 'torch'])}",
            common.markdown_table(header, rows),
            f"R of `watch(replay=16)` is within 10% in {np.sum(errors < 0.1)} of {WATCH_RUNS} runs "
            f"beside two busy processes; the largest error is {errors.max():.0%}.",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    rounds, seconds = "number of rounds", "seconds per side and round"
    parser = common.arguments(__spec__.name, __doc__, Plan(), QUICK, rounds=rounds, seconds=seconds)
    common.add_list(parser, "--factors", common.number(1), "1,2,4,8")
    parser.add_argument("--loop", action="store_true", help="echo.auto and echo.watch instead")
    options = parser.parse_args(argv)
    if options.loop:
        if options.quick or options.rounds or options.seconds:
            parser.error("--loop: has its own plan; leave out --quick, --rounds, and --seconds")
        print(loop_report())
        return
    plan = common.plan(options, Plan(), QUICK)
    parts = [
        "# The echo stage's speed",
        "How fast is the echo stage? Measured by `python -m benchmarks.stage` on "
        + common.machine(["numpy", "grain", "tensorflow-cpu", "tensorflow"]),
        f"Items per second, median of {plan.rounds} interleaved rounds (smallest to largest), "
        f"batches of {BATCH} CIFAR-sized items, shuffle buffer {plan.buffer:,}. *Copying alone* "
        "gathers a batch and then writes to where it has read, as a buffer must.",
    ]
    for path, title in TITLES.items():
        by_factor = {factor: speeds(path, factor, plan) for factor in options.factors}
        parts += [f"## {title}", speed_table(by_factor)]
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
