"""Whether, where, and how much to echo: measures a pipeline, predicts, and recommends."""

import dataclasses
import itertools
import logging
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from echo import spec
from echo.advice.inputs import BATCH, Input, Stage, on_a_copy, opened
from echo.advice.model import Timing
from echo.advice.profile import caller, renewed, stage_time
from echo.threads import usable_cores

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)

# Predictions closer than this count as equal (docs/advice.md says how far off they are).
TOLERANCE = 0.1

# What echoing with factor e needed of the fresh examples that training without it did, on the seven
# problems with equally many evaluations per fresh example (results/claims.md).
FRESH_SHARES = {2: (0.52, 0.75), 4: (0.26, 0.63), 16: (0.08, 0.79)}
_WORTH = (
    "A repeat may be worth less than a fresh example: on seven small problems, e = 2, 4, and 16 "
    "needed {} to {}, {} to {}, and {} to {} of the fresh examples."
).format(*itertools.chain(*FRESH_SHARES.values()))
_CORES = (
    "The processor cores are the bottleneck; each repeat saves them a fresh example's work. With "
    "the step on an accelerator, echo only if R > 1."
)
_HOST_STEP = "The step computes on the input's cores: steps per second may be a third off."

_SPREAD = 1.5  # rounds of a stage on a quiet machine differ by less than this factor
_HOST_STEP_CORES = 0.5  # CPU time per second above which a step computes on the host
_NUM_INPUTS = 8  # outputs of a stage that serve as inputs for measuring the next one
_MORE_WORKERS = 4  # workers to consider, as a multiple of those that the loader has
_MAX_WORKERS, _MAX_SECONDS = 1024, 3600
_COLUMNS = 80  # of a terminal

_log = logging.getLogger("echo.advice")


@dataclasses.dataclass(frozen=True)
class Advice:
    """A recommendation, the measurement, and the predictions; str(advice) is the answer, in at most
    twelve lines.

    Attributes:
        measured: the measured costs.
        insertions: the number of stages before each insertion point.
        workers: the recommended number of them.
        insertion, factor: the recommended insertion point and factor; None and 1 if no repeats
            gain at least TOLERANCE.
        warning: what makes it doubtful, or ''.
    """

    measured: Timing
    insertions: Mapping[str, int]
    workers: int
    insertion: str | None
    factor: int
    warning: str = ""

    @property
    def timing(self) -> Timing:
        """The costs with that number of workers."""
        return self.measured.with_workers(self.workers)

    @property
    def ratio(self) -> float:
        """R at the recommended insertion point, or else after all stages of the input."""
        return self.timing.ratio(self._count)

    @property
    def _count(self) -> int:
        return self.insertions[self.insertion] if self.insertion else self.measured.num_stages

    def __str__(self) -> str:
        texts = (text.replace("_", " ") for text in (self.warning, self.reason) if text)
        return "\n".join(textwrap.fill(text, _COLUMNS) for text in texts)

    @property
    def reason(self) -> str:
        """The recommendation in words."""
        had, timing, texts = self.measured, self.timing, []
        if self.workers > had.workers:
            gain = _gain(had, timing.baseline_seconds())
            first = f"First use {self.workers} workers, not {had.workers}: {gain} of now"
            texts.append(f"{first}, with every example fresh. Then:")
        what = "Do not echo: repeats gain less than 10%"
        if self.insertion:
            gain = _gain(timing, timing.step_seconds(self._count, self.factor))
            what = f"Echo {self.insertion}, factor {self.factor}: {gain} without echoing"
        ratio = f"R = {self.ratio:.2f}, workers: {self.workers}"
        texts.append(f"{what} ({ratio}). {_bottleneck(timing)}")
        if self.insertion:
            if {stage.name for stage in timing.parts[self._count : timing.num_stages]} <= {BATCH}:
                texts.append("Repeats are identical there, unless the step changes them.")
            texts.append(_WORTH)
        step = timing.parts[-1]
        if step.cpu_seconds > _HOST_STEP_CORES * step.seconds:
            texts.append(_HOST_STEP)
        return " ".join(texts)

    @property
    def tables(self) -> str:
        """The measured times, and the predictions."""
        heads = "alone", "fastest", "slowest", "processor", "at once"
        lines = [_line(11, "seconds per example", *heads)]
        for part in self.measured.parts:
            times = part.seconds, part.low, part.high, part.cpu_seconds, part.limit
            lines.append(_line(11, part.name, *map(time_text, times)))
        rates = [["steps per second", "R", *(f"e={factor}" for factor in FACTORS)]]
        for name, count in self.insertions.items():
            cells = (_rate(self.timing.step_seconds(count, factor)) for factor in FACTORS)
            rates.append([name, f"{self.timing.ratio(count):.2f}", *cells])
        width = 1 + max(len(cell) for _, *cells in rates for cell in cells)
        return "\n".join([*lines, "", *(_line(width, *row) for row in rates)])


