"""What `auto` costs compared with the best fixed factor, behind constant and bursty upstreams.

    python -m benchmarks.auto_price --train=out/auto_price    half an hour; resumes
    python -m benchmarks.auto_price --further=out/auto_further  an hour; resumes
    python -m benchmarks.auto_price --wall=out/auto_wall      20 minutes; quiet machine
    python -m benchmarks.auto_price --out=results/auto_price.md

Fixed before the first run:

* Problems: `digits` and `sentences` of configs/problems.py at batch size 32, with the targets and
  the hyperparameters of the older studies `digits_factor` (0.97) and `sentences_factor` (4.9; its
  network was twice as wide). Each fixed factor e = 1, 2, 4, 8, 16 has the best trial of its own
  condition, and `auto` that of the factor nearest to the copies that R and `max_factor` allow. Ten
  matched seeds.
* Upstreams: R = 2, 6, 16, constant, or with the same mean in bursts: for 16 of every 64 steps' time
  at four times the mean, then nothing.
* Cost model: a step takes one unit of time and everything else none; evaluation does not count. An
  upstream works ahead by two batches of examples, as in training, then waits. A fixed factor
  prepares two batches ahead. `auto` decides with the library's own `AutoOrder`, on the model's
  clock; its decisions depend on nothing else, so every seed trains by replaying them.
* `auto` has a `max_factor` of an eighth of the batch size, 4, which was the default, and at R = 6
  and 16 also 16. Both store 256 examples, as in the studies.
* For each cell, the best fixed factor is the one with the smallest median time over the seeds. The
  ratio of `auto` to it is taken seed by seed; its median has a one-sided 90% bound from the sign
  test. The goal is a bound of at most 1.10. A run that did not reach the target has the time of its
  budget as a lower bound, and so does one that diverged; the table counts such runs.
* Added when the digits had been run, and before its own first run: `auto` with the `max_factor`
  that pilots recommended, with a forecast that no longer exists (docs/claims.md).
* Added when all of these had been seen: a maximum of 8 copies, a quarter of the batch size, as a
  candidate for the default; and `logistic` of the grid with its winners, without pilots, which had
  not been seen. A quarter becomes the default only if it has the smaller mean log ratio there. (It
  had, and is the default now; at R = 2 it was added then.)
* Added when all of these had been seen: `auto` waits rather than put an example into a batch twice.
  In the nine cells with constant input and a limit below R, a batch of 32 had held as few as 10
  examples; other decisions stay the same. The nine are trained again. The change stays only if the
  geometric mean over them of the new median time over the old one is below 1, and below 1.02 on
  each problem.
* Added when all of these had been seen, before its own first run: 40 further seeds of the digits
  and the sentences, with `auto` at its default and e = 2, 4, 8, 16 (e = 1 was the best nowhere on
  them), since ten seeds leave bounds far above their medians. All twelve cells are judged again, by
  the same rule, from these seeds alone.
* Added when all of these had been seen: `auto` spreads the copies of an example over the buffer
  (schema version 6; before, most followed within two batches). The rule was chosen among seven,
  with seeds from 1,000 on, behind constant upstreams. `auto` is trained again with a quarter of the
  batch size, the maxima from pilots, 16 copies at R = 6, and 16 and 32 at R = 16. Fixed factors,
  which do not change, keep their runs. The rule stays if, over the twelve cells with the 40 further
  seeds, the geometric mean of the new median time over the old one is below 1, and below 1.02 on
  each problem.
* Added when all of these had been seen: if all copies are emitted, as where R is at least
  `max_factor`, `auto` holds back a reserve, without which each example is used up as soon as it
  comes (`Repeats.rationed` in echo/auto.py). The reserve was chosen among ten rules, with
  seeds from 1,000 on, behind upstreams of R = 16. Where decisions stay the same, so do runs; all
  others of `auto` are trained again. It stays if, over the four cells at R = 16 with the 40 further
  seeds, the geometric mean of the new median time over the old one is below 1, and below 1.02 on
  each problem. With the same seeds from 1,000 on, 10 copies were tried as the default at R = 16
  (worse on the sentences), and a buffer of 512 examples (no clear gain); both were dropped.
* Added when all of these had been seen: a default of half of the batch size, 16, where every repeat
  is augmented anew, as on the digits. Without augmentation, as on the sentences and on logistic
  regression, it stays a quarter. The reasons are the ten seeds above, and the
  pages of the forecast at R = 16: on the five problems that augment (digits, older digits,
  mnist, cells, photographs), 16 copies have a median of at most that of a quarter. The 40 further
  seeds of the digits are trained with 16 copies, and judge it: it becomes the default only if the
  mean log ratio over the six cells is smaller than with 8. (At R = 2, no example has 8 copies, so
  both limits give the same batches, and the saved runs with 16 are those with 8.)
* By wall clock: digits at R = 6, constant and bursty, and sentences at R = 6, constant; five of the
  seeds; `auto` with its default, the best fixed factor, and no echoing, in shuffled order, behind a
  rate limit that makes the upstream R times slower than the measured step.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy import stats

import sweep
import train
from analysis import load, uncertainty
from benchmarks import common, confirmation, wall_time
from configs import catalog, problems
from echo.auto import AutoOrder, Repeats
from echo.schedule import EchoSchedule
from pipeline import accounting
from runs import records
from runs.progress import Progress
from studies.search import SEEDS_PER_SEARCH, make_study

FACTORS = (1, 2, 4, 8, 16)
RATIOS = (2, 6, 16)
KINDS = ("constant", "bursty")
BATCH_SIZE, BUFFER, SEEDS = 32, 256, 10
FURTHER_SEEDS, FURTHER_FACTORS = 40, FACTORS[1:]
PERIOD, BURST = 64.0, 16.0  # steps' time
AHEAD = 2  # batches that are read, and that are prepared, before they are needed
DEEP = 64  # batches that are read, for comparison
QUARTER = BATCH_SIZE // 4
MAXIMA = {2: (8,), 6: (8, 16), 16: (8, 16, 32)}  # of copies, by R; pilots add theirs
LEVEL = 0.8  # two-sided, so that each end is a one-sided bound at 90%
GOAL = 1.10
RECORDS = pathlib.Path("results/auto_price.json")
PILOTED = ("digits", "sentences")
WALL_CELLS = (("digits", 6, "constant"), ("digits", 6, "bursty"), ("sentences", 6, "constant"))
WALL_SEEDS = 5

# problem: (the study with the hyperparameters, the target, the budget)
PROBLEMS = {
    "digits": ("digits_factor", 0.97, 12_000),
    "sentences": ("sentences_factor", 4.9, 10_000),
    "logistic": ("grid/logistic", 0.875, 12_000),
}


# --- the cost model, in steps' time


class Upstream:
    """Delivers examples at a mean of B/R per step's time; waits when it is too far ahead.

    Args:
        ratio: R.
        kind: constant or bursty.
        ahead: batches of examples that it may be ahead.
    """

    def __init__(self, ratio: float, kind: str, ahead: int = AHEAD):
        self._ahead = ahead * BATCH_SIZE
        self._seconds = ratio / BATCH_SIZE
        self._bursty = kind == "bursty"
        if self._bursty:
            self._seconds *= BURST / PERIOD
        self._taken: list[float] = []
        self._arrival = 0.0  # of the next example
        self._transfer()

    @property
    def arrival(self) -> float:
        """When the next example arrives that has not been taken."""
        return self._arrival

    def take(self, now: float) -> None:
        self._taken.append(now)
        self._transfer()

    def _transfer(self) -> None:
        """Sets the arrival of the next example, which waits for the one before it, and for room."""
        number = len(self._taken)
        room = self._taken[number - self._ahead] if number >= self._ahead else 0.0
        self._arrival = self._end(max(self._arrival, room))

    def _end(self, start: float) -> float:
        """When a transfer that begins at `start` ends."""
        if not self._bursty:
            return start + self._seconds
        cycle, phase = divmod(start, PERIOD)
        if phase >= BURST:
            cycle, phase = cycle + 1, 0.0
        if phase + self._seconds > BURST:  # the rest follows in the next burst
            return (cycle + 1) * PERIOD + phase + self._seconds - BURST
        return cycle * PERIOD + phase + self._seconds


class SimulatedIntake:
    """The `intake` of an order on a simulated clock, in which reading takes no time but waiting."""

    def __init__(self, upstream: Upstream, num_items: int):
        self._upstream = upstream
        self.num_items = num_items
        self.num_read = 0
        self.now = 0.0

    def read(self, stop: int, seconds: float | None = None) -> bool:
        if self.num_read == self.num_items:
            return False
        arrival = self._upstream.arrival
        if seconds is not None and arrival > self.now + seconds:
            self.now += seconds
            return False
        self.now = max(self.now, arrival)
        while self.num_read < min(stop, self.num_items) and self._upstream.arrival <= self.now:
            self._upstream.take(self.now)
            self.num_read += 1
        return True


def auto_times(upstream: Upstream, budget: int, max_factor: int) -> tuple[np.ndarray, list[int]]:
    """When each step of `auto` ends, and the fresh examples that it takes."""
    intake, ends = SimulatedIntake(upstream, budget), [0.0]
    # Within this of the end of a step, a batch is needed: sums of floats are not exact.
    order = AutoOrder(
        Repeats(max_factor, BUFFER, seed=0),
        BATCH_SIZE,
        slack=lambda: left if (left := ends[-1] - intake.now) > 1e-9 else 0.0,
    )
    decisions = []
    while True:
        # A batch is requested when the step before it has been dispatched, and that has begun.
        intake.now = max(intake.now, ends[-1] - 1)
        before = order.admitted
        try:
            order.next(intake)
        except StopIteration:
            return np.asarray(ends[1:]), decisions
        order.emitted(1)
        decisions.append(order.admitted - before)
        ends.append(max(ends[-1], intake.now) + 1)


def fixed_times(upstream: Upstream, budget: int, factor: int) -> np.ndarray:
    """When each step at a fixed factor ends."""
    schedule = EchoSchedule(factor, BUFFER if factor > 1 else 0)
    intake, starts, ends = SimulatedIntake(upstream, budget), [], [0.0]
    for step in range(schedule.num_outputs(budget) // BATCH_SIZE):
        if step >= AHEAD:  # there is room for a batch when an earlier one has gone
            intake.now = max(intake.now, starts[step - AHEAD])
        required = schedule.admitted((step + 1) * BATCH_SIZE, budget)
        while intake.num_read < required:
            intake.read(required)
        starts.append(max(ends[-1], intake.now))
        ends.append(starts[-1] + 1)
    return np.asarray(ends[1:])


# --- training


def auto_name(ratio: int, kind: str, max_factor: int) -> str:
    return f"auto_r{ratio}_{kind}_m{max_factor}"


def default(problem: str) -> int:
    """The default of `max_factor`."""
    return accounting.max_factor(common.overridden(configuration(problem), auto_fields(0)))


def auto_cells(
    problem: str, from_pilots: Mapping[str, int] | None = None
) -> list[tuple[int, str, int]]:
    """(R, kind, max_factor) of each condition of `auto`; `from_pilots` is by R, as text."""
    maxima = {ratio: {*counts, default(problem)} for ratio, counts in MAXIMA.items()}
    for ratio, factor in (from_pilots or {}).items():
        maxima[int(ratio)].add(factor)
    return [(r, kind, m) for r in RATIOS for kind in KINDS for m in sorted(maxima[r])]


def configuration(problem: str, first_seed: int = 0) -> ConfigDict:
    _, target, budget = PROBLEMS[problem]
    config = problems.get_config(problem)
    config.target.value = target
    config.budget.fresh_examples = budget
    config.batch_size = BATCH_SIZE
    config.evaluate_every_fresh_examples = budget // problems.EVALUATIONS
    config.gradient_statistics_every_steps = 0
    config.seed.data = 50_000 + first_seed
    config.seed.model = 60_000_000 + SEEDS_PER_SEARCH * first_seed
    return config


def tuned(problem: str) -> dict[int, dict[str, float]]:
    """The hyperparameters of the best trial of each fixed factor."""
    winners = confirmation.winners(load.read("results/trials.parquet", study=PROBLEMS[problem][0]))
    names = {e: f"before_augmentation_e{e}" if e > 1 else "baseline" for e in FACTORS}
    return {e: winners[f"{name}_b{BATCH_SIZE}"] for e, name in names.items()}


def fixed_fields(factor: int) -> dict[str, Any]:
    insertion = "before_augmentation" if factor > 1 else "none"
    return catalog.echo(insertion, factor, BUFFER if factor > 1 else 0)


def auto_fields(max_factor: int) -> dict[str, Any]:
    return catalog.auto(max_factor, BUFFER)


def nearest(ratio: int, max_factor: int) -> int:
    """The fixed factor nearest to the copies of an example under `auto`."""
    return min(FACTORS, key=lambda e: abs(math.log(e / min(ratio, max_factor))))


def run_problem(problem: str, root: pathlib.Path) -> None:
    """Trains every fixed factor, and `auto` without pilots, with every seed."""
    best = tuned(problem)
    fixed = {f"e{e}": fixed_fields(e) | best[e] for e in FACTORS}
    run_study(problem, root, problem, fixed | auto_conditions(problem, root, auto_cells(problem)))


def auto_conditions(
    problem: str, root: pathlib.Path, cells: Sequence[tuple[int, str, int]]
) -> dict[str, dict[str, Any]]:
    """The conditions of `auto`, by name; writes the decisions that they replay below `root`."""
    config, best, conditions = configuration(problem), tuned(problem), {}
    for ratio, kind, max_factor in cells:
        name = auto_name(ratio, kind, max_factor)
        _, decisions = auto_times(Upstream(ratio, kind), config.budget.fresh_examples, max_factor)
        path = root / f"{problem}_{name}.jsonl"
        write_decisions(path, decisions)
        copies = len(decisions) * BATCH_SIZE / config.budget.fresh_examples
        every = max(1, round(config.evaluate_every_fresh_examples / copies))
        conditions[name] = (
            auto_fields(max_factor)
            | best[nearest(ratio, max_factor)]
            | {"echo.replay": str(path), "evaluate_every_fresh_examples": every}
        )
    return conditions


def write_decisions(path: pathlib.Path, decisions: Sequence[int]) -> None:
    """Writes the fresh examples of each step for config.echo.replay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"step": k, "fresh": [n]}) for k, n in enumerate(decisions, 1))
    path.write_text("\n".join(lines) + "\n")


