"""Advises whether, where, and how much to echo, from measurements of a configuration.

    python advise.py --config=configs/cifar10.py:mini
    python advise.py --config=configs/imagenet.py --plot=advice.png

It reads and decodes real examples and runs real training steps, about a second per stage. It
writes the plot and, like training, caches of the data (the vocabulary and piece counts of text,
Arrow files of Parquet, copies of a bucket), in dataset.cache_dir or next to the data.

R is the time that the input takes for a batch of fresh examples, divided by the time of a step. If
R is above 1, the step waits for its input, and echoing by a factor of up to R costs no time.
`echo.advise` does the same for your own pipeline.
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

from configs import base, catalog
from runs import cli


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__, base.FIELDS)
    add = parser.add_argument
    add("--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--plot", metavar="FILE", help="also draw the predictions (.png, .pdf, .svg)")
    add("--seconds", type=float, default=1.0, help="seconds per stage, approximately (default 1)")
    arguments, overrides = cli.parse(parser, argv)
    if not 0 < arguments.seconds <= 3600:
        raise cli.InputError(
            f"--seconds is {arguments.seconds:g}; allowed: a number above 0, to 3600"
        )
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
from data.sources import RecordError, UpstreamError
from echo import threads
from echo.advice.alternatives import time_text
from echo.advice.recommend import FACTORS, Advice
from pipeline import accounting, build
from pipeline.map_datasets import CHUNK, CORES, Batch
from pipeline.streams import concatenate
from runs import processes, signals
from runs.progress import Progress, write
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

# Batches that the shuffle buffer holds if the configuration has none: without one, all copies of an
# example are in the same batch.
DEFAULT_BUFFER_BATCHES = 4

# A factor of 1 with a shuffle buffer would still fill the buffer, and only auto may replay.
WITHOUT_ECHOING = catalog.BASELINE["baseline"] | {"echo.policy": "fixed", "echo.replay": ""}


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
    config.update_from_flattened_dict(WITHOUT_ECHOING)
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
    return accounting.shuffle_buffer(config) * unit or (DEFAULT_BUFFER_BATCHES * config.batch_size)


def _buffer_unit(config: ConfigDict, insertion: str | None) -> int:
    """Examples in a slot of the shuffle buffer."""
    return config.batch_size if insertion == "after_batching" else 1


def settings(config: ConfigDict, advice: Advice) -> list[str]:
    """The flags that make `config` follow `advice`, and the flags of its alternatives."""
    if advice.insertion is None:
        return []
    lines = [f"In flags: {_flags(config, _echoing(config, advice)) or 'as configured'}"]
    if advice.movable == "augment":
        flags = _flags(config, {"augment_on": "device"} | WITHOUT_ECHOING)
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
        cli.set_field(changed, field, value)
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
    config, _ = cli.load_config(arguments.config, overrides)
    processes.check_devices()
    with _measurement_shown():
        advice = advise(config, arguments.seconds)
    write("\n\n".join(map(str, (advice, *settings(config, advice)))))
    if arguments.plot:
        plot(advice, pathlib.Path(arguments.plot))
    return cli.OK


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
