"""results/LEADERBOARD.md: seconds to the target, at a stated R, on one machine.

    python -m benchmarks.leaderboard RUN RUN RUN RUN RUN     checks these runs, and appends a row

A RUN is the WORKDIR of a finished train.py behind an input that
`--config.upstream.examples_per_second` limits; five or more that differ in nothing but their seeds
are one row. Their seconds go to results/seconds.csv; the page has them, and those of speedup.csv. R
is the time of the input for a batch divided by that of a step, which is the time that was not spent
waiting. It is that of the runs without echoing, if there are any. Seconds exclude compilation and
evaluation.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import hashlib
import json
import math
import pathlib
import re
from collections.abc import Sequence

import pandas as pd
from scipy import stats

from benchmarks import common, speedup
from runs import cli, records
from runs.study import INSERTIONS

RESULTS = pathlib.Path(__file__).parents[1] / "results"
SECONDS = RESULTS / "seconds.csv"
SPEEDUP = RESULTS / "speedup.csv"  # of benchmarks.speedup, with tuning
MIN_RUNS = 5
HEADER = ["problem", "method", "seconds", "times as fast", "at most", "runs", "commit", "machine"]


def entry(workdir: pathlib.Path) -> dict[str, object]:
    """What the leaderboard keeps of a run; raises InputError if it proves nothing."""
    try:
        record, result = records.read_json(workdir / records.CONFIG), records.intact_result(workdir)
    except records.Damaged as error:
        raise cli.InputError(f"{workdir} is no intact run: {error}") from error
    config = records.flat(record.get("config", {}))
    rate = config.get("upstream.examples_per_second")
    if result.get("status") != "reached" or not rate:
        raise cli.InputError(
            f"{workdir} ended as {result.get('status')} with upstream.examples_per_second={rate}; "
            "give runs that reached their target behind a limited input"
        )
    if not re.fullmatch(r"\w+", record["commit"] or ""):
        raise cli.InputError(f"{workdir} ran at {record['commit']}; give runs of a commit")
    busy = result["train_seconds"] * (1 - result["input_wait_fraction"])
    auto, copies = config["echo.policy"] == "auto", config.get("echo.copies")
    method = "auto" if auto else f"e = {config['echo.factor']:g}"
    method += ", stratified" * (copies == "stratified")
    if config["echo.insertion"] == "none":
        method = "none"
    elif config["echo.insertion"] != "before_augmentation":
        method = f"{INSERTIONS[config['echo.insertion']]}, {method}"
    settings = {name: x for name, x in config.items() if not name.startswith("seed.")}
    text = json.dumps(settings, sort_keys=True).encode()
    return {
        "problem": f"{record['dataset']['name']} to {config['target.value']:g}",
        "rate": rate,
        "method": method,
        "R": round(config["batch_size"] / rate / (busy / result["step"]), 2),
        "seed": f"{config['seed.data']}/{config['seed.model']}",
        "seconds": result["seconds_to_target"],
        "fresh_examples": result["fresh_examples_to_target"],
        "steps": result["steps_to_target"],
        "commit": record["commit"],
        "machine": f"{record['hardware']['cpu']}, {record['hardware']['device_kind']}",
        "settings": hashlib.sha256(text).hexdigest()[:12],
    }


def checked(runs: Sequence[pathlib.Path]) -> pd.DataFrame:
    """The runs of one row; raises InputError if they are not repetitions of one another."""
    entries = [entry(run) for run in runs]
    for name in ("settings", "commit", "machine"):
        if any(own[name] != entries[0][name] for own in entries):
            raise cli.InputError(f"the runs differ in {name}; give runs that differ in seeds only")
    if len({own["seed"] for own in entries}) < max(MIN_RUNS, len(runs)):
        raise cli.InputError(f"{len(runs)} runs; give at least {MIN_RUNS}, with different seeds")
    return pd.DataFrame(entries)


def measured() -> pd.DataFrame:
    """All runs in seconds.csv; none without it."""
    if not SECONDS.exists():
        return pd.DataFrame()
    return pd.read_csv(SECONDS, dtype={"commit": str, "settings": str})  # of digits, perhaps


def tuned_runs() -> list[tuple[str, pd.DataFrame]]:
    """The runs of speedup.csv, by problem; without a test metric, if it has none."""
    runs = pd.read_csv(SPEEDUP, dtype={"commit": str})
    groups = runs.groupby("problem", sort=False)
    return [(str(problem), own.dropna(axis="columns", how="all")) for problem, own in groups]


def tuned_rows() -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table of time.md that speedup.csv gives."""
    table: list[list[str]] = []
    header: list[str] = []
    for problem, own in tuned_runs():
        columns, found = speedup.target_rows(own)
        header = max(header, columns, key=len)
        table += [[f"{problem}, {first}", *rest] for first, *rest in found]
    return header, [row + ["-"] * (len(header) - len(row)) for row in table]


def rows() -> list[list[str]]:
    """The table of LEADERBOARD.md, from speedup.csv and seconds.csv."""
    table = []
    for problem, own in tuned_runs():
        name = f"{problem}, R = {own['bound'].max():.3g}"  # that of `auto`
        for cells in speedup.target_rows(own)[1]:
            table.append([name, *cells[:4], cells[6], own["commit"].iloc[0], "speedup.csv"])
    if len(known := measured()):
        for _, peers in known.groupby(["problem", "rate", "machine", "commit"], sort=False):
            groups = peers.groupby(["method", "settings"], sort=False)
            table += [row(own, peers) for _, own in groups]
    return table


def row(own: pd.DataFrame, peers: pd.DataFrame) -> list[str]:
    """The row of some runs; `peers` are all on this problem, at this rate, on this machine, at this
    commit, with which they are compared."""
    problem, method, commit, machine = own[["problem", "method", "commit", "machine"]].iloc[0]
    seconds, none = own["seconds"], peers.loc[peers["method"] == "none"]
    ratio = none["R"].median() if len(none) else own["R"].median()  # one input, one R
    half = stats.t.ppf(0.975, len(own) - 1) * seconds.sem()
    text = f"{seconds.mean():.2f} [{seconds.mean() - half:.2f}, {seconds.mean() + half:.2f}]"
    base = none["seconds"].mean()
    factor = re.search(r"e = ([\d.]+)", method)
    bound = 1.0 if method == "none" else min(float(factor[1]) if factor else math.inf, ratio)
    speedup = base / seconds.mean()
    times = "-" if math.isnan(base) else f"{speedup:.2f}" + "*" * bool(speedup > bound)
    values = [f"{problem}, R = {ratio:.2g}", method, text, times, f"{bound:.3g}"]
    return [*values, f"{len(own)}/{len(own)}", commit, machine]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    options = parser.parse_args(argv)
    own = checked(options.runs)
    pd.concat([measured(), own]).drop_duplicates().to_csv(SECONDS, index=False)
    page = RESULTS / "LEADERBOARD.md"
    page.write_text(common.with_tables(page, {"rows": (HEADER, rows())}), encoding="utf-8")
    print(own.to_string(index=False))


if __name__ == "__main__":
    common.command(main)
