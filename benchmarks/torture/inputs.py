"""Random values of every field, and random command lines, for all four commands.

Survived: a documented exit code without a traceback; with exit code 2, one sentence and nothing
written. Runs whose input is accepted are stopped after their first step. Accepted values may make
the upstream so slow that the first batch never comes; such a case must end on Ctrl-C.
"""

# ruff: noqa: SIM905  (as lists of literals, the tables of values would take a line per value)

import contextlib
import functools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import advise
import sweep
import train
from analysis import __main__ as analysis
from benchmarks.torture import forks, ledger
from configs import base
from configs.fields import Field
from runs import cli, records, signals
from training import run

_CODES = {0, 2, 3, 4, 75, 130}  # as documented
_CASES_PER_PROCESS = 50
_PATIENCE_SECONDS = 60.0  # before Ctrl-C

# Flags that make the minis as cheap as possible; random fields follow and override them.
_CHEAP = ("--config.evaluate_every_fresh_examples=0", "--config.checkpoint_every_fresh_examples=0")
_TEXT = ("--config.model.layers=1", "--config.model.dim=8", "--config.model.heads=2")
_TEXT += ("--config.model.mlp_dim=8", "--config.dataset.sequence_length=8")
_PHOTOGRAPHS = ("--config.model.width=1", "--config.model.ghost_batch_size=0")
_WORKLOADS = {
    "cifar10": ("--config.model.depth=0", "--config.augmentation.pad=0"),
    "imagenet": _PHOTOGRAPHS,
    "lm1b": _TEXT,
    "common_crawl": _TEXT,
    "coco": _PHOTOGRAPHS,
}
_OFTEN = ("cifar10",) * 6 + tuple(_WORKLOADS)

# The order of these tuples, like that of the others below, decides what a seed draws.
_TEXTS = (
    *("", " ", *"x - -- 0 None null [] {} %s%n {0} [red]x[/red]".split()),
    *(
        "a" * 5_000,
        "\u00e9\u4e16\U0001f600",
        "\udcff",
        "\x01\x1b[31m",
        "a\nb",
        *"' \" ` $(x)".split(),
    ),
    *"train validation test train[:1%] train[5:3] train[::2] train[ [:]".split(),
    *"fixed auto host device none before_augmentation after_augmentation".split(),
    *"after_batching float32 bfloat16 float16 adamw momentum nesterov sgd".split(),
    *"linear cosine two_steps constant above below accuracy loss AP50".split(),
    *"replicated fsdp tensor digits mnist_5k digits_jpeg digit_scenes".split(),
    *"python_topics sentences documents cifar imagenet coco lm1b cifar10".split(),
)
_WHOLE = (
    *"-1 0 1 2 3 7 16 64 1e18 1e23 -1e18 inf -inf nan 1.5 -0 1_0 0x10".split(),
    *("9" * 19, "9" * 400, "1e400", "\u0661", "\uff12", "1e-3", "+4"),
)
_REAL = (
    *"-1 -0.0 0 5e-324 1e-30 0.1 0.5 0.999999 1 1.5 2 1e9 1.7976931348623157e308 1e309".split(),
    *"inf -inf nan 1_0.5 0x1p3 \u0661.5".split(),
)
_TRUTH = ("true", "false", "1", "0", "True", "FALSE", "yes", "2", "")


