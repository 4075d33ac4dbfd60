"""Advises whether, where, and how much to echo, from measurements of a configuration.

    python advise.py --config=configs/cifar10.py:mini
    python advise.py --config=configs/imagenet.py --plot=advice.png
    python advise.py --config=configs/lm1b.py --pilot=DIR

It reads and decodes real examples and runs real training steps, about a second per stage. Without
--pilot it writes the plot and, like training, caches of the data (the vocabulary and piece counts
of text, Arrow files of Parquet, copies of a bucket), in dataset.cache_dir or next to the data.

R is the time that the input takes for a batch of fresh examples, divided by the time of a step. If
R is above 1, the step waits for its input, and echoing by a factor of up to R costs no time.
`echo.advise` does the same for your own pipeline.

How much a repeat is worth depends on the training run. --pilot finds out: it trains with your
hyperparameters at a few factors, for as short a time as possible, and forecasts the fresh examples
and seconds to the target for every factor. Run the same command again to continue.
"""

if __name__ == "__main__":  # before slow imports, so that Ctrl-C is handled during them
    from runs import signals

    signals.install(signals.end_at_once)

import argparse
import contextlib
import copy
import dataclasses
import logging
import math
import pathlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from configs import base
from runs import cli


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__, base.FIELDS)
    add = parser.add_argument
    add("--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--plot", metavar="FILE", help="also draw the predictions (.png, .pdf, .svg)")
    add("--seconds", type=float, default=1.0, help="seconds per stage, approximately (default 1)")
    add("--pilot", type=cli.directory, metavar="DIR", help="train short pilots in DIR, see above")
    add(
        "--pilot-limit",
        type=float,
        metavar="RUNS",
        help="limit on the training time of all pilots together, in multiples of one run without "
        "echoing (default 1)",
    )
    add("--pilot-seeds", type=int, metavar="N", help="pilots (seeds) per factor (default 2)")
    arguments, overrides = cli.parse(parser, argv)
    cli.config_file(arguments.config)
    if not 0 < arguments.seconds <= 3600:
        raise cli.InputError(
            f"--seconds is {arguments.seconds:g}; allowed: a number above 0, to 3600"
        )
    for name, default in (("pilot_limit", 1.0), ("pilot_seeds", 2)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif not arguments.pilot:
            raise cli.InputError(f"--{name.replace('_', '-')} is given without --pilot=DIR; add it")
    if not 0 < arguments.pilot_limit <= 100:
        raise cli.InputError(
            f"--pilot-limit is {arguments.pilot_limit:g}; allowed: a number above 0, to 100"
        )
    if not 1 <= arguments.pilot_seeds <= 100:
        raise cli.InputError(f"--pilot-seeds is {arguments.pilot_seeds}; allowed: 1 to 100")
    if arguments.plot:
        _check_plot(pathlib.Path(arguments.plot))
    return arguments, overrides


def _check_plot(plot_file: pathlib.Path) -> None:
    """Raises InputError if the plot cannot be written; changes nothing."""
    if plot_file.suffix not in (".png", ".pdf", ".svg"):
        raise cli.InputError(
            f"--plot is {plot_file}; allowed: a file that ends in .png, .pdf or .svg"
        )
    if not plot_file.absolute().parent.is_dir():
        raise cli.InputError(
            f"--plot is {plot_file}, in a directory that does not exist; create it first"
        )
    try:
        if plot_file.exists():
            plot_file.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=plot_file.absolute().parent).close()
    except OSError as error:
        raise cli.InputError(
            f"--plot is {plot_file} ({error.strerror}); give a file that can be written"
        ) from error


if __name__ == "__main__":
    cli.answer_early(parse)

import jax
import numpy as np
from ml_collections import ConfigDict

import echo
import train
from data.sources import RecordError, UpstreamError
from echo import threads
from echo.advice import forecast
from echo.advice.alternatives import time_text
from echo.advice.recommend import FACTORS, Advice
from pipeline import accounting, build
from pipeline.map_datasets import CHUNK, CORES, Batch
from pipeline.streams import concatenate
from runs import distributed, signals, terminal, workdirs
from runs.progress import Progress
from studies import pilots
from training import check, memory, optimizer
from training.experiment import Experiment, make_experiment
from training.step import Program
from training.transfer import Transfer

# The insertion points of an echo stage, and the stage before each.
STAGE_BEFORE = {
    "before_augmentation": "decode",
    "after_augmentation": "augment",
    "after_batching": "batch",
}


