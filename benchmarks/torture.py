"""Tries to break runs with random kills, damaged files, and wrong inputs, and counts the outcomes.

    python -m benchmarks.torture --kills=20 --damages=500 --inputs=1000

    python -m benchmarks.torture --damages=2000 --inputs=5000       the gate: 25 minutes on a core

Cases are drawn from fixed seeds and continue where the last invocation ended. Outcomes accumulate
in --results, and the table covers all of them. The exit code is 1 if there has been a fault.
Damages and inputs call the commands' main functions, many in one process; what ends that process or
seems to be a fault is judged again in a process of its own.

* Kills: `train.py` and `sweep.py` are killed, stopped, or hung up on at random moments, and
  restarted until they finish. The records without clocks and the arrays of the last checkpoint must
  be those of an undisturbed run, which under `echo.policy=auto` replays the decisions.
* Damages: one file of a killed or finished run or study is damaged, then a command is run on it.
  Survived: the results of an undamaged directory, or a line that names what is lost, or exit code 2
  with nothing changed. Otherwise the damage is silent.
* Inputs: random values of all fields, and random command lines, for all commands. Survived: a
  documented exit code without a traceback; with exit code 2, one sentence and nothing written.

The file is also the configuration that it trains: a digits mini of a second.
"""

# ruff: noqa: SIM905  (as lists of literals, the tables of values would take a line per value)

import argparse
import collections
import contextlib
import functools
import gc
import itertools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

import advise
import sweep
import train
from analysis import __main__ as analysis
from analysis import report
from benchmarks import common
from configs import base, catalog, cifar10
from configs.fields import Field
from data import splits
from runs import cli, records, signals
from runs.checkpoints import Checkpoints
from tests.helpers.runs import contents, on_each_step, records_of, stop_at_call, without_clocks

EQUAL, NAMED = "equal", "named"  # survived
FAULTS = ("differing", "traceback", "hang", "silent")
GOALS = {"kills": 200, "damages": 2_000, "inputs": 5_000}  # without a fault
_HEADER = ("", "tried", "survived", *FAULTS)

_TIMEOUT_SECONDS = 600.0  # far longer than any case, or a quarter of a process, takes
_BATCH = 100  # cases of one process, which trains the second time in a tenth of the time
_MEMORY_BYTES = 12 * 2**30  # of a case, so that absurd sizes end only it

Case = dict[str, Any]  # a row of the results: kind, seed, index, group, case, outcome, detail

# --- What is trained


def get_config(variant: str = ""):
    """A digits mini: '' (ResNet-8 of width 4) or 'logistic', which compiles faster."""
    fields = {
        "model.width": 4,
        "budget.fresh_examples": 320,
        "evaluate_every_fresh_examples": 96,
        "checkpoint_every_fresh_examples": 64,
        "log_every_steps": 1,
        "target.value": 1.1,  # out of reach, so that a run uses its whole budget
    }
    if variant == "logistic":
        fields |= {"model.depth": 0, "augmentation.pad": 0, "budget.fresh_examples": 192}
    return common.overridden(cifar10.get_config("mini"), fields)


