"""Tries to break runs with random kills, damaged files, and wrong inputs, and counts the outcomes.

    python -m benchmarks.torture --minutes=60
    python -m benchmarks.torture --kills=20 --damages=500 --inputs=1000
    python -m benchmarks.torture

Cases are drawn from fixed seeds and continue where the last invocation ended. Outcomes accumulate
in --results, and the table covers all of them. Without an amount, only the table is printed. The
exit code is 1 if there has been a fault.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator

import jax

from benchmarks import common
from benchmarks.torture.damages import Damages
from benchmarks.torture.inputs import Inputs
from benchmarks.torture.kills import Kills
from benchmarks.torture.ledger import GOALS, Ledger
from data import splits

_REPORT = """\
# Random kills, damaged files, and wrong inputs

Does every command survive random kills, damaged files, and wrong inputs? Counted over several
invocations of `python -m benchmarks.torture`, on {machine}

{goals}

{table}

* **Kills.** `train.py` and `sweep.py` train a shrunk digits mini (benchmarks/torture/small.py).
  They receive SIGKILL, SIGTERM, SIGINT, or SIGHUP at random moments and are restarted until they
  finish. The outcome must equal that of an undisturbed run: result and records without clocks, and
  the arrays of the last checkpoint bit for bit. Under `echo.policy=auto` the undisturbed run
  replays the decisions. The table counts signals, not runs.
* **Inputs.** Random values of all fields of all minis, and random command lines, for every command.
  Survived: a documented exit code without a traceback; with exit code 2, one sentence and nothing
  written.
* **Damages.** One file of a killed or finished run or study is truncated, emptied, or deleted, has
  a bit flipped or a digit changed, or is replaced by random bytes, a directory, deeply nested JSON,
  or JSON with another value. Then a command is run on it. Survived: the result of an undamaged
  directory, a different result with a line that names what is lost, or exit code 2 with nothing
  changed.

The columns:

* *Differing*: a run ended differently after kills, an exit code is not documented, or something was
  written despite exit code 2.
* *Tracebacks* include processes that died.
* *Silent*: a different result without a message.
* *Undetectable*: the same, but nothing could have noticed it. No checksum covers the damaged file
  (`config.json`, `hparams.json`, `study.json`, `result.json`, `evaluation.json`, or `metrics.jsonl`
  of a finished run), and it is still JSON with the same keys, lengths, and types of values, so only
  a digit or a letter of a value has changed.

When a fault is fixed, the case that found it leaves the counts, so they describe the code after the
fixes. Other cases that were tried before a fix stay."""

_KINDS = {"kills": Kills, "damages": Damages, "inputs": Inputs}
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_CASES_PER_TURN = {"kills": 2, "damages": 100, "inputs": 200}  # under --minutes


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    ledger = Ledger(options.results)
    if options.minutes or any(getattr(options, name) for name in GOALS):
        _try_cases(options, ledger)
    faults = ledger.faults()
    for record in faults[-20:]:
        common.progress(f"{record['outcome']}: {record['kind']} {record['seed']} {record['index']}")
        common.progress(f"    {record['case'][:600]}\n    {record.get('detail', '')[:600]}")
    machine = common.machine(["jax", "flax", "orbax-checkpoint", "grain", "numpy"])
    report = _REPORT.format(machine=machine, goals=ledger.goals(), table=ledger.table())
    common.publish(report, options.out)
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = common.arguments(__spec__.name, __doc__)
    add = parser.add_argument
    for name, unit in (("kills", "runs to kill"), ("damages", "files to damage")):
        add(f"--{name}", type=int, default=0, metavar="N", help=f"number of further {unit}")
    add("--inputs", type=int, default=0, metavar="N", help="number of further inputs")
    add(
        "--minutes",
        type=float,
        default=0.0,
        help="keep trying for so long, alternating between kinds",
    )
    add("--seed", type=int, default=0, help="seed that the cases are drawn from")
    add("--results", type=pathlib.Path, default=pathlib.Path("out/torture.jsonl"), metavar="FILE")
    return parser


def _try_cases(options: argparse.Namespace, ledger: Ledger) -> None:
    """Tries the requested cases and adds them to the ledger."""
    faults = options.results.absolute().with_suffix(".faults")
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        scratch = pathlib.Path(directory)
        splits.open_source("digits", "train")  # imports once what every fork needs
        _share_compilation_cache(os.environ.get(_CACHE) or str(scratch / "compiled"))
        kinds = {name: kind(scratch / name, faults) for name, kind in _KINDS.items()}
        for name, number in _amounts(options):
            first = ledger.next_index(name, options.seed)
            for record in kinds[name].attempts(options.seed, range(first, first + number)):
                ledger.add({"kind": name, "seed": options.seed} | record)
            common.progress(ledger.goals() + "\n")


def _amounts(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """(kind, number of cases) to try, in order."""
    yield from ((name, getattr(options, name)) for name in GOALS if getattr(options, name))
    end = time.monotonic() + 60 * options.minutes
    while options.minutes and time.monotonic() < end:
        for name, number in _CASES_PER_TURN.items():
            if time.monotonic() < end:
                yield name, number


def _share_compilation_cache(directory: str) -> None:
    """Shares compiled programs between processes; compiling takes most of a small run's time."""
    for option, value in {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[option.upper()] = str(value)  # for worker processes, which are spawned
        jax.config.update(option, value)


if __name__ == "__main__":
    sys.exit(main())