def run_further(problem: str, root: pathlib.Path) -> None:
    """Trains the fixed factors with repeats, and `auto` with its default and with QUARTER copies,
    with further seeds."""
    best, limits = tuned(problem), sorted({QUARTER, default(problem)})
    fixed = {f"e{e}": fixed_fields(e) | best[e] for e in FURTHER_FACTORS}
    auto = auto_conditions(problem, root, list(itertools.product(RATIOS, KINDS, limits)))
    run_study(problem, root, problem, fixed | auto, range(SEEDS, SEEDS + FURTHER_SEEDS))


def run_study(
    problem: str,
    root: pathlib.Path,
    name: str,
    conditions: Mapping[str, Mapping[str, Any]],
    seeds: range = range(SEEDS),
) -> None:
    study = make_study(
        "auto_price",
        configuration(problem, seeds.start),
        conditions,
        (),
        trials=1,
        searches=len(seeds),
        baseline=next(iter(conditions)),
        config_flag=f"configs/problems.py:{problem}",
    )
    if sweep.run(study, root / name, Progress()) != "finished":
        raise SystemExit("stopped; the same command resumes")


def collect(
    root: pathlib.Path, names: Sequence[str] = tuple(PROBLEMS)
) -> dict[str, dict[str, list[Any]]]:
    """[step at which the target was reached, or None; steps; status] by seed, by problem and
    condition."""
    collected = {}
    for problem in names:
        runs: dict[str, list[Any]] = {}
        for place, directory in sorted(
            records.trials_on_disk(root / problem), key=lambda item: item[0].search
        ):
            if place.trial:  # takes the place of a diverged one
                continue
            result = records.read_json(directory / records.RESULT)
            runs.setdefault(place.condition, []).append(
                [result["steps_to_target"], result["step"], result["status"]]
            )
        collected[problem] = runs
    return collected