def advise(
    stages: Sequence[Stage] | Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    model: Any = None,
    batch_size: int = 0,
    workers: int = 0,
    cores: float = 0,
    seconds: float = 1.0,
) -> Advice:
    """Measures a pipeline and a step, and recommends whether, where, and how much to echo.

    The step runs for a few seconds, mostly on the same few batches. With `model`, what it trains is
    a copy; otherwise what it changes stays changed.

    Args:
        stages: a PyTorch DataLoader or data set; any other iterable of batches, which allows only R
            after batching and is assumed to be read ahead; or (name, function) pairs in order,
            called from several threads. The first function takes the number of the call (0, 1,
            ...), each other one the result of the one before; `batch` takes a list of items, and if
            no stage has this name, all take batches. The stages after it transfer a batch.
        step_fn: takes a batch, or with `model` a copy of that and a batch.
        model: what the step trains, such as (network, optimizer) of PyTorch, or a pytree of JAX
            arrays, whose successor the step returns, alone or first in a tuple.
        batch_size: examples per step; 0 = that of the loader, or of its first batch.
        workers: threads or processes that your loader runs; 0 = those of a DataLoader (if it has
            none, its reading and the step take turns), otherwise as many as cores. Up to four times
            as many are considered. They are threads, but those of a DataLoader processes.
        cores: processor cores, perhaps a fraction; 0 = those that this process may use.
        seconds: how long to measure each stage, approximately, at most an hour. A call that takes
            longer is made a few times only.

    Raises:
        EchoSpecError: a value that is not allowed, or that does not match the stages.
    """
    workers = spec.checked_integer("workers", workers, 0, _MAX_WORKERS)
    cores = spec.checked_number("cores", cores, 0, _MAX_WORKERS) or usable_cores()
    seconds = spec.checked_number("seconds", seconds, 1e-6, _MAX_SECONDS)
    source = opened(stages, batch_size)
    if not source.max_workers:
        workers = workers or source.workers or math.ceil(cores) * (source.workers is None)
        most = min(_MORE_WORKERS * max(1, workers), _MAX_WORKERS)
        source = source._replace(workers=workers, max_workers=most)
    return measured(source, step_fn if model is None else on_a_copy(step_fn, model), cores, seconds)


def measured(source: Input, step_fn: Callable[[Any], Any], cores: float, seconds: float) -> Advice:
    """Measures each stage and the step for about so many seconds, and concludes."""
    names, parts = [name for name, _ in source.stages], []
    host = names[: names.index(BATCH) + 1] if BATCH in names else names
    after = source.insertions or {f"after {name}": name for name in host}
    insertions = {key: host.index(name) + 1 for key, name in after.items()}
    examples = source.examples_per_call or source.batch_size
    results: Iterator[Any] = itertools.count()
    for number, (name, function) in enumerate([*source.stages, ("step", step_fn)]):
        _log.info("measuring %s", name)
        inputs = items = map(renewed, results)
        if name == BATCH:
            count, examples = source.batch_size // examples, source.batch_size
            inputs = iter(lambda n=count, items=items: [*itertools.islice(items, n)], None)
        kept = _NUM_INPUTS if number < len(names) else 1  # states may be large
        read_by = source if number < len(host) else None
        cost, outputs = stage_time(name, caller(name, function, inputs), seconds, kept, read_by)
        parts.append(cost.scaled(1 / examples))
        results = itertools.cycle(outputs)
    timing = Timing(tuple(parts), len(host), source.batch_size, source.workers or 0, cores)
    advice = conclude(timing, insertions, source.max_workers)
    return dataclasses.replace(advice, warning=f"{source.hint} {advice.warning}".strip())


