"""Speed of the training step of every workload, beside PyTorch.

    python -m benchmarks.step --out=results/step.md     a GPU or TPU: full size, bfloat16
    python -m benchmarks.step --size=mini --quick       a CPU: minutes, or seconds

Random, already augmented batches lie on the device. The step is that of train.py: forward,
backward, optimizer. It requires only jax, flax, optax, and ml-collections. Where PyTorch is
installed, the same networks (ResNets, language models) run there as well, interleaved with ours and
written idiomatically: channels last, mixed precision, and, on a GPU, `torch.compile` and cuDNN's
choice of the fastest convolutions. Two differences remain: PyTorch's batch norm covers the whole
batch (ours ghost batches, as configured), and its loss holds all logits at once.

Model FLOPs are those of the step as written, as counted by XLA before optimization, so
rematerialized operations do not count. Utilization is their rate over the device's peak for dense
bfloat16 matrix products.
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

# Two frameworks share the device, so neither may preallocate its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from ml_collections import ConfigDict

import workloads
from benchmarks import common
from configs import cifar10, coco, common_crawl, imagenet, lm1b, vit
from training import optimizer, sharding
from training import step as steps
from workloads import language

CONFIGS = {
    "cifar10": cifar10,
    "imagenet": imagenet,
    "vit": vit,
    "lm1b": lm1b,
    "common_crawl": common_crawl,
    "coco": coco,
}

# Properties of the data sets, which are not opened: (full size, mini).
NUM_CLASSES = {"cifar10": (10, 10), "imagenet": (1000, 10), "vit": (1000, 10), "coco": (80, 10)}
SMALL_IMAGES = {"full": (32, 32, 3), "mini": (8, 8, 1)}

# Peak dense bfloat16 FLOP/s by the start of jax.Device.device_kind, from the vendors' data sheets.
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
    """A compiled step of one framework.

    Attributes:
        step: dispatches a step.
        wait: blocks until all dispatched steps are done.
        gigabytes: device memory of the step; None where it is unknown.
    """

    step: Callable[[], None]
    wait: Callable[[], None]
    gigabytes: float | None


def configuration(name: str, size: str, batch_size: int) -> ConfigDict:
    """The shipped configuration, in float32 on a CPU and in bfloat16 elsewhere."""
    config = CONFIGS[name].get_config("mini" if size == "mini" else "")
    config.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config.batch_size = batch_size or config.batch_size
    group = config.model.ghost_batch_size
    config.model.ghost_batch_size = math.gcd(group, config.batch_size) if group else 0
    return config


def data_set(name: str, size: str, config: ConfigDict) -> Any:
    """A stand-in for data.sources.DatasetInfo, because no data set is opened."""
    classes = NUM_CLASSES.get(name, (None, None))[size == "mini"]
    return types.SimpleNamespace(
        name=name,
        num_classes=classes,
        image_shape=SMALL_IMAGES[size],
        channels=3,
        has_boxes=name == "coco",
        object_classes=None,
        vocabulary_size=config.dataset.vocabulary_size,
    )


def random_batch(config: ConfigDict, info: Any) -> dict[str, np.ndarray]:
    """A batch in the form that augmentation returns."""
    rng, rows = np.random.default_rng(0), config.batch_size
    if config.dataset.text:
        shape = (rows, config.dataset.sequence_length + 1)
        return {"tokens": rng.integers(4, info.vocabulary_size, shape, np.int32)}
    side = config.augmentation.crop_size
    shape = info.image_shape if config.workload == "cifar10" else (side, side, info.channels)
    images = {"image": rng.integers(0, 256, (rows, *shape), np.uint8)}
    if not info.has_boxes:
        return images | {"label": rng.integers(0, info.num_classes, rows, np.int32)}
    objects = min(7, config.dataset.max_boxes)  # COCO's images have seven on average
    low, sides = rng.uniform(0, 0.5, (rows, objects, 2)), rng.uniform(0.05, 0.5, (rows, objects, 2))
    missing = ((0, 0), (0, config.dataset.max_boxes - objects))
    labels = rng.integers(0, info.num_classes, (rows, objects), np.int32)
    return images | {
        "boxes": np.pad(np.concatenate([low, low + sides], -1), (*missing, (0, 0))).astype("f4"),
        "labels": np.pad(labels, missing, constant_values=-1),
        "bad_boxes": np.zeros(rows, np.int32),
    }


def jax_side(config: ConfigDict, info: Any, batch: dict[str, np.ndarray]) -> tuple[Side, float]:
    """This project's step, and its model FLOPs."""
    mesh = sharding.make_mesh(1, 1)
    task = steps.Task(workloads.make(config, info), config.optimizer.name, False, mesh)
    program, zeros = steps.Program(task), np.zeros(config.batch_size, np.uint32)
    rows = sharding.put_batch(mesh, (batch, zeros, zeros))
    hyper = optimizer.hyperparameters(config, 0.0)
    held = [program.init(0), None]
    compiled = program.compile("train", program.train, (held[0], rows, hyper, np.uint32(0)))

    def step():
        held[:] = compiled(held[0], rows, hyper, np.uint32(0))

    flops = model_flops(task, (held[0], rows, hyper, np.uint32(0)))
    gigabytes = memory_bytes(compiled) / 1e9
    return Side(step, lambda: jax.block_until_ready(held), gigabytes), flops