def get_search_space(variant: str = ""):
    """The learning rate only, so that lanes can share their input."""
    return ({"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 0.1},)


def get_studies(variant: str = ""):
    """One study of two conditions."""
    echoed = {"echoed": catalog.echo("before_augmentation", 2, 64)}
    study = {"conditions": catalog.BASELINE | echoed, "baseline": "baseline", "trials": 2}
    return {"small": study | {"searches": 1}}


def _argv(flag: str, directory: pathlib.Path, *more: str) -> list[str]:
    """The command line of train.py or sweep.py on a small run or study."""
    study = () if flag == "--workdir" else ("--study=small", "--config.budget.fresh_examples=128")
    return ["--config=benchmarks/torture.py:logistic", *study, f"{flag}={directory}", *more]


# --- Outcomes


def ending(workdir: pathlib.Path) -> dict[str, Any]:
    """How a run ended, without clocks: its result, records, and last checkpoint."""
    checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
    step = max(checkpoints.steps())
    with ocp.PyTreeCheckpointer() as reader:
        arrays = reader.restore((workdir / records.CHECKPOINTS / str(step) / "arrays").absolute())
    return {
        "result": without_clocks(records.read_json(workdir / records.RESULT)),
        "metrics": records_of(workdir),
        "step": step,
        "input": checkpoints.value(step)["input"],
        "arrays": {name: np.asarray(x).tobytes().hex() for name, x in arrays.items()},
    }


def ending_of_study(outdir: pathlib.Path) -> dict[str, Any]:
    """The ending of every trial, by directory."""
    trials = records.trials_on_disk(outdir)
    return {str(workdir.relative_to(outdir)): ending(workdir) for _, workdir in trials}


def difference(actual: Any, expected: Any, path: str = "") -> str:
    """Describes the first difference of two outcomes; '' if they are equal."""
    if actual == expected:
        return ""
    if isinstance(actual, dict) and isinstance(expected, dict) and set(actual) == set(expected):
        pairs = [(key, actual[key], expected[key]) for key in actual]
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        pairs = [*zip(range(len(actual)), actual, expected, strict=True)]
    else:
        return f"{path}: got {str(actual)[:100]}, expected {str(expected)[:100]}"
    return next(filter(None, (difference(a, e, f"{path}/{key}") for key, a, e in pairs)), "")


# --- Processes, forked after all imports, so that they start at once


def _fork(act: Callable[[], Any], output: pathlib.Path) -> int:
    """Calls `act` in a new process group that writes to `output`; returns its process number. The
    process exits with the code that `act` returns."""
    _flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it is handled
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too, since the caller may signal the group at once
        return pid
    code = 1
    try:
        import resource

        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        file = os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), file, file)):
            os.dup2(descriptor, number)
        signals.install(signals.end_at_once)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = act() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            _flush()
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _wait(pid: int, until: Callable[[], bool] | None = None) -> int | None:
    """The exit code of a process, negative if a signal killed it; None once `until()` is true.
    Raises TimeoutError if it hangs, after killing its group."""
    end = time.monotonic() + _TIMEOUT_SECONDS * (1 if until else 4)
    while not (until and until()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            _kill(pid)
            os.waitpid(pid, 0)
            raise TimeoutError
        time.sleep(0.01)
    return None


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _values(produce: Callable[[], Iterable[Any]], scratch: pathlib.Path) -> tuple[list[Any], Any]:
    """The JSON values that `produce` yields in a forked process, and the exit code of that process,
    or "no end". It prints to scratch/process.txt."""
    lines, output = scratch / "values.jsonl", scratch / "process.txt"

    def act() -> None:
        with lines.open("w") as file:
            for value in produce():
                print(json.dumps(value), file=file, flush=True)

    for path in (lines, output):
        path.write_text("")
    try:
        code: Any = _wait(_fork(act, output))
    except TimeoutError:
        code = "no end"
    return [json.loads(line) for line in lines.read_text().splitlines()], code


def _called(main: Callable, argv: Sequence[str], output: pathlib.Path) -> tuple[int, str]:
    """The exit code and the output of a command that this process runs."""
    _flush()
    streams = {number: os.dup(number) for number in (1, 2)}
    with output.open("wb") as file:
        for number in streams:
            os.dup2(file.fileno(), number)
        signals.install(signals.end_at_once)
        try:
            code = cli.guarded(main, argv)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        gc.collect()  # finalizers may print
        _flush()
        for number, saved in streams.items():
            os.dup2(saved, number)
            os.close(saved)
    return code, output.read_text(errors="replace")


def _cases(
    attempt: Callable[[int], Case], numbers: Sequence[int], scratch: pathlib.Path
) -> Iterator[tuple[int, Case]]:
    """Attempts many cases in one process, until it ends or a case seems to be a fault; that case is
    then attempted in a process of its own, which judges it."""

    def without_faults() -> Iterator[Case]:
        cases = map(attempt, numbers[:_BATCH])
        yield from itertools.takewhile(lambda case: case["outcome"] not in FAULTS, cases)

    while numbers:
        cases, code = _values(without_faults, scratch)
        yield from zip(numbers, cases, strict=False)
        numbers = numbers[len(cases) :]
        if numbers and len(cases) < _BATCH:
            if code not in (cli.PREEMPTED, signals.INTERRUPTED):  # as it may, if it waits
                cases, code = _values(lambda first=numbers[0]: [attempt(first)], scratch)
            else:
                cases = []
            text = (scratch / "output.txt").read_text(errors="replace")
            outcome = _fault(code, text, lambda: True) or ("differing" if code == 1 else NAMED)
            ended = {"group": "the process ended", "case": f"exit code {code}", "outcome": outcome}
            yield numbers[0], cases[0] if cases else ended | {"detail": text[-1500:]}
            numbers = numbers[1:]


def _fault(code: Any, text: str, unchanged: Callable[[], bool]) -> str | None:
    """The fault that exit code and output show; None if they show none."""
    if code == "no end":
        return "hang"
    if re.search("^Traceback", text, re.MULTILINE):
        return "traceback"
    if code not in (0, 2, 3, 4, 75, 130) or (code == cli.WRONG_INPUT and not unchanged()):
        return "differing"
    return None


# --- Kills

_SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ECHOED = ("before_augmentation", "after_augmentation", "after_batching")


def _scenario(rng: random.Random) -> tuple[str, bool, list[str]]:
    """(row of the table, whether it is a study, flags)."""
    kind = rng.choice(("none", *("fixed",) * 6, "auto", "auto", "study", "lanes", "workers"))
    if kind in ("study", "lanes", "workers"):
        flags = [] if kind == "study" else [f"--{kind}=2"]
        return f"sweep.py, {kind}", True, flags
    if kind == "none":
        return "train.py, none", False, ["--config.echo.insertion=none"]
    insertion, place = rng.choice(_ECHOED), rng.choice(("host", "device"))
    largest = 3 if insertion == "after_batching" else 50
    buffer = rng.choice((0, largest) if kind == "fixed" else (largest,))
    flags = [f"--config.echo.insertion={insertion}", f"--config.echo.shuffle_buffer={buffer}"]
    flags += [f"--config.echo.placement={place}", f"--config.augment_on={place}"]
    slow = ["--config.echo.policy=auto", "--config.upstream.examples_per_second=400"]
    flags += ["--config.echo.factor=2.5"] if kind == "fixed" else slow
    return f"train.py, {kind}", False, flags


def kills(seed: int, numbers: range, scratch: pathlib.Path) -> Iterator[tuple[int, Case]]:
    """Kills runs and studies, and restarts them until they finish."""
    for number in numbers:
        rng = random.Random(f"{seed} kills {number}")
        group, is_study, flags = _scenario(rng)
        main, flag = (sweep.main, "--outdir") if is_study else (train.main, "--workdir")
        read = ending_of_study if is_study else ending

        def command(place: str, *more: str, m=main, f=flag, g=tuple(flags)) -> Callable[[], int]:
            return functools.partial(cli.guarded, m, _argv(f, scratch / place, *g, *more))

        for place in ("killed", "whole"):
            shutil.rmtree(scratch / place, ignore_errors=True)
        output, sent, outcome, why = scratch / "killed.txt", [], "differing", ""
        output.unlink(missing_ok=True)
        try:
            code: Any = None
            for _ in range(rng.randint(1, 5)):
                pid, what = _fork(command("killed"), output), rng.choice(_SIGNALS)
                moment, described = _moment(rng, scratch / "killed")
                code = _wait(pid, moment)
                if code is not None:
                    break  # it has finished
                with contextlib.suppress(OSError):
                    (os.killpg if rng.random() < 0.5 else os.kill)(pid, what)
                sent.append(f"{what.name} {described}")
                code = _wait(pid)
                _kill(pid)
                if code not in (-what, 0, cli.PREEMPTED, signals.INTERRUPTED):
                    why = f"exit code {code}"
                    break
            if not why and (code := _wait(_fork(command("killed"), output))):
                why = f"exit code {code} at the end"
            replay = f"--config.echo.replay={scratch / 'killed' / records.DECISIONS}"
            again = command("whole", *([replay] if "auto" in group else []))
            if not why:
                # nothing if the command fails
                whole, _ = _values(
                    lambda a=again, r=read: [] if a() else [r(scratch / "whole")], scratch
                )
                said = (scratch / "process.txt").read_text(errors="replace")
                killed, _ = _values(lambda r=read: [r(scratch / "killed")], scratch)
                why = difference(killed[0], whole[0]) if whole and killed else said[-500:]
        except TimeoutError:
            outcome, why = "hang", "no end"
        text = output.read_text(errors="replace") if output.exists() else ""
        if re.search("^Traceback", text, re.MULTILINE):
            outcome, why = "traceback", text[-2000:]
        case = {"group": group, "case": f"{' '.join(flags)}: {'; '.join(sent)}"}
        case |= {"outcome": outcome if why else EQUAL, "detail": f"{why} {text[-500:]}"}
        yield number, case


def _moment(rng: random.Random, directory: pathlib.Path) -> tuple[Callable[[], bool], str]:
    """When to send a signal: after some seconds, at a number of lines, or as a checkpoint is
    written."""
    kind = rng.choice(("seconds", "lines", "lines", "checkpoint"))
    if kind == "seconds":
        end = time.monotonic() + (seconds := rng.uniform(0, 8))
        return lambda: time.monotonic() >= end, f"after {seconds:.2f} s"

    def count() -> int:
        total = 0
        for parent, folders, files in os.walk(directory):  # unlike glob, while files come and go
            if kind == "checkpoint":
                total += len(folders) if pathlib.Path(parent).name == records.CHECKPOINTS else 0
            elif records.METRICS in files:
                total += pathlib.Path(parent, records.METRICS).read_bytes().count(b"\n")
        return total

    goal = count() + 1 if kind == "checkpoint" else rng.randint(1, 15)
    return lambda: count() >= goal, f"at {kind} {goal}"


# --- Damages


def _damage(path: pathlib.Path, rng: random.Random) -> str:
    """Damages a file; returns how."""
    content = path.read_bytes()
    at, how = rng.randrange(len(content) + 1), rng.choice((*_HOWS, "deleted", "a directory"))
    if how in ("deleted", "a directory"):
        path.unlink()
        if how == "a directory":
            path.mkdir()
    else:
        path.write_bytes(_HOWS[how](content, at, rng))
    return how


def _other_digit(content: bytes, at: int, rng: random.Random) -> bytes:
    digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    at = rng.choice(digits) if digits else 0
    return content[:at] + rng.choice("0123456789").encode() + content[at + 1 :]


def _other_value(content: bytes, at: int, rng: random.Random) -> bytes:
    """JSON with a value of another type; random bytes if it is not JSON."""
    try:
        value = json.loads(content)
        node, name = value, rng.choice(sorted(value))
        while isinstance(node[name], dict) and node[name] and rng.random() < 0.7:
            node, name = node[name], rng.choice(sorted(node[name]))
        others = (None, [], {}, "x", -1, 1e30, 10**30, True, "\ud800", float("nan"))
        node[name] = rng.choice(others)
        return json.dumps(value).encode()
    except (ValueError, TypeError, IndexError):
        return rng.randbytes(rng.choice((1, 16, 1024)))


_HOWS: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "truncated": lambda content, at, rng: content[:at],
    "empty": lambda content, at, rng: b"",
    "with a bit flipped": lambda content, at, rng: (
        content[:at]
        + bytes(byte ^ 1 << rng.randrange(8) for byte in content[at : at + 1] or b"0")
        + content[at + 1 :]
    ),
    "with a digit changed": _other_digit,
    "with a value replaced": _other_value,
    "of random bytes": lambda content, at, rng: rng.randbytes(rng.choice((1, 16, 1024))),
    "of deep JSON": lambda content, at, rng: b"[" * rng.choice((100, 5_000, 200_000)),
}

