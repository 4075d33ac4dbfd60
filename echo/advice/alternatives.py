"""What speeds up a pipeline without echoing: more workers, augmentation moved, a faster stage."""

import dataclasses
from typing import NamedTuple

from echo.advice.cost_model import StageTime, Timing

# Stages of these names can usually run on the accelerator.
AUGMENTATION = ("augment", "augmentation", "transform")

# Predictions closer than this count as equal: on shared cores they are 1 to 14% off
# (docs/advice.md).
TOLERANCE = 0.1

COLUMNS = 80  # of a terminal, which reports fit


class Alternative(NamedTuple):
    """A change of the pipeline, with the timing that it would have."""

    change: str
    timing: Timing


def enough_workers(timing: Timing, most: int) -> int:
    """The smallest number of workers, up to `most`, that is about as good as any."""
    if timing.with_workers(most).baseline_seconds() * (1 + TOLERANCE) > timing.baseline_seconds():
        return timing.workers
    enough = timing.with_workers(most).baseline_seconds() * (1 + TOLERANCE / 2)
    return next(
        workers
        for workers in range(timing.workers + 1, most + 1)
        if timing.with_workers(workers).baseline_seconds() <= enough
    )


def alternatives(timing: Timing, max_workers: int, batch_stage: str) -> list[Alternative]:
    """What to consider before echoing: one worker instead of none, if it gains something; the most
    workers, even if they gain nothing; and changes of single stages that gain something."""
    transforms = [stage for stage in timing.stages if stage.name != batch_stage]
    changes = [
        Alternative(f"{stage_label(stage)} on the accelerator, at most", _changed(timing, stage))
        for stage in transforms
        if stage.name in AUGMENTATION
    ]
    changes += [
        Alternative(f"{stage_label(stage)} in half the time", _changed(timing, stage, 0.5))
        for stage in transforms
    ]
    enough = timing.baseline_seconds() / (1 + TOLERANCE / 2)
    changes = [change for change in changes if change.timing.baseline_seconds() <= enough]
    counts = [max_workers] if max_workers > timing.workers else []
    if (
        not timing.workers
        and max_workers > 1
        and timing.with_workers(1).baseline_seconds() <= enough
    ):
        counts = [1, max_workers]
    more = [
        Alternative(f"{_workers(count)} instead of {timing.workers}", timing.with_workers(count))
        for count in counts
    ]
    return [*more, *changes]


def worker_sentence(timing: Timing, workers: int) -> str:
    """Why to start with `workers`, and what that gains."""
    slowest = max(timing.stages, key=lambda stage: stage.seconds)
    waiting = slowest.seconds - slowest.cpu_seconds
    before, after = timing.baseline_seconds(), timing.with_workers(workers).baseline_seconds()
    if not timing.workers:
        why = (
            "without workers, input and step take turns, and each waits for the other; with them, "
            "batches are read while the step runs"
        )
    elif waiting > slowest.cpu_seconds:
        why = (
            f"{stage_label(slowest)} waits for {time_text(waiting)} of its "
            f"{time_text(slowest.seconds)} per example, and more workers would wait in parallel"
        )
    else:
        why = f"{timing.workers} do not fill the {timing.cores:.3g} processor cores"
    return (
        f"First use {_workers(workers)} instead of {timing.workers}: {why}. {rate(after)} steps "
        f"per second are predicted, {before / after:.2f} times the current {rate(before)}, with "
        "every example fresh."
    )


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def stage_label(stage: StageTime) -> str:
    return "augmentation" if stage.name == "augment" else stage.name.replace("_", " ")


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


def _changed(timing: Timing, stage: StageTime, factor: float | None = None) -> Timing:
    """`timing` with `stage` in `factor` times its time; None: without it."""
    changed = [] if factor is None else [stage.scaled(factor)]
    place = timing.stages.index(stage)
    stages = (*timing.stages[:place], *changed, *timing.stages[place + 1 :])
    return dataclasses.replace(timing, stages=stages)
