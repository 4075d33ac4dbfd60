"""Seconds to a target behind a slow upstream, without and with echoing, in a minute.

    python -m benchmarks.time_to_target --out=results/time_to_target.md     a minute on a GPU
    python -m benchmarks.time_to_target --quick                             a smoke run

The digits, network, and target of benchmarks/wall_time.py, with the configuration's hyperparameters
in every condition: nothing is tuned, so this shows what time echoing saves on your device, and not
how much it can save. Of two runs of e = 8 without a limit, the first warms up and the second
measures the step. The upstream then delivers so many examples per second that input takes `ratio`
times as long as a step. The order of the conditions is shuffled for each seed.
"""

import dataclasses
import pathlib
import random
import tempfile
from typing import Any

import jax
import numpy as np

import train
from benchmarks import common, wall_time
from configs import catalog

_BUFFER_BATCHES, _AUTO_BUFFER_BATCHES = 4, 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    ratio: float = 6.0
    seeds: int = 5
    target: float = wall_time.Plan.target
    conditions: tuple[str, ...] = ()  # all


# e = 8 on the host measures the step in any case.
QUICK = Plan(seeds=1, target=0.2, conditions=("no echoing", "e = 8, on the device", "auto"))


def echoed(factor: float, placement: str = "host") -> dict[str, Any]:
    """Fields that echo before augmentation, which takes place where the examples are stored."""
    return {
        "echo.insertion": "before_augmentation",
        "echo.factor": float(factor),
        "echo.shuffle_buffer": _BUFFER_BATCHES * wall_time.Plan.batch_size,
        "echo.placement": placement,
        "augment_on": placement,
    }


CONDITIONS: dict[str, dict[str, Any]] = {
    "no echoing": {},
    "e = 4": echoed(4),
    "e = 6": echoed(6),
    "e = 8": echoed(8),
    "e = 6, on the device": echoed(6, "device"),
    "e = 8, on the device": echoed(8, "device"),
    "auto": catalog.auto(16, _AUTO_BUFFER_BATCHES * wall_time.Plan.batch_size),
}


def trained(plan: Plan, fields: dict[str, Any], seed: int) -> dict[str, Any]:
    """The result of a run; raises ValueError if it did not reach the target."""
    config = wall_time.configuration(dataclasses.replace(wall_time.Plan(), target=plan.target))
    config.seed.data = config.seed.model = seed
    config.update_from_flattened_dict(fields)
    with tempfile.TemporaryDirectory() as directory:
        result = train.train(config, pathlib.Path(directory) / "run")
    if result["status"] != "reached":
        raise ValueError(f"seed {seed} of {fields} ended as {result['status']!r}")
    return result


def measured(plan: Plan) -> tuple[float, dict[str, list[dict[str, Any]]]]:
    """Seconds per step without a limit, and the results by condition and seed."""
    trained(plan, CONDITIONS["e = 8"], plan.seeds)  # warms up
    free = trained(plan, CONDITIONS["e = 8"], plan.seeds + 1)
    step = free["train_seconds"] / free["step"]
    limit = {"upstream.examples_per_second": wall_time.Plan.batch_size / (plan.ratio * step)}
    names = plan.conditions or tuple(CONDITIONS)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(plan.seeds):
        for name in random.Random(seed).sample(sorted(names), len(names)):
            results[name].append(trained(plan, CONDITIONS[name] | limit, seed))
        common.progress(f"seed {seed + 1} of {plan.seeds}")
    return step, results


def report(plan: Plan, step: float, results: dict[str, list[dict[str, Any]]]) -> str:
    """The report as Markdown."""
    seconds = {
        name: np.asarray([result["seconds_to_target"] for result in own])
        for name, own in results.items()
    }
    rows = []
    for name, own in results.items():
        speedup = seconds["no echoing"] / seconds[name]
        mean = np.exp(np.log(speedup).mean())
        rows.append(
            [
                name,
                f"{np.median(seconds[name]):.2f}",
                f"{mean:.2f} ({speedup.min():.2f} to {speedup.max():.2f})",
                f"{np.median([result['fresh_examples_to_target'] for result in own]):,.0f}",
                f"{np.median([result['steps_to_target'] for result in own]):.0f}",
            ]
        )
    header = ["", "seconds", "times as fast", "fresh examples", "steps"]
    return "\n\n".join(
        [
            f"# Seconds to {plan.target:.0%} behind an upstream with R = {plan.ratio:g}",
            "How soon is the target reached without tuning anything? Measured by `python -m "
            f"benchmarks.time_to_target` on {jax.devices()[0].device_kind}, "
            + common.machine(["jax", "flax", "grain", "numpy"]),
            f"{plan.seeds} seeds; seconds, fresh examples, and steps are medians; the speedup over "
            "no echoing is the geometric mean over the seeds, with the smallest and the largest. "
            f"A step takes {step * 1e3:.1f} ms without a limit (e = 8), batches hold "
            f"{wall_time.Plan.batch_size}.",
            common.markdown_table(header, rows),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        seeds="seeds of each condition",
        ratio="R: the input's time for a batch over that of a step",
    )
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    common.publish(report(plan, *measured(plan)), options.out)


if __name__ == "__main__":
    main()
