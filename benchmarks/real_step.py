"""Steps per second of train.py behind a slow upstream, as a share of what the cores give.

    python -m benchmarks.real_step --out=results/real_step.md     about 10 minutes
    python -m benchmarks.real_step --quick                        a one-minute smoke run

ResNet-8 on the digits mini, batches of 512, echoed before augmentation. The step runs on the cores
that read, echo, augment, and record. What they give is measured with the same loop on batches in
memory, first and last in each round; a rate limit makes the upstream R times slower than the first.
The bound of a factor is min(e, R) / R of that. Prefill and compilation are not measured.

Steps per second depend on what else the machine does; the CPU time of a step, as a multiple
of that with batches in memory, does so less.
"""

import argparse
import dataclasses
import math
import pathlib
import tempfile
import time
from typing import NamedTuple

import grain
import numpy as np
from ml_collections import ConfigDict

import echo
from benchmarks import common, grid, wall_time
from configs import catalog
from runs import records
from training import run
from training.experiment import Experiment, make_experiment

STORED = "stored"
AUTO_BUFFER_BATCHES, BUFFER_BATCHES = 8, 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    ratio: float = 6.0
    factors: tuple[grid.Factor, ...] = (1, 2, 4, 5, 6, 7, 8, "auto")
    steps: int = 60  # per cell and round
    rounds: int = 5


QUICK = Plan(steps=10, rounds=1)
WARM_UP_STEPS = 20


class Speed(NamedTuple):
    """Steps per second, and, per step, processor seconds and fresh examples (NaN if the training
    records are too far apart)."""

    rate: float
    cpu_seconds: float
    fresh_examples: float


class Share(NamedTuple):
    """Steps per second over their bound, and CPU time over that with batches in memory."""

    rate: float
    cpu: float


def one_round(plan: Plan, placement: str, number: int) -> dict[grid.Factor, Share]:
    """Every factor once, in round `number`."""
    first = trained(plan, placement, STORED)
    limit = first.rate / plan.ratio * wall_time.Plan.batch_size
    speeds = common.in_shuffled_order(
        plan.factors, lambda factor: trained(plan, placement, factor, limit), number
    )
    return shares(plan, first, speeds, trained(plan, placement, STORED))


def shares(
    plan: Plan, first: Speed, speeds: dict[grid.Factor, Speed], last: Speed
) -> dict[grid.Factor, Share]:
    """The speeds of a round over their bounds; `first` and `last` are those with batches in
    memory, of which the first set the limit of the upstream."""
    highest = (first.rate + last.rate) / 2
    cpu = (first.cpu_seconds + last.cpu_seconds) / 2
    of_factors = {}
    for factor, speed in speeds.items():
        supply = plan.ratio if isinstance(factor, str) else min(factor, plan.ratio)
        bound = min(highest, supply / plan.ratio * first.rate)
        of_factors[factor] = Share(speed.rate / bound, speed.cpu_seconds / cpu)
    return of_factors


def trained(
    plan: Plan, placement: str, factor: grid.Factor, examples_per_second: float = 0.0
) -> Speed:
    """The speed of train.py in steady state.

    Args:
        plan: how many steps to measure, after WARM_UP_STEPS.
        placement: of the echoed items, and of augmentation.
        factor: an echo factor, "auto", or STORED for batches in memory.
        examples_per_second: of the upstream; 0 for no limit.
    """
    config = configuration(placement, factor, examples_per_second)
    return steady_state(config, plan.steps, stored=factor == STORED)