def advise(config: ConfigDict, seconds: float = 1.0, factors: Sequence[float] = FACTORS) -> Advice:
    """Measures the pipeline and the step of `config`, regardless of its echo settings.

    Args:
        config: a resolved configuration.
        seconds: how long to measure each stage, approximately.
        factors: echo factors to predict.

    Raises:
        cli.InputError: a configuration that cannot be run.
    """
    check.check(config)
    opened = make_experiment(without_echoing(config))
    try:
        with memory.exhaustion_explained(config, opened.program.task.mesh):
            transfer, step = step_functions(config, opened.program)
            return measured(config, opened, transfer, step, seconds, factors)
    except (RecordError, UpstreamError) as error:
        raise cli.InputError(str(error)) from error


def without_echoing(config: ConfigDict) -> ConfigDict:
    """A copy in which nothing is echoed, so that the step augments if the devices do."""
    config = copy.deepcopy(config)
    config.update_from_flattened_dict(pilots.WITHOUT_ECHOING)
    return config


def measured(
    config: ConfigDict,
    opened: Experiment,
    transfer: Callable[[Batch], Any],
    step: Callable[[Any], Any],
    seconds: float,
    factors: Sequence[float] = FACTORS,
) -> Advice:
    """The advice for an opened run, with any transfer and step."""
    advice = echo.advise(
        [*host_stages(config, opened), ("transfer", transfer)],
        step,
        batch_size=config.batch_size,
        examples_per_call=math.gcd(CHUNK, config.batch_size),
        insertions=allowed_insertions(config),
        factors=factors,
        shuffle_buffer=buffer_examples(config),
        workers=CORES,
        max_workers=CORES,  # which the input pipeline runs; no field changes it
        seconds=seconds,
        stored=lambda batch: batch.data,
    )
    return dataclasses.replace(advice, steps=0)  # of a state that no one uses afterwards


def host_stages(config: ConfigDict, opened: Experiment) -> list[tuple[str, Callable[[Any], Any]]]:
    """The stages of pipeline/build.py without echoing, and batching."""
    config, workload = without_echoing(config), opened.program.task.workload
    read = build.fresh_examples(config, opened.source, workload)
    chunk = math.gcd(CHUNK, config.batch_size)
    augment = build.host_augmentation(config, workload, opened.first)

    def numbered(call: int) -> Batch:
        return read.read(read.first_copy(None, range(call * chunk, (call + 1) * chunk)))

    return [
        ("read", numbered),
        ("decode", read.decode),
        ("augment", augment),
        ("batch", concatenate),
    ]


def step_functions(config: ConfigDict, program: Program) -> tuple[Callable, Callable]:
    """(transfer, step): sends a batch to the devices, and trains on it there."""
    seed, hyper = np.uint32(config.seed.data), optimizer.hyperparameters(config, 0.0)
    state = pending = None

    def step(rows: Any) -> None:
        """Like training: fetches the metrics of a step while the next one runs."""
        nonlocal state, pending
        state = program.init(config.seed.model) if state is None else state
        before, arguments = pending, (state, rows, hyper, seed)
        state, pending = program.compile_train(*arguments)(*arguments)
        # The first step takes many times as long as the others; it belongs to the first call.
        jax.device_get(pending if before is None else before)

    return Transfer(program.task.mesh).put, step


def allowed_insertions(config: ConfigDict) -> dict[str, str]:
    """The insertion points that this configuration may use, and the stage before each."""
    allowed = {}
    for name, stage in STAGE_BEFORE.items():
        with contextlib.suppress(check.ConfigError):
            check.check_insertion(config, name)
            allowed[name] = stage
    if not allowed:
        raise cli.InputError(
            "config.dataset.fused_decode is true with config.augment_on='device' and "
            "config.echo.placement='host', where nothing may be echoed; change one of the three"
        )
    return allowed


def buffer_examples(config: ConfigDict) -> int:
    """Examples in the shuffle buffer; in the one that is recommended if there is none."""
    unit = _buffer_unit(config, config.echo.insertion)
    return accounting.shuffle_buffer(config) * unit or (
        pilots.DEFAULT_BUFFER_BATCHES * config.batch_size
    )


def _buffer_unit(config: ConfigDict, insertion: str | None) -> int:
    """Examples in a slot of the shuffle buffer."""
    return config.batch_size if insertion == "after_batching" else 1