_COMMANDS_ON = {
    "train.py": (train.main, lambda case: _argv("--workdir", case)),
    "train.py --evaluate": (train.main, lambda case: ["--evaluate", str(case)]),
    "sweep.py": (sweep.main, lambda case: _argv("--outdir", case)),
    "analysis": (analysis.main, lambda case: [str(case), f"--out={case.with_name('report')}"]),
}
# (state of the directory, command)
_ATTEMPTS = (*(("killed", "train.py"),) * 4, ("finished", "train.py"))
_ATTEMPTS += (("finished", "train.py --evaluate"),)
_ATTEMPTS += tuple(
    (f"study {s}", c) for s in ("killed", "finished") for c in ("sweep.py", "analysis")
)
_KILLED_AT = {"killed 2": 2, "killed 7": 7, "killed 11": 11, "study killed": 17}  # steps
_NAMED = (
    "warning|damaged|cannot be|left out|[Ss]et aside|not ended|best so far|without its|are missing"
)


def damages(seed: int, numbers: range, scratch: pathlib.Path) -> Iterator[tuple[int, Case]]:
    """Damages copies of killed and finished directories, and runs a command on each."""
    templates, case = scratch / "templates", scratch / "case"

    def made(state: str) -> None:
        name = "sweep.py" if "study" in state else "train.py"
        main, argv = _COMMANDS_ON[name]
        with on_each_step(stop_at_call(_KILLED_AT.get(state, 0), signal.SIGKILL)):  # 0 = never
            cli.guarded(main, argv(templates / state))

    def run(name: str) -> tuple[int, str, Any]:
        """Exit code, output, and what the command is judged by: numbers that it has written."""
        main, argv = _COMMANDS_ON[name]
        code, text = _called(main, argv(case), scratch / "output.txt")
        if code:
            return code, text, None
        try:  # of a run that had finished, only the result is read
            numbers = _numbers("result" if "already finished" in text else name, case)
            return code, text, json.loads(json.dumps(numbers))
        except Exception as error:
            return code, text, f"{type(error).__name__}: {error}"

    def copied(state: str) -> None:
        for path in (case, case.with_name("report")):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(templates / state, case)

    expected: dict[str, Any] = {}
    templates.mkdir(parents=True)
    for state in (*_KILLED_AT, "finished", "study finished"):
        _wait(_fork(lambda s=state: made(s), scratch / "templates.txt"))
    for state, name in dict.fromkeys(_ATTEMPTS):
        copied("killed 7" if state == "killed" else state)
        (expected[f"{state} {name}"],), _ = _values(lambda n=name: [run(n)], scratch)

    def attempt(number: int) -> Case:
        rng = random.Random(f"{seed} damages {number}")
        state, name = rng.choice(_ATTEMPTS)
        copied(rng.choice([*_KILLED_AT][:3]) if state == "killed" else state)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        named = [path for path in files if path.suffix in (".json", ".jsonl")]
        path = rng.choice(named if rng.random() < 0.5 else files)
        description = f"{name} on {state}: {path.relative_to(case)} {_damage(path, rng)}"
        before, (_, usual, numbers) = contents(case), expected[f"{state} {name}"]
        code, text, found = run(name)
        if name == "train.py" and isinstance(found, dict):  # trained, or already finished
            numbers = {key: numbers[key] for key in found if key in numbers}
            found = {key: found[key] for key in numbers}
        outcome = _fault(code, text, lambda: contents(case) == before)
        detail = ""
        if outcome is None and code == cli.OK:
            detail = difference(found, numbers)
            added = [line for line in text.splitlines() if line not in usual.splitlines()]
            loss = re.search(_NAMED, "\n".join(added))
            outcome = NAMED if detail and loss else "silent" if detail else EQUAL
        record = {"group": name, "case": description, "outcome": outcome or NAMED}
        return record | ({"detail": f"{code} {detail} {text[-1500:]}"} if outcome in FAULTS else {})

    yield from _cases(attempt, numbers, scratch)


