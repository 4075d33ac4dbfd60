"""Kills the processes of runs and studies at random moments and restarts them until they finish.

The outcome must equal that of an undisturbed run: records and result without timings, and the
arrays of the newest checkpoint bit for bit. Under `echo.policy=auto` no two runs decide alike, so
the undisturbed run replays the decisions.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import sweep
import train
from benchmarks.torture import endings, forks, ledger
from benchmarks.torture.forks import Process
from runs import cli, records

ECHOED = (  # insertion points and buffers
    ("before_augmentation", 0),
    ("before_augmentation", 50),
    ("after_augmentation", 0),
    ("after_augmentation", 50),
    ("after_batching", 0),
    ("after_batching", 3),
)
# Mostly SIGKILL, which cannot be handled; SIGTERM and SIGINT ask to stop, SIGHUP is survived.
SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_SIGNALS = 5  # per run
# Allowed exit codes of the first process, which may have finished before, or have lost another one.
_CODES = {
    signal.SIGKILL: {-signal.SIGKILL, 0},
    signal.SIGTERM: {-signal.SIGTERM, 0, cli.PREEMPTED},
    signal.SIGINT: {130, 0, cli.PREEMPTED},
    signal.SIGHUP: {-signal.SIGHUP, 0},
}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is trained.

    Attributes:
        group: row of the table.
        flags: command line without --config and the directory.
        study: whether the command is sweep.py.
        replayed: whether the undisturbed run replays decisions.
        targets: which of the command's processes receive a signal, if it starts others: all, one
            other, or the first.
    """

    group: str
    flags: tuple[str, ...]
    study: bool = False
    replayed: bool = False
    targets: tuple[str, ...] = ()

    def command(self, directory: pathlib.Path, *more: str) -> Callable[[], int]:
        main, flag = (sweep.main, "--outdir") if self.study else (train.main, "--workdir")
        argv = ["--config=benchmarks/torture/small.py", *self.flags, f"{flag}={directory}", *more]
        return functools.partial(cli.guarded, main, argv)

    def ending(self, directory: pathlib.Path) -> Callable[[], Any]:
        read = endings.of_study if self.study else endings.of_run
        return functools.partial(read, directory)


def _fields(**fields: Any) -> tuple[str, ...]:
    return tuple(f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items())


def _echoing(insertion: str, buffer: int, placement: str, **fields: Any) -> tuple[str, ...]:
    return _fields(
        echo__insertion=insertion,
        echo__shuffle_buffer=buffer,
        echo__placement=placement,
        augment_on=placement,
        **fields,
    )


def scenarios() -> list[tuple[int, list[Scenario]]]:
    """(weight, scenarios) of every kind."""
    settings = [
        (insertion, buffer, placement)
        for insertion, buffer in ECHOED
        for placement in ("host", "device")
    ]
    fixed = [Scenario("train.py, none", ("--config.echo.insertion=none",))] + [
        Scenario(
            f"train.py, fixed, {placement}",
            _echoing(insertion, buffer, placement, echo__factor=2.5),
        )
        for insertion, buffer, placement in settings
    ]
    slow = {"echo__policy": "auto", "upstream__examples_per_second": 400}
    auto = [
        Scenario(
            f"train.py, auto, {placement}",
            _echoing(insertion, buffer, placement, **slow),
            replayed=True,
        )
        for insertion, buffer, placement in settings
        if buffer
    ]
    study = ("--study=small", "--config.budget.fresh_examples=160")
    plain = Scenario("sweep.py", study, study=True)
    lanes = Scenario("sweep.py, lanes", (*study, "--lanes=2"), study=True)
    workers = Scenario(
        "sweep.py, workers", (*study, "--workers=2"), study=True, targets=("all", "one", "first")
    )
    # Without Ray's own servers, which are among its processes, no task can continue.
    ray = Scenario(
        "sweep.py, Ray", (*study, "--executor=ray"), study=True, targets=("all", "first")
    )
    kinds = [(20, fixed), (8, auto), (3, [plain]), (4, [lanes]), (2, [workers])]
    return [*kinds, (1, [ray])] if importlib.util.find_spec("ray") else kinds