def memory_bytes(compiled: Any) -> int:
    """Bytes of a device's memory that a compiled program needs, with its arguments."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return total + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def model_flops(task: steps.Task, arguments: Any) -> float:
    """FLOPs of a step as written."""
    # A CPU counts those of a program that is not compiled. GPUs do not.
    mesh = jax.make_mesh(
        (1, 1),
        task.mesh.axis_names,
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices("cpu")[:1],
    )
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), arguments
    )
    program = steps.Program(dataclasses.replace(task, mesh=mesh))
    # Without the loop over groups of logits: XLA counts the body of a loop only once.
    with mock.patch.object(language, "LOGITS_BYTES", 2**60):
        analysis: Any = program.train.lower(*shapes).cost_analysis()
    return analysis["flops"]


def torch_side(config: ConfigDict, info: Any, batch: dict[str, np.ndarray]) -> Side | None:
    """The PyTorch step; None if PyTorch is not installed or has no such network here."""
    only_ours = config.workload == "coco" or config.model.name == "vit"
    if only_ours or not importlib.util.find_spec("torch"):
        return None
    from benchmarks import step_torch

    return Side(*step_torch.prepare(config, info, batch))


def measure(side: Side, items: int, seconds: float) -> Callable[[], float]:
    """Compiles a side; returns a function that measures its items per second.

    Waits for several steps at once, so that the device does not idle between steps.
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


def peak_flops(kind: str) -> float | None:
    """Peak FLOP/s of a jax.Device.device_kind; None if it is not in the table, like all CPUs."""
    prefixes = [name for name in PEAKS if kind.startswith(name)]
    return PEAKS[max(prefixes, key=len)] if prefixes else None


# --- the table

HEADER = ("workload", "JAX, per second", "PyTorch", "JAX / PyTorch", "ms per step", "GB")
HEADER += ("GB, PyTorch", "model TFLOP/s", "of the peak")


def measured_row(name: str, options: argparse.Namespace) -> list[str]:
    """The table row of one workload."""
    common.progress(f"{name}: compiling")
    config = configuration(name, options.size, options.batch_size)
    info = data_set(name, options.size, config)
    batch = random_batch(config, info)
    ours, flops = jax_side(config, info, batch)
    other = torch_side(config, info, batch)
    items = config.batch_size * (config.dataset.sequence_length if config.dataset.text else 1)
    sides = {"ours": ours} | ({"other": other} if other else {})
    spreads = common.interleaved(
        {key: measure(side, items, options.seconds) for key, side in sides.items()}, options.rounds
    )
    workload = f"{name}, batch {config.batch_size}"
    speed, torch_speed = spreads["ours"], spreads.get("other")
    peak, rate = peak_flops(jax.devices()[0].device_kind), flops * speed.median / items
    return [
        workload,
        f"{speed:,.0f} {'tokens' if config.dataset.text else 'images'}",
        f"{torch_speed:,.0f}" if torch_speed else "-",
        f"{speed.median / torch_speed.median:.2f}" if torch_speed else "-",
        f"{items / speed.median * 1e3:,.1f}",
        f"{ours.gigabytes:.3g}",
        f"{other.gigabytes:.3g}" if other and other.gigabytes else "-",
        f"{rate / 1e12:.3g}",
        f"{rate / peak:.1%}" if peak else "-",
    ]


def report(options: argparse.Namespace) -> str:
    """The report as Markdown."""
    kind = jax.devices()[0].device_kind
    peak = peak_flops(kind)
    rows = [measured_row(name, options) for name in options.workloads]
    without = [] if importlib.util.find_spec("torch") else ["PyTorch is not installed here."]
    return "\n\n".join(
        [
            f"One {kind}, {options.size} size, {'bfloat16' if _accelerated() else 'float32'}; "
            f"peak: {f'{peak / 1e12:,.0f} TFLOP/s' if peak else 'unknown'}. Median (smallest to "
            f"largest) of {options.rounds} interleaved rounds of {options.seconds:g} s. "
            + common.machine(["jax", "flax", "torch"]),
            *without,
            common.markdown_table(HEADER, rows),
        ]
    )


def _accelerated() -> bool:
    return jax.default_backend() != "cpu"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long is measured."""

    rounds: int = 5
    seconds: float = 2.0  # per side and round


QUICK = Plan(rounds=1, seconds=0.1)


def main(argv: Sequence[str] | None = None) -> int:
    rounds, seconds = "number of rounds", "seconds per side and round"
    parser = common.arguments(__spec__.name, __doc__, Plan(), QUICK, rounds=rounds, seconds=seconds)
    common.add_list(parser, "--workloads", common.one_of(CONFIGS), ",".join(CONFIGS))
    parser.add_argument("--size", choices=("full", "mini"), help="default: mini on a CPU")
    about = "0 = the configuration's"
    parser.add_argument("--batch_size", type=common.number(0), default=0, help=about)
    options = parser.parse_args(argv)
    options.size = options.size or ("full" if _accelerated() else "mini")
    vars(options).update(dataclasses.asdict(common.plan(options, Plan(), QUICK)))
    common.publish(report(options), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
