"""What a compiled program computes, moves, and communicates, from the text of its HLO.

`counts(compiled.as_text())` follows the program from its entry through loops, as often as they run,
and through calls. Arithmetic and communication count wherever they are, also inside fusions.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

# Instructions that move nothing: names for what exists, and control flow.
_NAMES = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
_FREE = {*_NAMES, "partition-id", "opt-barrier", "while", "conditional", "call"}

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(?:calls|condition|body|branch_computations|\w+_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array.

    Attributes:
        dtype: such as 'bf16'.
        shape: its axes.
        layout: axes from minor to major, then tiles, such as '1,0:T(8,128)'; '' if not given.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: str = ""

    def __str__(self) -> str:
        layout = f"{{{self.layout}}}" if self.layout else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{layout}"

    @functools.cached_property
    def bytes(self) -> int:
        """Without padding."""
        return math.ceil(math.prod(self.shape) * _bits(self.dtype) / 8)

    @functools.cached_property
    def padded_bytes(self) -> int:
        """As it lies in memory, in whole tiles."""
        tile = re.search(r"T\(([\d,]+)\)", self.layout)
        if not tile or not self.shape:
            return self.bytes
        sides = [int(side) for side in tile[1].split(",")]
        minor_to_major = [int(axis) for axis in self.layout.split(":")[0].split(",")]
        lengths = [self.shape[axis] for axis in reversed(minor_to_major)]
        lengths = [1] * (len(sides) - len(lengths)) + lengths
        cut = len(lengths) - len(sides)
        whole = [n + -n % side for n, side in zip(lengths[cut:], sides, strict=True)]
        return math.ceil(math.prod(lengths[:cut] + whole) * _bits(self.dtype) / 8)

    @property
    def in_main_memory(self) -> bool:
        """Rather than in a memory on the chip; layouts number those from 1."""
        return not re.search(r"S\([1-9]", self.layout)


def _bits(dtype: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    width = re.search(r"\d+", dtype)
    return int(width[0]) if width else 8  # pred


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
        opcode: such as 'fusion'.
        results: the arrays of its type, several for a tuple.
        arguments: the text in its parentheses.
        attributes: the rest of its line.
    """

    opcode: str
    results: tuple[Array, ...]
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """Names of instructions of the same computation."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        lists = [many or one for many, one in _CALLED.findall(self.attributes)]
        return [name.strip().lstrip("%") for names in lists for name in names.split(",")]


Computation = dict[str, Instruction]  # by name, in order


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of an HLO module by name, and the name of its entry."""
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            name, kind, opcode, rest = match.groups()
            arguments, _, attributes = rest.partition("), ")
            arguments = arguments.removesuffix(")")
            current[name] = Instruction(opcode, _arrays(kind), arguments, attributes)
        elif match := _COMPUTATION.match(line):
            current = computations[match[2]] = {}
            entry = match[2] if match[1] else entry
    return computations, entry


def _arrays(kind: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(n.lstrip("<=")) for n in shape.split(",") if n), layout)
        for dtype, shape, layout in _ARRAY.findall(kind)
    )


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


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a program does on one chip.

    Attributes:
        flops: of convolutions and matrix products.
        touched: how often an array of each type is read from or written to main memory.
        collectives: how often each communication happens.
        cycles: the compiler's estimate for everything but communication; 0 if it gives none.
    """

    flops: int
    touched: Mapping[Array, int]
    collectives: Mapping[Collective, int]
    cycles: int

    @property
    def bytes(self) -> int:
        """Of `touched`, without padding."""
        return sum(array.bytes * times for array, times in self.touched.items())

    @property
    def padded_bytes(self) -> int:
        return sum(array.padded_bytes * times for array, times in self.touched.items())


def counts(text: str) -> Counts:
    """What a program does, from the text of its optimized HLO. The body of a loop that does not say
    how often it runs counts once."""
    computations, entry = parse(text)
    flops, cycles, chains = 0, 0, set()
    touched, collectives = collections.Counter(), collections.Counter()
    for name, instruction, times, fused in _executed(computations, entry):
        computation = computations[name]
        flops += times * _flops(computation, instruction)
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            # One that overlaps with several fusions is written in each, with the same chain.
            chain = _first(r'chain_id="(\d+)"', instruction.attributes)
            if not chain or chain not in chains:
                collectives[_collective(name, computation, instruction)] += times
            chains.add(chain)
        if not fused:
            estimate = _first(r'"estimated_cycles":"(\d+)"', instruction.attributes)
            cycles += times * int(estimate or 0)
            for array in _accessed(computations, computation, instruction):
                touched[array] += times
    return Counts(flops, touched, collectives, cycles)


def _executed(
    computations: dict[str, Computation], name: str, times: int = 1, fused: bool = False
) -> Iterator[tuple[str, Instruction, int, bool]]:
    """(computation, instruction, how often, whether inside a fusion) of all that runs."""
    for instruction in computations[name].values():
        yield name, instruction, times, fused
        if instruction.opcode == "while":
            condition, body = instruction.called
            trips = _trips(computations[condition], instruction.attributes)
            yield from _executed(computations, body, times * trips, fused)
        elif instruction.opcode in ("fusion", "async-start", "call", "conditional"):
            inside = fused or instruction.opcode in ("fusion", "async-start")
            for called in instruction.called:
                yield from _executed(computations, called, times, inside)


def _first(pattern: str, text: str) -> str:
    """The group of a pattern where it first matches; '' if nowhere."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def _trips(condition: Computation, attributes: str) -> int:
    """How often a loop runs: as noted, or the bound of a counter that starts at 0, as in a scan."""
    if noted := _first(r'"known_trip_count":\{"n":"(\d+)"\}', attributes):
        return int(noted)
    bounds = [i.arguments for i in condition.values() if i.opcode == "constant"]
    counts_up = any("direction=LT" in i.attributes for i in condition.values())
    return int(bounds[0]) if len(bounds) == 1 and counts_up and bounds[0].isdigit() else 1


