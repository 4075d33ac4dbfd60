"""Data sets to echo, one for each kind of parent that the stage accepts, and what came out."""

import threading

import grain
import numpy as np

import echo
from tests.helpers.runs import HANGS

NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=64)
THREADS = grain.ReadOptions(num_threads=3, prefetch_buffer_size=24)


class Source:
    """Random access to examples whose values are their number, views of `x`; records every read."""

    def __init__(self, n: int):
        self.n, self.reads, self.lock = n, [], threading.Lock()
        self.x = np.arange(n)[:, None].repeat(3, 1)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        with self.lock:
            self.reads.append(index)
        return {"x": self.x[index], "y": np.int32(-index)}


class ChunkSource(Source):
    """A `Source` that reads chunks."""

    def _getitems(self, indices):
        return [self[index] for index in indices]


class Stacked(grain.MapDataset):
    """A parent that returns stacked items."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index]

    def stacked_items(self, indices):
        items = [self.source[index] for index in indices.tolist()]
        return {key: np.stack([item[key] for item in items]) for key in ("x", "y")}


def parent_of(kind: str, n: int, source_type=Source):
    """A parent of one of `KINDS` over `n` examples, and its source."""
    source = source_type(n)
    if kind == "stacked":
        return Stacked(source), source
    if kind == "chunks":
        source = ChunkSource(n)
    examples = grain.MapDataset.source(source)
    read = examples.to_iter_dataset(grain.ReadOptions(0, 0))
    if kind == "prefetched":
        return grain.experimental.ThreadPrefetchIterDataset(read, prefetch_buffer_size=3), source
    if kind == "sequential":
        return read, source
    if kind == "reusing":
        return read.map(Reusing()), source
    return examples, source


class Reusing:
    """Returns each item in the memory of the one before."""

    def __init__(self):
        self.x = np.zeros(3, np.int64)

    def __call__(self, item):
        self.x[:] = item["x"]
        return item | {"x": self.x}


RANDOM_ACCESS = ("map", "chunks", "stacked")
KINDS = (*RANDOM_ACCESS, "sequential", "reusing", "prefetched")


def numbers(items) -> list[int]:
    """The fresh items that were emitted, one by one or in batches."""
    return [int(i) for item in items for i in np.ravel(item["y"] * -1)]


def emit(store, numbers):
    """A batch of copies of the items `numbers`, from a store that has them."""
    (taken,) = store.take(np.asarray(numbers)[None])
    return store.emit(taken)


def on_device(rows, **options):
    """A `DeviceStore` of a size that all stages of the tests share, and so its programs."""
    assert rows <= 1024
    return echo.DeviceStore(1024, **options)


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("echo-read")}


def gone(threads: set[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(timeout=HANGS)
    return not any(thread.is_alive() for thread in threads)