def _numbers(name: str, case: pathlib.Path) -> Any:
    if name == "train.py":
        return ending(case)
    if name == "result":
        return {"result": without_clocks(records.read_json(case / records.RESULT))}
    if name == "sweep.py":
        results = {
            w: records.read_json(w / records.RESULT) for _, w in records.trials_on_disk(case)
        }
        return {str(w.relative_to(case)): without_clocks(r) for w, r in results.items()}
    if name == "analysis":
        return {p.name: p.read_text() for p in sorted(case.with_name("report").glob("*.csv"))}
    return records.read_json(case / records.EVALUATION)


# --- Inputs

# Flags that make the minis as cheap as possible; random fields follow and override them.
_CHEAP = ("--config.evaluate_every_fresh_examples=0", "--config.checkpoint_every_fresh_examples=0")
_TEXT = ("--config.model.layers=1", "--config.model.dim=8", "--config.model.heads=2")
_TEXT += ("--config.model.mlp_dim=8", "--config.dataset.sequence_length=8")
_PHOTOGRAPHS = ("--config.model.width=1", "--config.model.ghost_batch_size=0")
_WORKLOADS = {"cifar10": ("--config.model.depth=0", "--config.augmentation.pad=0")}
_WORKLOADS |= dict.fromkeys(("imagenet", "coco"), _PHOTOGRAPHS)
_WORKLOADS |= dict.fromkeys(("lm1b", "common_crawl"), _TEXT)
_TEXTS = (
    *("", " ", "a" * 5_000, "\u00e9\u4e16\U0001f600", "\udcff", "\x01\x1b[31m", "a\nb"),
    *"x - -- 0 None null [] {} %s%n {0} ' \" ` $(x) train train[:1%] train[5:3] train[ [:]".split(),
    *"fixed auto host device none after_augmentation float16 adamw linear cosine above".split(),
    *"fsdp digits mnist_5k digit_scenes python_topics sentences imagenet lm1b cifar10".split(),
)
_NUMBERS = (
    *"-1 0 1 2 3 7 16 64 1e18 1e23 -1e18 inf -inf nan 1.5 -0 1_0 0x10 1e-3 +4 1e400".split(),
    *"-0.0 5e-324 1e-30 0.1 0.5 0.999999 1e9 1.7976931348623157e308 1e309 true false yes".split(),
    *("9" * 19, "9" * 400, "\u0661", "\uff12", "\u0661.5"),
)
_PATHS = (
    *"new new/below file file/below dangling dangling/below full /dev/null /dev/null/x".split(),
    *("/proc/nothing", "x" * 300, "y/" * 3_000, "", ".", "study", "study/baseline/0/0", "~", "*"),
    *("http://host/x", "gs://bucket/x", "\udcff", "a\nb", "new.png", "study/study.json"),
)
_CHANGES = ("drop", "double", "insert", "value", "cut", "split")  # of a command line
_WORDS = (
    *("-h", "--help", "--", "-", "", *"= --= --config --config= --config.=1 --config.".split()),
    *"--config.model=1 --config.echo --config.mdoel.width=1 --config.__class__=1".split(),
    *"--config=config.py --config=broken.py --config=. --config=configs/base.py".split(),
    *"--config=configs/cifar10.py:x --config=configs --config=file x \udcff".split(),
    *"--study --study= --study=list --study=x --workers=0 --lanes=0 --shard=9/9".split(),
    *"--executor=x --trials=-1 --trials=1e9 --evaluate= --evaluate=study/baseline/0/0".split(),
    *"--workdir --outdir=study --workdir=study/baseline/0/0 --dry-run --seconds=0".split(),
    *"--seconds=nan --plot --target --unknown=1 --config.seed.data=4294967296".split(),
)


