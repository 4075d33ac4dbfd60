"""Whether, where, and how much to echo: measures a pipeline, predicts, and explains."""

import dataclasses
import itertools
import logging
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from echo.advice.alternatives import (
    COLUMNS,
    TOLERANCE,
    Alternative,
    alternatives,
    enough_workers,
    rate,
    stage_label,
    time_text,
    worker_sentence,
)
from echo.advice.batches import Batches
from echo.advice.cost_model import StageTime, Timing
from echo.advice.profile import Call, available_cores, contention, renewed, stage_time
from echo.advice.stability import warning
from echo.advice.torch_loader import declared_batch_size, loader_stages, reads_in_turn
from echo.spec import (
    MAX_BATCH,
    MAX_BUFFER,
    EchoSpecError,
    abbreviated,
    checked_factors,
    checked_integer,
    checked_number,
)
from echo.tree import nbytes

FACTORS = (1, 2, 3, 4, 5, 6, 7, 8)

# A step with this much CPU time per second of its own computes on the host.
_HOST_STEP_CORES = 0.5

# An input with less CPU time per second than this waits for something else.
_WAITING_CORES = 0.1

# Outputs of a stage that serve as inputs for measuring the next one.
_NUM_INPUTS = 8

# Workers to consider, as a multiple of those that the loader has.
_MORE_WORKERS = 4

# Characters of the name of an insertion point or a stage in a table.
_MIN_NAME, _MAX_NAME = 10, 20

# Limits of arguments: threads that a process can start, times that somebody waits.
_MAX_WORKERS, _MIN_SECONDS, _MAX_SECONDS = 1024, 1e-6, 3600

_IDENTICAL = (
    "The cost: repeats are identical there, since nothing after it changes them (unless the step "
    "does), and the paper (Choi et al. 2019) found earlier insertion generally better."
)
_SHARED_CORES = (
    "With R below 1 the step does not wait for its input. Input and step share the processor cores "
    "here, and each repeat saves the cores the work of reading one more example. Where the step "
    "runs on an accelerator, do not echo at such an R."
)
_TURNS = (
    "Input and step take turns here, so each repeat saves the time of reading one more example, "
    "even with R below 1."
)
_CONTENDED = (
    "The step computes on the processor cores that the input needs. How much each slows the other "
    "cannot be predicted from measurements of each: expect steps per second within a third of the "
    "prediction."
)
_WORTH = (
    "A repeat may be worth less than a fresh example: on seven small problems, e = 2, 4, and 16 "
    "needed 0.49 to 0.93, 0.21 to 0.57, and 0.06 to 0.57 of the fresh examples. Compare short runs "
    "by fresh examples to the target."
)

_log = logging.getLogger(__name__)

Stage = tuple[str, Callable[[Any], Any]]
Table = tuple[str, list[str], list[list[str]]]  # title, header, rows


@dataclasses.dataclass(frozen=True)
class Point:
    """An echo stage at one insertion point.

    Attributes:
        name: the name of the insertion point.
        count: the number of stages before it.
        ratio: R, seconds upstream / seconds downstream, each per batch.
        step_seconds: predicted seconds per step, by factor.
        item_bytes: bytes of one example there.
        buffer_bytes: bytes of the shuffle buffer.
    """

    name: str
    count: int
    ratio: float
    step_seconds: dict[float, float]
    item_bytes: int
    buffer_bytes: int


