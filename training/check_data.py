"""Reads and decodes every example of a data set, before a run meets one that is damaged."""

from collections.abc import Callable

import grain
from ml_collections import ConfigDict

import workloads
from data import splits
from data.sources import RecordError, Source
from pipeline.map_datasets import CHUNK, CORES, Examples, FreshOrder
from runs import cli
from training import check
from training.evaluate import open_test_split
from workloads.interface import Workload


def check_data(config: ConfigDict, say: Callable[[str], object]) -> int:
    """Says which examples of the configured splits cannot be read or decoded.

    Returns:
        The command's exit code: OK, or that of wrong input if there are such examples.

    Raises:
        InputError: the configuration cannot be run.
    """
    check.check(config)
    dataset = config.dataset
    train, held_out, info = splits.open_splits(dataset)
    sources = {"training": train, "validation": held_out}
    if dataset.test_split:
        sources["test"] = open_test_split(config)
    workload = workloads.make(config, info)
    counts = [_count(name, source, workload, say) for name, source in sources.items()]
    return cli.WRONG_INPUT if any(counts) else cli.OK


def _count(name: str, source: Source, workload: Workload, say: Callable[[str], object]) -> int:
    """The number of examples of a split that cannot be used, each of which is said."""
    order, count = FreshOrder(len(source)), 0
    examples = Examples(source, None, order, lambda records, *_: workload.decode(records))
    chunks = [range(len(order))[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    ahead = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=2 * CORES)
    found = grain.MapDataset.source(chunks).map(lambda chunk: _problems(examples, chunk))
    for problems in found.to_iter_dataset(ahead):
        count += len(problems)
        for problem in problems:
            say(problem)
    say(f"{name}: {len(order):,} examples, of which {count:,} cannot be used")
    return count


def _problems(examples: Examples, numbers: range) -> list[str]:
    try:
        examples.stacked_items(numbers)
        return []
    except RecordError as error:
        if len(numbers) == 1:
            return [str(error)]
    return [problem for n in numbers for problem in _problems(examples, range(n, n + 1))]