# --- wall clock


def run_wall(root: pathlib.Path, steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Trains the cells behind real limits; [{cell, step_seconds, seconds by condition}]."""
    cells, order = [], random.Random(0)
    for problem, ratio, kind in WALL_CELLS:
        best = tuned(problem)
        cell = measured(problem, ratio, kind, default(problem), steps[problem])
        config = configuration(problem)
        where = root / f"{problem}_{ratio}_{kind}"
        step_seconds = wall_time.seconds_per_step(
            wall_time.Plan(batch_size=BATCH_SIZE),
            common.overridden(config, fixed_fields(4) | best[4]),
            where / "step",
        )
        rate = BATCH_SIZE / (ratio * step_seconds)
        limit = {"upstream.examples_per_second": rate}
        if kind == "bursty":
            limit = {
                "upstream.examples_per_second": rate * PERIOD / BURST,
                "upstream.stall_every_seconds": BURST * step_seconds,
                "upstream.stall_seconds": (PERIOD - BURST) * step_seconds,
            }
        max_factor = default(problem)
        conditions = {f"e = {e}": fixed_fields(e) | best[e] for e in (1, cell.factor)}
        conditions["auto"] = auto_fields(max_factor) | best[nearest(ratio, max_factor)]
        seconds: dict[str, list[float]] = {name: [] for name in conditions}
        rates: dict[str, list[float]] = {name: [] for name in conditions}
        for seed in range(WALL_SEEDS):
            for name in order.sample(list(conditions), len(conditions)):
                fields = conditions[name] | limit
                fields |= {"seed.data": 50_000 + seed, "seed.model": 60_000_000 + 10_000 * seed}
                copies = min(ratio, max_factor) if name == "auto" else int(name[4:])
                every = round(config.evaluate_every_fresh_examples / copies)
                fields |= {"evaluate_every_fresh_examples": every}
                workdir = where / name.replace(" ", "") / str(seed)
                own = common.overridden(config, fields)
                trained = train.train(own, workdir, Progress(quiet=True))
                seconds[name].append(trained["seconds_to_target"] or math.inf)
                rates[name].append(trained["step"] / trained["train_seconds"])
            common.progress(f"{problem}, R = {ratio}, {kind}: seed {seed + 1} of {WALL_SEEDS}")
        cells.append(
            {
                "cell": [problem, ratio, kind],
                "step_seconds": step_seconds,
                "best": cell.factor,
                "seconds": seconds,
                "steps_per_second": rates,
                "model": stats.gmean(cell.ratios[:WALL_SEEDS]),
            }
        )
    return cells


# --- report

_CHANGED = """## What changed

The wall clock was read four times; the table has the last. Ratios in its order: on an AMD EPYC,
with steps of 2.0, 1.8, and 4.4 ms, before `auto` predicted the end of a step from the shortest of
the last steps: 0.69 (0.36 to 1.00), 0.57 (0.33 to 1.26), and 1.08 (0.84 to 1.46). On a Xeon, with
steps three times as long and a defect of `auto` on CPUs (the augmentation of each batch waited for
the running step): 1.03 (0.56 to 1.59), 0.83 (0.62 to 1.28), and 1.20 (1.05 to 1.36). On a Xeon,
with steps of 3.2, 3.2, and 9.7 ms, before copies were spread: 0.95 (0.68 to 1.27), 0.68 (0.41 to
1.15), and 1.06 (0.95 to 1.15). The maxima from pilots are those of before copies were spread. With
the pilots' 4 copies at R = 6, bursty, the reserve costs time: without it, `auto` took 331 (digits)
and 234 (sentences); and so it does with 16 copies on the digits at R = 16, bursty, where `auto`
took 387 without it (499, constant)."""

# Median times of `auto` with the seeds of `run_further` in earlier versions, in the order of RATIOS
# and KINDS: when most copies of an example followed within two batches, and when they were spread,
# but without the reserve.
_EARLIER = {
    "close copies": {
        "digits": (304.0, 322.5, 443.0, 323.5, 1114.5, 718.0),
        "sentences": (118.0, 132.5, 211.0, 195.5, 471.0, 394.0),
    },
    "no reserve": {
        "digits": (263.0, 332.0, 289.0, 322.5, 1124.0, 837.0),
        "sentences": (99.0, 132.5, 157.0, 195.5, 471.0, 394.0),
    },
}


def _earlier(version: str, problem: str, ratio: int, kind: str) -> float:
    place = RATIOS.index(ratio) * len(KINDS) + KINDS.index(kind)
    return _EARLIER[version][problem][place]


def _ratios(ratios: Mapping[str, Sequence[float]]) -> str:
    """Geometric means: '0.931 (digits 0.938, sentences 0.924)'; `ratios` by problem."""
    each = ", ".join(f"{name} {stats.gmean(own):.3f}" for name, own in ratios.items())
    return f"{stats.gmean(np.concatenate(list(ratios.values()))):.3f} ({each})"


def earlier_versions(steps: Mapping[str, Any]) -> str:
    """What the changes of `auto` changed, in a paragraph; `steps` as `further_seeds` has it."""
    spread: dict[str, list[float]] = {problem: [] for problem in PILOTED}
    reserved: dict[str, list[float]] = {problem: [] for problem in PILOTED}
    more = []
    cells = zip(_further_cells(steps), _further_cells(steps, QUARTER), strict=True)
    for ((problem, ratio, kind), cell), (_, quarter) in cells:
        close, without = (_earlier(version, problem, ratio, kind) for version in _EARLIER)
        spread[problem].append(without / close)
        if ratio == RATIOS[-1]:
            reserved[problem].append(quarter.auto / without)
        if default(problem) != QUARTER:
            more.append(cell.ratio / quarter.ratio)
    return (
        "`auto` changed three times, each time by a rule that was registered before it was trained "
        f"again with the {FURTHER_SEEDS} seeds. Since it spreads the copies of an example over the "
        f"buffer, the median time over the twelve cells is {_ratios(spread)} of what it was "
        f"(geometric means). Since it also holds a reserve back, it is {_ratios(reserved)} of that "
        f"in the four cells at R = {RATIOS[-1]}, with {QUARTER} copies; the others stay the same. "
        "A change stays if these are below the bounds, 1 over all cells and 1.02 on each problem. "
        "Last, half of the batch size became the default where every repeat is augmented anew: "
        f"over the six cells of digits, the ratio is {stats.gmean(more):.3f} of that with "
        f"{QUARTER} copies; the bound was 1. What to change was decided knowing which cells had "
        "missed the goal with these seeds. Fixed factors keep their runs."
    )


@dataclasses.dataclass(frozen=True)
class Cell:
    """`auto` beside the best fixed factor.

    Attributes:
        factor: the best fixed factor.
        fixed, auto: median times to the target, in steps' time.
        ratio, bound: of auto to fixed: the median over seeds, and its one-sided 90% bound.
        ratios: by seed.
        missed: runs of both that did not reach the target, or diverged.
        deep: the median time of the best fixed factor if DEEP batches are read ahead.
    """

    factor: int
    fixed: float
    auto: float
    ratio: float
    bound: float
    ratios: np.ndarray
    missed: int
    deep: float


def measured(
    problem: str,
    ratio: int,
    kind: str,
    max_factor: int,
    runs: Mapping[str, list[Any]],
    factors: Sequence[int] = FACTORS,
) -> Cell:
    """A cell from the recorded steps to the target and the cost model's times; `factors` are those
    of which the best is taken."""
    budget = PROBLEMS[problem][2]

    def seconds(times: np.ndarray, rows: list[Any]) -> np.ndarray:
        return np.asarray([times[(reached or len(times)) - 1] for reached, *_ in rows])

    fixed = {e: seconds(_fixed(ratio, kind, budget, e), runs[f"e{e}"]) for e in factors}
    factor = min(factors, key=lambda e: float(np.median(fixed[e])))
    rows = runs[auto_name(ratio, kind, max_factor)]
    auto = seconds(_auto(ratio, kind, budget, max_factor), rows)
    lost, lost_fixed = (
        np.asarray([reached is None for reached, *_ in own]) for own in (rows, runs[f"e{factor}"])
    )
    ratios = auto / fixed[factor]
    lows, highs = np.where(lost_fixed, 0.0, ratios), np.where(lost, math.inf, ratios)
    _, bound, *balance = uncertainty.sign_interval(lows, highs, level=LEVEL)
    missed = int(lost.sum() + lost_fixed.sum())
    return Cell(
        factor,
        float(np.median(fixed[factor])),
        float(np.median(auto)),
        uncertainty.middle(*balance),
        bound,
        ratios,
        missed,
        min(
            float(np.median(seconds(_fixed(ratio, kind, budget, e, DEEP), runs[f"e{e}"])))
            for e in factors
        ),
    )


@functools.cache
def _fixed(ratio: float, kind: str, budget: int, factor: int, ahead: int = AHEAD) -> np.ndarray:
    return fixed_times(Upstream(ratio, kind, ahead), budget, factor)


@functools.cache
def _auto(ratio: float, kind: str, budget: int, max_factor: int) -> np.ndarray:
    return auto_times(Upstream(ratio, kind), budget, max_factor)[0]


def report(saved: Mapping[str, Any]) -> str:
    rows, met, met_by_pilots = [], 0, 0
    for problem in PROBLEMS:
        from_pilots = saved.get("pilots", {}).get(problem, {})
        limit = default(problem)
        for ratio, kind, max_factor in auto_cells(problem, from_pilots):
            cell = measured(problem, ratio, kind, max_factor, saved["steps"][problem])
            met += max_factor == limit and cell.bound <= GOAL
            chosen = from_pilots.get(f"{ratio}") == max_factor
            met_by_pilots += chosen and cell.bound <= GOAL
            rows.append(
                [
                    f"{problem}, R = {ratio}, {kind}",
                    f"{max_factor}{', pilots' * chosen}",
                    f"{cell.factor}",
                    f"{cell.fixed:,.0f}",
                    f"{cell.auto:,.0f}",
                    f"{cell.ratio:.2f}",
                    f"{cell.bound:.2f}",
                    f"{cell.deep:,.0f}",
                    f"{cell.missed}",
                ]
            )
    count, piloted = (len(names) * len(RATIOS) * len(KINDS) for names in (PROBLEMS, PILOTED))
    header = ["cell", "max_factor", "best e", "time, best e", "time, auto", "ratio", "90% bound"]
    text = [
        "# What `auto` costs compared with the best fixed factor",
        "How much slower is `auto`, which is not given R, than the best fixed factor, which is "
        f"chosen with hindsight? With the default of `max_factor`, {met} of {count} cells meet the "
        f"goal, a 90% bound of at most {GOAL:.2f} on the ratio of their times; with the maximum "
        f"from pilots, {met_by_pilots} of {piloted} do. {_again(saved)}Made by "
        "`python -m benchmarks.auto_price`, whose docstring has the rules.",
        common.markdown_table([*header, f"best e, {DEEP} ahead", "missed"], rows),
        f"Times to the target are in units of a step, by the cost model: medians of {SEEDS} "
        "matched seeds. The ratio of `auto` to the best fixed factor is the median over the seeds, "
        "with its one-sided 90% bound. Missed: runs of `auto` and of the best factor without the "
        f"target. {DEEP} ahead: the time of the best fixed factor if {DEEP} batches of examples "
        f"are read ahead, not {AHEAD}.",
    ]
    if "further" in saved:
        text += ["## With further seeds", *further_seeds(saved["further"])]
    if "wall" in saved:
        text += ["## By wall clock", wall_table(saved["wall"])]
        text += [
            f"Medians of {WALL_SEEDS} seeds. Steps per second are those of the best fixed factor "
            "and of `auto`. The ratio of their seconds is the geometric mean over the seeds, with "
            "the smallest and the largest; the last column is that of the cost model for the same "
            f"seeds. {saved['machine']}",
            _CHANGED,
        ]
    if "further" in saved:
        text.append(earlier_versions(saved["further"]))
    return "\n\n".join(text)


def _again(saved: Mapping[str, Any]) -> str:
    """How many of the cells of `run_further` meet the goal with its seeds, and with the first."""
    if "further" not in saved:
        return ""
    places = list(itertools.product(PILOTED, RATIOS, KINDS))
    first = sum(
        measured(*place, default(place[0]), saved["steps"][place[0]]).bound <= GOAL
        for place in places
    )
    new = sum(cell.bound <= GOAL for _, cell in _further_cells(saved["further"]))
    return (
        f"The default was chosen with the seeds of these cells. Of the {len(places)} cells of "
        f"{' and '.join(PILOTED)}, {first} meet the goal with them, and {new} with {FURTHER_SEEDS} "
        "new ones. "
    )


def _further_cells(
    steps: Mapping[str, Any], limit: int | None = None
) -> list[tuple[tuple[str, int, str], Cell]]:
    """The cells of `run_further` by problem, R, and kind of upstream; `limit` None: the default of
    `max_factor`."""
    return [
        (place, measured(*place, limit or default(place[0]), steps[place[0]], FURTHER_FACTORS))
        for place in itertools.product(PILOTED, RATIOS, KINDS)
    ]


def further_seeds(steps: Mapping[str, Any]) -> list[str]:
    """The cells of `run_further`: what they are, and a table."""
    rows, met = [], 0
    cells = zip(_further_cells(steps), _further_cells(steps, QUARTER), strict=True)
    for ((problem, ratio, kind), cell), (_, quarter) in cells:
        met += cell.bound <= GOAL
        row = [f"{problem}, R = {ratio}, {kind}", f"{cell.factor}", f"{cell.fixed:,.0f}"]
        row += [f"{cell.auto:,.0f}", f"{cell.ratio:.2f}", f"{cell.bound:.3f}"]
        earlier = [_earlier(version, problem, ratio, kind) for version in _EARLIER]
        times = [f"{time:,.0f}" for time in (*earlier, quarter.auto)]
        rows.append([*row, f"{cell.missed}", *times])
    header = ["cell", "best e", "time, best e", "time, auto", "ratio", "90% bound", "missed"]
    header += [f"auto, {version}" for version in (*_EARLIER, f"{QUARTER} copies")]
    return [
        f"The digits and the sentences again, with {FURTHER_SEEDS} new seeds and the default of "
        f"`max_factor`, since {SEEDS} seeds leave some bounds far above their medians: {met} of "
        f"{len(rows)} cells meet the goal. The best fixed factor is the best of e = 2, 4, 8, and "
        "16 with these seeds. The last columns are times of `auto` in earlier versions: before it "
        "spread the copies of an example; before it held a reserve of them back; and with at most "
        f"{QUARTER} copies.",
        common.markdown_table(header, rows),
    ]


def wall_table(cells: list[dict[str, Any]]) -> str:
    rows = []
    for cell in cells:
        problem, ratio, kind = cell["cell"]
        seconds = {name: np.asarray(values) for name, values in cell["seconds"].items()}
        best = f"e = {cell['best']}"
        ratios = seconds["auto"] / seconds[best]
        rates = [np.median(cell["steps_per_second"][name]) for name in (best, "auto")]
        rows.append(
            [
                f"{problem}, R = {ratio}, {kind}",
                f"{cell['step_seconds'] * 1e3:.1f} ms",
                f"{np.median(seconds['e = 1']):.1f}",
                f"{np.median(seconds[best]):.1f} ({best})",
                f"{np.median(seconds['auto']):.1f}",
                f"{rates[0]:.0f}, {rates[1]:.0f}",
                f"{stats.gmean(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})",
                f"{cell['model']:.2f}",
            ]
        )
    header = ["cell", "step", "s, no echoing", "s, best e", "s, auto", "steps/s", "ratio", "model"]
    return common.markdown_table(header, rows)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--train", type=pathlib.Path, metavar="DIR", help="train in DIR")
    parser.add_argument("--further", type=pathlib.Path, metavar="DIR", help="train further seeds")
    parser.add_argument("--wall", type=pathlib.Path, metavar="DIR", help="measure by wall clock")
    options = parser.parse_args(argv)
    saved: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    if options.train:
        for problem in PROBLEMS:
            run_problem(problem, options.train)
        steps = saved.setdefault("steps", {})
        for problem, runs in collect(options.train).items():  # keeps those that pilots added
            steps[problem] = steps.get(problem, {}) | runs
    if options.further:
        for problem in PILOTED:
            run_further(problem, options.further)
        saved["further"] = collect(options.further, PILOTED)
    if options.wall:
        saved["wall"] = run_wall(options.wall, saved["steps"])
        saved["machine"] = common.machine(["jax", "grain", "numpy"])
    if options.train or options.further or options.wall:
        RECORDS.write_text(json.dumps(saved) + "\n")
    common.publish(report(saved), options.out)


if __name__ == "__main__":
    common.command(main)
