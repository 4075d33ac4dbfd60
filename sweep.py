"""Runs a study: a quasi-random search for every condition, repeated, scored in fresh examples.

    python sweep.py --config=configs/cifar10.py:mini --study=list
    python sweep.py --config=configs/cifar10.py:mini --study=demo --outdir=DIR

A condition is a set of overrides (where and how often to echo); its learning rate and the other
searched fields are tuned anew. Trial k of a search has the same hyperparameters whatever the number
of trials, so a study can be stopped, continued and extended: finished trials are kept, a half-done
one goes on where it stopped. The same command may be started several times on one directory, also
on several machines: no trial is run twice. Then `python -m analysis DIR` makes the table and the
figures. docs/studies.md has the rest.
"""

if __name__ == "__main__":  # before what takes long, so that Ctrl-C is quiet in all of it
    from runs import signals

    signals.install(signals.end_at_once)

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Sequence

import jax

import train
from configs import base
from runs import cli, distributed, terminal
from runs.progress import Progress
from studies import describe, plan
from studies.executors import InProcessExecutor, PoolExecutor
from studies.plan import (
    MAX_TRIALS_FACTOR,
    Study,
    label,
    load_study,
    point,
    resolved,
    scaled,
    trial_config,
)
from studies.ray_executor import RayExecutor
from studies.runner import MakeExecutor, run

__all__ = [
    "MAX_TRIALS_FACTOR",
    "Study",
    "label",
    "load_study",
    "point",
    "resolved",
    "run",
    "scaled",
    "trial_config",
]


def main(argv: Sequence[str]) -> int:
    arguments, overrides = cli.parse(_parser(), argv)
    config, module = cli.load_config(arguments.config, overrides, base.FIELDS, train.ROOT)
    if arguments.study == "list":
        terminal.write(describe.listing(config, module, arguments.config, overrides))
        return cli.OK
    study = load_study(
        config,
        module,
        arguments.config,
        arguments.study,
        arguments.trials,
        arguments.searches,
        overrides,
    )
    if arguments.lanes_stacked and arguments.lanes == 1:
        raise cli.InputError(
            "--lanes-stacked is given with --lanes=1, which leaves nothing to stack; allowed with "
            "it: --lanes=2 or more"
        )
    shard = _shard(arguments.shard, len(study.conditions) * study.searches)
    if arguments.dry_run:
        plan.check(study, arguments.lanes)
        terminal.write(describe.dry_run(study))
        return cli.OK
    if arguments.outdir is None:
        raise cli.InputError("--outdir is missing; give the directory that the study goes to")
    make_executor = _executor(arguments)
    distributed.initialize()
    if make_executor is not InProcessExecutor and jax.process_count() > 1:
        raise cli.InputError(
            f"{jax.process_count()} processes train each trial together, which --workers and "
            "--executor=ray cannot place; leave them out, and split the study with --shard"
        )
    progress = Progress(quiet=not distributed.is_first())
    lanes = {"lanes": arguments.lanes, "stacked": arguments.lanes_stacked}
    outcome = run(study, arguments.outdir, progress, make_executor, shard=shard, **lanes)
    if outcome == "preempted":
        progress.say("stopped; start the same command again to go on")
        return cli.PREEMPTED
    progress.say(f"finished; for tables and figures: python -m analysis {arguments.outdir}")
    return cli.OK


def _parser() -> cli.Parser:
    parser = cli.Parser(__doc__, base.FIELDS)
    add = parser.add_argument
    add("--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py")
    add("--study", required=True, help="a name from the file's get_studies(), or list")
    add("--outdir", type=pathlib.Path, help="the study's directory; start it again to go on")
    add("--dry-run", action="store_true", help="print the plan and its cost; write nothing")
    add("--trials", type=_positive, metavar="N", help="trials a search (default: the study's)")
    add("--searches", type=_positive, metavar="N", help="searches (default: the study's)")
    add(
        "--lanes",
        type=_positive,
        default=1,
        metavar="K",
        help="trials of a search that train side by side in one process on the same batches, each "
        "read and decoded once for all; the numbers are those of trials alone (default 1)",
    )
    add(
        "--lanes-stacked",
        action="store_true",
        help="do the steps of all lanes in one call, vmapped over their states: for networks so "
        "small that the accelerator waits for its calls; equal to rounding, not bit for bit",
    )
    add(
        "--shard",
        default="0/1",
        metavar="i/n",
        help="run the i-th of n parts of the study's searches, i = 0..n-1: for job arrays",
    )
    add("--executor", choices=("local", "ray"), default="local", help="where trials run")
    add("--workers", type=_positive, default=1, metavar="N", help="local: processes at once")
    add("--ray-address", default="", help="HOST:PORT of a cluster; '' starts Ray on this machine")
    add("--cpus-per-trial", type=_amount, default=1.0, help="ray: of a trial or group of lanes")
    add("--gpus-per-trial", type=_amount, default=0.0, help="ray: the same; fractions share one")
    return parser


def _executor(arguments: argparse.Namespace) -> MakeExecutor:
    """Builds what runs the trials once the plan has been checked."""
    if arguments.executor == "local" and arguments.workers == 1:
        return InProcessExecutor
    # several processes share an accelerator, and JAX would take most of its memory for the first
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if arguments.executor == "local":
        return functools.partial(PoolExecutor, number=arguments.workers)
    return functools.partial(
        RayExecutor,
        address=arguments.ray_address,
        cpus=arguments.cpus_per_trial,
        gpus=arguments.gpus_per_trial,
    )


def _shard(text: str, searches: int) -> tuple[int, int]:
    """'i/n' as two numbers."""
    first, slash, second = text.partition("/")
    numbers = slash and _is_number(first) and _is_number(second)
    if numbers and int(first) < int(second) <= searches:
        return int(first), int(second)
    raise cli.InputError(
        f"--shard is {text!r}; allowed: i/n with i = 0..n-1 and n up to {searches}, the number of "
        "searches (conditions x searches) that are shared out"
    )


def _is_number(text: str) -> bool:
    """Whether it is a whole number that can be counted to; '²' and 5,000 digits are none."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _positive(text: str) -> int:
    if not _is_number(text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 1, 2, 3, ...")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 0 or a number above")
    return amount


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