@dataclasses.dataclass(frozen=True)
class Advice:
    """A measurement, the predictions, and a recommendation; str(advice) is a report.

    Attributes:
        measured: the measured costs.
        timing: `measured`, with the number of `workers`.
        workers: the recommended number of workers; that of the pipeline if more gain nothing.
        alternatives: what other changes gain without echoing.
        points: the predictions for each insertion point, with that many workers.
        insertion, factor: the recommended insertion point and factor. The best prediction for the
            point is within TOLERANCE of that for any point, and the one for the factor within
            TOLERANCE of the best for the point, and faster than no echoing by at least TOLERANCE.
            None and 1 if there is no such insertion point.
        movable: the stage that could move to the accelerator instead of echoing after it, or None.
        reason: the recommendation in words.
        warning: what to do about timings that vary so much that the recommendation could change; ''
            if they do not.
        steps: the calls of the step that the measurement took.
    """

    measured: Timing
    timing: Timing
    alternatives: tuple[Alternative, ...]
    points: tuple[Point, ...]
    insertion: str | None
    factor: float
    movable: str | None
    reason: str
    warning: str = ""
    steps: int = 0

    @property
    def workers(self) -> int:
        return self.timing.workers

    @property
    def recommended(self) -> tuple[int, str | None, float]:
        return self.workers, self.insertion, self.factor

    def tables(self) -> list[Table]:
        """Tables of the stage times, of the alternatives, and of the predictions for echoing."""
        timing = self.measured
        times = [*timing.stages, *timing.transfers, timing.step]
        stages = [
            [_short(t.name), *map(time_text, (t.seconds, t.low, t.high, t.cpu_seconds, t.limit))]
            for t in times
        ]
        now = timing.baseline_seconds()
        changes = [["as it is", rate(now), ""]]
        for change, changed in self.alternatives:
            after = changed.baseline_seconds()
            changes.append([change, rate(after), f"{now / after:.2f} times"])
        factors = list(self.points[0].step_seconds)
        insertions = [
            [_short(point.name), f"{point.ratio:.2f}", *map(rate, point.step_seconds.values())]
            for point in self.points
        ]
        return [
            (
                "seconds per example (median of rounds)",
                [
                    "stage",
                    "alone",
                    "fastest",
                    "slowest",
                    "processor",
                    f"{max(1, timing.workers)} at once",
                ],
                stages,
            ),
            (
                f"predicted steps per second without echoing, {timing.batch_size} examples each",
                ["", "steps/s", "gain"],
                changes,
            ),
            (
                f"predicted steps per second by echo factor e, with {self.workers} "
                f"worker{'s' * (self.workers != 1)}",
                ["echo stage", "R", *(f"e={factor:g}" for factor in factors)],
                insertions,
            ),
        ]

    def memory(self) -> str:
        """The memory of the shuffle buffer at each insertion point, as a sentence."""
        sizes = [f"{p.buffer_bytes / 1e6:,.1f} MB {_spaced(p.name)}" for p in self.points]
        return f"The shuffle buffer takes up to {', '.join(sizes)}."

    def _calls(self) -> str:
        """How often the step was called, as a sentence; '' if it was not."""
        if not self.steps:
            return ""
        times = f"{self.steps:,} time{'s' * (self.steps != 1)}"
        return f"The measurement called the step {times}. A model that it trains has changed."

    def __str__(self) -> str:
        sentences = filter(None, (self.memory(), self.warning, self.reason, self._calls()))
        filled = [textwrap.fill(text, COLUMNS) for text in sentences]
        return "\n\n".join([*map(_table_text, self.tables()), *filled])


