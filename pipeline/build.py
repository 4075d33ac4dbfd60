"""The input pipeline, stage by stage. Start reading here.

    read -> decode -> [echo] -> augment -> [echo] -> batch -> [echo] -> device
              before_augmentation   after_augmentation   after_batching

`config.echo.insertion` selects one of the three echo stages, or none. Nothing else differs between
the conditions of a study, but for how far they read ahead (`example_options`, `batch_options`).
"""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grain
import jax
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

import echo
from data.sources import Source
from data.throttle import RateLimiter, StoppableClock, augmentation_limiter
from pipeline import epoch_repeats
from pipeline.map_datasets import (
    CHUNK,
    CORES,
    Arrays,
    Batch,
    Batches,
    Decode,
    MapChunks,
    Read,
    Stage,
    decode_records,
    in_chunks,
)
from pipeline.streams import ConcatenatedStreams, FixedStreams, Streams

# Augmentation is compiled for these numbers of examples, and for multiples of a chunk; others are
# padded up to the next of them.
_LENGTHS = (8, CHUNK)

# Bytes of whole batches, of all streams, that are read ahead beyond two of each stream.
_AHEAD_BYTES = 2**29

# Examples in the smallest part of a batch that a core augments by itself.
_MIN_CHUNK = 8

# XLA's CPU client runs in order what one thread dispatches. On the training loop's own thread,
# which decides batches under echo.policy=auto, augmentation would wait for the running step.
_AUGMENTING = concurrent.futures.ThreadPoolExecutor(CORES, thread_name_prefix="augment")


class StageFunctions(Protocol):
    """The functions that a workload provides to the pipeline."""

    def decode(self, records: list[dict[str, Any]]) -> Any:
        """Decodes raw records into stacked arrays, on the host."""
        ...

    def augment(self, data: Any, seed: Any, index_B: Any, copy_B: Any) -> Any:
        """Augments stacked arrays; a JAX function. The randomness of row b depends only on
        (seed, index_B[b], copy_B[b]), all uint32."""
        ...

    # A workload that supports dataset.fused_decode also has
    # decode_cropped(records, seed, index_n, copy_n), which decodes and crops at random; `augment`
    # then skips the crop. One whose augmentation is faster outside of XLA on a CPU also has
    # augment_on_host(data, seed, index_B, copy_B), which augments NumPy arrays alike.


def build(
    config: ConfigDict,
    source: Source,
    functions: StageFunctions,
    held: range | None = None,
    streams: Streams | None = None,
    first: Arrays | None = None,
    clock: StoppableClock | None = None,
) -> grain.IterDataset[Batch]:
    """The batches of a run. To checkpoint them, save the state of their iterator.

    Args:
        config: a resolved configuration.
        source: raw records of the training split.
        functions: the workload's decode and augment.
        held: the streams that this process reads; None for all. Batches contain only their rows,
            but count the fresh examples of all streams.
        streams: how the streams echo, count fresh examples, and end; None for `FixedStreams`. For
            echo.policy=auto pass `pipeline.auto_streams.AutoStreams`.
        first: the result of `first_example`, if it has been decoded already.
        clock: times the limit on augmentation; None = a clock that is never stopped.

    Raises:
        ValueError: echo.policy=auto without `streams`.
        RecordError: record 0 cannot be decoded.
    """
    if streams is None and config.echo.policy != "fixed":
        raise ValueError("echo.policy=auto needs streams=AutoStreams(config, ...)")
    held = range(config.echo.streams) if held is None else held
    streams = streams or FixedStreams(config, held)
    first = first_example(config, source, functions) if first is None else first
    augment = host_augmentation(config, functions, first, clock)
    rows = config.batch_size // config.echo.streams
    example_bytes = sum(array.nbytes for array in first.values())
    ahead = batch_options(rows, len(held), example_bytes)
    parts = {
        stream: _stream_batches(config, source, functions, stream, augment, streams, ahead)
        for stream in held
    }
    region = "batch" if config.echo.insertion == "none" else "echo"
    batches = ConcatenatedStreams(parts, streams, region)
    if config.prefetch and streams.read_ahead:
        batches = grain.experimental.ThreadPrefetchIterDataset(
            batches, prefetch_buffer_size=config.prefetch
        )
    return batches


