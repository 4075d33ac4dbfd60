"""`python -m analysis DIR`: prints the table of a study and writes its report."""

if __name__ == "__main__":  # before the slow imports, so that Ctrl-C is quiet during them
    from runs import signals

    signals.install(signals.end_at_once)

import argparse
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Sequence

from analysis import archive, caveats, load, report, scores, tables, uncertainty
from runs import cli
from runs.cli import InputError
from runs.progress import several, write
from runs.records import plain

_HELP = """\
Turns the records of a study into tables, figures, and a report.

The score of a trial is the fresh examples at its first evaluation that reaches the target. The
score of a search is the smallest of its counted trials, and that of a condition the median over
its searches; ">12,000" is a lower bound. docs/statistics.md defines every number.
"""

_EXAMPLES = """\
examples:
  python -m analysis out/study                        table, figures in out/study/report
  python -m analysis out/study --target=0.95          the same trials at an easier target
  python -m analysis out/study --pack=out --study=digits      adds its records to out/*.parquet
  python -m analysis out/trials.parquet --study=digits --out=out/report    a report from these

written to --out: report.md, scores.csv (conditions), paired.csv (effects with matched seeds),
                  trials.csv (trials), and each figure as PNG and PDF
exit codes: 0 done, 2 wrong input
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Flags of the command; raises InputError."""
    parser = cli.Parser(_HELP)
    parser.prog, parser.epilog = "python -m analysis", _EXAMPLES
    flag = parser.add_argument
    flag("directory", metavar="DIR", help="of a study, with study.json; or a trials.parquet")
    text = "where to write (default: DIR/report)"
    flag("--out", type=cli.directory, metavar="DIR", help=text)
    text = "judge at this value of the study's metric, by the recorded curves"
    flag("--target", type=float, metavar="X", help=text)
    text = (
        "only add a study's trials to DIR/trials.parquet, which can then be given as DIR, and up "
    )
    text += "to 60 evaluations of each to DIR/curves.parquet"
    flag("--pack", type=cli.directory, metavar="DIR", help=text)
    text = "its name in a trials.parquet (default: the only one there; with --pack, its own)"
    flag("--study", default="", metavar="NAME", help=text)
    options = parser.parse_args(argv)
    if options.pack and (options.out or options.target is not None):
        raise InputError("--pack takes neither --out nor --target")
    if not (options.out or options.pack) and pathlib.Path(options.directory).is_file():
        raise InputError(f"{options.directory} is a file; give --out, the directory to write to")
    return options


_MAX_WIDTH = 100


def _pack(directory: str, out: pathlib.Path, name: str) -> None:
    loaded = load.read(directory)
    trials = loaded.trials[loaded.trials["status"] != load.UNFINISHED]
    curves = load.curves(trials, loaded.study.target.metric)
    if curves.empty:
        raise InputError(f"{directory} has no ended trial with an evaluation; give another study")
    _warn(loaded)
    name = name or loaded.study.name
    archive.pack(loaded.study, trials, curves, out, name)
    write(f"Packed {several(len(trials), 'trial')} as {name} into {out}.")


def _report(loaded: load.LoadedStudy, root: str, out: pathlib.Path) -> None:
    drawn = report.write(loaded, out, root)
    _warn(loaded)
    width = min(shutil.get_terminal_size((_MAX_WIDTH, 24)).columns, _MAX_WIDTH)
    trials, study = loaded.trials, loaded.study
    effects = uncertainty.paired_effects(uncertainty.pairs(trials, study), study)
    write(tables.text(loaded, scores.condition_scores(trials, study), width))
    write(tables.matched_seeds_text(effects, study, width))
    for caveat in caveats.find(loaded):
        write(textwrap.fill(plain(caveat), width, initial_indent="- ", subsequent_indent="  "))
    files = f"report.md, scores.csv, paired.csv, trials.csv, and {len(drawn)} figures (PNG, PDF)"
    write(f"\nWritten to {out}: {files}.")


def _warn(loaded: load.LoadedStudy) -> None:
    if warning := loaded.warning():
        write(warning, sys.stderr)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    root = options.directory
    if options.pack:
        _pack(root, pathlib.Path(options.pack), options.study)
    else:
        loaded = load.read(root, options.target, options.study)
        _report(loaded, root, pathlib.Path(options.out or pathlib.Path(root, "report")))
    return cli.OK


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
