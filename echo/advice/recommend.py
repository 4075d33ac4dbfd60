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
from echo.advice.model import StageTime, Timing
from echo.advice.profile import Call, renewed, stage_time
from echo.spec import EchoSpecError
from echo.threads import usable_cores

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)

# Predictions closer than this count as equal (docs/advice.md says how far off they are).
TOLERANCE = 0.1

# What echoing with factor e needed of the fresh examples that training without it did, on the five
# problems with equally many evaluations per fresh example (results/claims.md).
FRESH_SHARES = {2: (0.52, 0.72), 4: (0.26, 0.63), 16: (0.08, 0.79)}

_SPREAD = 1.5  # rounds of a stage on a quiet machine differ by less than this factor
_HOST_STEP_CORES = 0.5  # CPU time per second above which a step computes on the host
_NUM_INPUTS = 8  # outputs of a stage that serve as inputs for measuring the next one
_MORE_WORKERS = 4  # workers to consider, as a multiple of those that the loader has
_MAX_WORKERS, _MAX_SECONDS = 1024, 3600
_COLUMNS = 80  # of a terminal

_log = logging.getLogger("echo.advice")


@dataclasses.dataclass(frozen=True)
class Point:
    """An echo stage at one insertion point.

    Attributes:
        name: the name of the insertion point.
        count: the number of stages before it.
        ratio: R, seconds upstream / seconds downstream, each per batch.
        step_seconds: predicted seconds per step, by factor.
    """

    name: str
    count: int
    ratio: float
    step_seconds: dict[float, float]


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
        reason: the recommendation in words.
        warning: what makes it doubtful, or ''.
    """

    measured: Timing
    timing: Timing
    points: tuple[Point, ...]
    insertion: str | None
    factor: float
    reason: str
    warning: str = ""

    @property
    def workers(self) -> int:
        return self.timing.workers

    @property
    def choice(self) -> tuple[int, str | None, float]:
        return self.workers, self.insertion, self.factor

    def __str__(self) -> str:
        return "\n".join(textwrap.fill(t, _COLUMNS) for t in (self.warning, self.reason) if t)

    @property
    def tables(self) -> str:
        """The measured times, and the predictions."""
        measured = self.measured
        at_once = f"{max(1, measured.workers)} at once"
        times = [["stage", "alone", "fastest", "slowest", "processor", at_once]]
        for part in (*measured.stages, *measured.transfers, measured.step):
            seconds = (part.seconds, part.low, part.high, part.cpu_seconds, part.limit)
            times.append([part.name, *map(time_text, seconds)])
        rates = [["echo stage", "R", *(f"e={factor:g}" for factor in self.points[0].step_seconds)]]
        for point in self.points:
            cells = map(_rate, point.step_seconds.values())
            rates.append([point.name, f"{point.ratio:.2f}", *cells])
        predicted = f"predicted steps per second by echo factor e, workers: {self.workers}"
        title = "seconds per example (median of rounds)"
        return f"{_table(title, times)}\n\n{_table(predicted, rates)}"


def advise(
    stages: Sequence[Stage] | Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    model: Any = None,
    batch_size: int = 0,
    examples_per_call: int = 1,
    insertions: Mapping[str, str] | None = None,
    factors: Iterable[float] = FACTORS,
    workers: int = 0,
    max_workers: int = 0,
    cores: float = 0,
    seconds: float = 1.0,
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
        workers: threads or processes that your loader runs; 0 = those of a DataLoader (if it has
            none, its reading and the step take turns), otherwise as many as cores.
        max_workers: the maximum number of workers to recommend; 0 = four times as many as run, and
            4 for a DataLoader without any. Additional workers are measured as threads.
        cores: processor cores, perhaps a fraction; 0 = those that this process may use.
        seconds: how long to measure each stage, approximately, at most an hour. A call that takes
            longer is made a few times only.

    Raises:
        EchoSpecError: a value that is not allowed, or that does not match the stages.
    """
    examples = spec.checked_integer("examples_per_call", examples_per_call, 1, spec.MAX_BATCH)
    workers = spec.checked_integer("workers", workers, 0, _MAX_WORKERS)
    max_workers = spec.checked_integer("max_workers", max_workers, 0, _MAX_WORKERS)
    cores = spec.checked_number("cores", cores, 0, _MAX_WORKERS)
    seconds = spec.checked_number("seconds", seconds, 1e-6, _MAX_SECONDS)
    factors = [spec.checked_number("factors", e, 1, spec.MAX_FACTOR) for e in factors]
    source = opened(stages, batch_size)
    pairs, batch_size = source.stages, source.batch_size
    if source.is_whole:
        workers, max_workers = int(source.workers != 0), 1
        insertions = {"after batching": pairs[0][0]}
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

    cores = cores or usable_cores()
    workers = workers or source.workers or math.ceil(cores) * (source.workers is None)
    threads = max(1, workers)  # that measure
    max_workers = max_workers or min(_MORE_WORKERS * threads, _MAX_WORKERS)
    times: list[StageTime] = []
    results: Iterator[Any] = itertools.count()
    for name, function in pairs:
        inputs, most = map(renewed, results), max_workers if name in host else 0
        if name == BATCH:
            inputs, examples = _grouped(inputs, batch_size // examples), batch_size
        _log.info("measuring %s", name)
        call = Call(name, function, inputs, examples)
        cost, outputs = stage_time(call, seconds, threads, most, _NUM_INPUTS)
        times.append(cost)
        results = itertools.cycle(outputs)
    _log.info("measuring the step")
    step_fn = step_fn if model is None else on_a_copy(step_fn, model)
    step, _ = stage_time(Call("step", step_fn, map(renewed, results), batch_size), seconds)
    n = len(host)
    timing = Timing(tuple(times[:n]), tuple(times[n:]), step, batch_size, workers, cores)
    factors = factors if 1 in factors else [1, *factors]
    advice = conclude(timing, insertions, factors, max_workers)
    doubts = " ".join(filter(None, (source.hint, advice.warning)))
    return dataclasses.replace(advice, warning=doubts)


def conclude(
    measured: Timing,
    insertions: Mapping[str, str],
    factors: Sequence[float] = FACTORS,
    max_workers: int = 0,
    doubt: bool = True,
) -> Advice:
    """The advice for a measured timing.

    With `doubt`, it has a warning if the fastest or the slowest round of a stage or of the step,
    the rest as measured, would change it.
    """
    timing = _with_enough_workers(measured, max_workers)
    names, points = [stage.name for stage in timing.stages], []
    for insertion, name in insertions.items():
        count = names.index(name) + 1
        seconds = {factor: timing.step_seconds(count, factor) for factor in factors}
        points.append(Point(insertion, count, timing.ratio(count), seconds))
    point, factor = _recommended(timing, points)
    texts = [_verdict(timing, point, factor), _cause(timing)]
    if timing.workers > measured.workers:
        gain = _gain(measured, timing.baseline_seconds())
        first = f"First use {timing.workers} workers, not {measured.workers}: {gain} of now"
        texts.insert(0, f"{first}, with every example fresh. Then:")
    if factor > 1:
        if {stage.name for stage in timing.stages[point.count :]} <= {BATCH}:
            texts.append("Repeats are identical there, unless the step changes them.")
            earlier = [other.count for other in points if other.count < point.count]
            between = timing.stages[max(earlier, default=point.count) : point.count]
            if transforms := [stage for stage in between if stage.name != BATCH]:
                slowest = max(transforms, key=lambda stage: stage.limit)
                fresh = _rate(timing.changed(slowest, 0).baseline_seconds())
                moved = f"Or move {_spaced(slowest.name)} to the accelerator"
                texts.append(f"{moved}: at most {fresh} steps per second, all examples fresh.")
        listed = [f"{low:g} to {high:g}" for low, high in FRESH_SHARES.values()]
        texts.append(
            "A repeat may be worth less than a fresh example: on five small problems, e = 2, 4, "
            f"and 16 needed {', '.join(listed[:-1])}, and {listed[-1]} of the fresh examples."
        )
    if timing.step.cpu_seconds > _HOST_STEP_CORES * timing.step.seconds:
        cores = "The step computes on the input's cores"
        texts.append(f"{cores}: steps per second may be a third off.")
    advice = Advice(
        measured=measured,
        timing=timing,
        points=tuple(points),
        insertion=point.name if factor > 1 else None,
        factor=factor,
        reason=" ".join(texts),
    )
    parts = (*measured.stages, *measured.transfers, measured.step)
    unstable = [part for part in parts if doubt and part.high > _SPREAD * part.low > 0]
    for part in sorted(unstable, key=lambda part: part.low / part.high):  # the worst one first
        for end in (part.low, part.high):
            round_ = measured.changed(part, end / part.seconds)
            other = conclude(round_, insertions, factors, max_workers, doubt=False)
            if other.choice != advice.choice:
                took = f"{time_text(part.low)} to {time_text(part.high)} per example"
                warning = f"Unstable: {_spaced(part.name)} took {took}. Measure again on a quiet"
                return dataclasses.replace(advice, warning=f"{warning} machine.")
    return advice


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
    if factor == 1:
        what, ratio = "Do not echo: repeats gain less than 10%", timing.ratio(len(timing.stages))
    else:
        gain, ratio = _gain(timing, point.step_seconds[factor]), point.ratio
        what = f"Echo {_spaced(point.name)}, factor {factor:g}: {gain} without echoing"
    return f"{what} (R = {ratio:.2f}, workers: {timing.workers})."


def _cause(timing: Timing) -> str:
    """What limits the pace without echoing."""
    count, before = len(timing.stages), timing.baseline_seconds()
    upstream, downstream = timing.upstream_seconds(count), timing.downstream_seconds(count)
    if before > downstream * (1 + TOLERANCE):
        if timing.workers and before > upstream * (1 + TOLERANCE):
            return (
                "The processor cores are the bottleneck; each repeat saves them a fresh example's "
                "work. With the step on an accelerator, echo only if R > 1."
            )
        slowest = max(timing.stages, key=lambda stage: stage.seconds)
        named = f"{_spaced(slowest.name)} ({time_text(slowest.seconds)} per example)"
        return f"The input is the bottleneck, above all {named}."
    transfer = max((part.seconds for part in timing.transfers), default=0.0)
    is_slow = timing.batch_size * transfer * (1 + TOLERANCE) >= downstream
    if is_slow and transfer > timing.step.seconds * (1 + TOLERANCE):
        took = f"{time_text(transfer)} per example"
        return (
            f"The transfer is the bottleneck ({took}): store examples on the device, or send less."
        )
    times = f"{time_text(downstream)} per batch; the input takes {time_text(upstream)}"
    return f"The step is the bottleneck ({times})."


def _gain(timing: Timing, after: float) -> str:
    before = timing.baseline_seconds()
    return f"{_rate(after)} steps per second, {before / after:.2f} times the {_rate(before)}"


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


def _rate(seconds: float) -> str:
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
