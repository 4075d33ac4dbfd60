"""Measures what echo gains in the jobs of this folder, behind slow storage.

    python -m examples.compare --out examples/README.md

This runs each job without and with echo, for five seeds, one at a time in a process of its own, and
prints a table: what `echo.advise` said, seconds until 95% of the held-out digits are classified
correctly, and the speedup. It takes about a quarter of an hour, most of it spent waiting for
storage. Measure on a quiet machine: decoding and training share its cores.
"""

import argparse
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from examples import slow_storage

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = ("torch_jpegs", "grain_jpegs", "jax_arrays")
HEADER = ("job", "advice", "seconds without echo", "with echo", "speedup", "steps")
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
_TABLE = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)


class Pair(NamedTuple):
    """A job without and with echo, from the same seed: `seconds` and `steps` of each."""

    without: dict[str, float]
    echoed: dict[str, float]


def run(job: str, url: str, seed: int, target: float, echo: bool) -> dict[str, float]:
    """Runs a job in a process of its own; returns its seconds and steps."""
    command = [sys.executable, "-m", f"examples.{job}", url, f"--seed={seed}", f"--target={target}"]
    done = subprocess.run(
        [*command, *["--echo"] * echo], cwd=ROOT, check=True, capture_output=True, text=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"{job}{' with echo' * echo}, seed {seed}: {result['seconds']:.1f} s", file=sys.stderr)
    return result


def advice(job: str, url: str, seconds: float) -> str:
    """What `echo.advise` says of a job, in words for the table."""
    advised = importlib.import_module(f"examples.{job}").advice(url, seconds)
    workers = advised.workers, advised.measured.workers
    first = f"{workers[0]} workers instead of {workers[1]}; " if workers[0] > workers[1] else ""
    what = "do not echo"
    if advised.insertion:
        what = f"echo {advised.insertion}, e = {advised.factor}"
    return f"{first}{what} (R = {advised.ratio:.2g})"


def row(job: str, said: str, pairs: Sequence[Pair]) -> list[str]:
    """A row of the table: geometric means, with 95% t intervals over the seeds."""
    seconds = np.log([[pair.without["seconds"], pair.echoed["seconds"]] for pair in pairs])
    steps = np.median([[pair.without["steps"], pair.echoed["steps"]] for pair in pairs], 0)
    sooner = seconds[:, 0] - seconds[:, 1]
    cells = [_interval(logs) for logs in (seconds[:, 0], seconds[:, 1], sooner)]
    return [f"`examples/{job}.py`", said, *cells, f"{steps[0]:g}, {steps[1]:g}"]


def _interval(logs: np.ndarray) -> str:
    mean = np.exp(logs.mean())
    if len(logs) < 2:
        return f"{mean:.3g}"
    low, high = np.exp(scipy.stats.ttest_1samp(logs, 0).confidence_interval())
    return f"{mean:.3g} ({low:.3g} to {high:.3g})"


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEADER, [":--", ":--", "--:", "--:", "--:", "--:"], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default=",".join(JOBS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per job (default 5)")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy (default 0.95)")
    parser.add_argument("--files-per-second", type=float, default=250, help="default: 250")
    parser.add_argument(
        "--seconds", type=float, default=1, help="advice: seconds per stage (default 1)"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, nargs="+", default=[], help="pages whose table to replace"
    )
    arguments = parser.parse_args(argv)
    jobs = arguments.jobs.split(",")
    if wrong := set(jobs) - set(JOBS):
        parser.error(f"--jobs is {','.join(sorted(wrong))}; allowed: {', '.join(JOBS)}")
    for path in arguments.out:
        if not (path.is_file() and _TABLE.search(path.read_text(encoding="utf-8"))):
            parser.error(f"--out is {path}; allowed: files with {BEGIN.strip()} and {END.strip()}")
    if "torch_jpegs" in jobs and importlib.util.find_spec("torch") is None:
        parser.error("torch_jpegs needs PyTorch; pip install torch, or give the other --jobs")
    with slow_storage.serve(arguments.files_per_second) as url:
        said = {job: advice(job, url, arguments.seconds) for job in jobs}
        pairs: dict[str, list[Pair]] = {job: [] for job in jobs}
        for seed in range(arguments.seeds):
            for job in jobs:
                order = (False, True) if seed % 2 == 0 else (True, False)
                results = {e: run(job, url, seed, arguments.target, e) for e in order}
                pairs[job].append(Pair(results[False], results[True]))
    text = table([row(job, said[job], pairs[job]) for job in jobs])
    print(text, end="")
    for path in arguments.out:
        page = path.read_text(encoding="utf-8")
        page = _TABLE.sub(lambda _: BEGIN + text + END, page)
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
