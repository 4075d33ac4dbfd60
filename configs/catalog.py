"""The studies of every workload, generated from a few numbers of the workload.

A study is a dict with `about` (its purpose), `conditions` (overrides by name), `baseline`,
`trials`, and `searches`; optional are `overrides` (for all conditions), `space` (replaces the
configuration's search space), `not_searched` (fields to leave out of it), and `score`
(fresh_examples | seconds | best_value). Figure numbers are those of arXiv 1907.05550.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

Conditions = dict[str, dict[str, Any]]
Studies = dict[str, dict[str, Any]]

_INSERTIONS = ("before_augmentation", "after_augmentation", "after_batching")

# Levels of the studies of open questions.
_FRACTIONS = (1.5, 2, 3, 4)
_WEIGHT_DECAYS = (0.0, 1e-3, 1e-2)
_WINNERS_DECAYS = (0.0, 1e-4, 1e-3, 1e-2)
_WINNERS_DECAY_PAIRS = 12


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of a workload; by default those of a mini, whose trials take a minute and start
    over. Buffer sizes are our choice: the paper gives none.

    Attributes:
        batch_sizes: the workload's batch size, and others to compare with it.
        buffer: examples in the shuffle buffer; after batching, batches with as many examples.
        buffers: buffer sizes that the study of shuffling compares.
        upstream: rate of a slow upstream in examples per second, about a sixth of the step's.
        budget: fresh examples per trial.
        never: a value of the target's metric that no run reaches.
        trials, searches: per condition.
        demo: trials and searches of the demo.
        demo_factors: factors of the demo's echoing before augmentation.
        demo_changes: keys of the demo that differ from those of the other studies.
        augments: whether the workload augments; if not, the first two insertion points are equal.
        decays: whether the learning rate decays, so that the schedule has a horizon.
        overrides: fields that every study sets.
    """

    batch_sizes: Sequence[int]
    upstream: float
    budget: int
    demo: tuple[int, int]
    buffer: int = 256
    buffers: Sequence[int] = (0, 64, 256, 1024)
    never: float = 2.0
    trials: int = 16
    searches: int = 3
    demo_factors: Sequence[int] = (2,)
    demo_changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    augments: bool = True
    decays: bool = True
    overrides: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"checkpoint_every_fresh_examples": 0}
    )

    @property
    def insertions(self) -> tuple[str, ...]:
        return _INSERTIONS if self.augments else (_INSERTIONS[0], _INSERTIONS[2])

    @property
    def batch_size(self) -> int:
        return self.batch_sizes[0]


def echo(insertion: str, factor: float, shuffle_buffer: int) -> dict[str, Any]:
    """Overrides that set an insertion point, a factor, and a buffer."""
    return {
        "echo.insertion": insertion,
        "echo.factor": factor,
        "echo.shuffle_buffer": shuffle_buffer,
    }


def auto(max_factor: int, shuffle_buffer: int) -> dict[str, Any]:
    """Overrides that echo opportunistically before augmentation."""
    return {
        "echo.insertion": "before_augmentation",
        "echo.policy": "auto",
        "echo.max_factor": max_factor,
        "echo.shuffle_buffer": shuffle_buffer,
    }


BASELINE = {"baseline": echo("none", 1, 0)}

# The horizon of every schedule that decays is searched, from 1/32 of the study's budget to twice
# the budget. With a fixed horizon, the decay would come too late for conditions that finish early.
HORIZON = {
    "field": "optimizer.schedule.horizon_fresh_examples",
    "scale": "log",
    "min": 1 / 32,
    "max": 2.0,
    "times": "budget.fresh_examples",
}