def _accessed(
    computations: dict[str, Computation], computation: Computation, instruction: Instruction
) -> Iterator[Array]:
    """The arrays in main memory that an instruction reads and writes, or their parts. What has a
    start and an end reads at the start and writes at the end."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode in _FREE or "AllocateBuffer" in instruction.attributes:
        return
    body, names = {"": instruction}, operands
    if opcode == "fusion":
        body = computations[instruction.called[0]]
        numbered = {i.arguments: name for name, i in body.items() if i.opcode == "parameter"}
        names = [numbered[str(number)] for number in range(len(operands))]

    if not opcode.endswith("-done"):
        for operand, name in zip(operands, names, strict=True):
            whole = [array for array in computation[operand].results if array.in_main_memory]
            parts = _parts_read(body, name) if whole else []
            yield from whole if parts is None else parts
    if not opcode.endswith("-start"):
        written = [array for array in instruction.results if array.in_main_memory]
        root = list(body.values())[-1]
        if written and root.opcode == "dynamic-update-slice":
            written = (body if opcode == "fusion" else computation)[root.operands[1]].results
        yield from written


def _parts_read(body: Computation, name: str) -> list[Array] | None:
    """The slices of `name` that are all that a computation reads of it; None if it reads more."""
    parts: list[Array] = []
    for user_name, user in body.items():
        if name not in user.operands:
            continue
        if user.opcode == "bitcast" or "output_to_operand_aliasing" in user.attributes:
            more = _parts_read(body, user_name)
        elif user.opcode.startswith("dynamic-") and user.operands[0] == name:
            more = list(user.results) if user.opcode == "dynamic-slice" else []
        else:
            more = None
        if more is None:
            return None
        parts += more
    return parts


def _operands(computation: Computation, instruction: Instruction) -> list[Array]:
    return [array for name in instruction.operands for array in computation[name].results]


# --- communication


def _collective(name: str, computation: Computation, instruction: Instruction) -> Collective:
    kind = instruction.opcode.removesuffix("-start")
    group = _group(instruction.attributes)
    size = sum(array.bytes for array in _operands(computation, instruction))
    if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # written as an all-reduce of which each chip keeps a part
    return Collective(kind, size * (group if kind == "all-gather" else 1), group)


def _group(attributes: str) -> int:
    """The number of chips that take part in a collective together."""
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(match[1])
    match = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    return len(match[1].split(",")) if match else 1


# --- arithmetic


def _flops(computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode == "dot":
        left, _ = _operands(computation, instruction)
        contracted = _first(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        axes = [int(axis) for axis in contracted.split(",") if axis]
        return 2 * math.prod(instruction.results[0].shape) * math.prod(left.shape[a] for a in axes)
    if instruction.opcode == "convolution":
        image, kernel = _operands(computation, instruction)
        return _convolution_flops(image, kernel, instruction.results[0], instruction.attributes)
    return 0


def _convolution_flops(image: Array, kernel: Array, out: Array, attributes: str) -> int:
    """As XLA counts them: products with padding or with the holes of a dilation are free."""
    image_axes, kernel_axes, out_axes = re.split(
        "_|->", _first(r"dim_labels=([\w>\-]+)", attributes)
    )
    window = dict(re.findall(r"(\w+)=([\w\-]+)", _first(r"window=\{([^}]*)\}", attributes)))
    products = out.shape[out_axes.index("b")] * out.shape[out_axes.index("f")]
    products *= kernel.shape[kernel_axes.index("i")]
    for place, axis in enumerate(sorted(filter(str.isdigit, image_axes))):
        lengths = (
            image.shape[image_axes.index(axis)],
            kernel.shape[kernel_axes.index(axis)],
            out.shape[out_axes.index(axis)],
        )
        products *= _valid_products(lengths, {k: v.split("x")[place] for k, v in window.items()})
    return 2 * products


def _valid_products(lengths: tuple[int, int, int], window: Mapping[str, str]) -> int:
    """The pairs of an output and a kernel position that meet an element of the image."""
    image, kernel, out = lengths
    stride, below = int(window.get("stride", 1)), int(window.get("pad", "0_0").split("_")[0])
    holes, kernel_holes = int(window.get("lhs_dilate", 1)), int(window.get("rhs_dilate", 1))
    end = (image - 1) * holes
    return sum(
        0 <= (at := o * stride - below + k * kernel_holes) <= end and at % holes == 0
        for o in range(out)
        for k in range(kernel)
    )
