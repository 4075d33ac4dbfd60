"""Whether, where, and how much to echo: measures a pipeline, predicts, and recommends."""

import dataclasses
import itertools
import logging
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from echo import spec
from echo.advice.inputs import BATCH, Stage, on_a_copy, opened
from echo.advice.model import Timing
from echo.advice.profile import Call, available_cores, renewed, stage_time
from echo.spec import EchoSpecError
from echo.stores import nbytes

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)

# Predictions closer than this count as equal (docs/advice.md says how far off they are).
TOLERANCE = 0.1

SPREAD = 1.5  # rounds of a stage on a quiet machine differ by less than this factor
_HOST_STEP_CORES = 0.5  # CPU time per second above which a step computes on the host

_NUM_INPUTS = 8  # outputs of a stage that serve as inputs for measuring the next one
_MORE_WORKERS = 4  # workers to consider, as a multiple of those that the loader has
_MAX_WORKERS, _MAX_SECONDS = 1024, 3600
_COLUMNS = 80  # of a terminal

# The sentences of the answer, in this order.
_UNSTABLE = "Unstable: {part} took {low} to {high} per example. Measure again on a quiet machine."
_WORKERS = "First use {new} workers, not {old}: {gain} of now, with every example fresh. Then:"
_VERDICTS = {
    "echo": "Echo {place}, factor {factor:g}: {gain} without echoing (R = {ratio:.2f}, workers: "
    "{workers}).",
    "none": "Do not echo: repeats gain less than 10% (R = {ratio:.2f}, workers: {workers}).",
}
_CAUSES = {
    "input": "The input is the bottleneck, above all {slowest} ({seconds} per example).",
    "step": "The step is the bottleneck ({step} per batch; the input takes {input}).",
    "transfer": "The transfer is the bottleneck ({transfer} per example): store examples on the "
    "device, or send less.",
    "cores": "The processor cores are the bottleneck; each repeat saves them a fresh example's "
    "work. With the step on an accelerator, echo only if R > 1.",
}
_IDENTICAL = "Repeats are identical there, unless the step changes them."
_MOVE = "Or move {stage} to the accelerator: at most {rate} steps per second, all examples fresh."
# What echoing with factor e needed of the fresh examples that training without it did, on the five
# problems with equally many evaluations per fresh example (results/claims.md).
FRESH_SHARES = {2: (0.52, 0.72), 4: (0.26, 0.63), 16: (0.08, 0.79)}
_WORTH = (
    "A repeat may be worth less than a fresh example: on five small problems, e = 2, 4, and 16 "
    "needed {}, {}, and {} of the fresh examples."
).format(*(f"{low:g} to {high:g}" for low, high in FRESH_SHARES.values()))
_CONTENDED = "The step computes on the input's cores: steps per second may be a third off."

_log = logging.getLogger("echo.advice")


@dataclasses.dataclass(frozen=True)
class Point:
    """An echo stage at one insertion point.

    Attributes:
        name: the name of the insertion point.
        count: the number of stages before it.
        ratio: R, seconds upstream / seconds downstream, each per batch.
        step_seconds: predicted seconds per step, by factor.
        buffer_bytes: bytes of the shuffle buffer.
    """

    name: str
    count: int
    ratio: float
    step_seconds: dict[float, float]
    buffer_bytes: int


@dataclasses.dataclass(frozen=True)
class Advice:
    """A recommendation, the measurement, and the predictions; str(advice) is the answer, in at most
    twelve lines.

    Attributes:
        measured: the measured costs.
        timing: `measured`, with the recommended number of workers.
        points: the predictions for each insertion point, with that many workers.
        insertion, factor: the recommended insertion point and factor; None and 1 if no repeats
            gain at least TOLERANCE.
        movable: the stage that could move to the accelerator instead of echoing after it, or None.
        reason: the recommendation in words.
        warning: what makes it doubtful, or ''.
    """

    measured: Timing
    timing: Timing
    points: tuple[Point, ...]
    insertion: str | None
    factor: float
    movable: str | None
    reason: str
    warning: str = ""

    @property
    def workers(self) -> int:
        return self.timing.workers

    def __str__(self) -> str:
        return "\n".join(textwrap.fill(t, _COLUMNS) for t in (self.warning, self.reason) if t)

    @property
    def tables(self) -> str:
        """The measured times, the predictions, and the memory of the buffer."""
        measured = self.measured
        at_once = f"{max(1, measured.workers)} at once"
        times = [["stage", "alone", "fastest", "slowest", "processor", at_once]]
        for part in (*measured.stages, *measured.transfers, measured.step):
            seconds = (part.seconds, part.low, part.high, part.cpu_seconds, part.limit)
            times.append([part.name, *map(time_text, seconds)])
        rates = [["echo stage", "R", *(f"e={factor:g}" for factor in self.points[0].step_seconds)]]
        for point in self.points:
            cells = map(rate, point.step_seconds.values())
            rates.append([point.name, f"{point.ratio:.2f}", *cells])
        sizes = [f"{p.buffer_bytes / 1e6:,.2f} MB {_spaced(p.name)}" for p in self.points]
        memory = textwrap.fill(f"The shuffle buffer takes up to {', '.join(sizes)}.", _COLUMNS)
        predicted = f"predicted steps per second by echo factor e, workers: {self.workers}"
        title = "seconds per example (median of rounds)"
        return "\n\n".join([_table(title, times), _table(predicted, rates), memory])


