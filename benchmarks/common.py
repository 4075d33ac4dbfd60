"""Interleaved rounds, command lines, tables, and pages, shared by all benchmarks.

A comparison is fair only if other load on the machine falls on every side alike. The sides are
therefore measured in short, interleaved rounds in shuffled order. A result is the median over the
rounds, reported with the smallest and the largest round.
"""

import argparse
import contextlib
import copy
import dataclasses
import gc
import importlib.metadata
import math
import pathlib
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ml_collections import ConfigDict

from echo.threads import usable_cores
from runs import cli

Plan = TypeVar("Plan")  # a frozen dataclass that holds how much a benchmark measures


@dataclasses.dataclass(frozen=True)
class Spread:
    """One measured value per round; formats as `median (smallest to largest)`."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {max(self.values):{spec}})"


Spreads = dict[str, Spread]  # by side


# --- measuring


def interleaved(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Spread]:
    """Measures every side once per round, after a warm-up round.

    Args:
        sides: functions that measure one side once, by name.
        rounds: number of rounds after the warm-up, at least 1.
    """
    order, shuffle = list(sides), random.Random(0).shuffle
    gc.collect()
    gc.freeze()  # keeps imported objects out of later collections, which would slow some sides
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        shuffle(order)
        for name in order:
            value = sides[name]()
            if number:
                values[name].append(value)
        progress(f"round {number} of {rounds}" if number else "warmed up")
    return {name: Spread(tuple(measured)) for name, measured in values.items()}


def rate(iterator: Iterator[Any], items_per_output: int, seconds: float) -> float:
    """Items per second from `iterator`, over at least `seconds`."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(4):  # amortizes reading the clock
            next(iterator)
        count += 4
    return count * items_per_output / elapsed


def progress(text: str) -> None:
    """Prints a progress line to standard error; standard output carries only the report."""
    print(text, file=sys.stderr, flush=True)


# --- command lines


def bare_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser without flags, of the module with this `__spec__.name` and docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def arguments(
    name: str, doc: str | None, full: Any, quick: Any, **plan_flags: str
) -> argparse.ArgumentParser:
    """The parser of a benchmark: its docstring, --quick, and flags for fields of its plan.

    Args:
        name: the benchmark's `__spec__.name`.
        doc: the module's docstring.
        full: default plan, a dataclass.
        quick: plan of a smoke run.
        plan_flags: help texts of the numeric fields of the plan that have a flag.
    """
    parser = bare_parser(name, doc)
    parser.add_argument("--quick", action="store_true", help="a short smoke run")
    for field, text in plan_flags.items():
        default = getattr(full, field)
        text += f" (default: {default}; with --quick: {getattr(quick, field)})"
        spellings = dict.fromkeys((f"--{field}", f"--{field.replace('_', '-')}"))
        kind = number(1 if isinstance(default, int) else 0.001)
        parser.add_argument(*spellings, type=kind, help=text)
    return parser


def plan(options: argparse.Namespace, full: Plan, quick: Plan) -> Plan:
    """The plan that the command line selects, with the fields that it sets."""
    chosen: Any = quick if options.quick else full
    fields = (field.name for field in dataclasses.fields(chosen))
    given = {name: value for name in fields if (value := getattr(options, name, None)) is not None}
    return dataclasses.replace(chosen, **given)


def number(low: float) -> Callable[[str], float]:
    """Parses a number of at least `low`, a whole one if that is an int; an argparse type."""
    kind = type(low)

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= (value := kind(text)) < math.inf:
                return value
        allowed = f"{'whole ' * (kind is int)}numbers from {low:g} on"
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}")

    return parse


def one_of(allowed: Collection[str]) -> Callable[[str], str]:
    """Parses one of the `allowed` names; an argparse type."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {', '.join(allowed)}")
        return text

    return parse


def add_list(
    parser: argparse.ArgumentParser, flag: str, parse: Callable[[str], Any], default: str
) -> None:
    """Adds a flag for comma-separated values, each of which is parsed by `parse`."""
    parser.add_argument(
        flag,
        type=lambda text: [parse(part) for part in text.split(",")],
        default=default,
        help="comma-separated (default: %(default)s)",
    )


def overridden(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
    """A copy of `config` with other values of `fields`, by dotted name."""
    config = copy.deepcopy(config)
    for name, value in fields.items():
        cli.set_field(config, name, value)
    return config


def command(main: Callable[[], Any]) -> None:
    """Runs a benchmark and exits. Wrong input that it meets later, such as a data set that is not
    prepared, is one sentence, too, with exit code 2."""
    sys.exit(cli.guarded(lambda _: main() or cli.OK))


# --- reports


def machine(packages: Sequence[str]) -> str:
    """One line on the processor and the versions of those `packages` that are installed."""
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":")[1].strip() if models else cpu
    versions = [f"Python {platform.python_version()}"]
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return f"{usable_cores()} cores of {cpu}; {', '.join(versions)}."


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with a left-aligned first column and right-aligned others."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_tables(page: pathlib.Path, tables: Mapping[str, tuple[Sequence, Sequence]]) -> str:
    """A page with its tables, (header, rows), each between `<!-- NAME -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    for name, (header, rows) in tables.items():
        before, marker, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not marker or not end:
            raise SystemExit(f"{page} has no table between <!-- {name} --> and <!-- end -->")
        text = f"{before}{marker}\n{markdown_table(header, rows)}\n\n{end}{after}"
    return text