class Kills:
    """Kills by number; caches the outcomes of undisturbed runs."""

    def __init__(self, directory: pathlib.Path, faults: pathlib.Path):
        self._directory, self._faults = directory, faults
        self._undisturbed: dict[Scenario, tuple[Any, float, int]] = {}

    def attempts(self, seed: int, numbers: range) -> Iterator[dict[str, Any]]:
        """Tries the cases `numbers`; yields their records for the ledger."""
        for number in numbers:
            self._directory.mkdir(parents=True, exist_ok=True)
            record = self._one(random.Random(f"{seed} kills {number}"))
            if record["outcome"] in ledger.FAULTS:
                kept = self._faults / f"kills-{seed}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self._directory / "disturbed", kept)
            yield record | {"index": number}

    def _one(self, rng: random.Random) -> dict[str, Any]:
        weights, kinds = zip(*scenarios(), strict=True)
        scenario = rng.choice(rng.choices(kinds, weights)[0])
        expected, seconds, lines = self._reference(scenario)
        workdir = self._new("disturbed")
        signals_sent: list[str] = []
        try:
            why = self._disturbed(scenario, workdir, rng, seconds, lines, signals_sent)
            if not why:
                ending = forks.computed(scenario.ending(workdir), self._directory)
                if scenario.replayed:
                    expected = self._replay(scenario, workdir)
                why = endings.difference(ending, expected)
            outcome = ledger.DIFFERING if why else ledger.EQUAL
        except forks.ProcessTimeout:
            outcome, why = ledger.HANG, f"after {signals_sent}"
        if why and "Traceback" in why:
            outcome = ledger.TRACEBACK
        return {
            "group": scenario.group,
            "count": len(signals_sent),
            "case": f"{' '.join(scenario.flags)}: {'; '.join(signals_sent)}",
            "outcome": outcome,
            **({"detail": why} if why else {}),
        }

    def _disturbed(self, scenario, workdir, rng, seconds, lines, signals_sent) -> str:
        """Sends signals and restarts until the run finishes; returns what went wrong, or ''."""
        output = self._directory / "disturbed.txt"
        output.unlink(missing_ok=True)
        processes = []
        try:
            for _ in range(rng.randint(1, MAX_SIGNALS)):
                process = forks.fork(scenario.command(workdir), output)
                processes.append(process)
                number, moment, description = _moment(rng, workdir, seconds, lines)
                process.wait(moment)
                time.sleep(rng.choice((0.0, 0.0, 0.02, 0.1)) * rng.random())
                if process.ended():
                    if process.code:
                        return f"exit code {process.code} without a signal: {_tail(output)}"
                    break
                target = rng.choice(scenario.targets) if scenario.targets else "first"
                _send(process, number, target, rng)
                signals_sent.append(description)
                process.wait()
                if process.code not in _CODES[number]:
                    return f"{description}: exit code {process.code}: {_tail(output)}"
            process = forks.fork(scenario.command(workdir), output)
            processes.append(process)
            if process.wait():
                return f"exit code {process.code} at the end: {_tail(output)}"
            text = output.read_text(errors="replace")
            # Python may print one if a process is killed while it prints
            return f"Traceback: {text[-2000:]}" if "\nTraceback (most" in f"\n{text}" else ""
        finally:
            for process in processes:
                process.end_group()

    def _reference(self, scenario: Scenario) -> tuple[Any, float, int]:
        """(outcome, seconds, lines of records) of an undisturbed run."""
        if scenario not in self._undisturbed:
            workdir = self._new("undisturbed")
            ending, seconds = self._run(scenario, workdir)
            self._undisturbed[scenario] = ending, seconds, _lines(workdir)
            shutil.rmtree(workdir)
        return self._undisturbed[scenario]

    def _replay(self, scenario: Scenario, workdir: pathlib.Path) -> Any:
        fresh, decisions = self._new("replayed"), workdir / records.DECISIONS
        return self._run(scenario, fresh, f"--config.echo.replay={decisions}")[0]

    def _run(self, scenario: Scenario, workdir: pathlib.Path, *more: str) -> tuple[Any, float]:
        """(outcome, seconds) of an undisturbed run."""

        def ending() -> tuple[Any, float]:
            start = time.monotonic()
            if code := scenario.command(workdir, *more)():
                raise RuntimeError(f"an undisturbed run ended with {code}")
            return scenario.ending(workdir)(), time.monotonic() - start

        return tuple(forks.computed(ending, self._directory))

    def _new(self, name: str) -> pathlib.Path:
        path = self._directory / name
        shutil.rmtree(path, ignore_errors=True)
        return path


def _moment(
    rng: random.Random, workdir: pathlib.Path, seconds: float, lines: int
) -> tuple[signal.Signals, Callable[[], bool], str]:
    """Draws when to send which signal: (signal, whether the moment has come, description)."""
    number = rng.choice(SIGNALS)
    kind = rng.choice(("seconds", "lines", "lines", "checkpoint"))
    if kind == "seconds":
        end = time.monotonic() + (wait := rng.uniform(0, seconds))
        return number, lambda: time.monotonic() >= end, f"{number.name} after {wait:.2f} s"
    if kind == "lines":
        line = rng.randint(1, lines)
        return number, lambda: _lines(workdir) >= line, f"{number.name} at line {line}"
    before = _checkpoints(workdir)

    def begun() -> bool:
        return bool(_checkpoints(workdir) - before)

    return number, begun, f"{number.name} as a checkpoint is written"


def _send(process: Process, number: signal.Signals, target: str, rng: random.Random) -> None:
    """Sends the signal to the first process of a group, to all, or, to kill it, to one other."""
    with contextlib.suppress(ProcessLookupError):
        if target == "all":
            os.killpg(process.pid, number)
        elif target == "one" and number == signal.SIGKILL and (others := _others(process.pid)):
            os.kill(rng.choice(others), number)  # the first continues without it
        else:
            os.kill(process.pid, number)


def _others(group: int) -> list[int]:
    """The members of a process group other than its leader."""
    members = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(path.name)) == group != int(path.name):
                members.append(int(path.name))
    return members


def _lines(directory: pathlib.Path) -> int:
    """Lines of records so far."""
    total = 0
    for path in (*directory.glob(records.METRICS), *directory.glob(f"*/*/*/{records.METRICS}")):
        with contextlib.suppress(OSError):
            total += path.read_bytes().count(b"\n")
    return total


def _checkpoints(directory: pathlib.Path) -> set[str]:
    """Paths of checkpoints, including those being written."""
    name = f"{records.CHECKPOINTS}/*"
    return {str(path) for path in (*directory.glob(name), *directory.glob(f"*/*/*/{name}"))}


def _tail(path: pathlib.Path) -> str:
    return path.read_text(errors="replace")[-2000:]
