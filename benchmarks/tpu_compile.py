"""The shipped full-size programs, compiled for TPUs that this machine does not have.

    python -m benchmarks.tpu_compile --out=out/tpu_compile.md         40 minutes of CPU time
    python -m benchmarks.tpu_compile --cases=cifar10,lm1b-tensor      minutes

The package libtpu contains the compiler for TPUs, which needs none: it compiles ahead of time for a
described topology. Nothing runs. Data are shapes, and all numbers come from the optimized programs.
A finished case stays in --cache and is compiled again only if its program or a version has changed,
so an interrupted command continues where it stopped.
"""

import argparse
import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

import workloads
from benchmarks import common, hlo, step_time
from echo import device
from runs import records
from training import check, optimizer, sharding
from training import step as steps


@dataclasses.dataclass(frozen=True)
class Chips:
    """A slice of TPUs and, per chip, what Google's documentation gives.

    Attributes:
        topology: its name for libtpu.
        flops: peak bfloat16 FLOP/s.
        memory: bytes per second of main memory.
        links: bytes per second of all links to other chips.
        clock: cycles per second; None where it is not known.
    """

    topology: str
    flops: float
    memory: float
    links: float
    clock: float | None = None


CHIPS = {
    # Four matrix units of 128 x 128 products per cycle, which gives the clock.
    "v5e-8": Chips("v5e:2x4", 197e12, 819e9, 200e9, 197e12 / (4 * 2 * 128**2)),
    "v6e-16": Chips("v6e:4x4", 918e12, 1600e9, 400e9),
}

# There is no TPU here, so no cloud to ask about it, and nothing to lock.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


VERSIONS = ("jax", "libtpu")


@dataclasses.dataclass(frozen=True)
class Case:
    """A program to compile.

    Attributes:
        workload: a key of step_time.CONFIGS.
        chips: a key of CHIPS.
        size: 'full' or 'mini'.
        program: 'step', or 'place' or 'gather' of the store on the devices.
        fields: other values of the configuration.
    """

    workload: str
    chips: str = "v5e-8"
    size: str = "full"
    program: str = "step"
    fields: tuple[tuple[str, Any], ...] = ()


def _case(workload: str, chips: str = "v5e-8", program: str = "step", **fields: Any) -> Case:
    named = {name.replace("__", "."): value for name, value in fields.items()}
    return Case(workload, chips, program=program, fields=tuple(named.items()))