def _fields(rng: random.Random) -> list[str]:
    """Flags that select a mini and set one to three random fields."""
    workload = rng.choice((*("cifar10",) * 30, *_WORKLOADS))  # the others take a second or two
    argv = [f"--config=configs/{workload}.py:mini", *_CHEAP, *_WORKLOADS[workload]]
    for field in rng.choices(base.FIELDS, k=rng.choice((1, 1, 2, 3))):
        argv.append(f"--config.{field.name}={_value(field, rng)}")
    return argv


def _value(field: Field, rng: random.Random) -> str:
    """A value near the ends of the range of a field, or of its type, or one never allowed."""
    if field.name.endswith(("_dir", "replay")):
        return rng.choice(_PATHS)
    if field.choices and rng.random() < 0.8:
        return str(rng.choice(field.choices))
    if math.isfinite(field.high - field.low) and rng.random() < 0.5:
        end = rng.choice((field.low, field.high))
        return str(rng.choice((end, end - 1, end + 1, math.nextafter(end, 0))))
    odd = isinstance(field.default, str) or rng.random() < 0.1
    return rng.choice(_TEXTS if odd else _NUMBERS)


def _drawn(rng: random.Random) -> tuple[str, Callable, list[str]]:
    """(row of the table, main function, command line)."""
    path = rng.choice(_PATHS if rng.random() < 0.3 else ("new", "new/below"))
    study = f"--study={rng.choice(('demo', 'insertion', 'controls'))}"
    once = [f"--outdir={path}", "--trials=1", "--searches=1"]
    name, main, argv = rng.choices(
        (
            ("train.py, fields", train.main, [*_fields(rng), f"--workdir={path}"]),
            ("train.py, words", train.main, [*_fields(rng), f"--workdir={path}"]),
            ("sweep.py --dry-run", sweep.main, [*_fields(rng), study, "--dry-run"]),
            ("sweep.py", sweep.main, [*_fields(rng), study, *once]),
            ("advise.py", advise.main, [*_fields(rng), "--seconds=0.01"]),
            ("analysis", analysis.main, [rng.choice((path, "study")), f"--out={path}"]),
        ),
        (40, 20, 12, 4, 4, 20),
    )[0]
    changes = rng.random() < (0.2 if "fields" in name else 0.8)
    for _ in range(rng.choice((1, 1, 2)) if changes else 0):
        at = rng.randrange(len(argv)) if argv else 0
        kind = rng.choice(_CHANGES) if argv else "insert"
        word = argv[at] if argv else ""
        flag = word.partition("=")[0]
        if kind == "value":
            values = _PATHS if "dir" in flag or flag == "--out" else _TEXTS
            argv[at] = f"{flag}={rng.choice(values)}"
        elif kind == "cut":
            argv[at] = word[: rng.randrange(len(word) + 1)]
        else:
            new = {"drop": [], "double": [word] * 2, "split": word.split("=", 1)}
            inserted = [rng.choice(_WORDS), *argv[at : at + 1]] if kind == "insert" else []
            argv[at : at + 1] = new.get(kind, inserted)
    return name, main, argv