def _stream_batches(
    config: ConfigDict,
    source: Source,
    functions: StageFunctions,
    stream: int,
    augment: Stage,
    streams: Streams,
    ahead: grain.ReadOptions,
) -> grain.IterDataset[Batch]:
    """One of echo.streams streams: every n-th fresh example, and its block of rows per batch, of
    which it reads some `ahead` where it reads whole ones."""
    insertion, rows = config.echo.insertion, config.batch_size // config.echo.streams
    echo_stage = streams.echo_stage(stream)

    # read -> decode
    examples = read = fresh_examples(config, source, functions, stream)
    if config.dataset.spaced_epochs > 1:  # a control experiment that takes the place of echoing
        batches = epoch_repeats.batches(config, read, len(source), augment, rows)
        return batches.to_iter_dataset(ahead)
    if insertion == "before_augmentation":  # echo -> augment -> batch, a whole batch at a time
        echoed = echo_stage(examples, batch_size=rows, read_options=example_options(rows))
        return echoed.map(functools.partial(_from_examples, read)).map(augment)

    # -> augment
    examples = MapChunks(examples, lambda data, i: augment(read.first_copy(data, i)).data)
    if insertion == "after_augmentation":  # echo -> batch
        echoed = echo_stage(examples, batch_size=rows, read_options=example_options(rows))
        return echoed.map(functools.partial(_from_examples, read))

    # -> batch
    batches = Batches(examples, rows)
    if insertion == "after_batching":
        echoed = echo_stage(batches, read_options=ahead)
    else:  # "none": no echo stage and no buffer
        once = batches.map_with_index(lambda i, data: echo.Echoed(data, i, 0, i + 1))
        echoed = once.to_iter_dataset(ahead)
    return echoed.map(functools.partial(_from_batches, read, rows))


def fresh_examples(
    config: ConfigDict, source: Source, functions: StageFunctions, stream: int = 0
) -> Read:
    """The fresh examples of a stream, read and decoded."""
    decode, fresh = _training_decode(config, functions), config.budget.fresh_examples
    return Read(source, config.seed.data, fresh, decode, stream, config.echo.streams)


def first_example(config: ConfigDict, source: Source, functions: StageFunctions) -> Arrays:
    """Decodes record 0. Each array is [1, ...]; other examples have the same shapes.

    With `fused_decode`, which draws crops in JAX, this compiles for all lengths of chunks, so that
    no training step waits for the compiler.

    Raises:
        RecordError: the record cannot be decoded.
    """
    decode = _training_decode(config, functions)

    def decode_as_chunks(records: Any, index_n: np.ndarray, copy_n: np.ndarray) -> Arrays:
        for n in _LENGTHS:
            decode([*records] * n, index_n.repeat(n), copy_n.repeat(n))
        return decode(records, index_n, copy_n)

    return decode_records(source, [0], decode_as_chunks if config.dataset.fused_decode else decode)


def _training_decode(config: ConfigDict, functions: StageFunctions) -> Decode:
    if not config.dataset.fused_decode:
        return lambda records, index_n, copy_n: functions.decode(records)
    return lambda records, index_n, copy_n: functions.decode_cropped(  # pyright: ignore[reportAttributeAccessIssue]
        records, config.seed.data, index_n, copy_n
    )


