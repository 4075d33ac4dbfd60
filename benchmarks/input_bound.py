"""Training steps per second of ResNet-50 whose input is decoding JPEGs, with and without echoing.

    python -m benchmarks.input_bound --cores=16,4 --out=results/input_bound.md   a GPU: 10 minutes
    python -m benchmarks.input_bound --size=mini --quick                         a smoke run

Nothing slows the upstream here but its own work: files of 640 x 480 pixels (64 x 64 with
--size=mini) are read, decoded, and augmented by as many cores as --cores says, while the device
steps. "batches in memory" is the same loop on the same cores without reading. Before augmentation,
whole canvases are decoded; without echoing and elsewhere, only the crops are kept
(dataset.fused_decode). Every condition runs once per round, in an order that is shuffled for each;
prefill, compilation, and the first steps are not measured.

Steps per second are not time to a target: a repeated example is worth less than a fresh one.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import cv2
import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common, input_throughput, real_step
from configs import catalog, imagenet
from echo.threads import usable_cores

FACTOR = 4
BUFFER_BATCHES = 4
CLASSES = 10
STORED, NONE = "batches in memory", "no echoing"
PACKAGES = ("jax", "flax", "grain", "simplejpeg", "opencv-python-headless")
_NETWORKS = {"full": "ResNet-50", "mini": "a narrow ResNet-18"}
_AUTO_WARM_UP_STEPS = 100  # `auto` goes by the last 33
_MINI_PIXELS = 64  # per side of the files of the smoke run


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    size: str = "full"
    files: int = 1024
    batch_size: int = 256
    steps: int = 40  # per condition and round
    rounds: int = 3


QUICK = Plan(size="mini", files=80, batch_size=16, steps=20, rounds=1)


def conditions(plan: Plan) -> dict[str, dict[str, Any]]:
    """Fields of the configuration by condition."""
    buffer = BUFFER_BATCHES * plan.batch_size
    crops = {"dataset.fused_decode": True}
    before = catalog.echo("before_augmentation", float(FACTOR), buffer)
    on_device = {"augment_on": "device"}
    stored_there = {**on_device, "echo.placement": "device"}
    return {
        STORED: crops,
        NONE: crops,
        f"e = {FACTOR} after batching": crops | catalog.echo("after_batching", float(FACTOR), 0),
        f"e = {FACTOR} after augmentation": crops
        | catalog.echo("after_augmentation", float(FACTOR), buffer),
        f"e = {FACTOR} before augmentation, on the host": before,
        "... augmented on the device": before | on_device,
        "... stored and augmented on the device": before | stored_there,
        "auto, stored and augmented on the device": catalog.auto(16, 2 * buffer) | stored_there,
    }


def configuration(plan: Plan, data: str, fields: dict[str, Any]) -> ConfigDict:
    """The shipped configuration on the files in `data`, for a run that does not end by itself."""
    config = imagenet.get_config("mini" if plan.size == "mini" else "")
    config.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config.dataset.name = f"folder:{data}"
    config.dataset.train_split = "train"
    config.dataset.validation_split = "validation"
    config.dataset.test_split = ""
    config.batch_size = plan.batch_size
    config.target.value = 2.0
    config.budget.fresh_examples = config.evaluate_every_fresh_examples = 10**8
    config.checkpoint_every_fresh_examples = 0
    config.log_every_steps = 1  # for the number of fresh examples
    return common.overridden(config, fields)


def write_files(plan: Plan, root: pathlib.Path) -> None:
    """Writes photographs made by benchmarks.input_throughput to `root`/SPLIT/CLASS/NUMBER.jpg."""
    import simplejpeg

    for number in range(plan.files + CLASSES):
        split = "train" if number < plan.files else "validation"
        path = root / split / f"{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = input_throughput.made_photograph(number)
        if plan.size == "mini":
            pixels = simplejpeg.decode_jpeg(encoded)
            pixels = cv2.resize(pixels, (_MINI_PIXELS, _MINI_PIXELS))
            encoded = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90)
        path.write_bytes(encoded)


Round = dict[str, real_step.Speed]  # by condition


@contextlib.contextmanager
def on_cores(number: int) -> Iterator[None]:
    """Lets processes that start meanwhile run on the first `number` usable cores only: they count
    their cores when they import, and so do JAX and Grain."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure(plan: Plan, data: str, cores: int) -> tuple[str, list[Round]]:
    """The device, and the rounds on the `cores` cores that this process may use."""

    def speed(name: str) -> real_step.Speed:
        config = configuration(plan, data, fields[name])
        auto = config.echo.policy == "auto"
        return real_step.steady_state(
            config,
            plan.steps,
            stored=name == STORED,
            warm_up=_AUTO_WARM_UP_STEPS if auto else real_step.WARM_UP_STEPS,
            cycle=1 if auto else FACTOR,
        )

    fields = conditions(plan)
    rounds = []
    for number in range(plan.rounds):
        rounds.append(common.in_shuffled_order(fields, speed, number))
        rates = {name: round(run.rate * plan.batch_size) for name, run in rounds[-1].items()}
        common.progress(f"{cores} cores, round {number + 1} of {plan.rounds}: {rates}")
    return jax.devices()[0].device_kind, rounds


