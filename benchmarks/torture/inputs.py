"""Random values of every field and random command lines, for all four commands.

Allowed: a documented exit code, no traceback, and with exit code 2 one sentence and nothing
written. What is accepted is told to stop after its first step.
"""

import functools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import advise
import sweep
import train
from analysis import __main__ as analysis
from benchmarks.torture import forks, ledger
from configs import base
from configs.fields import Choices, Field, Range
from runs import cli, records

_CODES = {0, 2, 3, 4, 75, 130}  # as documented
_BATCH = 50  # cases of a process

# The minis, as cheap as they can be; fields that are tried come after these and win.
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

_TEXTS = (
    *("", " ", "x", "-", "--", "0", "None", "null", "[]", "{}", "%s%n", "{0}", "[red]x[/red]"),
    *(
        "a" * 5_000,
        "\u00e9\u4e16\U0001f600",
        "\udcff",
        "\x01\x1b[31m",
        "a\nb",
        "'",
        '"',
        "`",
        "$(x)",
    ),
    *("train", "validation", "test", "train[:1%]", "train[5:3]", "train[::2]", "train[", "[:]"),
    *("fixed", "auto", "host", "device", "none", "before_augmentation", "after_augmentation"),
    *("after_batching", "float32", "bfloat16", "float16", "adamw", "momentum", "nesterov", "sgd"),
    *("linear", "cosine", "two_steps", "constant", "above", "below", "accuracy", "loss", "AP50"),
    *("replicated", "fsdp", "tensor", "digits", "mnist_5k", "digits_jpeg", "digit_scenes"),
    *("python_topics", "sentences", "documents", "cifar", "imagenet", "coco", "lm1b", "cifar10"),
)
_WHOLE = ("-1", "0", "1", "2", "3", "7", "16", "64", "1e18", "1e23", "-1e18", "inf", "-inf", "nan")
_WHOLE += (
    "1.5",
    "-0",
    "1_0",
    "0x10",
    "9" * 19,
    "9" * 400,
    "1e400",
    "\u0661",
    "\uff12",
    "1e-3",
    "+4",
)
_REAL = ("-1", "-0.0", "0", "5e-324", "1e-30", "0.1", "0.5", "0.999999", "1", "1.5", "2", "1e9")
_REAL += ("1.7976931348623157e308", "1e309", "inf", "-inf", "nan", "1_0.5", "0x1p3", "\u0661.5")
_TRUTH = ("true", "false", "1", "0", "True", "FALSE", "yes", "2", "")


class Inputs:
    """Inputs by number, each in an empty directory of its own."""

    kind = "inputs"

    def __init__(self, directory: pathlib.Path, faults: pathlib.Path):
        self._directory, self._faults = directory, faults

    def tried(self, seed: int, numbers: range) -> Iterator[dict[str, Any]]:
        """Records of the cases `numbers`."""
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            self._make_study()
        attempt = functools.partial(self._one, seed)
        for number, record in forks.in_batches(numbers, attempt, self._directory, _BATCH):
            if "outcome" not in record:
                name, _, argv = self._drawn(seed, number)
                outcome = ledger.HANG if "hangs" in record else ledger.TRACEBACK
                record = {
                    "group": name,
                    "case": _quoted(argv),
                    "outcome": outcome,
                    "detail": str(record),
                }
            yield record | {"index": number, "count": 1}

    def _make_study(self) -> None:
        """A finished study, for analysis and as an OUTDIR that holds something."""
        words = ["--config=benchmarks/torture/small.py:logistic", "--study=small", "--trials=1"]
        words += [f"--outdir={self._directory / 'study'}", "--config.budget.fresh_examples=64"]
        words += ["--config.checkpoint_every_fresh_examples=0"]
        output = self._directory / "study.txt"
        if forks.fork(lambda: cli.guarded(sweep.main, words), output).wait():
            raise RuntimeError(output.read_text())

    def _one(self, seed: int, number: int) -> dict[str, Any]:
        _stop_after_a_step()
        case = self._directory / "case"
        shutil.rmtree(case, ignore_errors=True)
        self._furnish(case)
        name, main, argv = self._drawn(seed, number)
        os.chdir(case)
        before = _listing(case)
        with forks.captured() as said:
            try:
                code = cli.guarded(main, argv)
            except SystemExit as error:  # of --help
                code = error.code
            except BaseException as error:  # what escapes is printed as one by Python
                code = f"Traceback: {type(error).__name__}: {error}"
            text = said()
        outcome, detail = _judged(code, text, before, _listing(case))
        record = {"group": name, "case": _quoted(argv), "outcome": outcome, "code": code}
        return record | ({"detail": f"{detail}: {text[-1500:]}"} if detail else {})

    def _furnish(self, case: pathlib.Path) -> None:
        """What random paths may meet."""
        case.mkdir()
        (case / "file").write_text("not a directory")
        (case / "dangling").symlink_to(case / "nowhere")
        (case / "full").mkdir()
        (case / "full" / "something").write_text("x")
        (case / "config.py").write_text("raise ValueError('of the file')")
        (case / "broken.py").write_text("def get_config(:")
        shutil.copytree(self._directory / "study", case / "study")

    def _drawn(self, seed: int, number: int) -> tuple[str, Callable, list[str]]:
        """(row of the table, command, its words)."""
        rng = random.Random(f"{seed} inputs {number}")
        name, main, words = rng.choices(*zip(*_COMMANDS, strict=True))[0]
        argv = words(rng)
        if rng.random() < (0.2 if "fields" in name else 0.8):
            argv = _mutated(argv, rng)
        argv += ["--config.dataset.cache_dir=" + str(self._directory / "cache")] * (
            "analysis" not in name and not any("cache_dir" in word for word in argv)
        )
        return name, main, argv


