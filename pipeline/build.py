"""The input pipeline, in the order of its stages. This is the file to read first.

    read -> decode -> [echo] -> augment -> [echo] -> batch -> [echo] -> device
              before_augmentation   after_augmentation   after_batching

At most one of the three slots is filled; nothing else differs between conditions.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grain
import jax
import numpy as np

import echo
from data.sources import Source
from pipeline import accounting, epoch_repeats
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
)
from pipeline.streams import ClosedForm, ConcatenatedStreams, GatheredCount

# The few lengths that fewer examples are filled up to, so that augmentation is compiled for these
# alone.
_LENGTHS = (8, CHUNK)


class StageFunctions(Protocol):
    """What a workload hands to the pipeline."""

    def decode(self, records: list[dict[str, Any]]) -> Arrays:
        """Raw records to stacked arrays, on the host."""

    def augment(self, data, seed, index_B, copy_B):
        """A JAX function of stacked arrays; what is random in row b is a function of
        (seed, index_B[b], copy_B[b]) alone, all uint32."""

    # Where dataset.fused_decode is allowed, also
    # decode_cropped(records, seed, index_n, copy_n): decodes and crops at random; `augment` then
    # finds its cropping done.


def build(
    config,
    source: Source,
    functions: StageFunctions,
    held: range | None = None,
    slack: Callable[[], float] | None = None,
    decisions: np.ndarray | None = None,
    exchange: Callable[[Any], list[Any]] = lambda told: [told],
    first: Arrays | None = None,
    earlier: Mapping[int, Sequence[int]] | None = None,
) -> grain.IterDataset[Batch]:
    """The batches of a run; iterate it, and checkpoint its iterator's get_state().

    Args:
        config: a resolved configuration.
        source: raw records of the training split.
        functions: the workload's decode and augment.
        held: the sub-streams that this process reads, None for all. Batches have their rows alone,
            and count the fresh examples of all.
        slack, decisions: for echo.policy=auto, see echo.OpportunisticIterDataset; the decisions of
            all sub-streams, in examples, int [batches, streams].
        exchange: for echo.policy=auto in several processes, see streams.GatheredCount.
        first: `first_example` of the arguments, where it has been read already.
        earlier: for echo.policy=auto, decisions by number of the batch (from 0), which are repeated
            where they are there; looked up when the batch is taken.
    """
    if first is None:
        first = first_example(config, source, functions)
    streams = range(config.echo.streams)
    held = streams if held is None else held
    if config.echo.policy == "fixed":
        elsewhere = [
            accounting.Counts.of(config, stream) for stream in streams if stream not in held
        ]
        count = ClosedForm(
            accounting.total_steps(config),
            lambda taken: sum(stream.admitted(taken) for stream in elsewhere),
        )
        timed = {}
    else:
        count = GatheredCount(exchange, config.batch_size // len(streams))
        timed = {"slack": slack, "limit": count.limit, "decisions": decisions}
        timed["earlier"] = {} if earlier is None else earlier
    batches = ConcatenatedStreams(
        {s: _sub_stream(config, source, functions, s, first, timed) for s in held},
        len(streams),
        count,
    )
    if config.prefetch and config.echo.policy == "fixed":  # auto decides when it is asked
        batches = grain.experimental.ThreadPrefetchIterDataset(
            batches, prefetch_buffer_size=config.prefetch
        )
    return batches


def _sub_stream(
    config, source, functions, stream: int, first: Arrays, timed: dict[str, Any]
) -> grain.IterDataset[Batch]:
    """One sub-stream: every `streams`-th fresh example, and its block of rows of each batch."""
    slot, rows = config.echo.insertion, config.batch_size // config.echo.streams
    read = fresh_stream(config, source, functions, stream)
    augment = dict(stages(config, functions, read, first))["augment"]
    stage = _echo_stage(config, stream, **timed)

    if config.dataset.spaced_epochs > 1:  # a control, in place of any echo
        copies = epoch_repeats.EpochRepeats(read, epoch_repeats.passes_of(config, len(source)))
        return epoch_repeats.batches(copies, augment, rows).to_iter_dataset(read_options(1))
    examples = read
    if slot == "before_augmentation":
        echoed = stage(examples, batch_size=rows, read_options=read_options(rows))
        batches = echoed.map(functools.partial(_from_examples, read))
        return batches.map(augment)

    examples = MapChunks(examples, lambda data, i: augment(read.first_copy(data, i)).data)
    if slot == "after_augmentation":
        echoed = stage(examples, batch_size=rows, read_options=read_options(rows))
        return echoed.map(functools.partial(_from_examples, read))

    batches = Batches(examples, rows)
    if slot == "after_batching":
        echoed = stage(batches, read_options=read_options(1))
        return echoed.map(functools.partial(_from_batches, read, rows))

    # insertion 'none': no stage and no buffer
    once = batches.map_with_index(lambda i, data: echo.Echoed(data, i, 0, i + 1))
    return once.to_iter_dataset(read_options(1)).map(functools.partial(_from_batches, read, rows))


def fresh_stream(config, source: Source, functions: StageFunctions, stream: int = 0) -> Read:
    """A sub-stream's fresh examples, read and decoded."""
    decode, fresh = training_decode(config, functions), config.budget.fresh_examples
    return Read(source, config.seed.data, fresh, decode, stream, config.echo.streams)