class Inputs:
    """Inputs by number, each run in a new directory."""

    def __init__(self, directory: pathlib.Path, faults: pathlib.Path):
        self._directory, self._faults = directory, faults

    def attempts(self, seed: int, numbers: range) -> Iterator[dict[str, Any]]:
        """Tries the cases `numbers`; yields their records for the ledger."""
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            self._make_study()
        attempt = functools.partial(self._one, seed)
        for number, record in forks.in_batches(
            numbers, attempt, self._directory, _CASES_PER_PROCESS
        ):
            if "outcome" not in record:
                name, _, argv = self._drawn(seed, number)
                record = {"group": name, "case": _quoted(argv)} | _ended(record)
            yield record | {"index": number, "count": 1}

    def _make_study(self) -> None:
        """Makes a finished study, for the analysis and as an OUTDIR that is not empty."""
        argv = ["--config=benchmarks/torture/small.py:logistic", "--study=small", "--trials=1"]
        argv += [f"--outdir={self._directory / 'study'}", "--config.budget.fresh_examples=64"]
        argv += ["--config.checkpoint_every_fresh_examples=0"]
        output = self._directory / "study.txt"
        if forks.fork(lambda: cli.guarded(sweep.main, argv), output).wait():
            raise RuntimeError(output.read_text())

    def _one(self, seed: int, number: int) -> dict[str, Any]:
        _stop_after_one_step()
        case = self._directory / "case"
        shutil.rmtree(case, ignore_errors=True)
        self._furnish(case)
        name, main, argv = self._drawn(seed, number)
        os.chdir(case)
        before = _listing(case)
        with forks.captured() as captured:
            with _ctrl_c_after(_PATIENCE_SECONDS):
                try:
                    code = cli.guarded(main, argv)
                except SystemExit as error:  # --help
                    code = error.code
                except BaseException as error:  # Python would print a traceback
                    code = f"Traceback: {type(error).__name__}: {error}"
            text = captured()
        outcome, detail = _judged(code, text, before, _listing(case))
        record = {"group": name, "case": _quoted(argv), "outcome": outcome, "code": code}
        return record | ({"detail": f"{detail}: {text[-1500:]}"} if detail else {})

    def _furnish(self, case: pathlib.Path) -> None:
        """Makes files and directories that random paths may refer to."""
        case.mkdir()
        (case / "file").write_text("not a directory")
        (case / "dangling").symlink_to(case / "nowhere")
        (case / "full").mkdir()
        (case / "full" / "something").write_text("x")
        (case / "config.py").write_text("raise ValueError('of the file')")
        (case / "broken.py").write_text("def get_config(:")
        shutil.copytree(self._directory / "study", case / "study")

    def _drawn(self, seed: int, number: int) -> tuple[str, Callable, list[str]]:
        """(row of the table, main function, command line)."""
        rng = random.Random(f"{seed} inputs {number}")
        name, main, arguments = rng.choices(*zip(*_COMMANDS, strict=True))[0]
        argv = arguments(rng)
        if rng.random() < (0.2 if "fields" in name else 0.8):
            argv = _mutated(argv, rng)
        argv += ["--config.dataset.cache_dir=" + str(self._directory / "cache")] * (
            "analysis" not in name and not any("cache_dir" in argument for argument in argv)
        )
        return name, main, argv


# --- command lines


def _train_arguments(rng: random.Random) -> list[str]:
    return [*_fields(rng), f"--workdir={_path(rng, 0.1)}"]


def _sweep_arguments(rng: random.Random, *more: str) -> list[str]:
    arguments = [*_fields(rng), f"--study={rng.choice(('demo', 'insertion', 'controls'))}", *more]
    if rng.random() < 0.2:
        arguments.append(f"--{rng.choice(('trials', 'searches', 'lanes'))}={rng.choice(_WHOLE)}")
    if rng.random() < 0.1:
        arguments.append(
            f"--shard={rng.choice(('0/1', '1/1', '0/2', '-1/2', '1/x', '0/0', '1e3/1'))}"
        )
    return arguments


def _real_sweep_arguments(rng: random.Random) -> list[str]:
    return _sweep_arguments(rng, f"--outdir={_path(rng, 0.3)}", "--trials=1", "--searches=1")


def _advise_arguments(rng: random.Random) -> list[str]:
    arguments = [*_fields(rng), "--seconds=0.01"]
    if rng.random() < 0.3:
        arguments.append(f"--seconds={rng.choice(('0', '-1', 'nan', 'inf', 'x', '1e309', ''))}")
    if rng.random() < 0.2:
        arguments.append(f"--plot={_path(rng, 0.5)}")
    return arguments


