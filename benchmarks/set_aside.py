"""Forecasts of the problems that results/protocol.md sets aside: predicted first, then measured.

    python sweep.py --config=configs/problems.py:manual --study=pilot --outdir=out/pilot/manual
    python -m benchmarks.set_aside --problem=manual             predicts (results/set_aside)
    python -m benchmarks.set_aside --problem=manual --measure   once that is committed
    python -m benchmarks.set_aside --out=results/set_aside.md   the page of the results so far

The rules, fixed before the first of them ran:

* The target follows from the study `pilot` by the rule in results/protocol.md. The user's
  hyperparameters are those of the trial that set it.
* Echoing before augmentation, 256 slots, the problem's first batch size, R = 6. Time is modeled:
  the upstream takes one second per fresh example, and a step a sixth of a batch's time upstream.
* Pilots as `advise.py --pilot` runs them, two seeds for each factor, within the time of one run
  without echoing.
* Measured: e = 1, 2, 4, 8, 16, two other seeds each, until the target or the budget. The truth is
  the geometric mean of the fresh examples at which the curves first reach the target; a run that
  does not reach it counts as one and a half budgets.
"""

import copy
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import train
from analysis import load
from benchmarks import common
from configs import base, problems
from echo.advice.forecast import FACTORS, fresh_examples_at
from runs import cli, records, trial_records
from runs.progress import Progress
from studies.pilots import Answer, Pilots, loss_curve

RESULTS = pathlib.Path("results/set_aside")
PROBLEMS = ("manual", "jpeg_digits")
RATIO, BUFFER, SEEDS = 6.0, 256, 2
PILOT_SEED, MEASURED_SEED = 5_000, 6_000  # the first data seeds


def target_and_hyperparameters(pilot: pathlib.Path) -> tuple[float, dict[str, Any]]:
    """The target by the rule of results/protocol.md, and the hyperparameters of the trial that set
    it."""
    loaded = load.read(pilot)
    target, budget = loaded.study.target, float(loaded.study.budget or 0)
    trials: Any = loaded.trials[loaded.trials["counted"]]
    curves: Any = load.curves(trials, target.metric)
    usable = curves[
        (curves["condition"] == loaded.study.baseline)
        & (curves["fresh_examples"] <= budget * 2 / 3)
    ]
    above = target.mode == "above"
    best = usable.loc[usable["value"].idxmax() if above else usable["value"].idxmin()]
    step = 0.005 if above else 0.05
    rounded = (math.floor if above else math.ceil)(
        best["value"] / step + (1e-9 if above else -1e-9)
    )
    trial = trials.set_index(["condition", "search", "trial"]).loc[
        (best["condition"], best["search"], best["trial"])
    ]
    names = [axis.field for axis in loaded.study.space]
    return round(rounded * step, 6), {name: float(trial[name]) for name in names}


def user_config(problem: str, target: float, hyperparameters: Mapping[str, Any]) -> ConfigDict:
    config = problems.get_config(problem)
    for name, value in hyperparameters.items():
        integral = name.endswith("fresh_examples")
        cli.set_field(config, name, round(value) if integral else value, base.FIELDS)
    config.target.value = target
    config.gradient_statistics_every_steps = 0
    config.echo.insertion, config.echo.shuffle_buffer = "before_augmentation", BUFFER
    return config


class ModelTime(Pilots):
    """Pilots whose clock is the model's, so that forecasts do not depend on the machine."""

    def _step_seconds(self) -> dict[float, float]:
        return dict(self._predicted)

    def _spent(self) -> float:
        return sum(
            result["step"] * self._predicted[factor]
            for (factor, _), result in self._results.items()
        )


def predict(problem: str, pilot: pathlib.Path, out: pathlib.Path) -> dict[str, Any]:
    target, hyperparameters = target_and_hyperparameters(pilot)
    config = user_config(problem, target, hyperparameters)
    config.seed.data, config.seed.model = PILOT_SEED, 10_000 * PILOT_SEED
    step_seconds = {e: config.batch_size * max(1 / e, 1 / RATIO) for e in map(float, FACTORS)}
    answer: Answer = ModelTime(config, step_seconds, RATIO, out, SEEDS, 1.0, Progress()).run()
    predicted = answer.forecast
    return {
        "problem": problem,
        "target": target,
        "hyperparameters": hyperparameters,
        "batch_size": config.batch_size,
        "budget": config.budget.fresh_examples,
        "pilot_seconds": answer.spent,
        "factor": predicted.factor,
        "regret": predicted.regret,
        "doubt": predicted.caveat,
        "cells": {f"{e:g}": dataclasses.asdict(cell) for e, cell in predicted.cells.items()},
    }


