"""The shipped full-size programs, compiled for TPUs that this machine does not have.

    python -m benchmarks.tpu                                  40 minutes of CPU time
    python -m benchmarks.tpu --cases=cifar10,lm1b-tensor      minutes

The package libtpu contains the compiler for TPUs, which needs none: it compiles ahead of time for a
described topology. Nothing runs, and data are shapes.
"""

import collections
import importlib.util
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

import workloads
from benchmarks import common
from benchmarks import step as step_time
from training import check, optimizer, sharding
from training import step as steps


class Chips(NamedTuple):
    """A slice of TPUs by its name for libtpu; per chip, what Google's documentation gives: the peak
    bfloat16 FLOP/s, and bytes per second of main memory."""

    topology: str
    flops: float
    memory: float


CHIPS = {
    "v5e-8": Chips("v5e:2x4", 197e12, 819e9),
    "v6e-16": Chips("v6e:4x4", 918e12, 1600e9),
}

# There is no TPU here, so no cloud to ask about it, and nothing to lock.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


class Case(NamedTuple):
    """A program to compile: a key of CONFIGS in benchmarks/step.py, one of CHIPS, and other values
    of fields."""

    workload: str
    chips: str = "v5e-8"
    fields: dict[str, Any] = {}  # noqa: RUF012


_TENSOR, _FSDP = {"sharding": "tensor", "mesh.model": 2}, {"sharding": "fsdp"}
CASES = {
    "cifar10": Case("cifar10"),
    "lm1b-tensor": Case("lm1b", fields=_TENSOR),
    "lm1b": Case("lm1b"),
    "lm1b-fsdp": Case("lm1b", fields=_FSDP),
    "lm1b-v6e-16": Case("lm1b", "v6e-16", {"batch_size": 4096}),
    "common_crawl": Case("common_crawl"),
    "common_crawl-fsdp": Case("common_crawl", fields=_FSDP),
    "common_crawl-tensor": Case("common_crawl", fields=_TENSOR),
    "vit": Case("vit"),
    "vit-fsdp": Case("vit", fields=_FSDP),
    "imagenet": Case("imagenet"),
    "imagenet-fsdp": Case("imagenet", fields=_FSDP),
    "imagenet-augment": Case("imagenet", fields={"augment_on": "device"}),
    "coco": Case("coco"),
}


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
    config = step_time.configuration(case.workload, "full", 0)
    config = common.overridden(config, case.fields | {"dtype": "bfloat16"})
    if group := config.model.ghost_batch_size:
        share = config.batch_size // data_devices
        config.model.ghost_batch_size = math.gcd(group, share)
    check.check_devices(config, data_devices)
    return config


def lowered(case: Case) -> tuple[Any, float]:
    """The program of a case for its chips, not compiled yet, and its model FLOPs per chip."""
    mesh = mesh_of(case.chips, case.fields.get("mesh.model", 1))
    task, inputs = step(case, mesh)
    flops = step_time.model_flops(*step(case, sharding.make_mesh(1, 1))) / mesh.size
    return steps.Program(task).train.lower(*inputs), flops


def step(case: Case, mesh: Mesh) -> tuple[steps.Task, tuple]:
    """A training step and its arguments, as shapes with shardings. One device shards nothing."""
    config = configuration(case, mesh.shape["data"])
    info = step_time.data_set(case.workload, "full", config)
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


def _placed(x: Any, to: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to)


# --- report

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
SUMMARY = ("program", "GB of memory", "TFLOP as written", "GB moved", "ms for FLOPs", "for memory")
SUMMARY += ("collectives", "compiled in s")

METHOD = """All numbers are those of one chip and one step.

* *Memory* holds arguments, results, and temporaries.
* *TFLOP as written* is XLA's count before optimization (benchmarks/step.py).
* *GB moved* is XLA's count for the optimized program. It takes loops once, and includes what stays
  in a memory on the chip.
* *ms* are the least that each resource needs at its peak.
* *Collectives* are those in the text of the optimized program, in which a loop is written once.
* *Compiled in* is CPU time."""


def collectives(text: str) -> str:
    """The communications in a program, by kind: "2 all-gather, 1 all-reduce"."""
    counts = collections.Counter(_COLLECTIVE.findall(text))
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "-"


def compiled_row(name: str, case: Case) -> list[str]:
    """Compiles a case; its row of the table."""
    program, flops = lowered(case)
    common.progress(f"{name}: compiling")
    start = time.process_time()
    compiled = program.compile()
    cpu_seconds = time.process_time() - start
    moved, chips = compiled.cost_analysis().get("bytes accessed", 0.0), CHIPS[case.chips]
    row = [
        name,
        f"{step_time.memory_bytes(compiled) / 1e9:.3g}",
        f"{flops / 1e12:.3g}",
        f"{moved / 1e9:.3g}",
        f"{1e3 * flops / chips.flops:.3g}",
        f"{1e3 * moved / chips.memory:.3g}",
        collectives(compiled.as_text()),
        f"{cpu_seconds:,.0f}",
    ]
    common.progress(", ".join(row))
    return row


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.bare_parser(__spec__.name, __doc__)
    common.add_list(parser, "--cases", common.one_of(CASES), ",".join(CASES))
    options = parser.parse_args(argv)
    if not importlib.util.find_spec("libtpu"):
        parser.error(f"libtpu is not installed; run: pip install 'jax[tpu]=={jax.__version__}'")
    jax.config.update("jax_platforms", "cpu")
    rows = [compiled_row(name, CASES[name]) for name in options.cases]
    chips = "; ".join(
        f"{name}: {chip.flops / 1e12:g} TFLOP/s, {chip.memory / 1e9:g} GB/s"
        for name, chip in CHIPS.items()
    )
    text = [
        "# Full-size programs, compiled for TPUs",
        f"Nothing ran. Peaks of a chip: {chips}. Compiled on {common.machine(('jax', 'libtpu'))}",
        METHOD,
        common.markdown_table(SUMMARY, rows),
    ]
    print("\n\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