def inputs(seed: int, numbers: range, scratch: pathlib.Path) -> Iterator[tuple[int, Case]]:
    """Runs commands on random input, each in a new directory, for at most one training step."""
    scratch.mkdir(parents=True)
    argv = _argv("--outdir", scratch / "study", "--trials=1")
    _wait(_fork(lambda: cli.guarded(sweep.main, argv), scratch / "study.txt"))

    def attempt(number: int) -> Case:
        case = scratch / "case"
        shutil.rmtree(case, ignore_errors=True)
        (case / "full").mkdir(parents=True)
        (case / "full" / "something").write_text("x")
        (case / "file").write_text("not a directory")
        (case / "dangling").symlink_to(case / "nowhere")
        (case / "config.py").write_text("raise ValueError('of the file')")
        (case / "broken.py").write_text("def get_config(:")
        name, main, argv = _drawn(random.Random(f"{seed} inputs {number}"))
        if any(re.match("(.*=)?study(/|$)", word) for word in argv):
            shutil.copytree(scratch / "study", case / "study")
        if name != "analysis" and not any("cache_dir" in word for word in argv):
            argv.append(f"--config.dataset.cache_dir={scratch / 'cache'}")
        before = contents(case)

        os.chdir(case)
        # accepted values may make the upstream so slow that the first batch never comes
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 6 if "cifar10" in str(argv) else 20, 1)
        with on_each_step(lambda _: os.kill(os.getpid(), signal.SIGTERM)):
            code, text = _called(main, argv, scratch / "output.txt")
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(scratch)
        outcome = _fault(code, text, lambda: contents(case) == before)
        sentences = [line for line in text.splitlines() if re.match("(error|analysis): ", line)]
        if outcome is None and code == cli.WRONG_INPUT and len(sentences) != 1:
            outcome = "differing"
        words = " ".join(map(repr, argv))[:2000]
        record = {"group": name, "case": words, "outcome": outcome or (NAMED if code else EQUAL)}
        return record | ({"detail": f"{code}: {text[-1500:]}"} if outcome else {})

    yield from _cases(attempt, numbers, scratch)