def _analysis_arguments(rng: random.Random) -> list[str]:
    arguments = [_path(rng, 0.4) if rng.random() < 0.6 else "study"]
    if rng.random() < 0.3:
        arguments.append(f"--target={rng.choice((*_REAL, *_TEXTS))}")
    if rng.random() < 0.4:
        arguments.append(f"--out={_path(rng, 0.5)}")
    if rng.random() < 0.2:
        arguments.append(f"--pack={_path(rng, 0.5)}")
    return arguments


# ((row of the table, main function, command line), weight)
_COMMANDS = tuple(
    zip(
        (
            ("train.py, fields", train.main, _train_arguments),
            ("train.py, words", train.main, _train_arguments),
            ("sweep.py --dry-run", sweep.main, lambda rng: _sweep_arguments(rng, "--dry-run")),
            ("sweep.py", sweep.main, _real_sweep_arguments),
            ("advise.py", advise.main, _advise_arguments),
            ("analysis", analysis.main, _analysis_arguments),
        ),
        (40, 20, 12, 4, 4, 20),
        strict=True,
    )
)


def _fields(rng: random.Random) -> list[str]:
    """Flags that select a mini and set one to three random fields."""
    workload = rng.choice(_OFTEN)
    arguments = [f"--config=configs/{workload}.py:mini", *_CHEAP, *_WORKLOADS[workload]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        field = rng.choice(base.FIELDS)
        arguments.append(f"--config.{field.name}={_value(field, rng)}")
    return arguments


def _value(field: Field, rng: random.Random) -> str:
    """A value near the ends of the range of the field or its type, or one that is never allowed."""
    if rng.random() < 0.1:
        return rng.choice(_TEXTS)
    if field.name in ("dataset.data_dir", "dataset.cache_dir", "echo.replay"):
        return _path(rng, 0.1)
    if field.choices:
        return str(rng.choice((*field.choices, *_TEXTS[:8])))
    kind = type(field.default)
    if field.low is not None and field.high is not None and rng.random() < 0.5:
        end = rng.choice((field.low, field.high))
        near = (end - 1, end + 1) if kind is int else (math.nextafter(end, 0), end * 1.01)
        return str(rng.choice((end, *near)))
    return rng.choice({int: _WHOLE, float: _REAL, bool: _TRUTH, str: _TEXTS}[kind])


def _path(rng: random.Random, odd: float) -> str:
    """A path below the working directory or, with probability `odd`, an unusual one."""
    if rng.random() >= odd:
        return rng.choice(("new", "new/below", "deep/" * 20))
    return rng.choice(_ODD_PATHS)


def _mutated(argv: Sequence[str], rng: random.Random) -> list[str]:
    """A command line with typical mistakes of people and scripts."""
    argv = list(argv)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(argv)) if argv else 0
        kind = rng.choice(("drop", "double", "insert", "value", "cut", "split", "shuffle"))
        if kind == "insert" or not argv:
            argv.insert(at, rng.choice(_ODD_ARGUMENTS))
        elif kind == "drop":
            del argv[at]
        elif kind == "double":
            argv.insert(at, argv[at])
        elif kind == "value":
            flag = argv[at].partition("=")[0]
            safe = "dir" in flag or flag in ("--out", "--pack", "--plot") or "=" not in argv[at]
            argv[at] = f"{flag}={_path(rng, 0.5) if safe else rng.choice(_TEXTS)}"
        elif kind == "cut":
            argv[at] = argv[at][: rng.randrange(len(argv[at]) + 1)]
        elif kind == "split":
            argv[at : at + 1] = argv[at].split("=", 1)
        else:
            rng.shuffle(argv)
    return argv


