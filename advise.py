"""Advises whether, where, and how much to echo, from measurements of a configuration.

    python advise.py --config=configs/cifar10.py:mini

It reads and decodes real examples and runs real training steps, about a second per stage. Like
training, it writes caches of the data.

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
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from configs import catalog
from echo.advice import inputs, recommend
from echo.advice.recommend import Advice
from echo.threads import usable_cores
from pipeline import accounting, build
from pipeline.map_datasets import CHUNK, CORES, Batch
from pipeline.streams import concatenate
from runs import cli, processes, signals
from runs.progress import write
from runs.records import nested
from training import check, optimizer
from training.experiment import Experiment, OpenData, make_experiment, open_data
from training.sharding import Transfer
from training.step import Program

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


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__)
    add = parser.add_argument
    add("--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--seconds", type=float, default=1.0, help="seconds per stage, approximately (default 1)")
    arguments, overrides = cli.parse(parser, argv)
    if not 0 < arguments.seconds <= 3600:
        raise cli.InputError(
            f"--seconds is {arguments.seconds:g}; allowed: a number above 0, to 3600"
        )
    return arguments, overrides


def advise(config: ConfigDict, seconds: float = 1.0, data: OpenData | None = None) -> Advice:
    """Measures the pipeline and the step of `config`, regardless of its echo settings.

    Args:
        config: a resolved configuration.
        seconds: how long to measure each stage, approximately.
        data: the result of `open_data`, if it has been called already.

    Raises:
        cli.InputError: a configuration that cannot be run.
    """
    data = data or open_data(config)
    opened = make_experiment(without_echoing(config), data)
    transfer, step = step_functions(config, opened.program)
    processes = build.chosen_workers(config, data[-1])
    source = inputs.Input(
        [*host_stages(config, opened), ("transfer", transfer)],
        config.batch_size,
        examples_per_call=math.gcd(CHUNK, config.batch_size),
        insertions=allowed_insertions(config),
        workers=processes or CORES,
        max_workers=processes or CORES,
        processes=processes > 0,
    )
    return recommend.measured(source, step, usable_cores(), seconds)


def without_echoing(config: ConfigDict) -> ConfigDict:
    """A copy in which nothing is echoed, so that the step augments if the devices do; it starts no
    worker processes."""
    config = copy.deepcopy(config)
    config.update_from_flattened_dict(WITHOUT_ECHOING | {"loader.workers": 0})
    return config


def host_stages(config: ConfigDict, opened: Experiment) -> list[tuple[str, Callable[[Any], Any]]]:
    """The stages of pipeline/build.py without echoing, and batching."""
    config, workload = without_echoing(config), opened.program.task.workload
    examples = build.examples_of(config, opened.source, workload)
    chunk = math.gcd(CHUNK, config.batch_size)
    augment = build.host_augmentation(config, workload, opened.first)

    def numbered(call: int) -> Batch:
        return examples.read(examples.rows(range(call * chunk, (call + 1) * chunk)))

    return [
        ("read", numbered),
        ("decode", examples.decode),
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
        state, pending = program.compile("train", program.train, arguments)(*arguments)
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
    """Examples in the shuffle buffer, or in the one that is recommended if there is none."""
    unit = config.batch_size if config.echo.insertion == "after_batching" else 1
    return accounting.shuffle_buffer(config) * unit or DEFAULT_BUFFER_BATCHES * config.batch_size


def flags(config: ConfigDict, advice: Advice) -> str:
    """The flags that make `config` follow `advice`, where that is to echo."""
    fields: dict[str, Any] = {"dataset.spaced_epochs": 1, "echo.insertion": advice.insertion}
    if config.echo.policy == "fixed":
        fields["echo.factor"] = float(advice.factor)
    elif config.echo.max_factor:  # 0 follows from the batch size and the augmentation
        fields["echo.max_factor"] = max(config.echo.max_factor, math.ceil(advice.factor))
    if config.echo.policy == "fixed" or config.echo.shuffle_buffer:  # auto has a default
        unit = config.batch_size if advice.insertion == "after_batching" else 1
        fields["echo.shuffle_buffer"] = max(1, buffer_examples(config) // unit)
    changed = {field: value for field, value in fields.items() if nested(config, field) != value}
    words = [f"--config.{field}={value}".removesuffix(".0") for field, value in changed.items()]
    return " ".join(words)


def main(argv: Sequence[str]) -> int:
    arguments, overrides = parse(argv)
    config, _ = cli.load_config(arguments.config, overrides)
    processes.check_devices()
    log = logging.getLogger("echo.advice")  # names what is measured, for one call may take minutes
    log.handlers, log.propagate = [logging.StreamHandler()], False
    log.setLevel(logging.INFO)
    data = open_data(config)
    advice = advise(config, arguments.seconds, data)
    workers = f"Workers are {advice.workers} threads"
    if build.chosen_workers(config, data[-1]):
        workers = f"Workers are {advice.workers} processes, of which one was measured"
    parts = [str(advice), f"{workers} (config.loader.workers).", advice.tables]
    if advice.insertion:
        parts.insert(1, f"In flags: {flags(config, advice) or 'as configured'}")
    write("\n\n".join(parts))
    return cli.OK


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