def conclude(measured: Timing, insertions: Mapping[str, int], max_workers: int = 0) -> Advice:
    """The advice for a measured timing and insertion points after so many stages, with a warning if
    the fastest or slowest round of a stage or of the step, the rest as measured, would change it.
    """
    chosen, warning = _choice(measured, insertions, max_workers), ""
    unstable = [part for part in measured.parts if part.high > _SPREAD * part.low > 0]
    for part in sorted(unstable, key=lambda part: part.high / part.low):  # the worst one last
        ends = (measured.changed(part, end / part.seconds) for end in (part.low, part.high))
        if any(_choice(end, insertions, max_workers) != chosen for end in ends):
            took = f"{time_text(part.low)} to {time_text(part.high)} per example"
            warning = f"Unstable: {part.name} took {took}. Measure again on a quiet machine."
    return Advice(measured, insertions, *chosen, warning)


def _choice(
    timing: Timing, insertions: Mapping[str, int], max_workers: int
) -> tuple[int, str | None, int]:
    """The recommended workers, insertion point, and factor; None and 1 if no repeats gain.

    At equal speed an earlier insertion point is better, since later stages make copies differ (Choi
    et al. 2019), and so is a smaller factor, since a larger one only repeats more. The factors are
    those of one point: a faster one elsewhere is no reason to repeat more here.
    """
    most = timing.with_workers(max_workers).baseline_seconds()
    if most * (1 + TOLERANCE) <= timing.baseline_seconds():  # the fewest that are about as good
        options = map(timing.with_workers, range(timing.workers + 1, max_workers + 1))
        enough = most * (1 + TOLERANCE / 2)
        timing = next(t for t in options if t.baseline_seconds() <= enough)
    before = timing.baseline_seconds()
    seconds = {n: [timing.step_seconds(n, e) for e in FACTORS] for n in insertions.values()}
    best = min(map(min, seconds.values()))
    if before <= best * (1 + TOLERANCE):
        return timing.workers, None, 1

    def near(fastest: float) -> float:
        return max(fastest, min(fastest * (1 + TOLERANCE), before / (1 + TOLERANCE)))

    count = min(n for n, own in seconds.items() if min(own) <= near(best))
    limit = near(min(seconds[count]))
    factor = next(e for e, own in zip(FACTORS, seconds[count], strict=True) if own <= limit)
    name = next(name for name, n in insertions.items() if n == count)
    return timing.workers, name if factor > 1 else None, factor


def _bottleneck(timing: Timing) -> str:
    """What limits the pace without echoing."""
    n, before = timing.num_stages, timing.baseline_seconds()
    downstream = timing.downstream_seconds(n)
    slowest, last = (max(p, key=lambda p: p.seconds) for p in (timing.parts[:n], timing.parts[n:]))
    if before > downstream * (1 + TOLERANCE):
        if timing.workers and before > timing.upstream_seconds(n) * (1 + TOLERANCE):
            return _CORES
        took = f"{slowest.name} ({time_text(slowest.seconds)} per example)"
        return f"The input is the bottleneck, above all {took}."
    if last is timing.parts[-1] or downstream > timing.batch_size * last.seconds * (1 + TOLERANCE):
        return f"The step is the bottleneck ({time_text(downstream)} per batch)."
    took = f"{time_text(last.seconds)} per example"
    return f"The transfer is the bottleneck ({took}): store examples on the device, or send less."


def _gain(timing: Timing, after: float) -> str:
    before = timing.baseline_seconds()
    return f"{_rate(after)} steps per second, {before / after:.2f} times the {_rate(before)}"


def _rate(seconds: float) -> str:
    """Steps per second, with three digits and no powers of ten."""
    return f"{1 / seconds:,.0f}" if seconds <= 0.01 else f"{1 / seconds:.3g}"


def time_text(seconds: float) -> str:
    """Seconds with three digits and a unit: '12.3 µs'."""
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        digits = f"{seconds * scale:.3g}"
        if float(digits) >= 1:  # 0.9996 ms is '1 ms', not '1e+03 µs'
            return f"{digits} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _line(width: int, name: str, *cells: str) -> str:
    """A line of a table in 80 columns; names are cut to what is left of them."""
    first = _COLUMNS - width * len(cells)
    return name.replace("_", " ")[:first].ljust(first) + "".join(
        cell.rjust(width) for cell in cells
    )