def of(numbers: Numbers) -> Studies:
    """A demo, the studies behind the paper's figures 4 to 9, and controls that it lacks."""
    batch = numbers.batch_size
    twice = {f"{insertion}_e2": _at(numbers, insertion, 2) for insertion in numbers.insertions}
    before = {e: _at(numbers, _INSERTIONS[0], e) for e in (2, 3, 4, 5)}
    demo_trials, demo_searches = numbers.demo
    studies = {
        "demo": {
            "about": "A first look: where to echo, and how often, with a small search.",
            "conditions": BASELINE
            | twice
            | {f"before_augmentation_e{e}": before[e] for e in numbers.demo_factors},
            "trials": demo_trials,
            "searches": demo_searches,
        }
        | numbers.demo_changes,
        "pilot": {
            "about": "A few trials of e = 1, 4, and 16: how much is a repeat worth here?",
            "conditions": BASELINE
            | {f"before_augmentation_e{e}": _at(numbers, _INSERTIONS[0], e) for e in (4, 16)},
            "trials": 4,
            "searches": 1,
        },
        "insertion": {
            "about": "Figure 4: every insertion point at e = 2, compared with no echoing.",
            "conditions": BASELINE | twice,
        },
        "wall_time": {
            "about": "Figure 5: seconds to the target behind a slow upstream, e = 1 to 5.",
            "conditions": BASELINE
            | {f"before_augmentation_e{e}": overrides for e, overrides in before.items()},
            "overrides": {"upstream.examples_per_second": numbers.upstream},
            "score": "seconds",
        },
        "factor": {
            "about": "Figure 6: e = 1, 2, 4, 8, 16 at two batch sizes; does the larger batch "
            "tolerate larger factors?",
            "conditions": _grid(numbers, numbers.batch_sizes[:2], _INSERTIONS[:1], (2, 4, 8, 16)),
            "baseline": f"baseline_b{batch}",
        },
        "batch_size": {
            "about": "Figure 7: e = 2 at several batch sizes, each compared with no echoing.",
            "conditions": _grid(
                numbers, numbers.batch_sizes, (_INSERTIONS[0], _INSERTIONS[2]), (2,)
            ),
            "baseline": f"baseline_b{batch}",
        },
        "shuffle": {
            "about": "Figure 8: e = 2 with shuffle buffers of several sizes; after batching they "
            "hold batches with as many examples.",
            "conditions": BASELINE | _buffers(numbers),
        },
        "quality": {
            "about": "Figure 9: the best value within a fixed budget of fresh examples.",
            "conditions": BASELINE | twice | {"before_augmentation_e4": before[4]},
            "overrides": {"target.value": numbers.never},
            "score": "best_value",
        },
        "controls": {
            "about": "Does the gain come from echoing, from more steps, or from another schedule? "
            "The baseline with as many steps as e = 2; e = 2 with as many steps as the baseline, "
            "which halves its horizon, and the baseline with that horizon; and repeats that are a "
            "whole pass over the data apart, counted as fresh once. Horizons are not searched. "
            "Equal trials are pairs in all conditions: learning rate, initial parameters, and data "
            "order.",
            "conditions": BASELINE
            | {
                "before_augmentation_e2": twice["before_augmentation_e2"],
                "spaced_epochs_2": BASELINE["baseline"] | {"dataset.spaced_epochs": 2},
                "baseline_steps_of_e2": BASELINE["baseline"]
                | {"budget.fresh_examples": 2 * numbers.budget},
                "before_augmentation_e2_steps_of_baseline": twice["before_augmentation_e2"]
                | {"budget.fresh_examples": numbers.budget // 2},
            }
            | (_half_horizon(numbers) if numbers.decays else {}),
            "not_searched": (HORIZON["field"],),
        },
    }
    if not numbers.augments:  # language
        studies["optimizer"] = _optimizer(numbers, BASELINE | twice)
    return {name: _completed(numbers, study) for name, study in studies.items()}


def registered(
    numbers: Numbers,
    factors: Sequence[int],
    pairs: int,
    winners: Mapping[str, Mapping[str, Any]],
) -> Studies:
    """The studies of results/protocol.md for one problem (configs/problems.py).

    Args:
        numbers: with the problem's batch sizes, trials, and searches.
        factors: echo factors before augmentation, besides 1.
        pairs: matched seeds of the confirmation.
        winners: hyperparameters of the best trial of each condition of the grid, by field; a
            condition is confirmed if it and no echoing at its batch size have them.
    """
    sizes, batch = numbers.batch_sizes, numbers.batch_size
    elsewhere = _grid(numbers, (batch,), numbers.insertions[1:], (2,))
    extremes = BASELINE | {"before_augmentation_e16": _at(numbers, _INSERTIONS[0], 16)}
    studies = {
        "grid": {
            "about": "Every echo factor at two batch sizes, and every insertion point at e = 2.",
            "conditions": _grid(numbers, sizes, _INSERTIONS[:1], factors) | elsewhere,
            "baseline": f"baseline_b{batch}",
        },
        "pilot": {
            "about": "The best value of the baseline over the budget, with separate seeds; it "
            "determines the target of `grid`.",
            "conditions": _grid(numbers, sizes, (), ()),
            "baseline": f"baseline_b{batch}",
            "overrides": {"target.value": numbers.never, "seed.data": 1000, "seed.model": 10**7},
            "score": "best_value",
            "searches": 1,
        },
        "fractions": {
            "about": "Factors between the grid's: e = 1.5 and 3 beside 2 and 4.",
            "conditions": BASELINE
            | {f"before_augmentation_e{e}": _at(numbers, _INSERTIONS[0], e) for e in _FRACTIONS},
        },
        "weight_decay": {
            "about": "Does weight decay make a large factor better than it makes no echoing?",
            "conditions": {
                f"{name}_decay_{decay:g}": overrides | {"optimizer.weight_decay": decay}
                for name, overrides in extremes.items()
                for decay in _WEIGHT_DECAYS
            },
            "baseline": f"baseline_decay_{_WEIGHT_DECAYS[0]:g}",
        },
    }
    if studies["grid"]["baseline"] in winners:
        studies["confirmation"] = confirmation_of(studies["grid"], pairs, winners)
        if f"{_INSERTIONS[0]}_e16_b{batch}" in winners:
            studies["weight_decay_of_winners"] = _decay_of_winners(studies["confirmation"], batch)
    return {name: _completed(numbers, study) for name, study in studies.items()}


def confirmation_of(
    study: dict[str, Any], pairs: int, winners: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The conditions of a study at their winners, with new matched seeds.

    Args:
        study: named as the grid's conditions are.
        pairs: matched seeds.
        winners: hyperparameters by condition, as for `registered`.
    """
    conditions = {
        name: overrides | dict(winners[name])
        for name, overrides in study["conditions"].items()
        if name in winners and f"baseline_b{overrides['batch_size']}" in winners
    }
    seeds = {"seed.data": 10_000, "seed.model": 20_000_000}
    return study | {
        "about": "Each condition of the grid at its best hyperparameters, beside no echoing at its "
        "own, with new matched seeds: search k is pair k.",
        "conditions": conditions,
        "overrides": study.get("overrides", {}) | seeds,
        "space": (),
        "trials": 1,
        "searches": pairs,
    }


def _decay_of_winners(confirmation: dict[str, Any], batch_size: int) -> dict[str, Any]:
    none = confirmation["conditions"][f"baseline_b{batch_size}"]
    large = confirmation["conditions"][f"{_INSERTIONS[0]}_e16_b{batch_size}"]
    echoed = {field: value for field, value in large.items() if field.startswith("echo.")}
    settings = {"baseline": none, "e16": large, "e16_untuned": none | echoed}
    return confirmation | {
        "about": "Does weight decay make a large factor better than it makes no echoing? At the "
        "best hyperparameters of each without it, and, for the factor, at those of no echoing.",
        "conditions": {
            f"{name}_decay_{decay:g}": overrides | {"optimizer.weight_decay": decay}
            for name, overrides in settings.items()
            for decay in _WINNERS_DECAYS
        },
        "baseline": "baseline_decay_0",
        "searches": _WINNERS_DECAY_PAIRS,
    }


def _half_horizon(numbers: Numbers) -> Conditions:
    half = {HORIZON["field"]: numbers.budget // 2}
    return {"baseline_horizon_of_half": BASELINE["baseline"] | half}


def _optimizer(numbers: Numbers, conditions: Conditions) -> dict[str, Any]:
    return {
        "about": "AdamW with warmup and cosine decay, where the paper used momentum at a constant "
        "rate: does echoing gain as much?",
        "conditions": conditions | {"before_augmentation_e4": _at(numbers, _INSERTIONS[0], 4)},
        "overrides": {
            "optimizer.name": "adamw",
            "optimizer.weight_decay": 0.1,
            "optimizer.schedule.name": "cosine",
            "optimizer.schedule.warmup_progress": 0.05,
            "optimizer.schedule.final_factor": 0.1,
        },
        "space": (
            {"field": "optimizer.learning_rate", "scale": "log", "min": 1e-4, "max": 3e-2},
            {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.03, "max": 0.3},
            {"field": "optimizer.beta2", "scale": "log_one_minus", "min": 0.001, "max": 0.1},
            HORIZON,
        ),
    }


def _at(numbers: Numbers, insertion: str, factor: float, batch_size: int = 0, buffer: int = -1):
    """Overrides for an insertion point; buffer = -1 means the workload's."""
    examples = numbers.buffer if buffer < 0 else buffer
    batches = math.ceil(examples / (batch_size or numbers.batch_size))
    return echo(insertion, factor, batches if insertion == "after_batching" else examples)


def _grid(numbers: Numbers, batch_sizes, insertions, factors) -> Conditions:
    conditions = {}
    for size in batch_sizes:
        at_size = {"batch_size": size}
        conditions[f"baseline_b{size}"] = BASELINE["baseline"] | at_size
        for insertion in insertions:
            for e in factors:
                conditions[f"{insertion}_e{e}_b{size}"] = _at(numbers, insertion, e, size) | at_size
    return conditions


def _buffers(numbers: Numbers) -> Conditions:
    return {
        f"{insertion}_e2_buffer_{size}": _at(numbers, insertion, 2, buffer=size)
        for insertion in (_INSERTIONS[0], _INSERTIONS[2])
        for size in numbers.buffers
    }


def _completed(numbers: Numbers, study: dict[str, Any]) -> dict[str, Any]:
    defaults = {"baseline": "baseline", "trials": numbers.trials, "searches": numbers.searches}
    overrides = numbers.overrides | study.get("overrides", {})
    return defaults | study | {"overrides": overrides}