# --- words of each command


def _train_words(rng: random.Random) -> list[str]:
    return [*_fields(rng), f"--workdir={_path(rng, 0.1)}"]


def _sweep_words(rng: random.Random, *more: str) -> list[str]:
    words = [*_fields(rng), f"--study={rng.choice(('demo', 'insertion', 'controls'))}", *more]
    if rng.random() < 0.2:
        words.append(f"--{rng.choice(('trials', 'searches', 'lanes'))}={rng.choice(_WHOLE)}")
    if rng.random() < 0.1:
        words.append(f"--shard={rng.choice(('0/1', '1/1', '0/2', '-1/2', '1/x', '0/0', '1e3/1'))}")
    return words


def _real_sweep_words(rng: random.Random) -> list[str]:
    return _sweep_words(rng, f"--outdir={_path(rng, 0.3)}", "--trials=1", "--searches=1")


def _advise_words(rng: random.Random) -> list[str]:
    words = [*_fields(rng), "--seconds=0.01"]
    if rng.random() < 0.3:
        words.append(f"--seconds={rng.choice(('0', '-1', 'nan', 'inf', 'x', '1e309', ''))}")
    if rng.random() < 0.2:
        words.append(f"--plot={_path(rng, 0.5)}")
    return words


def _analysis_words(rng: random.Random) -> list[str]:
    words = [_path(rng, 0.4) if rng.random() < 0.6 else "study"]
    if rng.random() < 0.3:
        words.append(f"--target={rng.choice((*_REAL, *_TEXTS))}")
    if rng.random() < 0.4:
        words.append(f"--out={_path(rng, 0.5)}")
    if rng.random() < 0.2:
        words.append(f"--pack={_path(rng, 0.5)}")
    return words


# (row of the table, command, words), and how often
_COMMANDS = tuple(
    zip(
        (
            ("train.py, fields", train.main, _train_words),
            ("train.py, words", train.main, _train_words),
            ("sweep.py --dry-run", sweep.main, lambda rng: _sweep_words(rng, "--dry-run")),
            ("sweep.py", sweep.main, _real_sweep_words),
            ("advise.py", advise.main, _advise_words),
            ("analysis", analysis.main, _analysis_words),
        ),
        (40, 20, 12, 4, 4, 20),
        strict=True,
    )
)