def measure(problem: str, prediction: Mapping[str, Any], out: pathlib.Path) -> dict[str, list]:
    """Fresh examples to the target by factor, one number for each seed, None if not reached."""
    measured = {}
    for factor in FACTORS:
        for seed in range(MEASURED_SEED, MEASURED_SEED + SEEDS):
            config = user_config(problem, prediction["target"], prediction["hyperparameters"])
            config.echo.factor = float(factor)
            every = config.budget.fresh_examples // problems.EVALUATIONS
            config.evaluate_every_fresh_examples = max(config.batch_size // factor, every // factor)
            config.seed.data, config.seed.model = seed, 10_000 * seed
            workdir = out / f"measured_e{factor}" / str(seed)
            result = train.train(copy.deepcopy(config), workdir, Progress(f"e = {factor}"))
            if result["status"] not in records.FINISHED:
                raise SystemExit(
                    f"the run in {workdir} ended {result['status']}; the same command resumes it"
                )
            curve = loss_curve(config, factor, trial_records.read(workdir).validation, result)
            hit = fresh_examples_at(curve, loss_of(config)) if curve else None
            measured.setdefault(f"{factor:g}", []).append(hit)
    return measured


def loss_of(config: ConfigDict) -> float:
    target = config.target
    return target.value * (1 + 1e-9) if target.mode == "below" else 1 - target.value


def report(problem_records: Sequence[Mapping[str, Any]]) -> str:
    text = [
        "# Problems set aside, predicted before they were measured",
        "How good are forecasts of problems that nobody had measured? The predictions were "
        "committed before the measurements ran. Tables have the fresh examples to the target; "
        "seconds are in units of one fresh example upstream, at R = 6. Made by `python -m "
        "benchmarks.set_aside`, whose docstring has the rules.",
        "`manual` is no new problem to the forecast: its law and its default prior come from "
        "older studies, which include the data and the network of `manual` with other "
        "hyperparameters. `jpeg_digits` has the images of the digits in another form, and a "
        "larger network. The predictions are those of a law with one exponent, without bends.",
    ]
    for record in problem_records:
        header = ["e", "predicted (90%)", "measured", "error", "in the interval", "seconds"]
        rows, truth, budget = [], {}, record["budget"]
        for e, cell in record["cells"].items():
            low, high = cell["fresh_low"], cell["fresh_high"]
            own = "; a pilot's own" if cell["observed"] else ""  # no prediction
            row = [e, f"{cell['fresh_examples']:,.0f} ({low:,.0f} to {high:,.0f}){own}"]
            hits = record.get("measured", {}).get(e)
            if hits:
                truth[e] = float(np.exp(np.mean(np.log([hit or 1.5 * budget for hit in hits]))))
                seen = ", ".join("not reached" if hit is None else f"{hit:,.0f}" for hit in hits)
                error = f"{cell['fresh_examples'] / truth[e] - 1:+.0%}" if all(hits) else ""
                inside = sum(budget < high if hit is None else low <= hit <= high for hit in hits)
                row += [seen, error, f"{inside} of {len(hits)}"]
                row.append(f"{_seconds(truth[e], e):,.0f}")
            rows.append(row + [""] * (len(header) - len(row)))
        chosen = f"{record['factor']:g}"
        sentence = (
            f"Target {record['target']:g}. Chosen: e = {chosen}, with a bound of "
            f"{record['regret']:.2f} on its regret"
            + (f" (not enough evidence: {record['doubt']})" if record["doubt"] else "")
            + f"; pilots took {record['pilot_seconds']:,.0f} s."
        )
        if truth:
            seconds = {e: _seconds(n, e) for e, n in truth.items()}
            sentence += f" Measured regret: {seconds[chosen] / min(seconds.values()):.2f}."
        fewer = [e for e, hits in record.get("measured", {}).items() if len(hits) < SEEDS]
        if fewer:
            sentence += f" Not finished: a seed of e = {', '.join(fewer)}."
        text += [f"## {record['problem']}", sentence, common.markdown_table(header, rows)]
    return "\n\n".join(text)


def _seconds(fresh_examples: float, factor: str) -> float:
    return fresh_examples * max(1, float(factor) / RATIO)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--problem", choices=PROBLEMS)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--pilot", type=pathlib.Path, help="default out/pilot/PROBLEM")
    parser.add_argument("--workdir", type=pathlib.Path, help="default out/set_aside/PROBLEM")
    options = parser.parse_args(argv)
    if options.problem:
        file = RESULTS / f"{options.problem}.json"
        workdir = options.workdir or pathlib.Path("out/set_aside") / options.problem
        if options.measure:
            record = records.read_json(file)
            if record is None:
                parser.error(f"{file} does not exist; predict first, without --measure")
            record["measured"] = measure(options.problem, record, workdir)
        else:
            if file.exists():
                parser.error(f"{file} exists, and a prediction is made once")
            pilot = options.pilot or pathlib.Path("out/pilot") / options.problem
            record = predict(options.problem, pilot, workdir)
        file.parent.mkdir(parents=True, exist_ok=True)
        records.write_json(file, record)
    predicted = (records.read_json(RESULTS / f"{name}.json") for name in PROBLEMS)
    common.publish(report([record for record in predicted if record]), options.out)


if __name__ == "__main__":
    common.command(main)
