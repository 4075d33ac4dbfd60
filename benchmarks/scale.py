"""What studies of many trials cost.

    python -m benchmarks.scale                     10 minutes
    python -m benchmarks.scale --sizes=10000x20    an hour
    python -m benchmarks.scale --sizes=2x2         a smoke run

Commands run as users run them, each in a new process. A study of logistic regression on the digits
trains with a given number of evaluations per trial, is run again when nothing is left to train, and
is analyzed. Memory is the peak of the process; the smallest study shows what a launch costs.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks import common
from configs import cifar10

CONFIG = "--config=configs/cifar10.py:mini"


@dataclasses.dataclass(frozen=True)
class Usage:
    """Wall seconds, CPU seconds, and the bytes of memory at the peak, of a process."""

    seconds: float
    processor_seconds: float
    memory: int


def usage(*words: str) -> Usage:
    """What a command uses (Linux); SystemExit if it fails."""
    start, before, memory = time.perf_counter(), _children_seconds(), 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=errors
        )
        while process.poll() is None:
            # The kernel's own count of a child begins with the memory of its parent.
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peak = re.search(r"VmHWM:\s+(\d+) kB", status)  # absent once it ends
            memory = max(memory, int(peak[1]) * 1024 if peak else 0)
            time.sleep(0.02)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} failed: {errors.read().decode()}")
    return Usage(time.perf_counter() - start, _children_seconds() - before, memory)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size(text: str) -> tuple[int, int]:
    """Parses '1000x20', trials and evaluations of each; an argparse type."""
    with contextlib.suppress(ValueError):
        trials, evaluations = map(int, text.split("x"))
        if trials >= 1 and evaluations >= 1:
            return trials, evaluations
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: TRIALSxEVALUATIONS, such as 1000x20")


def of_trials(trials: int, evaluations: int, outdir: pathlib.Path) -> list[list[str]]:
    """The rows of one size."""
    batch, steps = cifar10.get_config("mini").batch_size, max(evaluations, 32)
    changes = {
        "target.value": 2.0,  # never reached
        "checkpoint_every_fresh_examples": 0,
        "optimizer.learning_rate": 0.01,
        "model.depth": 0,
        "budget.fresh_examples": batch * steps,
        "evaluate_every_fresh_examples": batch * steps // evaluations,
    }
    words = ["sweep.py", CONFIG, "--vary=optimizer.momentum=0.9", f"--outdir={outdir}"]
    words += [f"--trials={trials}", "--searches=1"]
    words += [f"--config.{name}={value}" for name, value in changes.items()]
    rows = []
    for what, command in (
        ("train", words),
        ("resume, with nothing left to train", words),
        ("analyze", ["-m", "analysis", str(outdir), f"--out={outdir}_report"]),
    ):
        used = usage(*command)
        rows.append(
            [
                f"{trials:,}",
                str(evaluations),
                what,
                f"{used.seconds:,.1f}",
                f"{used.processor_seconds:,.1f}",
                f"{1000 * used.processor_seconds / trials:,.1f}",
                f"{used.memory / 1e6:,.0f}",
            ]
        )
        common.progress(", ".join(rows[-1]))
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    common.add_list(parser, "--sizes", size, "1x20,200x20,1000x20,200x500")
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for trials, evaluations in options.sizes:
            rows += of_trials(
                trials, evaluations, pathlib.Path(directory, f"{trials}x{evaluations}")
            )
    header = ["trials", "evaluations", "what", "seconds", "CPU seconds", "CPU ms per trial", "MB"]
    machine = common.machine(["jax", "flax", "grain", "pandas"])
    title = f"# Studies of many trials\n\nMeasured by `python -m benchmarks.scale` on {machine}"
    print(f"{title}\n\n{common.markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
