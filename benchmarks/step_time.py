"""Speed of the training step of every workload, beside PyTorch's on the same device.

    python -m benchmarks.step_time --out=results/step_time.md     a GPU or TPU: full size, bfloat16
    python -m benchmarks.step_time --size=mini --quick            a CPU: minutes, or seconds

Random batches of the right shapes lie on the device, augmented already; a step is the one that
train.py takes: forward, backward, optimizer. It needs jax, flax, optax and ml-collections alone.
Where PyTorch is installed, the same networks (ResNets, Transformers) take turns with ours there, as
one would write them: channels last, mixed precision, on a GPU `torch.compile`. Two differences
remain: PyTorch's batch norm is over the whole batch (ours over ghost batches, as configured), and
its loss holds all logits at once.

Model FLOPs are those of the step as written, by XLA's count before it optimizes: products and
convolutions done again to save memory do not count. Utilisation is their rate over the device's
peak for dense bfloat16 products.
"""

import argparse
import dataclasses
import importlib.util
import math
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

# Two frameworks share the device, so neither may take all of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np

import workloads
from benchmarks import common
from configs import cifar10, coco, common_crawl, imagenet, lm1b
from training import optimizer, sharding
from training import step as steps
from workloads import language

CONFIGS = {
    "cifar10": cifar10,
    "imagenet": imagenet,
    "lm1b": lm1b,
    "common_crawl": common_crawl,
    "coco": coco,
}

# What a data set would tell: classes, image shape. Full size, mini.
CLASSES = {"cifar10": (10, 10), "imagenet": (1000, 10), "coco": (80, 10)}
SMALL_IMAGES = {"full": (32, 32, 3), "mini": (8, 8, 1)}

