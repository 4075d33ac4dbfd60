"""Measuring several sides of a comparison so that a busy machine misleads none of them.

Sides take turns in short rounds, in an order that changes, so that what else the machine does falls
on all of them alike. A result is a median with the smallest and the largest round beside it.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib.metadata
import multiprocessing
import os
import pathlib
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Spread:
    """What one side reached in each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def interleaved(
    sides: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0
) -> dict[str, Spread]:
    """Measures every side once a round, after one round that does not count.

    Args:
        sides: by name, what measures a side once.
        rounds: rounds that count, at least 1.
        seed: of the order within each round.
    """
    order, shuffle = list(sides), random.Random(seed).shuffle
    gc.collect()
    gc.freeze()  # or whoever makes many objects would search those of every import again and again
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        shuffle(order)
        for name in order:
            value = sides[name]()
            if turn:
                found[name].append(value)
        progress(f"round {turn} of {rounds}" if turn else "warmed up")
    return {name: Spread(tuple(values)) for name, values in found.items()}


def rate(iterator: Iterator[Any], items_each: int, seconds: float) -> float:
    """Items a second that `iterator` hands out, over at least `seconds`."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(4):  # so that reading the clock costs nothing
            next(iterator)
        count += 4
    return count * items_each / elapsed


def rise_in_memory(
    prepare: Callable[..., Any], work: Callable[[Any], None], *arguments
) -> int | None:
    """Bytes by which a process's resident memory rises during `work(prepare(*arguments))`.

    In a process of its own, counted from after `prepare` to the peak; both are functions of a
    module. None where the system does not tell (it is Linux that does).
    """
    if not pathlib.Path("/proc/self/status").exists():
        return None
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_rise, args=(sender, prepare, work, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"{work.__name__}{arguments} failed; its message is above") from None
    finally:
        process.join()


def _rise(sender, prepare, work, arguments) -> None:
    prepared = prepare(*arguments)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    work(prepared)
    sender.send(_status("VmHWM") - before)
    sender.close()
    os._exit(0)  # threads of either side may not be waited for


def _status(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def arguments(name: str, about: str) -> argparse.ArgumentParser:
    """The command line of a benchmark: what it says of itself, and --out for its report."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FILE",
        help="the report; if it has a figure, that goes beside it",
    )
    return parser


def publish(
    report: str, out: pathlib.Path | None, draw: Callable[[pathlib.Path], None] | None = None
) -> None:
    """Prints a report, and writes it to `out`, if given, with the figure that `draw` saves."""
    print(report)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report.rstrip("\n") + "\n", encoding="utf-8")
        if draw:
            draw(out.with_suffix(".png"))


def machine(packages: Sequence[str]) -> str:
    """What the numbers were measured on, in one line; packages that are missing are left out."""
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":")[1].strip() if names else cpu
    versions = [f"Python {platform.python_version()}"]
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return f"{os.cpu_count()} cores of {cpu}; {', '.join(versions)}."


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is aligned left and the others right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def progress(text: str) -> None:
    """A line for whoever waits; results go to standard output alone."""
    print(text, file=sys.stderr, flush=True)
