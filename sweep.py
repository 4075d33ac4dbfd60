"""Runs a study: repeated quasi-random searches for every condition, scored in fresh examples.

    python sweep.py --config=configs/cifar10.py:mini --study=list
    python sweep.py --config=configs/cifar10.py:mini --study=demo --outdir=DIR
    python sweep.py --config=configs/cifar10.py:mini --vary=echo.factor=1,2,4 --outdir=DIR

A condition is a set of overrides (where to echo, and how often); each condition has its own search
of the learning rate and the other searched fields. The hyperparameters of trial k do not depend on
the number of trials, so a study can be stopped, resumed, and extended: finished trials are kept,
and an interrupted trial resumes from its checkpoint. The same command may run several times on one
directory, on one machine or several; no trial is trained twice. `python -m analysis DIR` then
writes tables and figures. See docs/studies.md.
"""

if __name__ == "__main__":  # before the slow imports, so that signals are quiet during them
    from runs import signals

    signals.install_for_start()

import argparse
import contextlib
import functools
import os
from collections.abc import Sequence

from runs import cli, processes, signals, tracking
from runs.progress import Progress, write
from runs.records import whole_number
from studies import plan, search
from studies.executors import InProcessExecutor, PoolExecutor
from studies.ray_executor import RayExecutor
from studies.runner import MakeExecutor, run

# The executors, and the flags that only one of them uses.
_FLAGS = {"local": ("workers",), "ray": ("ray_address", "cpus_per_trial", "gpus_per_trial")}


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__)
    add = parser.add_argument
    add("--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--study", help="name of a study, or 'list' to print them all")
    add(
        "--vary",
        action="append",
        metavar="FIELD=VALUE,...",
        help="instead of --study: compare these values of a field, three times each; may be given "
        "for several fields",
    )
    add("--outdir", type=cli.directory, help="the study's directory; an existing study resumes")
    add("--dry-run", action="store_true", help="print the plan and its cost; train nothing")
    add("--trials", type=_positive, metavar="N", help="trials per search (default: the study's)")
    add("--searches", type=_positive, metavar="N", help="searches per condition (likewise)")
    add(
        "--lanes",
        type=_positive,
        default=1,
        metavar="K",
        help="train K trials of a search in one process on the same batches, each read and decoded "
        "once; the results equal those of separate trials (default 1)",
    )
    add(
        "--shard",
        type=_shard,
        default=(0, 1),
        metavar="i/n",
        help="run part i of n of the study's searches, i = 0..n-1: for job arrays",
    )
    add("--executor", choices=_FLAGS, default="local", help="on this machine, or a Ray cluster")
    add("--workers", type=_positive, metavar="N", help="local: worker processes (default 1)")
    add("--ray-address", help="ray: HOST:PORT of a cluster (default: start Ray here)")
    add("--cpus-per-trial", type=_amount, help="ray: CPUs per trial or group of lanes (default 1)")
    add("--gpus-per-trial", type=_amount, help="ray: GPUs, likewise; fractions share one")
    tracking.add_flags(parser)
    arguments, overrides = cli.parse(parser, argv)
    if bool(arguments.study) == bool(arguments.vary):
        parser.error("give either --study=NAME (--study=list lists them) or --vary=FIELD=VALUE,...")
    if arguments.study != "list" and not arguments.dry_run and arguments.outdir is None:
        parser.error("--outdir is missing; give the directory to write the study to")
    for name in (name for executor in _FLAGS for name in _FLAGS[executor]):
        if getattr(arguments, name) is not None and name not in _FLAGS[arguments.executor]:
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"--executor={arguments.executor} does not use {flag}; leave it out")
    return arguments, overrides


def _shard(text: str) -> tuple[int, int]:
    """'i/n' as two numbers."""
    part, parts = map(whole_number, text.partition("/")[::2])
    if 0 <= part < parts:
        return part, parts
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give i/n with i = 0..n-1")


def _positive(text: str) -> int:
    if whole_number(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 1, 2, 3, ...")
    return whole_number(text)


def _amount(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 0 or a positive number")


def main(argv: Sequence[str]) -> int:
    arguments, overrides = parse(argv)
    flag = arguments.config
    config, module = cli.load_config(flag, overrides)
    if arguments.study == "list":
        write(plan.listing(config, module, flag, overrides))
        return cli.OK
    sizes = {name: n for name in ("trials", "searches") if (n := getattr(arguments, name))}
    if arguments.vary:
        study = plan.vary(config, flag, arguments.vary, **sizes)
    else:
        study = plan.load_study(config, module, flag, arguments.study, overrides, **sizes)
    plan.check_overrides(study, overrides)
    part, parts = arguments.shard
    if parts > (searches := len(study.conditions) * study.searches):
        raise cli.InputError(
            f"--shard is {part}/{parts}; allowed: n up to {searches}, the number of searches"
        )
    if arguments.dry_run:
        processes.check_devices()
        search.check(study, arguments.lanes)
        write(plan.dry_run(study))
        return cli.OK
    if processes.detect(os.environ) is not None:
        raise cli.InputError(
            "one process trains each trial, but the environment says that this is one of several; "
            "start one, and split the study with --shard"
        )
    make_executor = _executor(arguments)
    processes.check_devices()
    progress, outdir = Progress(), arguments.outdir
    tools = tracking.Tools(arguments.tracker, None, arguments.mirror, outdir.absolute())
    options = arguments.lanes, arguments.shard, tools
    outcome = run(study, outdir, progress, make_executor, *options)
    if outcome == "preempted":
        progress.say("stopped; run the same command again to resume")
        return cli.PREEMPTED
    progress.say(f"finished; for tables and figures: python -m analysis {outdir}")
    return cli.OK


def _executor(arguments: argparse.Namespace) -> MakeExecutor:
    """The executor class that the flags select, with its options filled in."""
    if arguments.executor == "local" and arguments.workers in (None, 1):
        return InProcessExecutor
    # the processes share an accelerator, most of whose memory JAX would reserve for the first one
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if arguments.executor == "local":
        return functools.partial(PoolExecutor, number=arguments.workers)
    cpus = 1.0 if arguments.cpus_per_trial is None else arguments.cpus_per_trial
    gpus = arguments.gpus_per_trial or 0.0
    return functools.partial(RayExecutor, address=arguments.ray_address or "", cpus=cpus, gpus=gpus)


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