def stages(config, functions: StageFunctions, read: Read, first: Arrays) -> list[tuple[str, Stage]]:
    """What is done to a fresh example before batching, in order, for build and advice."""
    augment = host_augment(config, functions, first)

    def augmented(batch: Batch) -> Batch:
        return batch._replace(data=augment(batch.data, batch.index, batch.copy))

    return [("read", read.read), ("decode", read.decode), ("augment", augmented)]


def _echo_stage(
    config, stream: int, slack=None, limit=None, decisions=None, earlier=None
) -> Callable[..., grain.IterDataset]:
    """The stage of a sub-stream, which still wants its parent, batch size and read options."""
    settings = {
        "shuffle_buffer": accounting.buffer_slots(config, stream),
        "seed": accounting.echo_seed(config, stream),
        "annotate": True,
        "placement": config.echo.placement,
    }
    if config.echo.policy == "fixed":
        return functools.partial(echo.EchoIterDataset, factor=config.echo.factor, **settings)
    rows = config.batch_size // config.echo.streams
    item = rows if config.echo.insertion == "after_batching" else 1  # in examples
    return functools.partial(
        echo.OpportunisticIterDataset,
        max_factor=config.echo.max_factor,
        slack=slack,
        limit=lambda: limit() // item,
        decisions=None if decisions is None else decisions[:, stream] // item,
        earlier=lambda batch: earlier[batch][stream] // item if batch in earlier else None,
        **settings,
    )


def training_decode(config, functions: StageFunctions) -> Decode:
    """How training examples are decoded."""
    if not config.dataset.fused_decode:
        return lambda records, index_n: functions.decode(records)
    # Each fresh example is decoded once, so what is cropped is always its copy 0.
    return lambda records, index_n: functions.decode_cropped(
        records, config.seed.data, index_n, np.zeros_like(index_n)
    )


def first_example(config, source: Source, functions: StageFunctions) -> Arrays:
    """The first record decoded, each array [1, ...], which gives the shapes of all.

    Raises:
        RecordError: it cannot be decoded.
    """
    return decode_records(source, [0], training_decode(config, functions), np.zeros(1, np.int64))


def host_augment(config, functions: StageFunctions, first: Arrays) -> Callable[..., Arrays]:
    """`augment(data, index, copy)` on the host's CPU; the identity where the device augments.

    It is compiled here, for the shapes of `first` and the lengths that this run will use, so that
    no step waits for that.
    """
    if config.augment_on == "device":
        return lambda data, index, copy: data
    run, seed = _compiled_augment(functions), np.uint32(config.seed.data)

    def augment(data: Arrays, index: np.ndarray, copy: np.ndarray) -> Arrays:
        n = len(index)
        full = next((length for length in _LENGTHS if n <= length), -(-n // CHUNK) * CHUNK)
        rows = np.minimum(np.arange(full), n - 1)
        padded = {name: array[rows] for name, array in data.items()}
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = run(padded, seed, index[rows].astype(np.uint32), copy[rows].astype(np.uint32))
        return {name: np.asarray(array)[:n] for name, array in out.items()}

    lengths = set(_LENGTHS)
    if config.echo.insertion == "before_augmentation":
        lengths = {config.batch_size // config.echo.streams}
    for length in lengths:
        data = {name: array.repeat(length, 0) for name, array in first.items()}
        augment(data, np.zeros(length, np.int64), np.zeros(length, np.int64))
    return augment


@functools.lru_cache(maxsize=32)
def _compiled_augment(functions: StageFunctions):
    return jax.jit(functions.augment)


def _from_examples(read: Read, echoed: echo.Echoed) -> Batch:
    data = _numbered(echoed.item, read.fresh_index)
    return Batch(data, read.fresh_index(echoed.index), echoed.copy, echoed.fresh)


def _from_batches(read: Read, rows: int, echoed: echo.Echoed) -> Batch:
    def fresh_index(batches: np.ndarray) -> np.ndarray:
        return read.fresh_index(np.asarray(batches)[..., None] * rows + np.arange(rows))

    data = _numbered(echoed.item, fresh_index)
    index, copy = fresh_index(echoed.index), np.full(rows, int(echoed.copy))
    return Batch(data, index, copy, echoed.fresh * rows)


def _numbered(data: Arrays | echo.GatherPlan, fresh_index) -> Arrays | echo.GatherPlan:
    """An order's items by their places in the whole fresh stream; examples as they are."""
    return (
        data._replace(fresh=fresh_index(data.fresh)) if isinstance(data, echo.GatherPlan) else data
    )


def read_options(items_per_batch: int) -> grain.ReadOptions:
    """Read-ahead of two batches: of examples on all cores; whole batches are spread over the cores
    as they are made."""
    threads = CORES if items_per_batch > 1 else 2
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * items_per_batch)