def _fields(rng: random.Random) -> list[str]:
    """A mini, and one to three fields of it with other values."""
    workload = rng.choice(_OFTEN)
    words = [f"--config=configs/{workload}.py:mini", *_CHEAP, *_WORKLOADS[workload]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        field = rng.choice(base.FIELDS)
        words.append(f"--config.{field.name}={_value(field, rng)}")
    return words


def _value(field: Field, rng: random.Random) -> str:
    """Something at the ends of the field's range, or of its type's, or that is allowed nowhere."""
    if rng.random() < 0.1:
        return rng.choice(_TEXTS)
    if field.name in ("dataset.data_dir", "dataset.cache_dir", "echo.replay"):
        return _path(rng, 0.1)
    if isinstance(field.allowed, Choices):
        return str(rng.choice((*field.allowed.values, *_TEXTS[:8])))
    kind = type(field.default)
    if isinstance(field.allowed, Range) and rng.random() < 0.5:
        end = rng.choice((field.allowed.low, field.allowed.high))
        near = (end - 1, end + 1) if kind is int else (math.nextafter(end, 0), end * 1.01)
        return str(rng.choice((end, *near)))
    return rng.choice({int: _WHOLE, float: _REAL, bool: _TRUTH, str: _TEXTS}[kind])


def _path(rng: random.Random, odd: float) -> str:
    """A path below the working directory, or one that cannot be written; `odd` is a share."""
    if rng.random() >= odd:
        return rng.choice(("new", "new/below", "deep/" * 20))
    return rng.choice(
        (
            *(
                "file",
                "file/below",
                "dangling",
                "dangling/below",
                "full",
                "/dev/null",
                "/dev/null/x",
            ),
            *("/proc/nothing", "x" * 300, "y/" * 3_000, "", ".", "study", "study/baseline/0/0"),
            *("http://host/x", "gs://bucket/x", "\udcff", "a\nb", "~", "new.png", "new.tar.xz"),
            *(
                "study/study.json",
                "study/baseline",
                "full/x.pdf",
                "new\x1b[31m",
                "*",
                "file.tar.xz",
            ),
        )
    )


def _mutated(argv: Sequence[str], rng: random.Random) -> list[str]:
    """A command line as hands and scripts get it wrong."""
    argv = list(argv)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(argv)) if argv else 0
        kind = rng.choice(("drop", "double", "insert", "value", "cut", "split", "shuffle"))
        if kind == "insert" or not argv:
            argv.insert(at, rng.choice(_ODD_WORDS))
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


_ODD_WORDS = (
    *(
        "-h",
        "--help",
        "--",
        "-",
        "",
        "=",
        "--=",
        "--config",
        "--config=",
        "--config.=1",
        "--config.",
    ),
    *("--config.model=1", "--config.echo", "--config.echo.=1", "--config.model.width.x=1"),
    *("--config.mdoel.width=1", "--config.seed=1", "--config.get_config=1", "--config.__class__=1"),
    *("--config=config.py", "--config=broken.py", "--config=.", "--config=configs/base.py"),
    *("--config=configs/cifar10.py:", "--config=configs/cifar10.py:x", "--config=configs"),
    *(
        "--config=" + "c" * 5_000,
        "--config=file",
        "--config=configs/problems.py:none",
        "x",
        "\udcff",
    ),
    *(
        "--study",
        "--study=",
        "--study=list",
        "--study=x",
        "--workers=0",
        "--workers=-1",
        "--lanes=0",
    ),
    *("--lanes-stacked", "--shard=9/9", "--executor=x", "--trials=-1", "--trials=1e9", "--trials"),
    *("--evaluate", "--evaluate=", "--evaluate=study", "--evaluate=study/baseline/0/0"),
    *("--evaluate=file", "--workdir", "--outdir", "--outdir=study", "--workdir=study/baseline/0/0"),
    *("--dry-run", "--dry-run=1", "--plot", "--seconds", "--watch=1", "--target", "--unknown=1"),
    *("--config.batch_size=8", "--config.seed.data=4294967296", "--config.seed.model=-1"),
)


def _judged(code: Any, text: str, before: Any, after: Any) -> tuple[str, str]:
    """(outcome, why where it is a fault)."""
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
    """Every path with its size and time of change."""
    found = {}
    for path in directory.rglob("*"):
        if path.name != records.LOCK:
            stat = path.lstat()
            found[str(path.relative_to(directory))] = (
                (stat.st_size, stat.st_mtime_ns) if not path.is_dir() else None
            )
    return found


def _stop_after_a_step() -> None:
    """From now on each run of this process is told to stop, as by a scheduler, in its first step.

    So is advise.py's choice of stages that take long: --seconds is small.
    """
    if hasattr(train._Run, "stops"):
        return
    train_on = train._Run._train_on

    def stops(run, batch):
        train_on(run, batch)
        os.kill(os.getpid(), signal.SIGTERM)

    train._Run._train_on, train._Run.stops = stops, True


def _quoted(argv: Sequence[str]) -> str:
    return json.dumps([word if len(word) < 200 else f"{word[:20]}...{len(word)}" for word in argv])