def settings(config: ConfigDict, advice: Advice) -> list[str]:
    """The flags that make `config` follow `advice`, and the flags of its alternatives."""
    if advice.insertion is None:
        return []
    lines = [f"In flags: {_flags(config, _echoing(config, advice)) or 'as configured'}"]
    if advice.movable == "augment":
        flags = _flags(config, {"augment_on": "device"} | pilots.WITHOUT_ECHOING)
        lines.append(f"Or with augmentation on the accelerator: {flags}")
    if "before_augmentation" not in allowed_insertions(config):
        lines += [
            f"With {flag}, echoing before augmentation, where copies differ, is allowed as well."
            for flag in _enabling_flags(config)
        ]
    return lines


def _echoing(config: ConfigDict, advice: Advice) -> dict[str, Any]:
    """The fields of the recommended echoing; under `auto` it sets the maximum factor."""
    fields: dict[str, Any] = {"dataset.spaced_epochs": 1, "echo.insertion": advice.insertion}
    if config.echo.policy == "auto":
        if config.echo.max_factor:  # 0 follows from the batch size and the augmentation
            fields["echo.max_factor"] = max(config.echo.max_factor, math.ceil(advice.factor))
    else:
        fields["echo.factor"] = float(advice.factor)
    if config.echo.policy == "fixed" or config.echo.shuffle_buffer:  # auto has a default
        fields["echo.shuffle_buffer"] = _buffer_slots(config, advice.insertion)
    return fields


