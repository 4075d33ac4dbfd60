"""The input pipeline, stage by stage. Start reading here.

    read -> decode -> [echo] -> augment -> [echo] -> batch -> [echo] -> device
              before_augmentation   after_augmentation   after_batching

`config.echo.insertion` selects one of the three echo stages, or none. Nothing else differs between
the conditions of a study, but for how far they read ahead (`_stream_batches`, `batch_options`).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Sharding
from ml_collections import ConfigDict

import echo
from data.host import LENGTHS
from data.sources import DatasetInfo, Source
from data.throttle import StoppableClock
from pipeline.augment import augmentation_on_entry, host_augmentation
from pipeline.epoch_repeats import Passes
from pipeline.map_datasets import (
    CHUNK,
    CORES,
    Arrays,
    Batch,
    Batches,
    Decode,
    Examples,
    FreshOrder,
    Stage,
)
from pipeline.shared_store import augmented_by
from pipeline.streams import ConcatenatedStreams, FixedPolicy
from pipeline.workers import AVAILABLE, WORKER_CHUNK, Workers

# Bytes of whole batches, of all streams, that are read ahead beyond two of each stream.
_AHEAD_BYTES = 2**29

# Threads deliver what about four cores decode. A process takes seconds to start.
MIN_CORES, MIN_EXAMPLES = 4, 2**17


def chosen_workers(config: ConfigDict, info: DatasetInfo) -> int:
    """config.loader.workers, or for -1 the number that suits machine and data: a process per core
    for long runs on photographs, elsewhere threads."""
    if config.loader.workers >= 0:
        return config.loader.workers
    photographs = info.channels is not None and info.image_shape is None
    long = config.budget.fresh_examples >= MIN_EXAMPLES
    of_threads = any(config.upstream.values()) or config.dataset.damaged == "skip"
    worth = photographs and long and not of_threads and CORES >= MIN_CORES
    return CORES if worth and AVAILABLE else 0


def build(
    config: ConfigDict,
    source: Source,
    workload: Any,
    held: range | None = None,
    policy: FixedPolicy | None = None,
    first: Arrays | None = None,
    clock: StoppableClock | None = None,
    workers: Workers | None = None,
    devices: Mapping[int, Sharding] | None = None,
) -> grain.IterDataset[Batch]:
    """The batches of a run. To checkpoint them, save the state of their iterator.

    Args:
        config: a resolved configuration.
        source: raw records of the training split.
        workload: decodes and augments.
        held: the streams that this process reads; None for all. Batches contain only their rows,
            but count the fresh examples of all streams.
        policy: how the streams echo, count fresh examples, and end; None for `FixedPolicy`. For
            echo.policy=auto pass a `training.auto_policy.AutoPolicy`.
        first: the result of `first_example`, if it has been decoded already.
        clock: times the limit on augmentation; None = a clock that is never stopped.
        workers: processes that read, decode, and augment; None for threads of this one.
        devices: with echo.placement=device, where each stream's items are stored; None for the
            first device.

    Raises:
        ValueError: echo.policy=auto without `policy`.
        RecordError: record 0 cannot be decoded.
    """
    if policy is None and config.echo.policy != "fixed":
        raise ValueError("echo.policy=auto needs policy=AutoPolicy(config, ...)")
    held = range(config.echo.streams) if held is None else held
    policy = policy or FixedPolicy(config, held)
    first = first_example(config, source, workload) if first is None else first
    augment = host_augmentation(config, workload, first, clock)
    example_bytes = sum(array.nbytes for array in first.values())
    chunk = CHUNK if workers is None else WORKER_CHUNK
    rows = config.batch_size // config.echo.streams
    ahead = batch_options(rows, len(held), example_bytes, chunk)
    parts = {}
    for stream in held:
        examples = examples_of(config, source, workload, stream).computed_by(workers, stream, first)
        echo_stage = policy.echo_stage(stream)
        if config.echo.placement == "device":
            given = config, workload, first, augment, examples.order
            echo_stage = _on_device(*given, (devices or {}).get(stream), echo_stage)
        stage = augment
        if workers is not None and _augments_stored(config, workload):
            stage, echo_stage = augmented_by(workers, stream, first, augment, echo_stage)
        parts[stream] = _stream_batches(config, examples, stage, echo_stage, ahead)
    region = "batch" if config.echo.insertion == "none" else "echo"
    batches = ConcatenatedStreams(parts, policy, region)
    if config.prefetch and policy.read_ahead:
        batches = grain.experimental.ThreadPrefetchIterDataset(
            batches, prefetch_buffer_size=config.prefetch
        )
    return batches


def _stream_batches(
    config: ConfigDict,
    examples: Examples,
    augment: Stage,
    echo_stage: Callable[..., grain.IterDataset],
    ahead: grain.ReadOptions,
) -> grain.IterDataset[Batch]:
    """One of echo.streams streams: every n-th fresh example, and its block of rows per batch, of
    which it reads some `ahead` where it reads whole ones."""
    insertion, rows = config.echo.insertion, config.batch_size // config.echo.streams
    # Single examples are read on all cores, two batches ahead.
    examples_ahead = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=2 * rows)
    by_batch = rows if insertion == "after_batching" else None
    numbered = functools.partial(_batch, examples.order, by_batch)

    # read -> decode: both are in `examples`
    if insertion == "before_augmentation":  # echo -> augment -> batch, a whole batch at a time
        echoed = echo_stage(examples, batch_size=rows, read_options=examples_ahead)
        return echoed.map(numbered).map(augment)

    # -> augment
    examples = examples.then(augment)
    if insertion == "after_augmentation":  # echo -> batch
        echoed = echo_stage(examples, batch_size=rows, read_options=examples_ahead)
        return echoed.map(numbered)

    # -> batch
    batches = Batches(examples, rows)
    if insertion == "after_batching":
        return echo_stage(batches, read_options=ahead).map(numbered)

    def once(number: int, data: Arrays) -> Batch:  # "none": no echo stage and no buffer
        stop = (number + 1) * rows
        index, copy = examples.order.locate(range(stop - rows, stop))
        return Batch(data, index, copy, examples.order.admitted(stop))

    return batches.map_with_index(once).to_iter_dataset(ahead)


def _augments_stored(config: ConfigDict, workload: Any) -> bool:
    """Whether the host augments examples that it stores, by code that may take them in chunks."""
    on_host = config.augment_on == config.echo.placement == "host"
    stores = on_host and config.echo.insertion == "before_augmentation"
    return stores and bool(getattr(workload, "augment_on_host", None))


def examples_of(config: ConfigDict, source: Source, workload: Any, stream: int = 0) -> Examples:
    """The examples of a stream, read and decoded."""
    order: Any = FreshOrder(config.budget.fresh_examples, stream, config.echo.streams)
    if config.dataset.spaced_epochs > 1:  # a control experiment that takes the place of echoing
        passes, seed = config.dataset.spaced_epochs, config.seed.data
        order = Passes(config.budget.fresh_examples, len(source), passes, seed)
    decode, skip = _training_decode(config, workload), config.dataset.damaged == "skip"
    return Examples(source, config.seed.data, order, decode, skip=skip)


def first_example(config: ConfigDict, source: Source, workload: Any) -> Arrays:
    """Decodes record 0. Each array is [1, ...]; other examples have the same shapes.

    With `fused_decode`, which draws crops in JAX, this compiles for all lengths of chunks, so that
    no training step waits for the compiler.

    Raises:
        RecordError: the record cannot be decoded.
    """
    decode = _training_decode(config, workload)

    def decode_as_chunks(records: Any, index_n: np.ndarray, copy_n: np.ndarray) -> Arrays:
        for n in LENGTHS:
            decode([*records] * n, index_n.repeat(n), copy_n.repeat(n))
        return decode(records, index_n, copy_n)

    fused = config.dataset.fused_decode
    first, skip = decode_as_chunks if fused else decode, config.dataset.damaged == "skip"
    return Examples(source, None, FreshOrder(1), first, skip=skip).stacked_items([0])


def _training_decode(config: ConfigDict, workload: Any) -> Decode:
    if not config.dataset.fused_decode:
        return lambda records, index_n, copy_n: workload.decode(records)
    seed = config.seed.data
    return lambda records, index_n, copy_n: workload.decode_cropped(records, seed, index_n, copy_n)


def _batch(order: Any, rows: int | None, echoed: echo.Echoed) -> Batch:
    """Echoed examples (rows = None), or an echoed batch of so many rows, numbered by their places
    in the whole fresh stream."""

    index = _fresh_index(order, rows, echoed.index)
    copy = echoed.copy if rows is None else np.full(rows, int(echoed.copy))
    return Batch(echoed.item, index, copy, echoed.fresh * (rows or 1))


def _fresh_index(order: Any, rows: int | None, items: Any) -> np.ndarray:
    """The fresh examples that items of an echo stage consist of, int64 [...], or [..., rows]."""
    if rows is not None:
        items = np.asarray(items)[..., None] * rows + np.arange(rows)
    return order.locate(items)[0]


def _on_device(
    config: ConfigDict,
    workload: Any,
    first: Arrays,
    augment: Stage,
    order: Any,
    sharding: Sharding | None,
    echo_stage: Callable[..., Any],
) -> Callable[..., Any]:
    """`echo_stage` with its items on a device. It compiles for those like the example `first`, so
    that no training step waits for the compiler."""
    rows, enter = config.batch_size // config.echo.streams, None
    whole = rows if config.echo.insertion == "after_batching" else None
    if config.echo.insertion != "before_augmentation":
        zero = np.zeros(1, np.int64)
        first = augment(Batch(first, zero, zero, 0)).data
        if config.augment_on == "device":
            enter = augmentation_on_entry(workload, config.seed.data)
    numbered = functools.partial(_fresh_index, order, whole)
    places = {"sharding": sharding, "enter": enter, "numbered": numbered}
    placement = functools.partial(echo.DeviceStore, **places)

    def make(parent: Any, **options: Any) -> grain.IterDataset:
        stage = echo_stage(parent, placement=placement, **options)
        shape = (1, rows) if whole else (1,)
        items = {k: jax.ShapeDtypeStruct((*shape, *x.shape[1:]), x.dtype) for k, x in first.items()}
        stage.device_store(len(parent)).prepare(items)
        return stage

    return make


def batch_options(
    rows: int, streams: int, example_bytes: int, chunk: int = CHUNK
) -> grain.ReadOptions:
    """For whole batches of `rows` examples, the chunks of which are spread over the cores: as many
    batches at a time as occupy all cores, together with those of the other streams, and one that
    takes their place when they are done. Above two, no more than _AHEAD_BYTES hold."""
    chunks = -(-rows // chunk)
    batches = 1 + -(-CORES // (chunks * streams))
    most = _AHEAD_BYTES // max(1, streams * rows * example_bytes)
    batches = max(2, min(batches, most))
    return grain.ReadOptions(num_threads=batches, prefetch_buffer_size=batches)