def table(plan: Plan, rounds: list[Round]) -> str:
    rows = []
    for name in rounds[0]:
        images = [r[name].rate * plan.batch_size for r in rounds]
        fresh = [r[name].rate * r[name].fresh_examples for r in rounds]
        shares, gains = ([r[name].rate / r[o].rate for r in rounds] for o in (STORED, NONE))
        speed, new, share, gain = (common.Spread(tuple(v)) for v in (images, fresh, shares, gains))
        read = "-" if name == STORED or math.isnan(new.median) else f"{new.median:,.0f}"
        rows.append([name, f"{speed:,.0f}", read, f"{share.median:.2f}", f"{gain:.2f}"])
    header = ["", "images per second", "fresh ones", "of batches in memory", "times no echoing"]
    return common.markdown_table(header, rows)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        files="distinct files",
        batch_size="images per batch",
        steps="steps per condition and round",
        rounds="number of rounds",
    )
    available = usable_cores()
    common.add_list(parser, "--cores", common.number(1, available + 1), f"{available}")
    parser.add_argument(
        "--size", choices=["full", "mini"], help="of the network and the files (default: full)"
    )
    options = parser.parse_args(argv)
    if not hasattr(os, "sched_setaffinity") and options.cores != [available]:
        parser.error(f"--cores: this system runs a process on all of its {available} cores only")
    plan = common.plan(options, Plan(), QUICK)
    parts, device = [], ""
    with tempfile.TemporaryDirectory() as data:
        write_files(plan, pathlib.Path(data))
        for cores in options.cores:
            with on_cores(cores):
                device, rounds = common.in_new_process(measure, plan, data, cores)
            parts += [f"## Cores: {cores}", table(plan, rounds)]
    text = [
        "# Training speed when decoding JPEGs is the bottleneck",
        f"How much faster does {_NETWORKS[plan.size]} step with echoing if the cores cannot decode "
        "as fast as the device trains? Measured by `python -m benchmarks.input_bound` on "
        f"{device}, {common.machine(PACKAGES)}",
        f"Images per second that are trained on, in batches of {plan.batch_size}; median over the "
        f"rounds ({plan.rounds}, each of {plan.steps} steps; smallest to largest). Ratios are "
        f"medians over the rounds. The buffer of e = {FACTOR} holds {BUFFER_BATCHES} batches, that "
        f"of `auto` up to {2 * BUFFER_BATCHES}.",
        *parts,
    ]
    common.publish("\n\n".join(text), options.out)


if __name__ == "__main__":
    main()