def _buffer_slots(config: ConfigDict, insertion: str | None) -> int:
    """The slots of a shuffle buffer at `insertion` that holds `buffer_examples`."""
    return max(1, buffer_examples(config) // _buffer_unit(config, insertion))


def _enabling_flags(config: ConfigDict) -> list[str]:
    """Flags each of which alone allows echoing before augmentation."""
    flags = []
    for field, value in (
        ("dataset.fused_decode", False),
        ("augment_on", "device"),
        ("echo.placement", "host"),
    ):
        changed = copy.deepcopy(config)
        cli.set_field(changed, field, value, base.FIELDS)
        with contextlib.suppress(check.ConfigError):
            check.check_insertion(changed, "before_augmentation")
            flags.append(_flags(config, {field: value}))
    return flags


def _flags(config: ConfigDict, fields: dict[str, Any]) -> str:
    """The flags that set those `fields` that differ in `config`; 4.0 is written 4."""
    return " ".join(
        f"--config.{field}={value}".removesuffix(".0")
        for field, value in fields.items()
        if cli.get_field(config, field) != value
    )


def _piloted(config: ConfigDict, insertion: str, existing_buffer: int = 0) -> ConfigDict:
    """The configuration of pilots at an insertion point, with a shuffle buffer: that of `config`,
    or else that of existing pilots."""
    has_buffer = accounting.shuffle_buffer(config) > 0
    slots = (
        existing_buffer if existing_buffer and not has_buffer else _buffer_slots(config, insertion)
    )
    config = copy.deepcopy(config)
    if config.echo.insertion == "none":
        config.dataset.spaced_epochs, config.echo.insertion = 1, insertion
    config.echo.shuffle_buffer = slots
    return config


def continued(config: ConfigDict, arguments: argparse.Namespace) -> ConfigDict:
    """The configuration that continues the pilots in --pilot; `config` itself if there are none.

    Where `config` echoes nowhere, it follows the pilots that exist: another measurement could
    recommend another insertion point.

    Raises:
        cli.InputError: they are pilots of another configuration.
    """
    existing = pilots.recorded(arguments.pilot)
    echoing = [there["echo"] for (factor, _), there in existing.items() if factor > 1]
    if not echoing:
        return config
    there = echoing[0]
    if config.echo.insertion != "none":
        used = _piloted(config, config.echo.insertion)
    elif there["insertion"] in STAGE_BEFORE:
        used = _piloted(config, there["insertion"], there["shuffle_buffer"])
        unit = "batches" if used.echo.insertion == "after_batching" else "examples"
        Progress().say(
            f"echoing {used.echo.insertion.replace('_', ' ')} with a shuffle buffer of "
            f"{used.echo.shuffle_buffer:,} {unit}, like the pilots in {arguments.pilot}"
        )
    else:
        return config
    pilots.check_same(used, arguments.pilot, arguments.pilot_seeds)
    return used


def run_pilots(
    config: ConfigDict, advice: Advice, arguments: argparse.Namespace, progress: Progress
) -> tuple[ConfigDict, pilots.Answer] | None:
    """The configuration of the pilots, and the answer that follows from them; None if echoing
    cannot help.

    The pilots echo where the configuration does, or else where the advice recommends it.

    Raises:
        cli.InputError: pilots that cannot be run.
        train.Preempted: the process was asked to stop.
    """
    insertion = config.echo.insertion if config.echo.insertion != "none" else advice.insertion
    if insertion is None:
        return None
    config = _piloted(config, insertion)
    points = {point.name: point for point in advice.points}
    if config.echo.insertion not in points:
        check.check_insertion(config, config.echo.insertion)
    point = points[config.echo.insertion]
    return config, pilots.Pilots(
        config,
        point.step_seconds,
        point.ratio,
        arguments.pilot,
        arguments.pilot_seeds,
        arguments.pilot_limit,
        progress,
    ).run()


class _LastMessage(logging.Handler):
    """Keeps the last message, with which echo.advise names what it measures."""

    text = "preparing to measure"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


@contextlib.contextmanager
def _measurement_shown() -> Iterator[None]:
    """Displays what echo.advise measures, from a thread, since one call may take minutes."""
    log, last, over = logging.getLogger("echo.advice"), _LastMessage(), threading.Event()
    progress = Progress()

    def show(_: int) -> None:
        while not over.wait(1.0):
            progress.update(last.text)

    log.addHandler(last)
    log.setLevel(logging.INFO)
    log.propagate = False  # the display replaces lines of a log
    try:
        with threads.running(show, 1):
            try:
                yield
            finally:
                over.set()
    finally:
        progress.close()
        log.removeHandler(last)
        log.setLevel(logging.NOTSET)
        log.propagate = True


def plot(advice: Advice, path: pathlib.Path) -> None:
    """Plots the predicted steps per second over the factor, for each insertion point."""
    from analysis.figures import style  # which imports pandas

    style.styled(_drawn)(advice, style).savefig(path, dpi=150)


def _drawn(advice: Advice, style: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for number, point in enumerate(advice.points):
        factors, seconds = zip(*point.step_seconds.items(), strict=True)
        axes.plot(
            factors,
            [1 / s for s in seconds],
            color=style.COLORS[point.name],
            marker="o",
            markersize=8 - 2.5 * number,  # so that coinciding lines stay visible
            linewidth=4.5 - 1.5 * number,
            label=f"{point.name.replace('_', ' ')}, R = {point.ratio:.2f}",
        )
    step = advice.timing.step.seconds * advice.timing.batch_size
    label = f"the step alone, {time_text(step)}"
    axes.axhline(1 / step, color=style.QUIET, linestyle=style.DOTTED, label=label)
    axes.set(xlabel="echo factor e", ylabel="predicted steps per second", ylim=(0, None))
    style.legend_below(figure, axes)
    return figure


def main(argv: Sequence[str]) -> int:
    arguments, overrides = parse(argv)
    config, _ = cli.load_config(arguments.config, overrides, base.FIELDS)
    distributed.check_devices()
    if arguments.pilot:  # before the minute that measuring takes
        pilots.target_loss(config)
        workdirs.check_apart(arguments.pilot, config, "--pilot")
        pilots.check_directory(arguments.pilot)
    used = continued(config, arguments) if arguments.pilot else config
    with _measurement_shown():
        advice = advise(used, arguments.seconds, forecast.FACTORS if arguments.pilot else FACTORS)
    flags = [] if arguments.pilot else settings(config, advice)
    terminal.write("\n\n".join(map(str, (advice, *flags))))
    if arguments.plot:
        plot(advice, pathlib.Path(arguments.plot))
    return _report_pilots(config, used, advice, arguments) if arguments.pilot else cli.OK


def _report_pilots(
    config: ConfigDict, used: ConfigDict, advice: Advice, arguments: argparse.Namespace
) -> int:
    """Runs the pilots of `used`, and prints the flags that make `config` follow them."""
    progress = Progress()
    try:
        result = run_pilots(used, advice, arguments, progress)
    except train.Preempted:
        progress.say(f"stopped; run the same command again to continue in {arguments.pilot}")
        return cli.PREEMPTED
    finally:
        progress.close()
    if result is None:
        terminal.write("\nNo pilots were run, since echoing would not help here.")
        return cli.OK
    used, answer = result
    names = ("dataset.spaced_epochs", "echo.insertion", "echo.shuffle_buffer")
    fields = {name: cli.get_field(used, name) for name in names}
    factor = answer.forecast.factor
    if factor == 1:
        fields |= pilots.WITHOUT_ECHOING
    else:
        name = "echo.max_factor" if config.echo.policy == "auto" else "echo.factor"
        fields[name] = type(cli.get_field(config, name))(factor)
        fields["evaluate_every_fresh_examples"] = pilots.cadence(used, factor)
    flags = _flags(config, fields)
    terminal.write(f"\n{answer}\n\nIn flags: {flags or 'as configured'}")
    return cli.OK


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