def host_augmentation(
    config: ConfigDict,
    functions: StageFunctions,
    first: Arrays,
    clock: StoppableClock | None = None,
) -> Stage:
    """The augmentation stage on the host's CPU, of all streams; the identity if the devices
    augment.

    Compiles here, for the shapes of `first` and the lengths that this run will use, so that no
    training step waits for the compiler. config.upstream may limit the examples per second.
    """
    if config.augment_on == "device":
        return lambda batch: batch
    seed = np.uint32(config.seed.data)
    apply = _on_host if getattr(functions, "augment_on_host", None) else _compiled

    def augment(batch: Batch) -> Batch:
        with TraceAnnotation("augment"):
            if apply is _on_host and len(batch.index) > CHUNK:
                # Its chunks wait for the threads that read, which wait for _AUGMENTING.
                return batch._replace(data=_on_host(functions, seed, batch))
            return batch._replace(data=_AUGMENTING.submit(apply, functions, seed, batch).result())

    lengths = set(_LENGTHS)
    if config.echo.insertion == "before_augmentation":
        lengths = {config.batch_size // config.echo.streams}
    for length in lengths:
        data = {name: array.repeat(length, 0) for name, array in first.items()}
        zeros = np.zeros(length, np.int64)
        augment(Batch(data, zeros, zeros, 0))
    limiter = augmentation_limiter(config, clock)
    return augment if limiter is None else functools.partial(_slowed, augment, limiter)


def _slowed(augment: Stage, limiter: RateLimiter, batch: Batch) -> Batch:
    """The batch augmented, no sooner than the limiter lets its examples pass."""
    augmented = augment(batch)
    for _ in limiter.passed(len(batch.index)):
        pass
    return augmented


def _on_host(functions: Any, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by the workload's code for the host, in chunks on all cores."""

    def augmented(rows: Sequence[int]) -> Arrays:
        part = slice(rows[0], rows[-1] + 1)
        data = {name: array[part] for name, array in batch.data.items()}
        return functions.augment_on_host(data, seed, batch.index[part], batch.copy[part])

    n = len(batch.index)
    # One chunk, on this thread, if threads that `in_chunks` needs may be waiting for it.
    size = max(_MIN_CHUNK, min(CHUNK, -(-n // CORES))) if n > CHUNK else CHUNK
    return in_chunks(augmented, range(n), size)


def _compiled(functions: StageFunctions, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by XLA on the host's CPU."""
    n = len(batch.index)
    length = next((length for length in _LENGTHS if n <= length), -(-n // CHUNK) * CHUNK)
    rows = np.minimum(np.arange(length), n - 1) if n < length else slice(None)
    data = {name: array[rows] for name, array in batch.data.items()}
    index, copy = batch.index[rows].astype(np.uint32), batch.copy[rows].astype(np.uint32)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        out = jax.device_get(_jit(functions)(data, seed, index, copy))
    return {name: array[:n] for name, array in out.items()}


@functools.lru_cache(maxsize=32)
def _jit(functions: StageFunctions) -> Callable[..., Any]:
    return jax.jit(functions.augment)


def _from_examples(read: Read, echoed: echo.Echoed) -> Batch:
    """A batch of echoed examples, numbered by their places in the whole fresh stream."""
    data = _renumbered(echoed.item, read.fresh_index)
    return Batch(data, read.fresh_index(echoed.index), echoed.copy, echoed.fresh)


def _from_batches(read: Read, rows: int, echoed: echo.Echoed) -> Batch:
    """An echoed batch, its rows numbered by their places in the whole fresh stream."""

    def fresh_index(batches: np.ndarray) -> np.ndarray:
        return read.fresh_index(np.asarray(batches)[..., None] * rows + np.arange(rows))

    data = _renumbered(echoed.item, fresh_index)
    index, copy = fresh_index(echoed.index), np.full(rows, int(echoed.copy))
    return Batch(data, index, copy, echoed.fresh * rows)


def _renumbered(data: Any, fresh_index: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Converts the item numbers in a gather plan from the stream's to the whole fresh stream's."""
    if isinstance(data, echo.GatherPlan):
        return data._replace(fresh=fresh_index(data.fresh))
    return data


def example_options(rows: int) -> grain.ReadOptions:
    """For examples in batches of `rows`: read on all cores, two batches ahead."""
    return grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=2 * rows)


def batch_options(rows: int, streams: int, example_bytes: int) -> grain.ReadOptions:
    """For whole batches of `rows` examples, the chunks of which are spread over the cores: as many
    batches at a time as occupy all cores, together with those of the other streams, and one that
    takes their place when they are done. Above two, no more than _AHEAD_BYTES hold."""
    chunks = -(-rows // CHUNK)
    batches = 1 + -(-CORES // (chunks * streams))
    most = _AHEAD_BYTES // max(1, streams * rows * example_bytes)
    batches = max(2, min(batches, most))
    return grain.ReadOptions(num_threads=batches, prefetch_buffer_size=batches)
