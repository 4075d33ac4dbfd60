"""Trains one configuration until it reaches its target, uses up its budget, or diverges.

    python train.py --config=configs/cifar10.py:mini --workdir=DIR
    python train.py --evaluate DIR
    python train.py --check-data --config=configs/cifar10.py:mini

`train(config, workdir)` does the same from Python. A run can be started again at any time with the
same command: a finished run says so, and an interrupted one resumes bit for bit.
"""

if __name__ == "__main__":  # before slow imports, so that signals never print a traceback
    from runs import signals

    signals.install_for_start()

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from data.splits import remarks
from runs import cli, mirror, processes, records, signals, tracking, workdirs
from runs.progress import Progress, duration, several, write
from training import check_data, evaluate
from training.run import Run


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__)
    add = parser.add_argument
    add("--config", help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--workdir", type=cli.directory, help="the run's directory; run the same command to resume")
    add(
        "--evaluate",
        type=cli.directory,
        metavar="WORKDIR",
        help="instead of training: evaluate a run's best checkpoint (so far, if it was "
        "interrupted) on its validation split, and on its test split if it has one; writes "
        "WORKDIR/evaluation.json, and WORKDIR/parameters.npz, which numpy.load reads "
        "(params/stem/conv/kernel, ...); with --config=FILE if a file of your own adds the run's "
        "workload or network",
    )
    add(
        "--check-data",
        action="store_true",
        help="instead of training: read and decode every example of the splits, and list those "
        "that cannot be",
    )
    tracking.add_flags(parser)
    add(
        "--profile",
        type=tracking.steps_to_profile,
        metavar="START:STOP",
        help="trace these steps, without STOP, into WORKDIR/profile, for TensorBoard or Perfetto",
    )
    arguments, overrides = cli.parse(parser, argv)
    names = {word.partition("=")[0] for word in argv if word.startswith("--")}
    flags = {name for name in names if not name.startswith("--config.")}
    needed, allowed = {"--config", "--workdir"}, flags
    if arguments.evaluate:
        needed, allowed = {"--evaluate"}, {"--evaluate", "--config"}
    elif arguments.check_data:
        needed = allowed = {"--check-data", "--config"}
    if missing := needed - flags:
        parser.error(f"give {', '.join(sorted(missing))}")
    if others := flags - allowed:
        parser.error(f"omit {', '.join(sorted(others))}: nothing is trained")
    return arguments, overrides


@processes.fixed_settings()
def train(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    progress: Progress | None = None,
    *,
    locked: bool = False,
    on_step: Callable[[int], None] | None = None,
    tools: tracking.Tools | None = None,
) -> dict[str, Any]:
    """Trains `config` in `workdir`, from the start or from the last checkpoint.

    Args:
        config: a resolved configuration (see configs/base.py).
        workdir: the run's directory; created if it does not exist.
        progress: displays the progress; None for none.
        locked: whether the caller holds the directory's lock.
        on_step: called with the number of steps taken, after each of them.
        tools: trackers, a profile, a mirror; None for TensorBoard alone.

    Returns:
        The content of WORKDIR/result.json.

    Raises:
        InputError: wrong input, or a directory in use. Nothing has been written.
        OSError, ValueError: a path cannot be used, or a disk is full; the run can be resumed from
            its last checkpoint. `runs.cli.explained` says so in a sentence.
    """
    workdir, progress = pathlib.Path(workdir), progress or Progress(quiet=True)
    workdirs.check_place(workdir, config, "--workdir")
    if tools and (url := tools.mirror) and not locked:  # of a trial, the study checks it
        processes.decided_by_first(lambda: mirror.check(url, workdir))
    with signals.stop_requested() as stop:
        run = Run(
            config, workdir, progress, interrupt=stop, locked=locked, on_step=on_step, tools=tools
        )
        with contextlib.closing(run):
            for remark in remarks(config.dataset) if not (locked or run.result) else ():
                progress.say(remark)  # of a trial, the study says them
            # Each step: evaluate -> target? -> save -> next(batch) -> step -> log.
            while run.step(stop=stop()):
                pass
    assert run.result is not None  # it has ended
    return run.result


def main(argv: Sequence[str], on_step: Callable[[int], None] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments, overrides = parse(argv)
    if arguments.evaluate:
        if arguments.config:
            cli.load_module(arguments.config)  # it may add the run's workload or network
        return _evaluate(arguments.evaluate, overrides)
    config, _ = cli.load_config(arguments.config, overrides)
    if arguments.check_data:
        return check_data.check_data(config, write)
    processes.initialize()
    progress = Progress(quiet=not processes.is_first())
    before = records.intact_result(arguments.workdir)
    tools = tracking.Tools(arguments.tracker, arguments.profile, arguments.mirror)
    result = train(config, arguments.workdir, progress, on_step=on_step, tools=tools)
    if result["status"] == "failed" and not processes.is_first():
        write(f"process {jax.process_index()}: {result['error']}", sys.stderr)
    already = "already finished: " if result == before else ""
    progress.say(already + _summary(result, arguments.workdir))
    if result["status"] != "failed":  # perhaps in this process only
        processes.gather(None)  # waits for all, however long process 0 writes files
    return cli.EXIT_CODES[result["status"]]


def _evaluate(workdir: pathlib.Path, overrides: Sequence[str]) -> int:
    processes.initialize()
    evaluation = evaluate.evaluate(workdir, overrides)
    if processes.is_first():
        fresh, status = several(evaluation["fresh_examples"], "fresh example"), evaluation["status"]
        ended = status in records.FINISHED
        so_far = "" if ended else f"; the best so far, since the run is {status}"
        write(f"step {evaluation['step']:,}, {fresh}{so_far}")
        for split, values in evaluation["splits"].items():
            texts = (f"{name} {_number(value)}" for name, value in values.items())
            write(f"{split}: {', '.join(texts)}")
    return cli.OK


def _summary(result: dict[str, Any], workdir: pathlib.Path) -> str:
    best = result["best"]
    line = (
        f"{result['status']}: {several(result['fresh_examples'], 'fresh example')}, "
        f"{several(result['step'], 'step')}, {duration(result['train_seconds'])} of training; "
        f"best {best['metric']} {_number(best['value'])}; see {workdir}"
    )
    if any(skipped := [result.get(name, 0) for name in records.SKIPPED]):
        line += (
            f"\nskipped, since damaged: {skipped[0]:,} training, {skipped[1]:,} validation examples"
        )
    return f"{line}\nerror: {result['error']}" if "error" in result else line


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