# --- The table


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    cases: list[Case] = [json.loads(line) for line in lines]
    splits.open_source("digits", "train")  # imports once what every process needs
    report.FORMATS = {"png": {"dpi": 20}}  # a report's pictures take most of its time
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all memory
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        _share_compilation_cache(os.environ.get("JAX_COMPILATION_CACHE_DIR") or f"{directory}/jax")
        for kind, attempts in (("kills", kills), ("damages", damages), ("inputs", inputs)):
            done = [c["index"] for c in cases if (c["kind"], c["seed"]) == (kind, options.seed)]
            first, scratch = max(done, default=-1) + 1, pathlib.Path(directory, kind)
            numbers = range(first, first + getattr(options, kind))
            if kind == "kills":
                scratch.mkdir()
            for index, case in attempts(options.seed, numbers, scratch) if numbers else ():
                case = {"group": "", "kind": kind, "seed": options.seed, "index": index} | case
                cases.append(case)
                options.results.parent.mkdir(parents=True, exist_ok=True)
                with options.results.open("a") as file:
                    file.write(json.dumps(case) + "\n")
    faults = [case for case in cases if case["outcome"] in FAULTS]
    for case in faults[-20:]:
        common.progress(" ".join(str(value)[:800] for value in case.values()))
    machine = common.machine(["jax", "flax", "orbax-checkpoint", "grain", "numpy"])
    title = f"# Random kills, damaged files, and wrong inputs\n\nMeasured on {machine}"
    print(f"{title}\n\n{table(cases)}")
    return 1 if faults else 0


