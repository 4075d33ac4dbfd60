"""The shipped full-size programs, compiled for TPUs that this machine does not have.

    python -m benchmarks.tpu --out=out/tpu.md                 40 minutes of CPU time
    python -m benchmarks.tpu --cases=cifar10,lm1b-tensor      minutes

The package libtpu contains the compiler for TPUs, which needs none: it compiles ahead of time for a
described topology. Nothing runs, and data are shapes. Communication is read from the optimized HLO.
"""

import collections
import dataclasses
import importlib.util
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
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
        workload: a key of CONFIGS in benchmarks/step.py.
        chips: a key of CHIPS.
        size: 'full' or 'mini'.
        fields: other values of the configuration.
    """

    workload: str
    chips: str = "v5e-8"
    size: str = "full"
    fields: tuple[tuple[str, Any], ...] = ()


def _case(workload: str, chips: str = "v5e-8", **fields: Any) -> Case:
    named = {name.replace("__", "."): value for name, value in fields.items()}
    return Case(workload, chips, fields=tuple(named.items()))


_TENSOR = {"sharding": "tensor", "mesh__model": 2}
CASES = {
    "cifar10": _case("cifar10"),
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
    task, inputs = step(case, mesh)
    flops = step_time.model_flops(*step(case, sharding.make_mesh(1, 1))) / mesh.size
    return steps.Program(task).train.lower(*inputs), flops


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


def _placed(x: Any, to: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to)


# --- communication, from the text of the optimized HLO

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_CALLERS = ("while", "fusion", "async-start", "call", "conditional")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|condition|body|branch_computations|\w+_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
        opcode: such as 'fusion'.
        bytes: of its result, without padding.
        arguments: the text in its parentheses.
        attributes: the rest of its line.
    """

    opcode: str
    bytes: int
    arguments: str
    attributes: str

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        lists = [many or one for many, one in _CALLED.findall(self.attributes)]
        return [name.strip().lstrip("%") for names in lists for name in names.split(",")]


Computation = dict[str, Instruction]  # by name, in order


@dataclasses.dataclass(frozen=True)
class Collective:
    """A communication between chips.

    Attributes:
        kind: one of COLLECTIVES.
        bytes: of the whole array: what every chip has afterward, or has before a reduce-scatter.
        group: chips that take part together.
    """

    kind: str
    bytes: int
    group: int

    @property
    def sent(self) -> float:
        """Bytes that each chip sends if the group is a ring."""
        if self.kind == "collective-permute":
            return self.bytes
        return self.bytes * (self.group - 1) / self.group * (2 if self.kind == "all-reduce" else 1)


def counts(text: str) -> tuple[collections.Counter[Collective], int]:
    """How often each communication of a program happens, and the compiler's estimate of the cycles
    of everything else. The body of a loop that does not say how often it runs counts once."""
    computations, entry = parse(text)
    cycles, chains = 0, set()
    collectives: collections.Counter[Collective] = collections.Counter()
    for computation, name, instruction, times, fused in _executed(computations, entry):
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            # One that overlaps with several fusions is written in each, with the same chain.
            chain = _first(r'chain_id="(\d+)"', instruction.attributes)
            if not chain or chain not in chains:
                collectives[_collective(computation, name, instruction)] += times
            chains.add(chain)
        if not fused:
            cycles += times * int(
                _first(r'"estimated_cycles":"(\d+)"', instruction.attributes) or 0
            )
    return collectives, cycles


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of an HLO module by name, and the name of its entry."""
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            name, kind, opcode, rest = match.groups()
            arguments, _, attributes = rest.partition("), ")
            size = sum(_bytes(dtype, shape) for dtype, shape in _ARRAY.findall(kind))
            current[name] = Instruction(opcode, size, arguments.removesuffix(")"), attributes)
        elif match := _COMPUTATION.match(line):
            current = computations[match[2]] = {}
            entry = match[2] if match[1] else entry
    return computations, entry


def _bytes(dtype: str, shape: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    bits = int(_first(r"(\d+)", dtype) or 8)  # pred
    return math.ceil(math.prod(int(n.lstrip("<=")) for n in shape.split(",") if n) * bits / 8)


def _executed(
    computations: dict[str, Computation], name: str, times: int = 1, fused: bool = False
) -> Iterator[tuple[Computation, str, Instruction, int, bool]]:
    """(computation, its name, instruction, how often, whether in a fusion) of all that runs."""
    for instruction in computations[name].values():
        yield computations[name], name, instruction, times, fused
        if instruction.opcode not in _CALLERS:
            continue
        runs, called = times, instruction.called
        if instruction.opcode == "while":
            condition, *called = called
            runs *= _trips(computations[condition], instruction.attributes)
        inside = fused or instruction.opcode in ("fusion", "async-start")
        for other in called:
            yield from _executed(computations, other, runs, inside)


def _trips(condition: Computation, attributes: str) -> int:
    """How often a loop runs: as noted, or the bound of a counter that starts at 0, as in a scan."""
    if noted := _first(r'"known_trip_count":\{"n":"(\d+)"\}', attributes):
        return int(noted)
    bounds = [i.arguments for i in condition.values() if i.opcode == "constant"]
    counts_up = any("direction=LT" in i.attributes for i in condition.values())
    return int(bounds[0]) if len(bounds) == 1 and counts_up and bounds[0].isdigit() else 1


def _collective(computation: Computation, name: str, instruction: Instruction) -> Collective:
    kind = instruction.opcode.removesuffix("-start")
    group = _group(instruction.attributes)
    operands = re.findall(r"%([\w.\-]+)", instruction.arguments)
    size = sum(computation[operand].bytes for operand in operands)
    if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # written as an all-reduce of which each chip keeps a part
    return Collective(kind, size * (group if kind == "all-gather" else 1), group)


def _group(attributes: str) -> int:
    """The number of chips that take part in a collective together."""
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    if size := _first(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(size)
    members = _first(r"replica_groups=\{\{([\d,]*)\}", attributes)
    return len(members.split(","))


def _first(pattern: str, text: str) -> str:
    """The group of a pattern where it first matches; '' if nowhere."""
    match = re.search(pattern, text)
    return match[1] if match else ""


# --- report

SUMMARY = ("program", "GB of memory", "TFLOP as written", "GB moved", "ms for FLOPs", "for memory")
SUMMARY += ("for links", "compiler's estimate, ms", "compiled in s")

METHOD = """All numbers are those of one chip and one step.