_ODD_PATHS = (
    *"file file/below dangling dangling/below full /dev/null /dev/null/x".split(),
    *("/proc/nothing", "x" * 300, "y/" * 3_000, "", ".", "study", "study/baseline/0/0"),
    *("http://host/x", "gs://bucket/x", "\udcff", "a\nb", "~", "new.png", "new.parquet"),
    *("study/study.json", "study/baseline", "full/x.pdf", "new\x1b[31m", "*", "file.parquet"),
)
_ODD_ARGUMENTS = (
    *("-h", "--help", "--", "-", "", *"= --= --config --config= --config.=1 --config.".split()),
    *"--config.model=1 --config.echo --config.echo.=1 --config.model.width.x=1".split(),
    *"--config.mdoel.width=1 --config.seed=1 --config.get_config=1 --config.__class__=1".split(),
    *"--config=config.py --config=broken.py --config=. --config=configs/base.py".split(),
    *"--config=configs/cifar10.py: --config=configs/cifar10.py:x --config=configs".split(),
    *("--config=" + "c" * 5_000, "--config=file", "--config=configs/problems.py:none"),
    *("x", "\udcff", *"--study --study= --study=list --study=x".split()),
    *"--workers=0 --workers=-1 --lanes=0 --lanes-stacked --shard=9/9 --executor=x".split(),
    *"--trials=-1 --trials=1e9 --trials".split(),
    *"--evaluate --evaluate= --evaluate=study --evaluate=study/baseline/0/0".split(),
    *"--evaluate=file --workdir --outdir --outdir=study --workdir=study/baseline/0/0".split(),
    *"--dry-run --dry-run=1 --plot --seconds --watch=1 --target --unknown=1".split(),
    *"--config.batch_size=8 --config.seed.data=4294967296 --config.seed.model=-1".split(),
)


@contextlib.contextmanager
def _ctrl_c_after(seconds: float) -> Iterator[None]:
    """Presses Ctrl-C up to three times if the body takes longer than `seconds`."""
    over = threading.Event()

    def press() -> None:
        wait = seconds
        for _ in range(3):
            if over.wait(wait):
                return
            os.kill(os.getpid(), signal.SIGINT)
            wait = 1.0

    threading.Thread(target=press, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _ended(record: dict[str, Any]) -> dict[str, Any]:
    """Outcome of a case that ended its process, from the record of `forks.in_batches`."""
    if record.get("code") == signals.INTERRUPTED:
        return {"outcome": ledger.EQUAL, "code": signals.INTERRUPTED}
    outcome = ledger.HANG if "hangs" in record else ledger.TRACEBACK
    return {"outcome": outcome, "detail": str(record)}


def _judged(code: Any, text: str, before: Any, after: Any) -> tuple[str, str]:
    """(outcome, reason if it is a fault)."""
    if re.search("^Traceback", text, re.MULTILINE) or str(code).startswith("Traceback"):
        return ledger.TRACEBACK, str(code)
    if code not in _CODES:
        return ledger.DIFFERING, f"exit code {code}"
    if code != cli.WRONG_INPUT:
        return ledger.EQUAL, text if code == cli.FAILED else ""
    if before != after:
        written = sorted(set(after) ^ set(before))
        return ledger.DIFFERING, f"exit code 2, and written: {written[:5]}"
    sentences = [line for line in text.splitlines() if re.match("(error|analysis): ", line)]
    if len(sentences) != 1:
        return ledger.DIFFERING, f"exit code 2 with {len(sentences)} sentences"
    return ledger.NAMED, ""


def _listing(directory: pathlib.Path) -> dict[str, Any]:
    """Size and modification time of every path, by relative path; None for a directory."""
    listing = {}
    for path in directory.rglob("*"):
        if path.name != records.LOCK:
            stat = path.lstat()
            listing[str(path.relative_to(directory))] = (
                (stat.st_size, stat.st_mtime_ns) if not path.is_dir() else None
            )
    return listing


@functools.cache
def _stop_after_one_step() -> None:
    """Makes every later run of this process receive SIGTERM in its first step."""
    original = run.Run.step

    def stop(step: int) -> None:
        del step
        os.kill(os.getpid(), signal.SIGTERM)

    def step_then(one, stop=False):
        taken = original(one, stop)
        if taken:
            stop(one.counters.step)
        return taken

    run.Run.step = step_then


def _quoted(argv: Sequence[str]) -> str:
    return json.dumps([a if len(a) < 200 else f"{a[:20]}...{len(a)}" for a in argv])