def advise(
    stages: Sequence[Stage] | Iterable[Any],
    step_fn: Callable[[Any], Any],
    *,
    batch_size: int,
    examples_per_call: int = 1,
    batch_stage: str = "batch",
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

    The step really runs, over and over for a few seconds, mostly on the same few batches
    (`Advice.steps` counts the calls). If it trains a model, give one that works on a copy of the
    model and the optimizer, or reload both afterwards.

    Args:
        stages: (name, function) pairs in order. The first function takes the number of the call (0,
            1, ...), and each other one takes the result of the one before it. They are called from
            several threads. Alternatively, a PyTorch DataLoader over a data set that reads examples
            by index, whose reading, `transform`, and batching are measured in this process; or any
            other iterable of batches, which allows only R after batching; arrays in its first item
            must have `batch_size` rows.
        step_fn: takes the result of the last stage; waits for its own result, or returns JAX
            arrays. What it changes stays changed.
        batch_size: examples per step.
        examples_per_call: examples in one call of the stages before batching. Like batch_stage, it
            is only for (name, function) pairs.
        batch_stage: the stage that takes a list of batch_size / examples_per_call items. If there
            is none of this name, all stages take batches. The stages after it transfer a batch to
            the step.
        insertions: where an echo stage may be: name of the insertion point -> the stage before it.
            By default after every stage up to batching. It is not for an iterable of batches, nor
            are `workers` and `max_workers`.
        factors: echo factors to predict; 1, training without repeats, is added if it is missing.
        shuffle_buffer: examples in the buffer, for its memory.
        workers: threads or processes that your loader runs; 0 = those of a DataLoader (if it has
            none, its reading and the step take turns), otherwise as many as cores.
        max_workers: the maximum number of workers to recommend, at least as many as run; 0 = four
            times as many as run, and 4 for a DataLoader without any. Additional workers are
            measured as threads.
        cores: the number of processor cores; 0 = measured, less the loss under contention between
            stages and step (Timing.under_contention).
        seconds: how long to measure each stage, approximately; at most an hour. A stage whose calls
            take longer than its time is called a few times only.
        stored: the part of an item that an echo stage would store.

    Raises:
        ValueError: a number that is not allowed, a batch size or name that does not match the
            stages, or an argument that is not for such stages.
        TypeError: stages that are neither pairs nor iterable, or a step that is not callable.
    """
    batch_size = checked_integer("batch_size", batch_size, 1, MAX_BATCH)
    examples_per_call = checked_integer("examples_per_call", examples_per_call, 1, MAX_BATCH)
    shuffle_buffer = checked_integer("shuffle_buffer", shuffle_buffer, 0, MAX_BUFFER)
    workers = checked_integer("workers", workers, 0, _MAX_WORKERS)
    max_workers = checked_integer("max_workers", max_workers, 0, _MAX_WORKERS)
    cores = checked_number("cores", cores, 0, _MAX_WORKERS)
    seconds = checked_number("seconds", seconds, _MIN_SECONDS, _MAX_SECONDS)
    factors = checked_factors(factors)
    factors = factors if 1 in factors else [1, *factors]
    if not callable(step_fn):
        raise TypeError(
            f"step_fn has type {type(step_fn).__name__}; allowed: a function of a batch"
        )
    if not callable(stored):
        raise TypeError(f"stored has type {type(stored).__name__}; allowed: a function of an item")
    if not isinstance(batch_stage, str):
        raise TypeError(
            f"batch_stage has type {type(batch_stage).__name__}; allowed: a stage's name"
        )
    if isinstance(stages, Mapping | str | bytes) or not isinstance(stages, Iterable):
        raise TypeError(
            f"stages has type {type(stages).__name__}; allowed: a list of (name, function) pairs, "
            "or an iterable of batches"
        )
    _check_functions(stages)
    in_turn = reads_in_turn(stages)
    # What is modeled needs no further sentence: workers, or a loader that is known to have none.
    is_modeled = _is_stages(stages) or in_turn or bool(getattr(stages, "num_workers", 0))
    declared = declared_batch_size(stages)
    if declared and batch_size != declared:
        raise EchoSpecError("batch_size", batch_size, f"that of the loader, {declared}")
    loader = loader_stages(stages)
    stage_settings: dict[str, tuple[Any, Any]] = {
        "examples_per_call": (examples_per_call, 1),
        "batch_stage": (batch_stage, "batch"),
    }
    if loader is not None:
        _check_left_out("a DataLoader", **stage_settings)
        stages, workers = loader.stages, workers or loader.workers
    elif not _is_stages(stages):
        stage_settings |= {
            "insertions": (insertions or None, None),
            "workers": (workers, 0),
            "max_workers": (max_workers, 0),
        }
        _check_left_out("an iterable of batches", **stage_settings)
        batches = Batches(stages, 0 if declared else batch_size)
        stages, batch_stage = [("input", lambda _: next(batches))], ""
        workers, max_workers = int(not in_turn), 1
        insertions = {"after batching": "input"}
    names = [name for name, _ in stages]
    if len(set(names)) < len(names):
        raise ValueError(f"stages are named {', '.join(names)}; allowed: a different name for each")
    batching = names.index(batch_stage) if batch_stage in names else len(names) - 1
    host = names[: batching + 1]
    if batch_stage not in names:
        examples_per_call = batch_size
    if batch_size % examples_per_call:
        raise ValueError(
            f"examples_per_call is {examples_per_call}, which does not divide batch_size "
            f"{batch_size}; allowed: a divisor"
        )
    insertions = insertions or {f"after {name}": name for name in host}
    if not isinstance(insertions, Mapping) or not all(isinstance(key, str) for key in insertions):
        raise EchoSpecError("insertions", insertions, "a dict: insertion point -> stage before it")
    for insertion, name in insertions.items():
        if name not in host:
            raise ValueError(f"insertions[{insertion!r}] is {name!r}; allowed: {', '.join(host)}")

    step_fn = _Counted(step_fn)
    measure_cores = not cores
    cores = cores or available_cores(seconds / 2)
    workers = workers or (0 if in_turn else math.ceil(cores))
    threads = max(1, workers)  # that measure
    max_workers = max_workers or min(_MORE_WORKERS * threads, _MAX_WORKERS)
    times, calls, sizes = [], [], {}
    results: Iterator[Any] = itertools.count()
    examples = examples_per_call
    for name, function in stages:
        if name == batch_stage:
            inputs = _grouped(map(renewed, results), batch_size // examples)
            examples = batch_size
        else:
            inputs = map(renewed, results)
        most = max_workers if name in host else 0
        _log.info("measuring %s", name)
        cost, outputs = stage_time(
            name, function, inputs, examples, threads, seconds, most, _NUM_INPUTS
        )
        times.append(cost)
        calls.append(Call(function, inputs, examples, cost))
        if name in host:
            sizes[name] = nbytes(stored(outputs[0])) // examples
        results = itertools.cycle(outputs)
    _log.info("measuring the step")
    inputs = map(renewed, results)
    step, _ = stage_time("step", step_fn, inputs, batch_size, 1, seconds)
    calls.append(Call(step_fn, inputs, batch_size, step))
    before, after = tuple(times[: len(host)]), tuple(times[len(host) :])
    timing = Timing(before, after, step, batch_size, workers, cores)
    ahead, behind = calls[: len(host)], calls[len(host) :]
    if measure_cores and not _only_waits(timing, ahead, seconds):
        _log.info("measuring stages and step at once")
        used, useful = contention(ahead, behind, threads, seconds)
        timing = timing.under_contention(used, useful)
    advice = conclude(timing, insertions, sizes, factors, shuffle_buffer, batch_stage, max_workers)
    sentence = "" if is_modeled else _in_turns(timing)
    reason = f"{advice.reason} {sentence}".rstrip()
    return dataclasses.replace(advice, reason=reason, steps=step_fn.calls)


def conclude(
    timing: Timing,
    insertions: Mapping[str, str],
    sizes: Mapping[str, int],
    factors: Sequence[float] = FACTORS,
    shuffle_buffer: int = 10_000,
    batch_stage: str = "batch",
    max_workers: int = 0,
) -> Advice:
    """The advice for a measured timing; `sizes` are bytes per example after each stage."""
    settings = (insertions, sizes, factors, shuffle_buffer, batch_stage, max_workers)
    advice = _advice_on(timing, *settings)
    counts = {point.name: point.count for point in advice.points}
    count = counts.get(advice.insertion or "", len(timing.stages))
    varies = warning(timing, count, lambda changed: _advice_on(changed, *settings).recommended)
    return dataclasses.replace(advice, warning=varies)


def _advice_on(
    timing: Timing,
    insertions: Mapping[str, str],
    sizes: Mapping[str, int],
    factors: Sequence[float],
    shuffle_buffer: int,
    batch_stage: str,
    max_workers: int,
) -> Advice:
    """The advice if the timing is exact."""
    names, points = [stage.name for stage in timing.stages], []
    workers = enough_workers(timing, max_workers)
    changes = alternatives(timing, max(workers, max_workers), batch_stage)
    measured, timing = timing, timing.with_workers(workers)
    for insertion, name in insertions.items():
        count = names.index(name) + 1
        predicted = {factor: timing.step_seconds(count, factor) for factor in factors}
        memory = sizes[name] * shuffle_buffer
        points.append(Point(insertion, count, timing.ratio(count), predicted, sizes[name], memory))
    insertion, factor, movable, reason = _recommended(timing, points, batch_stage)
    if workers > measured.workers:
        reason = f"{worker_sentence(measured, workers)} With them: {reason}"
    if timing.step.cpu_seconds > _HOST_STEP_CORES * timing.step.seconds:
        reason = f"{reason} {_CONTENDED}"
    advised = (insertion, factor, movable, reason)
    return Advice(measured, timing, tuple(changes), tuple(points), *advised)


def _is_stages(stages: Any) -> bool:
    """Whether these are (name, function) pairs; a list of batches may contain tuples too."""
    return isinstance(stages, Sequence) and len(stages) > 0 and all(map(_is_pair, stages))


def _is_pair(item: Any) -> bool:
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    return is_pair and isinstance(item[0], str) and callable(item[1])


def _holds_function(item: Any) -> bool:
    return any(map(callable, item)) if isinstance(item, tuple | list) else callable(item)


def _check_functions(stages: Any) -> None:
    """Checks that functions are in (name, function) pairs; TypeError if not. A list of batches
    has none."""
    if not isinstance(stages, tuple | list) or not any(map(_holds_function, stages)):
        return
    for number, item in enumerate(stages):
        if not _is_pair(item):
            raise TypeError(
                f"stages[{number}] is {abbreviated(item)}; allowed: a list of (name, function) "
                "pairs, or an iterable of batches, without functions"
            )


def _check_left_out(stages: str, **arguments: tuple[Any, Any]) -> None:
    """Raises EchoSpecError for one of these (value, default) that is not left out."""
    for name, (value, default) in arguments.items():
        if value != default:
            raise EchoSpecError(name, value, f"{default!r} for {stages}")


def _only_waits(timing: Timing, ahead: Sequence[Call], seconds: float) -> bool:
    """Whether the input waits for a call longer than `seconds`. Then it takes too little processor
    time to lose any under contention, and it would take long to measure that."""
    longest = max(call.examples * call.time.seconds for call in ahead)
    return longest > seconds and timing.upstream_cores() < _WAITING_CORES


def _recommended(
    timing: Timing, points: Sequence[Point], batch_stage: str
) -> tuple[str | None, float, str | None, str]:
    """(insertion, factor, movable, reason) of the recommendation."""
    before = timing.baseline_seconds()
    best = min(min(point.step_seconds.values()) for point in points)
    if before <= best * (1 + TOLERANCE):
        return None, 1, None, _not_echoing(timing, points, before)

    def enough(fastest: float) -> float:
        return max(fastest, min(fastest * (1 + TOLERANCE), before / (1 + TOLERANCE)))

    # At equal speed an earlier insertion point is better, since later stages make copies differ
    # (Choi et al. 2019), and so is a smaller factor, since a larger one only repeats more. The
    # factors are those of one point: a faster one elsewhere is no reason to repeat more here.
    in_order = sorted(points, key=lambda point: point.count)
    chosen = next(p for p in in_order if min(p.step_seconds.values()) <= enough(best))
    there = enough(min(chosen.step_seconds.values()))
    factor = next(f for f, seconds in sorted(chosen.step_seconds.items()) if seconds <= there)
    if factor == 1:
        return None, 1, None, _only_overlap(chosen, before)
    sentences = [_prediction(chosen, factor, before)]
    if factor == max(chosen.step_seconds) and chosen.ratio > factor * (1 + TOLERANCE):
        sentences.append("The input stays the bottleneck at every factor here: speed it up too.")
    free = math.floor(10 * chosen.ratio) / 10
    if not timing.workers:
        sentences += [_TURNS] * (chosen.ratio <= 1)
    elif chosen.ratio <= 1:
        sentences.append(_SHARED_CORES)
    elif factor > chosen.ratio * (1 + TOLERANCE) and timing.step_seconds(
        chosen.count, free
    ) <= chosen.step_seconds[factor] * (1 + TOLERANCE):
        sentences.append(f"That is R rounded up: e = {free:g} is about as fast, and repeats less.")
    movable = None
    if all(stage.name == batch_stage for stage in timing.stages[chosen.count :]):
        sentences.append(_IDENTICAL)
        between = timing.stages[_count_before(chosen, in_order) : chosen.count]
        transforms = [stage for stage in between if stage.name != batch_stage]
        movable = max(transforms, key=lambda stage: stage.limit, default=None)
    if movable:
        sentences.append(_moved(timing, movable, chosen.step_seconds[factor]))
    return chosen.name, factor, movable and movable.name, " ".join([*sentences, _WORTH])


def _prediction(point: Point, factor: float, before: float) -> str:
    """The recommended cell of the table, as a sentence."""
    after = point.step_seconds[factor]
    return (
        f"Echo {_spaced(point.name)}, factor {factor:g}: {rate(after)} steps per second are "
        f"predicted, {before / after:.2f} times the {rate(before)} without echoing "
        f"(R = {point.ratio:.2f})."
    )


def _only_overlap(point: Point, before: float) -> str:
    """The advice if a stage gains by running stages on another thread, without any repeat."""
    after = point.step_seconds[1]
    return (
        f"Do not echo: nothing is gained by repeats. Let the stages {_spaced(point.name)} run on a "
        f"thread of their own, beside the workers, or add workers: {rate(after)} steps per second "
        f"are predicted then, {before / after:.2f} times the current {rate(before)}."
    )


def _count_before(chosen: Point, in_order: Sequence[Point]) -> int:
    """The number of stages before the point before `chosen`; its own count if it is first."""
    return max((p.count for p in in_order if p.count < chosen.count), default=chosen.count)


def _moved(timing: Timing, stage: StageTime, echoed: float) -> str:
    """The alternative of moving `stage`, its best case, and when to choose it."""
    rest = tuple(other for other in timing.stages if other is not stage)
    fresh = dataclasses.replace(timing, stages=rest).baseline_seconds()
    name = stage_label(stage)
    text = (
        f"Alternatively move {name} ({time_text(stage.seconds)} per example) to the accelerator: "
        f"at most {rate(fresh)} steps per second then, with every example fresh, less what {name} "
        "adds to each step. "
    )
    if fresh > echoed * (1 + TOLERANCE):
        text += "Echoing before it, where copies differ, can then add to that. "
    return text + (
        "Move it if the accelerator can run it in less time than it saves here; otherwise echo "
        "after it."
    )


def _not_echoing(timing: Timing, points: Sequence[Point], before: float) -> str:
    """The explanation if no insertion point and factor gains: what sets the pace instead."""
    count = len(timing.stages)
    ratio, alone = timing.ratio(count), timing.downstream_seconds(count)
    if before <= alone * (1 + TOLERANCE):
        return _slow_transfer(timing, alone) or (
            f"Your input is not the bottleneck (R = {ratio:.2f}): do not echo. The step "
            f"takes {time_text(alone)} per batch, and the input "
            f"{time_text(timing.upstream_seconds(count))}."
        )
    last = max(points, key=lambda point: point.count)
    after = timing.stages[last.count :]
    if timing.batch_size * sum(stage.seconds for stage in after) * (1 + TOLERANCE) >= before:
        slowest = max(after, key=lambda stage: stage.seconds)
        return (
            f"Echoing cannot help where it was considered: {stage_label(slowest)} after it takes "
            f"{time_text(slowest.seconds)} per example at every step, on one thread. Speed it up, "
            "move it to the accelerator, or echo after it."
        )
    if timing.upstream_seconds(count) * (1 + TOLERANCE) >= before or not timing.workers:
        waits = "The input is the bottleneck" if timing.workers else "Input and step take turns"
        return (
            f"{waits} (R = {ratio:.2f}), but no factor up to "
            f"{max(last.step_seconds):g} gains {TOLERANCE:.0%} where echoing was considered: allow "
            "a larger factor or a later insertion point."
        )
    return (
        "The processor cores are the bottleneck, and the work of every step takes nearly all of "
        f"their time: echoing saves less than {TOLERANCE:.0%} of it. Do not echo."
    )


def _slow_transfer(timing: Timing, alone: float) -> str | None:
    """The explanation if a transfer sets the pace; None if not. `alone` is downstream seconds."""
    slowest = max(timing.transfers, key=lambda stage: stage.seconds, default=timing.step)
    seconds = timing.batch_size * slowest.seconds * (1 + TOLERANCE)
    if slowest.seconds <= timing.step.seconds * (1 + TOLERANCE) or seconds < alone:
        return None
    return (
        f"{slowest.name.capitalize()} to the device is the bottleneck "
        f"({time_text(slowest.seconds)} per example; the step takes "
        f"{time_text(timing.step.seconds)}). Echoing on the host sends every copy again and cannot "
        "help: store repeated examples on the device, which receives each once (not predicted "
        "here), or send less."
    )


def _in_turns(timing: Timing) -> str:
    """What happens if the input does not run while the step does; '' if that hardly matters."""
    count, before = len(timing.stages), timing.baseline_seconds()
    added = timing.upstream_seconds(count) + timing.downstream_seconds(count)
    if added < before * (1 + TOLERANCE):
        return ""
    return (
        "All of this assumes that batches are read ahead while the step runs, by workers or by a "
        "thread that prefetches. If they are not, the two times add up, to "
        f"{rate(added)} steps per second without echoing instead of {rate(before)}: read ahead "
        "first."
    )


def _spaced(name: str) -> str:
    return name.replace("_", " ")


class _Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[[Any], Any]):
        self._function, self.calls = function, 0

    def __call__(self, item: Any) -> Any:
        self.calls += 1
        return self._function(item)


def _grouped(inputs: Iterator[Any], length: int) -> Iterator[list[Any]]:
    while True:
        yield list(itertools.islice(inputs, length))


def _short(name: str, length: int = _MAX_NAME) -> str:
    """A name for a table."""
    name = _spaced(name)
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _table_text(table: Table) -> str:
    title, header, rows = table
    first, *others = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    gap = "  " if first + sum(2 + width for width in others) <= COLUMNS else " "
    first = min(first, max(_MIN_NAME, COLUMNS - sum(len(gap) + width for width in others)))
    lines = [
        gap.join([_short(row[0], first).ljust(first), *map(str.rjust, row[1:], others)])
        for row in [header, *rows]
    ]
    return "\n".join([title, *lines])