def advise(
    stages: Sequence[Stage] | Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    model: Any = None,
    batch_size: int = 0,
    examples_per_call: int = 1,
    insertions: Mapping[str, str] | None = None,
    factors: Iterable[float] = FACTORS,
    shuffle_buffer: int = 10_000,
    workers: int = 0,
    max_workers: int = 0,
    cores: float = 0,
    seconds: float = 1.0,
    stored: Callable[[Any], Any] = lambda item: item,
) -> Advice:
    """Measures a pipeline and a step, and recommends whether, where, and how much to echo.

    The step runs for a few seconds, mostly on the same few batches. With `model`, what it trains is
    a copy; otherwise what it changes stays changed.

    Args:
        stages: a PyTorch DataLoader; a data set of PyTorch; any other iterable of batches, which
            allows only R after batching and is assumed to be read ahead. Or (name, function) pairs
            in order, called from several threads: the first function takes the number of the call
            (0, 1, ...), each other one the result of the one before; `batch` takes a list of items,
            and if no stage has this name, all take batches. The stages after it transfer a batch.
        step_fn: takes a batch, or with `model` a copy of that and a batch.
        model: what the step trains, such as (network, optimizer) of PyTorch, or a pytree of JAX
            arrays, whose successor the step returns, alone or first in a tuple.
        batch_size: examples per step; 0 = that of the loader, or of its first batch.
        examples_per_call: examples in one call of the stages before batching.
        insertions: name of an insertion point -> the stage before it. By default after every stage
            up to batching.
        factors: echo factors to predict; 1, training without repeats, is added if it is missing.
        shuffle_buffer: examples in the buffer, for its memory.
        workers: threads or processes that your loader runs; 0 = those of a DataLoader (if it has
            none, its reading and the step take turns), otherwise as many as cores.
        max_workers: the maximum number of workers to recommend; 0 = four times as many as run, and
            4 for a DataLoader without any. Additional workers are measured as threads.
        cores: processor cores; 0 = measured.
        seconds: how long to measure each stage, approximately, at most an hour. A call that takes
            longer is made a few times only.
        stored: the part of an item that an echo stage would store.

    Raises:
        EchoSpecError: a value that is not allowed, or that does not match the stages.
    """
    examples = spec.checked_integer("examples_per_call", examples_per_call, 1, spec.MAX_BATCH)
    shuffle_buffer = spec.checked_integer("shuffle_buffer", shuffle_buffer, 0, spec.MAX_BUFFER)
    workers = spec.checked_integer("workers", workers, 0, _MAX_WORKERS)
    max_workers = spec.checked_integer("max_workers", max_workers, 0, _MAX_WORKERS)
    cores = spec.checked_number("cores", cores, 0, _MAX_WORKERS)
    seconds = spec.checked_number("seconds", seconds, 1e-6, _MAX_SECONDS)
    factors = [spec.checked_number("factors", e, 1, spec.MAX_FACTOR) for e in factors]
    factors = factors if 1 in factors else [1, *factors]
    source = opened(stages, batch_size)
    pairs, batch_size = source.stages, source.batch_size
    if pairs is None:
        pairs = [("input", lambda _: next(source.batches))]
        workers, max_workers = int(source.workers != 0), 1
        insertions = {"after batching": "input"}
    names = [name for name, _ in pairs]
    host = names[: names.index(BATCH) + 1] if BATCH in names else names
    examples = examples if BATCH in names else batch_size
    insertions = insertions or {f"after {name}": name for name in host}
    if len(set(names)) < len(names):
        raise EchoSpecError("stages", names, "a different name for each")
    if batch_size % examples:
        raise EchoSpecError("examples_per_call", examples, f"a divisor of {batch_size}")
    if not {*insertions.values()} <= {*host}:
        raise EchoSpecError("insertions", insertions, f"stages: {', '.join(host)}")

    cores = cores or available_cores(seconds / 2)
    workers = workers or source.workers or math.ceil(cores) * (source.workers is None)
    threads = max(1, workers)  # that measure
    max_workers = max_workers or min(_MORE_WORKERS * threads, _MAX_WORKERS)
    times, memory = [], {}
    results: Iterator[Any] = itertools.count()
    for name, function in pairs:
        inputs, most = map(renewed, results), max_workers if name in host else 0
        if name == BATCH:
            inputs, examples = _grouped(inputs, batch_size // examples), batch_size
        _log.info("measuring %s", name)
        call = Call(name, function, inputs, examples)
        cost, outputs = stage_time(call, seconds, threads, most, _NUM_INPUTS)
        times.append(cost)
        if name in host:
            memory[name] = nbytes(stored(outputs[0])) // examples * shuffle_buffer
        results = itertools.cycle(outputs)
    _log.info("measuring the step")
    step_fn = step_fn if model is None else on_a_copy(step_fn, model)
    step, _ = stage_time(Call("step", step_fn, map(renewed, results), batch_size), seconds)
    n = len(host)
    timing = Timing(tuple(times[:n]), tuple(times[n:]), step, batch_size, workers, cores)
    advice = conclude(timing, insertions, memory, factors, max_workers)
    doubts = " ".join(filter(None, (source.hint, advice.warning)))
    return dataclasses.replace(advice, warning=doubts)


def conclude(
    measured: Timing,
    insertions: Mapping[str, str],
    memory: Mapping[str, int],
    factors: Sequence[float] = FACTORS,
    max_workers: int = 0,
) -> Advice:
    """The advice for a measured timing; `memory` is bytes of a shuffle buffer after each stage.

    It has a warning if the fastest or the slowest round of a stage or of the step, the rest as
    measured, would change it.
    """

    def predicted(timing: Timing) -> tuple[Timing, list[Point], Point, float]:
        timing = _with_enough_workers(timing, max_workers)
        names, points = [stage.name for stage in timing.stages], []
        for insertion, name in insertions.items():
            count = names.index(name) + 1
            seconds = {factor: timing.step_seconds(count, factor) for factor in factors}
            points.append(Point(insertion, count, timing.ratio(count), seconds, memory[name]))
        return timing, points, *_recommended(timing, points)

    def choice(timing: Timing) -> tuple[int, str, float]:
        timing, _, point, factor = predicted(timing)
        return timing.workers, point.name if factor > 1 else "", factor

    timing, points, point, factor = predicted(measured)
    movable, warning = None, ""
    texts = [_verdict(timing, point, factor)]
    if timing.workers > measured.workers:
        gain = _gain(measured, timing.baseline_seconds())
        texts.insert(0, _WORKERS.format(new=timing.workers, old=measured.workers, gain=gain))
    if factor > 1:
        if {stage.name for stage in timing.stages[point.count :]} <= {BATCH}:
            texts.append(_IDENTICAL)
            earlier = [other.count for other in points if other.count < point.count]
            between = timing.stages[max(earlier, default=point.count) : point.count]
            transforms = [stage for stage in between if stage.name != BATCH]
            movable = max(transforms, key=lambda stage: stage.limit, default=None)
        if movable:
            fresh = rate(timing.changed(movable, 0).baseline_seconds())
            texts.append(_MOVE.format(stage=_spaced(movable.name), rate=fresh))
        texts.append(_WORTH)
    if timing.step.cpu_seconds > _HOST_STEP_CORES * timing.step.seconds:
        texts.append(_CONTENDED)
    parts = (*measured.stages, *measured.transfers, measured.step)
    unstable = [part for part in parts if part.high > SPREAD * part.low > 0]
    for part in sorted(unstable, key=lambda part: part.high / part.low):  # the worst one stays
        rounds = [measured.changed(part, end / part.seconds) for end in (part.low, part.high)]
        if set(map(choice, rounds)) != {choice(measured)}:
            low, high = time_text(part.low), time_text(part.high)
            warning = _UNSTABLE.format(part=_spaced(part.name), low=low, high=high)
    return Advice(
        measured=measured,
        timing=timing,
        points=tuple(points),
        insertion=point.name if factor > 1 else None,
        factor=factor,
        movable=movable and movable.name,
        reason=" ".join(texts),
        warning=warning,
    )


def _recommended(timing: Timing, points: Sequence[Point]) -> tuple[Point, float]:
    """The recommended point and factor; factor 1 if no repeats gain.

    At equal speed an earlier insertion point is better, since later stages make copies differ (Choi
    et al. 2019), and so is a smaller factor, since a larger one only repeats more. The factors are
    those of one point: a faster one elsewhere is no reason to repeat more here.
    """
    in_order = sorted(points, key=lambda point: point.count)
    before, fastest = timing.baseline_seconds(), [min(p.step_seconds.values()) for p in in_order]

    def enough(fastest: float) -> float:
        return max(fastest, min(fastest * (1 + TOLERANCE), before / (1 + TOLERANCE)))

    best = min(fastest)
    if before <= best * (1 + TOLERANCE):
        return in_order[-1], 1
    pairs = zip(in_order, fastest, strict=True)
    chosen, there = next((point, own) for point, own in pairs if own <= enough(best))
    cells = sorted(chosen.step_seconds.items())
    return chosen, next(factor for factor, seconds in cells if seconds <= enough(there))


def _verdict(timing: Timing, point: Point, factor: float) -> str:
    """What to do, and what limits the pace without echoing."""
    count, before = len(timing.stages), timing.baseline_seconds()
    upstream, downstream = timing.upstream_seconds(count), timing.downstream_seconds(count)
    transfer = max((part.seconds for part in timing.transfers), default=0.0)
    slowest = max(timing.stages, key=lambda stage: stage.seconds)
    if before <= downstream * (1 + TOLERANCE):
        is_slow = timing.batch_size * transfer * (1 + TOLERANCE) >= downstream
        slower = transfer > timing.step.seconds * (1 + TOLERANCE)
        cause = "transfer" if is_slow and slower else "step"
    else:
        waits = before <= upstream * (1 + TOLERANCE) or not timing.workers
        cause = "input" if waits else "cores"
    return f"{_VERDICTS['echo' if factor > 1 else 'none']} {_CAUSES[cause]}".format(
        place=_spaced(point.name),
        factor=factor,
        gain=_gain(timing, point.step_seconds[factor]),
        ratio=point.ratio if factor > 1 else timing.ratio(count),
        workers=timing.workers,
        slowest=_spaced(slowest.name),
        seconds=time_text(slowest.seconds),
        step=time_text(downstream),
        input=time_text(upstream),
        transfer=time_text(transfer),
    )


def _gain(timing: Timing, after: float) -> str:
    before = timing.baseline_seconds()
    return f"{rate(after)} steps per second, {before / after:.2f} times the {rate(before)}"


def _with_enough_workers(timing: Timing, most: int) -> Timing:
    """`timing` with the smallest number of workers, up to `most`, that is about as good as any."""
    best = timing.with_workers(most).baseline_seconds()
    if best * (1 + TOLERANCE) > timing.baseline_seconds():
        return timing
    options = map(timing.with_workers, range(timing.workers + 1, most + 1))
    return next(t for t in options if t.baseline_seconds() <= best * (1 + TOLERANCE / 2))


def _grouped(inputs: Iterator[Any], length: int) -> Iterator[list[Any]]:
    while True:
        yield list(itertools.islice(inputs, length))


def rate(seconds: float) -> str:
    """Steps per second, with three digits and no powers of ten."""
    per_second = 1 / seconds
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def time_text(seconds: float) -> str:
    """Seconds with three digits and a unit: '12.3 µs'."""
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        digits = f"{seconds * scale:.3g}"
        if float(digits) >= 1:  # 0.9996 ms is '1 ms', not '1e+03 µs'
            return f"{digits} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _table(title: str, rows: list[list[str]]) -> str:
    """The table in 80 columns; names are cut to what is left of them."""
    names, *columns = zip(*rows, strict=True)
    widths = [2 + max(map(len, column)) for column in columns]
    first = min(max(map(len, names)), _COLUMNS - sum(widths))
    lines = [
        _spaced(name)[:first].ljust(first) + "".join(map(str.rjust, texts, widths))
        for name, *texts in rows
    ]
    return "\n".join([title, *lines])
