"""Whether the rounds of a measurement vary so much that the advice could change."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from echo.advice.alternatives import stage_label, time_text
from echo.advice.cost_model import StageTime, Timing

# Rounds of a stage on a quiet machine differ by less than this factor.
SPREAD = 1.5

_STALLS = (
    " If what it waits for stalls now and then, R is higher on average than in the median round: "
    "measure for longer (seconds), so that each round has several stalls."
)


def warning(timing: Timing, count: int, verdict: Callable[[Timing], Any]) -> str:
    """A warning, if the verdict on the fastest or on the slowest round of a stage or of the step,
    the rest as measured, differs from the verdict on the medians; otherwise ''.

    Args:
        timing: the measured costs. Rounds of a stage are unknown if its `low` is 0.
        count: R is that of an echo stage after so many stages.
        verdict: what is recommended for a timing.
    """
    usual = verdict(timing)
    decisive = [
        part
        for part in (*timing.stages, *timing.transfers, timing.step)
        if part.high > SPREAD * part.low > 0
        and any(verdict(changed) != usual for changed in _extremes(timing, part))
    ]
    if not decisive:
        return ""
    part = max(decisive, key=lambda part: part.high / part.low)
    low, high = sorted(changed.ratio(count) for changed in _extremes(timing, part))
    ratios = f"{low:.2g}", f"{high:.2g}"
    waits = part in timing.stages and part.cpu_seconds < part.seconds / 2
    between = f", with R from {ratios[0]} to {ratios[1]}" if ratios[0] != ratios[1] else ""
    return (
        f"Unstable timings, so the advice may be wrong: {stage_label(part)} took "
        f"{time_text(part.low)} to {time_text(part.high)} per example in different rounds{between}."
        " Other work on the machine may be the cause, or threads of the step and of the loader "
        "that compete for its cores. Measure again; if that does not help, use fewer threads "
        "(torch.set_num_threads, OMP_NUM_THREADS)." + _STALLS * waits
    )


def _extremes(timing: Timing, part: StageTime) -> Sequence[Timing]:
    """`timing` with the fastest, and with the slowest, round of `part`, which is one of its own."""

    def changed(seconds: float) -> Timing:
        scaled = part.scaled(seconds / part.seconds)
        stages = tuple(scaled if stage is part else stage for stage in timing.stages)
        transfers = tuple(scaled if stage is part else stage for stage in timing.transfers)
        step = scaled if timing.step is part else timing.step
        return dataclasses.replace(timing, stages=stages, transfers=transfers, step=step)

    return changed(part.low), changed(part.high)