def steady_state(
    config: ConfigDict,
    steps: int,
    *,
    stored: bool = False,
    warm_up: int = WARM_UP_STEPS,
    cycle: int = 1,
) -> Speed:
    """The speed of a run of train.py over `steps` steps, after `warm_up` others.

    Args:
        config: of a run that neither evaluates nor ends by then.
        steps: how many steps to measure.
        stored: whether to train on a few batches in memory instead of reading.
        warm_up: steps that are not measured.
        cycle: steps in which equally many fresh examples are read.
    """
    experiment = make_experiment(config)
    if stored:
        experiment = dataclasses.replace(experiment, batches=StoredBatches(experiment))
    times, cpu = [], []
    with tempfile.TemporaryDirectory() as scratch:
        workdir = pathlib.Path(scratch) / "run"
        loop = run.Run(experiment, workdir)
        while loop.step() and len(times) <= warm_up + steps:
            times.append(time.perf_counter())
            cpu.append(time.process_time())
        loop.close()
        logged = [r for r in records.read_metrics(workdir) if r["split"] == "train"]
    rate = np.polyfit(times[warm_up:], np.arange(steps + 1), 1)[0]
    first = next((r for r in logged if r["step"] >= warm_up), None)
    whole = [r for r in logged if first and (r["step"] - first["step"]) % cycle == 0]
    fresh = math.nan
    if first and whole[-1]["step"] > first["step"]:
        fresh, more = (whole[-1][key] - first[key] for key in ("fresh_examples", "step"))
        fresh /= more
    return Speed(float(rate), (cpu[-1] - cpu[warm_up]) / steps, fresh)


def configuration(placement: str, factor: grid.Factor, examples_per_second: float) -> ConfigDict:
    """The configuration of benchmarks/wall_time.py, for a run that neither evaluates nor ends."""
    config = wall_time.configuration(wall_time.Plan())
    config.target.value = 2.0
    config.budget.fresh_examples = config.evaluate_every_fresh_examples = 10**8
    config.upstream.examples_per_second = examples_per_second
    config.augment_on = placement
    if factor in (1, STORED):
        return config
    config.echo.placement = placement
    config.update_from_flattened_dict(
        catalog.auto(grid.MAX_FACTOR, AUTO_BUFFER_BATCHES * config.batch_size)
        if factor == "auto"
        else catalog.echo("before_augmentation", float(factor), BUFFER_BATCHES * config.batch_size)
    )
    return config


class StoredBatches(grain.IterDataset):
    """A few batches of an experiment, over and over."""

    def __init__(self, experiment: Experiment, count: int = 8):
        super().__init__()
        iterator = iter(experiment.batches)
        self._batches = [next(iterator) for _ in range(count)]
        iterator.close()

    def __iter__(self) -> grain.DatasetIterator:
        repeated = grain.MapDataset.source(self._batches).repeat()
        return iter(repeated.to_iter_dataset(grain.ReadOptions(0, 0)))


def table(plan: Plan, rounds: list[dict[grid.Factor, Share]]) -> str:
    rows = []
    for factor in plan.factors:
        rates, cpus = zip(*(of_factors[factor] for of_factors in rounds), strict=True)
        rate, cpu = common.Spread(rates), common.Spread(cpus)
        name = factor if isinstance(factor, str) else f"e = {factor}"
        rows.append([name, f"{rate:.2f}", f"{cpu:.2f}"])
    return common.markdown_table(["", "share of the bound", "CPU time of a step"], rows)


def factor_or_auto(text: str) -> grid.Factor:
    """Parses a whole echo factor, or "auto"; an argparse type."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: whole numbers from 1, or auto")


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        steps="steps per cell and round",
        rounds="number of rounds",
    )
    common.add_list(parser, "--factors", factor_or_auto, ",".join(map(str, Plan.factors)))
    common.add_list(parser, "--placements", common.one_of(echo.PLACEMENTS), "host,device")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    text = [
        f"# Steps per second of training at R = {plan.ratio:g}, as a share of what the cores give",
        "How fast does training with echoing run if the step and the input share the cores? "
        "Measured by `python -m benchmarks.real_step` on "
        + common.machine(["jax", "grain", "numpy"]),
        f"Median of {plan.rounds} rounds of {plan.steps} steps (smallest to largest). Processor "
        "time is a multiple of that of a step with batches in memory. The buffer of a fixed factor "
        f"holds {BUFFER_BATCHES} batches, that of `auto` up to {AUTO_BUFFER_BATCHES}.",
    ]
    for placement in options.placements:
        milliseconds = 1e3 / trained(plan, placement, STORED).rate  # it also compiles
        rounds = []
        for number in range(plan.rounds):
            rounds.append(one_round(plan, placement, number))
            common.progress(f"{placement}, round {number + 1} of {plan.rounds}: {rounds[-1]}")
        text += [
            f"## {placement.capitalize()} placement",
            f"Before the first round, a step with batches in memory took {milliseconds:.0f} ms.",
            table(plan, rounds),
        ]
    common.publish("\n\n".join(text), options.out)


if __name__ == "__main__":
    main()