def table(cases: Sequence[Case]) -> str:
    """A Markdown table with a row per group and per kind."""
    rows = []
    for kind in GOALS:
        of_kind = [case for case in cases if case["kind"] == kind]
        groups = {
            f"{kind}: {name}": [c for c in of_kind if c["group"] == name]
            for name in sorted({case["group"] for case in of_kind})
        }
        for name, members in (groups | {f"**all {kind}**": of_kind}).items():
            counts = collections.Counter(case["outcome"] for case in members)
            survived = counts[EQUAL] + counts[NAMED]
            numbers = (len(members), survived, *(counts[fault] for fault in FAULTS))
            rows.append([name, *(f"{number:,}" for number in numbers)])
    return common.markdown_table(_HEADER, rows)


def _parser() -> argparse.ArgumentParser:
    parser = common.bare_parser("benchmarks.torture", __doc__)
    for name, goal in GOALS.items():
        note = f"number of further {name} (the gate: {goal:,} without a fault)"
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=note)
    parser.add_argument("--seed", type=int, default=0, help="seed that the cases are drawn from")
    results = pathlib.Path("out/torture.jsonl")
    parser.add_argument("--results", type=pathlib.Path, default=results, metavar="FILE")
    return parser


def _share_compilation_cache(directory: str) -> None:
    """Shares compiled programs between processes, and compiles without optimizing; compiling takes
    most of a small run's time."""
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")
    for option, value in {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[option.upper()] = str(value)  # for worker processes, which are spawned
        jax.config.update(option, value)


if __name__ == "__main__":
    sys.exit(main())