_TENSOR = {"sharding": "tensor", "mesh__model": 2}
_STORED = {
    "echo__insertion": "before_augmentation",
    "echo__placement": "device",
    "echo__streams": 8,
    "echo__factor": 4,
    "echo__shuffle_buffer": 10_000,
}
CASES = {
    "cifar10": _case("cifar10"),
    "imagenet-place": _case("imagenet", program="place", **_STORED),
    "imagenet-gather": _case("imagenet", program="gather", **_STORED),
    "lm1b-tensor": _case("lm1b", **_TENSOR),
    "lm1b": _case("lm1b"),
    "lm1b-fsdp": _case("lm1b", sharding="fsdp"),
    "lm1b-v6e-16": _case("lm1b", "v6e-16", batch_size=4096),
    "common_crawl": _case("common_crawl"),
    "common_crawl-fsdp": _case("common_crawl", sharding="fsdp"),
    "common_crawl-tensor": _case("common_crawl", **_TENSOR),
    "vit": _case("vit"),
    "vit-fsdp": _case("vit", sharding="fsdp"),
    "imagenet": _case("imagenet"),
    "imagenet-fsdp": _case("imagenet", sharding="fsdp"),
    "imagenet-augment": _case("imagenet", augment_on="device"),
    "coco": _case("coco"),
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What is kept of a compiled case, beside the text of its program.

    Attributes:
        key: of the program and the versions that it was compiled from.
        memory: bytes of a chip.
        model_flops: of the program as written, per chip; 0 without convolutions and products.
        xla_bytes: the compiler's own count of the bytes moved.
        cpu_seconds: CPU time of the compilation.
        error: why it does not compile; '' if it does.
    """

    key: str
    memory: int = 0
    model_flops: float = 0.0
    xla_bytes: float = 0.0
    cpu_seconds: float = 0.0
    error: str = ""


# --- programs


def mesh_of(chips: str, model: int) -> Mesh:
    """A mesh of described devices, of which none is attached."""
    with mock.patch.dict(os.environ, ENVIRONMENT):
        topology = topologies.get_topology_desc(CHIPS[chips].topology, platform="tpu")
    devices = topology.devices
    return jax.make_mesh(
        (len(devices) // model, model),
        ("data", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )


def configuration(case: Case, data_devices: int) -> ConfigDict:
    """The shipped configuration in bfloat16, with ghost batches that fit a device's rows."""
    config = step_time.configuration(case.workload, case.size, 0)
    config = common.overridden(config, dict(case.fields) | {"dtype": "bfloat16"})
    if group := config.model.ghost_batch_size:
        share = config.batch_size // data_devices
        config.model.ghost_batch_size = math.gcd(group, share)
    check.check_devices(config, data_devices)
    return config


def lowered(case: Case) -> tuple[Any, float]:
    """The program of a case for its chips, not compiled yet, and its model FLOPs per chip."""
    mesh = mesh_of(case.chips, dict(case.fields).get("mesh.model", 1))
    if case.program != "step":
        config = configuration(case, mesh.shape["data"])
        return store_program(case.program, config, mesh), 0.0
    task, inputs = step(case, mesh)
    flops = step_time.model_flops(*step(case, sharding.make_mesh(1, 1))) / mesh.size
    return steps.Program(task).lower_train(*inputs), flops


def step(case: Case, mesh: Mesh) -> tuple[steps.Task, tuple]:
    """A training step and its arguments, as shapes with shardings. One device shards nothing."""
    config = configuration(case, mesh.shape["data"])
    info = step_time.data_set(case.workload, case.size, config)
    augments = config.augment_on == "device"
    choice = config.sharding if mesh.size > 1 else "replicated"
    workload = workloads.make(config, info)
    task = steps.Task(workload, config.optimizer.name, augments, mesh, choice)
    data = decoded_batch(config) if augments else augmented_batch(config, info)

    program, split = steps.Program(task), sharding.over_data(mesh)
    state = jax.tree.map(_placed, program.state_shapes, program.state_shardings)
    numbers = jax.ShapeDtypeStruct((config.batch_size,), np.uint32)
    rows = jax.tree.map(lambda x: _placed(x, split), (data, numbers, numbers))
    return task, (state, rows, optimizer.hyperparameters(config, 0.0), np.uint32(0))


def augmented_batch(config: ConfigDict, info: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch in the form that augmentation returns."""
    one = common.overridden(config, {"batch_size": 1})
    return {
        name: jax.ShapeDtypeStruct((config.batch_size, *x.shape[1:]), x.dtype)
        for name, x in step_time.random_batch(one, info).items()
    }


def decoded_batch(config: ConfigDict) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch of photographs before augmentation."""
    rows, canvas = config.batch_size, config.dataset.canvas
    return {
        "image": jax.ShapeDtypeStruct((rows, canvas, canvas, 3), np.uint8),
        "size": jax.ShapeDtypeStruct((rows, 2), np.int32),
        "label": jax.ShapeDtypeStruct((rows,), np.int32),
    }


def store_program(name: str, config: ConfigDict, mesh: Mesh) -> Any:
    """*place* or *gather* of the store of decoded examples that a process keeps on its chips, with
    one stream per chip (docs/device.md)."""
    chips, local = mesh.shape["data"], mesh.local_mesh
    streams, outputs = local.shape["data"], config.batch_size // chips
    item = {k: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for k, x in decoded_batch(config).items()}
    capacity = config.echo.shuffle_buffer // chips + outputs
    entering = math.ceil(outputs / config.echo.factor)
    store = device.DeviceStore(item, capacity, entering, streams=streams, mesh=local)
    split = sharding.over_data(local)

    def leaf(*shape: int, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((streams, *shape), dtype, sharding=split)

    stored = {k: leaf(capacity, *device._in_row(x.shape), dtype=x.dtype) for k, x in item.items()}
    if name == "gather":
        return store._gather.lower(stored, leaf(outputs))
    items = {k: leaf(entering, *x.shape, dtype=x.dtype) for k, x in item.items()}
    return store._place.lower(stored, items, leaf(entering), None)


def _placed(x: Any, to: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to)


# --- compiling


def compile_case(name: str, case: Case, cache: pathlib.Path) -> None:
    """Compiles a case unless the cache has it, or has that it does not compile."""
    program, model_flops = lowered(case)
    versions = [importlib.metadata.version(package) for package in VERSIONS]
    key = hashlib.sha256("\n".join([program.as_text(), *versions]).encode()).hexdigest()
    kept = cache / f"{name}.json"
    if kept.exists() and records.read_json(kept)["key"] == key:
        common.progress(f"{name}: compiled before")
        return
    common.progress(f"{name}: compiling")
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        compiled = program.compile()
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        common.progress(f"{name}: does not compile: {reason}")
        records.write_json(kept, dataclasses.asdict(Compiled(key, error=reason[:400])))
        return
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    common.progress(f"{name}: compiled in {seconds:,.0f} s")
    found = Compiled(
        key=key,
        memory=step_time.memory_bytes(compiled),
        model_flops=model_flops,
        xla_bytes=compiled.cost_analysis().get("bytes accessed", 0.0),
        cpu_seconds=cpu_seconds,
    )
    records.write_bytes(cache / f"{name}.hlo.gz", gzip.compress(compiled.as_text().encode()))
    records.write_json(kept, dataclasses.asdict(found))  # last: the case is finished


def load(name: str, cache: pathlib.Path) -> tuple[Compiled, hlo.Counts | None]:
    """A finished case, and what its program does if it compiled."""
    stored = records.read_json(cache / f"{name}.json")  # of an older version, with more fields
    compiled = Compiled(
        **{field.name: stored[field.name] for field in dataclasses.fields(Compiled)}
    )
    if compiled.error:
        return compiled, None
    text = gzip.decompress((cache / f"{name}.hlo.gz").read_bytes()).decode()
    return compiled, hlo.counts(text)


# --- report

SUMMARY = (
    "program",
    "GB of memory",
    "TFLOP as written",
    "compiled",
    "GB moved",
    "by XLA's count",
    "padding",
    "ms for FLOPs",
    "for memory",
    "for links",
    "compiler's estimate, ms",
    "compiled in s",
)

METHOD = """All numbers are those of one chip and one run of the program.

* *Memory* holds arguments, results, and temporaries.
* *TFLOP as written* is XLA's count before optimization (benchmarks/step_time.py). *Compiled* counts
  convolutions and matrix products of the optimized program, in a loop as often as it runs.
* *GB moved*: every instruction of the optimized program reads its operands from main memory and
  writes its results to it, a fusion once, a loop's instructions as often as it runs, in padded
  sizes. What lies in a memory on the chip is free; of an operand that is only sliced, the slices
  count. *XLA's count* includes what stays on the chip, and takes loops once.
* *Padding* is the padded over the logical size of the bytes moved, less 1. A TPU stores arrays in
  tiles, mostly of 8 x 128 elements.
* *ms* are the least that each resource needs at its peak; the largest, in bold, is the time at the
  roofline. For links, each group of chips is a ring that uses all links of a chip.
* The *compiler's estimate* is the sum over its instructions, without communication.
* *Compiled in* is CPU time."""


def summary_row(name: str, case: Case, compiled: Compiled, counts: hlo.Counts) -> list[str]:
    """The numbers of a case, for one chip and one run of its program."""
    seconds = roofline(case, counts)
    slowest = max(seconds, key=lambda resource: seconds[resource])
    padding = counts.padded_bytes / max(counts.bytes, 1) - 1
    times = [
        f"**{value * 1e3:.3g}**" if resource == slowest else f"{value * 1e3:.3g}"
        for resource, value in seconds.items()
    ]
    return [
        name,
        f"{compiled.memory / 1e9:.3g}",
        f"{compiled.model_flops / 1e12:.3g}" if compiled.model_flops else "-",
        f"{counts.flops / 1e12:.3g}" if counts.flops else "-",
        f"{counts.padded_bytes / 1e9:.3g}",
        f"{compiled.xla_bytes / 1e9:.3g}",
        f"{padding:.0%}",
        *times,
        f"{counts.cycles / clock * 1e3:.3g}" if (clock := CHIPS[case.chips].clock) else "-",
        f"{compiled.cpu_seconds:,.0f}",
    ]


def roofline(case: Case, counts: hlo.Counts) -> dict[str, float]:
    """The least seconds that each resource of a chip needs."""
    chips = CHIPS[case.chips]
    sent = sum(collective.sent * times for collective, times in counts.collectives.items())
    return {
        "FLOPs": counts.flops / chips.flops,
        "bytes": counts.padded_bytes / chips.memory,
        "links": sent / chips.links,
    }


COLLECTIVES = ("program", "kind", "chips of a group", "number", "MB", "largest, MB")


def collective_rows(name: str, counts: hlo.Counts) -> list[list[str]]:
    """For each kind and size of group: how many, how large in total, and the largest."""
    rows = []
    groups = sorted({(c.kind, c.group) for c in counts.collectives})
    for kind, group in groups:
        alike = {
            c: times
            for c, times in counts.collectives.items()
            if (c.kind, c.group) == (kind, group)
        }
        total = sum(collective.bytes * times for collective, times in alike.items())
        largest = max(collective.bytes for collective in alike)
        numbers = (f"{sum(alike.values()):,}", f"{total / 1e6:,.3g}", f"{largest / 1e6:,.3g}")
        rows.append([name, kind, str(group), *numbers])
    return rows


PADDING = ("program", "array", "accesses", "padded / logical", "GB of padding")


def padding_rows(name: str, counts: hlo.Counts, most: int = 2) -> list[list[str]]:
    """The arrays whose padding moves the most bytes."""

    def wasted(array: hlo.Array) -> int:
        return (array.padded_bytes - array.bytes) * counts.touched[array]

    worst = sorted(counts.touched, key=wasted, reverse=True)[:most]
    return [
        [
            name,
            f"`{array}`",
            f"{counts.touched[array]:,}",
            f"{array.padded_bytes / array.bytes:.3g}",
            f"{wasted(array) / 1e9:.3g}",
        ]
        for array in worst
        if wasted(array) > 0.01 * counts.padded_bytes
    ]


def report(cases: Sequence[str], cache: pathlib.Path) -> str:
    """The report as Markdown, of cases that are finished."""
    summary, collectives, padding, failed = [], [], [], []
    for name in cases:
        compiled, counts = load(name, cache)
        if counts is None:
            failed.append(f"`{name}` does not compile: {compiled.error}")
            continue
        summary.append(summary_row(name, CASES[name], compiled, counts))
        collectives += collective_rows(name, counts)
        padding += padding_rows(name, counts)
    chips = "; ".join(
        f"{name}: {c.flops / 1e12:g} TFLOP/s, {c.memory / 1e9:g} GB/s, links {c.links / 1e9:g} GB/s"
        for name, c in CHIPS.items()
    )
    sections = [
        "# Full-size programs, compiled for TPUs",
        f"Nothing ran. Peaks of a chip: {chips}. Compiled on {common.machine(VERSIONS)}",
        METHOD,
        common.markdown_table(SUMMARY, summary),
        *failed,
        "## Communication",
        common.markdown_table(COLLECTIVES, collectives),
        "## Padding",
        "The arrays whose padding moves most.",
        common.markdown_table(PADDING, padding),
    ]
    return "\n\n".join(sections)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = common.arguments(__spec__.name, __doc__)
    common.add_list(made, "--cases", common.one_of(CASES), ",".join(CASES))
    made.add_argument(
        "--cache",
        type=pathlib.Path,
        default=pathlib.Path("out/tpu_compile"),
        metavar="DIR",
        help="where finished cases are kept (default: %(default)s)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(argv)
    if not importlib.util.find_spec("libtpu"):
        made.error(f"libtpu is not installed; run: pip install 'jax[tpu]=={jax.__version__}'")
    jax.config.update("jax_platforms", "cpu")
    options.cache.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        compile_case(name, CASES[name], options.cache)
    common.publish(report(options.cases, options.cache), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