* *Memory* holds arguments, results, and temporaries.
* *TFLOP as written* is XLA's count before optimization (benchmarks/step.py).
* *GB moved* is XLA's count for the optimized program. It takes loops once, and includes what stays
  in a memory on the chip.
* *ms* are the least that each resource needs at its peak; the largest, in bold, is the time at the
  roofline. For links, each group of chips is a ring that uses all links of a chip.
* The *compiler's estimate* is the sum over its instructions, without communication.
* *Compiled in* is CPU time."""

COLLECTIVE_HEADER = ("program", "kind", "chips of a group", "number", "MB", "largest, MB")


def compiled_rows(name: str, case: Case) -> tuple[list[str], list[list[str]]]:
    """Compiles a case; its row of the summary, and its rows of the table of collectives."""
    program, flops = lowered(case)
    common.progress(f"{name}: compiling")
    start = time.process_time()
    compiled = program.compile()
    cpu_seconds = time.process_time() - start
    collectives, cycles = counts(compiled.as_text())
    moved = compiled.cost_analysis().get("bytes accessed", 0.0)
    sent = sum(collective.sent * times for collective, times in collectives.items())
    chips = CHIPS[case.chips]
    milliseconds = [1e3 * flops / chips.flops, 1e3 * moved / chips.memory, 1e3 * sent / chips.links]
    slowest = max(milliseconds)
    row = [
        name,
        f"{step_time.memory_bytes(compiled) / 1e9:.3g}",
        f"{flops / 1e12:.3g}",
        f"{moved / 1e9:.3g}",
        *(f"**{ms:.3g}**" if ms == slowest else f"{ms:.3g}" for ms in milliseconds),
        f"{cycles / chips.clock * 1e3:.3g}" if chips.clock else "-",
        f"{cpu_seconds:,.0f}",
    ]
    common.progress(", ".join(row))
    return row, collective_rows(name, collectives)


def collective_rows(name: str, collectives: Mapping[Collective, int]) -> list[list[str]]:
    """For each kind and size of group: how many, how large in total, and the largest."""
    rows = []
    for kind, group in sorted({(c.kind, c.group) for c in collectives}):
        alike = {c: n for c, n in collectives.items() if (c.kind, c.group) == (kind, group)}
        total = sum(collective.bytes * times for collective, times in alike.items())
        largest = max(collective.bytes for collective in alike)
        numbers = (f"{sum(alike.values()):,}", f"{total / 1e6:,.3g}", f"{largest / 1e6:,.3g}")
        rows.append([name, kind, str(group), *numbers])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.arguments(__spec__.name, __doc__)
    common.add_list(parser, "--cases", common.one_of(CASES), ",".join(CASES))
    options = parser.parse_args(argv)
    if not importlib.util.find_spec("libtpu"):
        parser.error(f"libtpu is not installed; run: pip install 'jax[tpu]=={jax.__version__}'")
    jax.config.update("jax_platforms", "cpu")
    rows, collectives = [], []
    for name in options.cases:
        row, communication = compiled_rows(name, CASES[name])
        rows.append(row)
        collectives += communication
    chips = "; ".join(
        f"{name}: {c.flops / 1e12:g} TFLOP/s, {c.memory / 1e9:g} GB/s, links {c.links / 1e9:g} GB/s"
        for name, c in CHIPS.items()
    )
    text = [
        "# Full-size programs, compiled for TPUs",
        f"Nothing ran. Peaks of a chip: {chips}. Compiled on {common.machine(VERSIONS)}",
        METHOD,
        common.markdown_table(SUMMARY, rows),
        "## Communication",
        common.markdown_table(COLLECTIVE_HEADER, collectives),
    ]
    common.publish("\n\n".join(text), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