# Dense bfloat16 FLOP/s of a device, from the makers' data sheets, by the start of its kind's name.
# A TPU v2 or v3 "device" is a core, half a chip.
PEAKS = {
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


@dataclasses.dataclass
class Side:
    """One framework's step, ready to run.

    Attributes:
        step: dispatches a step.
        wait: returns when all that was dispatched is done.
        gigabytes: of device memory in the step, None where it is not told.
    """

    step: Callable[[], None]
    wait: Callable[[], None]
    gigabytes: float | None


def configuration(name: str, size: str, batch_size: int):
    """The shipped configuration, on a CPU in float32, elsewhere in bfloat16."""
    config = CONFIGS[name].get_config("mini" if size == "mini" else "")
    config.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config.batch_size = batch_size or config.batch_size
    group = config.model.ghost_batch_size
    config.model.ghost_batch_size = math.gcd(group, config.batch_size) if group else 0
    return config


def data_set(name: str, size: str, config) -> types.SimpleNamespace:
    """What the workload has to know of a data set, for want of one."""
    classes = CLASSES.get(name, (None, None))[size == "mini"]
    return types.SimpleNamespace(
        name=name,
        num_classes=classes,
        image_shape=SMALL_IMAGES[size],
        channels=3,
        has_boxes=name == "coco",
        vocabulary_size=config.dataset.vocabulary_size,
    )


def random_batch(config, info) -> dict[str, np.ndarray]:
    """A batch as augmentation leaves it."""
    rng, rows = np.random.default_rng(0), config.batch_size
    if config.dataset.text:
        shape = (rows, config.dataset.sequence_length + 1)
        return {"tokens": rng.integers(4, info.vocabulary_size, shape, np.int32)}
    side = config.augmentation.crop_size
    shape = info.image_shape if config.workload == "cifar10" else (side, side, info.channels)
    images = {"image": rng.integers(0, 256, (rows, *shape), np.uint8)}
    if not info.has_boxes:
        return images | {"label": rng.integers(0, info.num_classes, rows, np.int32)}
    objects = min(7, config.dataset.max_boxes)  # COCO's images have seven in the mean
    low, sides = rng.uniform(0, 0.5, (rows, objects, 2)), rng.uniform(0.05, 0.5, (rows, objects, 2))
    missing = ((0, 0), (0, config.dataset.max_boxes - objects))
    labels = rng.integers(0, info.num_classes, (rows, objects), np.int32)
    return images | {
        "boxes": np.pad(np.concatenate([low, low + sides], -1), (*missing, (0, 0))).astype("f4"),
        "labels": np.pad(labels, missing, constant_values=-1),
        "bad_boxes": np.zeros(rows, np.int32),
    }


def ours(config, info, batch: dict[str, np.ndarray]) -> tuple[Side, float]:
    """Our step, and its model FLOPs."""
    mesh = sharding.make_mesh(1, 1)
    task = steps.Task(workloads.make(config, info), config.optimizer.name, False, mesh)
    program, zeros = steps.Program(task), np.zeros(config.batch_size, np.uint32)
    rows = sharding.put_batch(mesh, (batch, zeros, zeros))
    hyper = optimizer.hyperparameters(config, 0.0)
    held = [program.init(0), None]
    compiled = program.compile_train(held[0], rows, hyper, np.uint32(0))

    def step():
        held[:] = compiled(held[0], rows, hyper, np.uint32(0))

    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes
    total += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    flops = model_flops(task, (held[0], rows, hyper, np.uint32(0)))
    return Side(step, lambda: jax.block_until_ready(held), total / 1e9), flops


def model_flops(task: steps.Task, arguments: Any) -> float:
    """FLOPs of a step as written."""
    # With all logits at once: XLA counts the body of a loop once, however often it runs.
    with mock.patch.object(language, "LOGITS_BYTES", 2**60):
        return steps.Program(task).lower_train(*arguments).cost_analysis()["flops"]


def pytorch(config, info, batch: dict[str, np.ndarray]) -> Side | None:
    """The same network in PyTorch, where that is installed and the network is written."""
    if config.workload == "coco" or not importlib.util.find_spec("torch"):
        return None
    from benchmarks import step_time_torch

    return Side(*step_time_torch.prepare(config, info, batch))


def measure(side: Side, items: int, seconds: float) -> Callable[[], float]:
    """What measures items a second; runs the step first, so that it is compiled and its time known.

    Steps are waited for in bursts, so that the device never idles between two.
    """
    for _ in range(2):
        start = time.perf_counter()
        side.step()
        side.wait()
    burst = max(1, round(seconds / 4 / (time.perf_counter() - start)))

    def items_per_second() -> float:
        count, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            for _ in range(burst):
                side.step()
            side.wait()
            count += burst
        return count * items / elapsed

    return items_per_second


def row(name: str, arguments) -> list[str]:
    """One workload's row of the table."""
    common.progress(f"{name}: compiling")
    config = configuration(name, arguments.size, arguments.batch_size)
    info = data_set(name, arguments.size, config)
    batch = random_batch(config, info)
    side, flops = ours(config, info, batch)
    sides = {"ours": side, "torch": pytorch(config, info, batch)}
    items = config.batch_size * (config.dataset.sequence_length if config.dataset.text else 1)
    found = common.interleaved(
        {k: measure(s, items, arguments.seconds) for k, s in sides.items() if s}, arguments.rounds
    )
    speed, theirs = found["ours"], found.get("torch")
    peak, rate = peak_flops(jax.devices()[0].device_kind), flops * speed.median / items
    return [
        f"{name}, batch {config.batch_size}",
        f"{_spread(speed)} {'tokens' if config.dataset.text else 'images'}",
        _spread(theirs) if theirs else "-",
        f"{speed.median / theirs.median:.2f}" if theirs else "-",
        f"{items / speed.median * 1e3:,.1f}",
        f"{side.gigabytes:.3g}",
        f"{sides['torch'].gigabytes:.3g}" if theirs and sides["torch"].gigabytes else "-",
        f"{rate / 1e12:.3g}",
        f"{rate / peak:.1%}" if peak else "-",
    ]


def peak_flops(kind: str) -> float | None:
    """Peak FLOP/s by jax.Device.device_kind; None for what is not in the table, as all CPUs."""
    known = [name for name in PEAKS if kind.startswith(name)]
    return PEAKS[max(known, key=len)] if known else None


def _spread(spread: common.Spread) -> str:
    return f"{spread.median:,.0f} ({spread.low:,.0f} to {spread.high:,.0f})"


def report(arguments) -> str:
    """The whole comparison as Markdown."""
    kind = jax.devices()[0].device_kind
    header = ["workload", "ours, a second", "PyTorch", "ours / PyTorch", "ms a step", "GB"]
    header += ["GB, PyTorch", "model TFLOP/s", "of the peak"]
    table = common.markdown_table(header, [row(name, arguments) for name in arguments.workloads])
    peak = peak_flops(kind)
    peak_note = f"{peak / 1e12:,.0f} TFLOP/s" if peak else "not known for it"
    notes = [
        f"One {kind}, {arguments.size} size, {'bfloat16' if _accelerated() else 'float32'}; peak: "
        f"{peak_note}. Median (smallest to largest) of {arguments.rounds} rounds of "
        f"{arguments.seconds:g} s in turns. {common.machine(['jax', 'flax', 'torch'])}",
    ]
    if not importlib.util.find_spec("torch"):
        notes.append("PyTorch is not installed here, so it is left out.")
    elif not _accelerated():
        notes.append("PyTorch runs without torch.compile here.")
    return "\n\n".join([*notes, table]) + "\n"


def _accelerated() -> bool:
    return jax.default_backend() != "cpu"


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """The command line of a benchmark that measures steps."""
    parser = common.arguments(name, about)
    parser.add_argument("--workloads", default=",".join(CONFIGS), help="default: %(default)s")
    parser.add_argument("--size", choices=("full", "mini"), help="default: mini on a CPU")
    parser.add_argument("--batch_size", type=int, default=0, help="0 = the configuration's")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--seconds", type=float, default=2.0, help="a side and round")
    parser.add_argument("--quick", action="store_true", help="one short round, to see it work")
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Its arguments, checked."""
    arguments = parser.parse_args(argv)
    arguments.size = arguments.size or ("full" if _accelerated() else "mini")
    arguments.workloads = arguments.workloads.split(",")
    for name in arguments.workloads:
        if name not in CONFIGS:
            parser.error(f"--workloads has {name!r}; allowed: {', '.join(CONFIGS)}")
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 0.1
    for field, value in (("rounds", arguments.rounds), ("seconds", arguments.seconds)):
        if value <= 0:
            parser.error(f"--{field} is {value}; allowed: a number above 0")
    return arguments


def main(argv=None) -> int:
    arguments = parsed(parser("step_time", __doc__), argv)
    common.publish(report(arguments), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
