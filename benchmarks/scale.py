"""What studies of many trials cost, and how many more trials lanes finish behind a slow input.

    python -m benchmarks.scale --out=results/sweeps.md     10 minutes
    python -m benchmarks.scale --sizes=10000x20            an hour
    python -m benchmarks.scale --lanes=1,4,8               lanes instead; five minutes
    python -m benchmarks.scale --quick                     a smoke run

Commands run as users run them, each in a new process. A study of logistic regression on the digits
trains with a given number of evaluations per trial, is run again when nothing is left to train, and
is analyzed. Memory is the peak of the process; the smallest study shows what a launch costs.

With `--lanes`, the input delivers a fixed number of examples per second, as if it were shared by
all processes of a machine. Trials in separate processes finish no sooner then than one after
another, so one lane stands for them. K lanes all train on every example that arrives: ideally,
min(K, R) times as many trials, where R is the input's time per example over the step's.
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
from runs import records

RATIOS = (1, 4, 8)
CONFIG = "--config=configs/cifar10.py:mini"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `--lanes` measures."""

    steps: int = 100  # per trial
    rounds: int = 3
    width: int = 16  # of the first stage of the ResNet-8


QUICK = Plan(steps=5, rounds=1, width=4)


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


def sweep(outdir: pathlib.Path, lanes: int, trials: int, **fields: float) -> list[str]:
    """The words of a study of one field whose trials never reach a target."""
    changes = {
        "target__value": 2.0,
        "checkpoint_every_fresh_examples": 0,
        "optimizer__learning_rate": 0.01,
    } | fields
    flags = [f"--config.{name.replace('__', '.')}={value}" for name, value in changes.items()]
    sizes = [f"--trials={trials}", "--searches=1", f"--lanes={lanes}", f"--outdir={outdir}"]
    return ["sweep.py", CONFIG, "--vary=optimizer.momentum=0.9", *sizes, *flags]


# --- many trials


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
    words = sweep(
        outdir,
        1,
        trials,
        model__depth=0,
        budget__fresh_examples=batch * steps,
        evaluate_every_fresh_examples=batch * steps // evaluations,
    )
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


# --- lanes


def trials_per_hour(plan: Plan, lanes: int, examples_per_second: float) -> float:
    """The lanes' trials over the seconds of the slowest, without compilation."""
    batch = cifar10.get_config("mini").batch_size
    with tempfile.TemporaryDirectory() as directory:
        outdir = pathlib.Path(directory) / "study"
        usage(
            *sweep(
                outdir,
                lanes,
                lanes,
                model__width=plan.width,
                budget__fresh_examples=plan.steps * batch,
                evaluate_every_fresh_examples=0,
                upstream__examples_per_second=examples_per_second,
            )
        )
        results = [
            records.read_json(path / records.RESULT) or {}
            for _, path in records.trials_on_disk(outdir)
        ]
    return lanes * 3600 / max(result["train_seconds"] for result in results)


def lanes_table(lanes: list[int], spreads: common.Spreads) -> str:
    """`spreads` are trials per hour by 'R K'."""
    rows = []
    for ratio in RATIOS:
        for number in lanes:
            trials, ideal = spreads[f"{ratio} {number}"], min(number, ratio)
            speedup = trials.median / spreads[f"{ratio} 1"].median
            row = [str(ratio), str(number), f"{trials:,.0f}", f"{speedup:.2f}", str(ideal)]
            rows.append([*row, f"{speedup / ideal:.2f}"])
    header = ["R", "lanes K", "trials per hour", "speedup over one lane", "min(K, R)", "share"]
    return common.markdown_table(header, rows)


def of_lanes(plan: Plan, lanes: list[int]) -> str:
    lanes = sorted({1, *lanes})
    batch = cifar10.get_config("mini").batch_size
    rate = plan.steps * batch * trials_per_hour(plan, 1, 0.0) / 3600
    common.progress(f"one trial without a limit: {rate:,.0f} examples/s")
    sides = {
        f"{ratio} {number}": lambda n=number, r=ratio: trials_per_hour(plan, n, rate / r)
        for ratio in RATIOS
        for number in lanes
    }
    return lanes_table(lanes, common.interleaved(sides, plan.rounds))


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        steps="with --lanes: steps per trial",
        rounds="with --lanes: number of rounds",
        width="with --lanes: channels of the first stage",
    )
    common.add_list(parser, "--sizes", size, "1x20,200x20,1000x20,200x500")
    parser.add_argument(
        "--lanes", type=lambda text: list(map(common.number(1), text.split(","))), metavar="K,..."
    )
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    if options.lanes:
        table = of_lanes(plan, options.lanes)
    else:
        rows = []
        with tempfile.TemporaryDirectory() as directory:
            for trials, evaluations in [(2, 2)] if options.quick else options.sizes:
                outdir = pathlib.Path(directory) / f"{trials}x{evaluations}"
                rows += of_trials(trials, evaluations, outdir)
        header = ["trials", "evaluations", "what", "seconds", "CPU seconds", "CPU ms per trial"]
        table = common.markdown_table([*header, "MB"], rows)
    text = [
        "# Studies of many trials",
        f"Measured by `python -m benchmarks.scale{' --lanes' * bool(options.lanes)}` on "
        + common.machine(["jax", "flax", "grain", "pandas"]),
        table,
    ]
    common.publish("\n\n".join(text), options.out)


if __name__ == "__main__":
    main()
