"""`python -m analysis DIR [DIR ...]`: prints the table of a study and writes its report.

Effects live here: what is read, printed and written, and the exit code.
"""

if __name__ == "__main__":  # before what takes long, so that Ctrl-C is quiet in all of it
    from runs import signals

    signals.install(signals.end_at_once)

import argparse
import math
import os
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Sequence

from analysis import archive, caveats, load, report, scores, tables, watch
from analysis.study import InputError, plain
from runs.cli import guarded

_WRONG_INPUT = 2
_WIDEST = 100

_HELP = """\
Turns run records into tables, figures and a report.

Give the directory of one study (it holds study.json), or the directories of single runs (each
holds config.json and metrics.jsonl; they are searched for below what you give). Single runs with
equal echo settings and batch size are one condition; equal data seeds are one search (for runs of
one schema version).

A trial scores the fresh examples at its first evaluation that reaches the target, a search the
smallest score of its counted trials, a condition the median over its searches. A search that
never reached the target scores more than its trials had used, written ">12,000". Ratios to the
baseline are medians over pairs of searches. A study may score seconds, or the best value within
the budget, instead (`score` in study.json). docs/statistics.md defines every number.
"""

_EXAMPLES = """\
examples:
  python -m analysis results/cifar10                  table, figures in results/cifar10/report
  python -m analysis results/cifar10 --target=0.95    the same trials at an easier target
  python -m analysis runs/a runs/b --out=compared     single runs, side by side
  python -m analysis results/cifar10 --watch          how a study that is running stands
  python -m analysis results/cifar10 --pack=cifar10.tar.xz      its records as one file, and
  python -m analysis cifar10.tar.xz --out=report                 the same from that

written to --out: report.html (all in one file), report.md, scores.csv (conditions), paired.csv
                  (effects with matched seeds), trials.csv (trials), and each figure as PNG and
                  PDF; a study that varies the echoing factor, batch size or shuffle buffer is
                  drawn against it
exit codes: 0 done, 2 wrong input
"""


class _Parser(argparse.ArgumentParser):
    """Answers wrong input with one sentence instead of a usage dump."""

    def error(self, message: str):
        raise InputError(f"{message}; see python -m analysis --help.")


def _finite(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"--target is {value!r}; it has to be a number, a value of the study's metric such as "
            "0.95."
        )
    return number


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m analysis",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="DIR",
        help="one study, or directories of single runs",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where to write (default: the first DIR/report)"
    )
    parser.add_argument(
        "--target",
        metavar="X",
        help="judge at this value of the study's metric, on the same side of it; whole curves are "
        "kept, so nothing is trained again",
    )
    parser.add_argument(
        "--pack",
        metavar="FILE",
        help="only put a study's records into FILE.tar.xz, which can be given as DIR, with --out",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show how the study stands every few seconds until it has ended (Ctrl-C leaves)",
    )
    return parser


def run(arguments: Sequence[str]) -> None:
    """Does what the arguments say; raises InputError where they cannot be followed."""
    options = _parser().parse_args(arguments)
    target = None if options.target is None else _finite(options.target)
    if options.watch:
        if len(options.directories) > 1 or options.out:
            raise InputError("--watch takes one DIR and no --out; it writes nothing.")
        return watch.watch(pathlib.Path(options.directories[0]), target)
    if options.pack:
        if len(options.directories) > 1 or options.out:
            raise InputError("--pack takes one DIR and no --out.")
        return archive.pack(options.directories[0], options.pack)
    if not options.out and pathlib.Path(options.directories[0]).is_file():
        raise InputError(f"{options.directories[0]} is a file; give --out, where to write.")
    out = pathlib.Path(options.out or pathlib.Path(options.directories[0]) / "report")
    found = load.read(options.directories, target)
    roots = [os.path.abspath(archive.opened(path)) for path in options.directories]
    try:
        drawn = report.write(found, out, os.path.commonpath(roots))
    except OSError as error:
        raise InputError(f"cannot write to {out} ({error}); give another --out.") from error
    if warning := found.warning():
        print(warning, file=sys.stderr)
    width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    print(tables.text(found, scores.condition_scores(found.trials, found.study), width))
    for caveat in caveats.find(found):
        print(textwrap.fill(plain(caveat), width, initial_indent="- ", subsequent_indent="  "))
    print(
        f"\nWritten to {out}: report.html, report.md, scores.csv, paired.csv, trials.csv "
        f"and {len(drawn)} figures (PNG, PDF)."
    )


def main(arguments: Sequence[str]) -> int:
    try:
        run(arguments)
        sys.stdout.flush()
    except InputError as error:
        print(f"analysis: {plain(str(error))}", file=sys.stderr)
        return _WRONG_INPUT
    except BrokenPipeError:
        # The reader of a pipe (`| head`) left; the report is written by then. Python would
        # complain once more when it flushes at exit, so that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
