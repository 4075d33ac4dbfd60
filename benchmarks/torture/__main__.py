"""Tries to break runs at random: kills, damaged files, wrong inputs; counts what came of it.

    python -m benchmarks.torture --minutes=60
    python -m benchmarks.torture --kills=20 --damages=500 --inputs=1000
    python -m benchmarks.torture

Cases are drawn from fixed seeds and go on where the last invocation ended: counts accumulate in
--results, and the table is of all of them. Without an amount it only prints the table. The exit
code is 1 if there has been a fault.
"""

import os
import pathlib
import sys
import tempfile
import time

import jax

from benchmarks import common
from benchmarks.torture.damages import Damages
from benchmarks.torture.inputs import Inputs
from benchmarks.torture.kills import Kills
from benchmarks.torture.ledger import GOALS, Ledger
from data import sources

_REPORT = """\
# Kills, damage and wrong input at random

From `python -m benchmarks.torture`; counts of several invocations. {machine}

* **Kills.** `train.py` and `sweep.py` on the digits mini, shrunk (benchmarks/torture/small.py),
  are sent SIGKILL, SIGTERM, SIGINT or SIGHUP at random moments, started again, and so on until
  they end. The end is compared with an undisturbed run's: result and records without clocks, and
  the arrays of the last checkpoint bit for bit. Under `echo.policy=auto` the undisturbed run
  replays the decisions. Counted are signals, not runs.
* **Inputs.** Random values of every field of all workloads' minis, and random command lines, for
  each command. Survived: a documented exit code without a traceback, and with exit code 2 one
  sentence and nothing written.
* **Damages.** One file of a killed or finished run or study is truncated, emptied, deleted, has a
  bit flipped or a digit changed, or is replaced by random bytes, a directory, deep JSON, or JSON
  with another value. Then a command is started on it. Survived: the result of an undamaged
  directory, or one that differs with a line that names what is lost, or exit code 2 with nothing
  changed.

*Differing*: a kill's end differs, an exit code is not documented, or something was written in
spite of exit code 2. *Tracebacks* include processes that died. *Silent*: another result without a
word. *Undetectable* is that where nothing could have noticed: the damaged file is one that no
checksum covers (`config.json`, `hparams.json`, `study.json`, `result.json`, `evaluation.json`, or
`metrics.jsonl` of a run that has ended), and it is still JSON with the same keys, lengths and
kinds of values, so that a digit or a letter in a value has changed."""

_KINDS = {"kills": Kills, "damages": Damages, "inputs": Inputs}
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_TURN = {"kills": 2, "damages": 100, "inputs": 200}  # cases, where the kinds take turns


def main() -> int:
    options = _arguments()
    results = Ledger(options.results)
    faults = options.results.absolute().with_suffix(".faults")
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        scratch = pathlib.Path(scratch)
        sources.open_source("digits", "train")  # imports what each fork would import
        _share_what_is_compiled(os.environ.get(_CACHE) or str(scratch / "compiled"))
        kinds = {name: make(scratch / name, faults) for name, make in _KINDS.items()}
        for name, number in _amounts(options):
            _try(results, kinds[name], options.seed, number)
    failed = results.faults()
    for record in failed[-20:]:
        common.progress(f"{record['outcome']}: {record['kind']} {record['seed']} {record['index']}")
        common.progress(f"    {record['case'][:600]}\n    {record.get('detail', '')[:600]}")
    machine = common.machine(["jax", "flax", "orbax-checkpoint", "grain", "numpy"])
    report = (_REPORT.format(machine=machine), results.table(), results.goals())
    common.publish("\n\n".join(report), options.out)
    return 1 if failed else 0


def _arguments():
    parser = common.arguments("torture", __doc__)
    add = parser.add_argument
    for name, unit in (("kills", "runs that are killed"), ("damages", "damaged files")):
        add(f"--{name}", type=int, default=0, metavar="N", help=f"so many more {unit}")
    add("--inputs", type=int, default=0, metavar="N", help="so many more inputs")
    add("--minutes", type=float, default=0.0, help="go on for so long, the kinds in turns")
    add("--seed", type=int, default=0, help="another seed, other cases")
    add("--results", type=pathlib.Path, default=pathlib.Path("out/torture.jsonl"), metavar="FILE")
    return parser.parse_args()


def _amounts(options):
    """(kind, number of cases) to try, one after another."""
    yield from ((name, getattr(options, name)) for name in GOALS if getattr(options, name))
    end = time.monotonic() + 60 * options.minutes
    while options.minutes and time.monotonic() < end:
        for name, number in _TURN.items():
            if time.monotonic() < end:
                yield name, number


def _try(results: Ledger, kind, seed: int, number: int) -> None:
    first = results.next_index(kind.kind, seed)
    for record in kind.tried(seed, range(first, first + number)):
        results.add({"kind": kind.kind, "seed": seed} | record)
    common.progress(results.goals() + "\n")


def _share_what_is_compiled(directory: str) -> None:
    """All processes find what others have compiled, which is most of a small run's time."""
    for option, value in {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[option.upper()] = str(value)  # for worker processes, which start from nothing
        jax.config.update(option, value)


if __name__ == "__main__":
    sys.exit(main())
