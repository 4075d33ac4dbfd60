"""Speed of the training step of every workload, beside PyTorch.

    python -m benchmarks.step                        a GPU or TPU: full size, bfloat16
    python -m benchmarks.step --size=mini --quick    a CPU: minutes, or seconds

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
    **{"cifar10": cifar10, "imagenet": imagenet, "vit": vit, "coco": coco},
    **{"lm1b": lm1b, "common_crawl": common_crawl},
}

# Properties of the data sets, which are not opened: (full size, mini).
NUM_CLASSES = {"cifar10": (10, 10), "imagenet": (1000, 10), "vit": (1000, 10), "coco": (80, 10)}
SMALL_IMAGES = {"full": (32, 32, 3), "mini": (8, 8, 1)}

# Peak dense bfloat16 FLOP/s by the start of jax.Device.device_kind, from the vendors' data sheets.
# A TPU v2 or v3 "device" is a core, half a chip.
PEAKS = {
    **{"NVIDIA B200": 2250e12, "NVIDIA H200": 989e12, "NVIDIA H100 PCIe": 756e12},
    **{"NVIDIA H100": 989e12, "NVIDIA A100": 312e12, "NVIDIA L40S": 362e12, "NVIDIA L4": 121e12},
    **{"TPU v2": 22.5e12, "TPU v3": 61.5e12, "TPU v4": 275e12, "TPU v5 lite": 197e12},
    **{"TPU v5": 459e12, "TPU v6 lite": 918e12},
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


# --- PyTorch


def torch_side(config: ConfigDict, info: Any, batch: dict[str, np.ndarray]) -> Side | None:
    """The PyTorch step; None if PyTorch is not installed or has no such network here."""
    only_ours = config.workload == "coco" or config.model.name == "vit"
    if only_ours or not importlib.util.find_spec("torch"):
        return None
    import torch  # pyright: ignore[reportMissingImports]

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True  # all shapes are constant; XLA tunes convolutions, too
    torch.manual_seed(0)
    network, is_text = _torch_network(config, info).to(device), bool(config.dataset.text)
    if not is_text:
        network = network.to(memory_format=torch.channels_last)
    run = torch.compile(network) if device.type == "cuda" else network
    arrays = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
    decay = config.optimizer.weight_decay
    options = {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "weight_decay": decay}
    sgd = torch.optim.SGD(network.parameters(), **options)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")

    def step():
        sgd.zero_grad(set_to_none=True)
        with mixed:
            if is_text:
                tokens_BxT = arrays["tokens"].long()
                outputs, labels = run(tokens_BxT[:, :-1]).flatten(0, 1), tokens_BxT[:, 1:].flatten()
            else:
                images_BxCxHxW = arrays["image"].permute(0, 3, 1, 2)  # a view, channels last
                outputs, labels = run((images_BxCxHxW.float() - 127.5) / 64), arrays["label"].long()
            loss = torch.nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        sgd.step()

    if device.type != "cuda":
        return Side(step, lambda: None, None)
    for _ in range(2):  # the first compiles, and tries algorithms, whose memory does not count
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
    return Side(step, torch.cuda.synchronize, torch.cuda.max_memory_allocated() / 1e9)


def _torch_network(config: ConfigDict, info: Any) -> Any:
    """A ResNet, or a Transformer that shares its embedding with the output, of equal sizes."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    class Sum(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.parts = nn.ModuleList([first, second])

        def forward(self, x):
            return self.parts[0](x) + self.parts[1](x)

    class Attention(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.heads, self.out = heads, nn.Linear(dim, dim, bias=False)
            self.qkv = nn.Linear(dim, 3 * dim, bias=False)

        def forward(self, x_BxLxD):
            qkv = self.qkv(x_BxLxD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y_BxNxLxH = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
            return self.out(y_BxNxLxH.transpose(1, 2).flatten(2))

    class Transformer(nn.Module):
        def __init__(self, vocabulary_size, length, sizes):
            super().__init__()
            dim, mlp = sizes.dim, sizes.mlp_dim
            self.embed = nn.Embedding(vocabulary_size, dim)
            nn.init.normal_(self.embed.weight, std=dim**-0.5)
            self.register_buffer("positions_LxD", torch.randn(length, dim))
            layers = []
            for _ in range(sizes.layers):
                mlps = nn.Linear(dim, mlp), nn.ReLU(), nn.Linear(mlp, dim)
                for part in ([Attention(dim, sizes.heads)], mlps):
                    normed = nn.Sequential(nn.LayerNorm(dim), *part)
                    layers.append(Sum(nn.Identity(), normed))
            self.layers = nn.Sequential(*layers, nn.LayerNorm(dim))

        def forward(self, tokens_BxL):
            x_BxLxD = self.embed(tokens_BxL) * self.embed.embedding_dim**0.5 + self.positions_LxD
            return nn.functional.linear(self.layers(x_BxLxD), self.embed.weight)

    def conv_norm(inputs, outputs, kernel=3, stride=1):
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))

    model, small = config.model, config.workload == "cifar10"
    if config.dataset.text:
        return Transformer(info.vocabulary_size, config.dataset.sequence_length, model)
    plain, stem = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}, not small and model.stem
    kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
    channels = info.image_shape[-1] if small else info.channels
    layers = [conv_norm(channels, model.width, kernel, stride), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, 1)] * (stem == "imagenet")
    inputs, outputs = model.width, 0
    for stage, blocks in enumerate(((model.depth - 2) // 6,) * 3 if small else plain[model.depth]):
        width = model.width * 2**stage
        for number in range(blocks):
            stride = 2 if stage and number == 0 else 1
            if not small and model.depth == 50:  # the stride is in the 3x3 convolution
                outputs = 4 * width
                sizes = [(inputs, width, 1), (width, width, 3, stride), (width, outputs, 1)]
            else:
                outputs = width
                sizes = [(inputs, width, 3, stride), (width, width)]
            body = [part for size in sizes for part in (conv_norm(*size), nn.ReLU())][:-1]
            same = stride == 1 and inputs == outputs
            shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
            layers += [Sum(nn.Sequential(*body), shortcut), nn.ReLU()]
            inputs = outputs
    head = nn.Linear(inputs, info.num_classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


# --- measuring, and the table


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
    print(report(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
