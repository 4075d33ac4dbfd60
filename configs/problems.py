"""The problems of results/protocol.md: diverse, and small enough for two cores.

    python sweep.py --config=configs/problems.py:digits --study=grid --outdir=DIR

Each problem is a shipped mini except for the fields set here. `photographs`, `cells`, `sentences`,
and `documents` read `cifar10_jpeg`, `bccd`, `lm_books`, and `lm_docs` from $TFDS_DATA_DIR (CIFAR-10
recompressed as JPEG; microscope photographs of blood cells with the features of `coco/2017`;
English sentences with those of `lm1b`; technical documents with those of `c4`). The budgets of
three of them are below one pass over the data. Search spaces, except that of `cells`, are wider
than those of the minis, whose ends held some optima. Targets follow the rule in the protocol.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from configs import catalog, cifar10, coco, common_crawl, lm1b

_WIDE = {"learning_rate": (0.003, 3.0), "one_minus_momentum": (0.01, 0.5)}
_CONSTANT = catalog.space(**_WIDE)
_DECAYING = catalog.space(**_WIDE, final_factor=(0.01, 1.0), budgets_of_decay=catalog.DECAY)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, as changes to a shipped mini.

    Attributes:
        workload: the module whose mini it starts from.
        target: the value at which a run stops.
        budget: fresh examples per trial.
        fields: other fields that differ from the mini.
        space: axes of its searches.
        batch_sizes: the two batch sizes that the grid compares.
        factors: echo factors before augmentation, besides 1.
        trials: trials of each search that must not diverge.
        pairs: matched seeds with which a condition is confirmed.
        augments: whether examples are augmented; if not, the first two insertion points are equal.
        buffers: sizes that the study of shuffling compares.
    """

    workload: Any
    target: float
    budget: int
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    space: catalog.Space = _DECAYING
    batch_sizes: tuple[int, int] = (32, 64)
    factors: tuple[int, ...] = (2, 4, 16)
    trials: int = 8
    pairs: int = 64
    augments: bool = True
    buffers: tuple[int, ...] = (0, 64, 256, 1024)

    @property
    def numbers(self) -> catalog.Numbers:
        """The numbers of its studies."""
        return dataclasses.replace(
            self.workload.MINI_NUMBERS,
            batch_sizes=self.batch_sizes,
            trials=self.trials,
            searches=SEARCHES,
            augments=self.augments,
            buffers=self.buffers,
        )


COMMON_CADENCE = "common_cadence_"  # and a problem: its packed records
SEARCHES = 5  # per condition; the smallest number whose range covers a median above 90%
EVALUATIONS = 64  # per budget without echoing; resolves a score of a third of the budget to 5%

# The best hyperparameters of each condition of a finished grid, by problem, and of a finished
# `common_cadence`, by COMMON_CADENCE and the problem; written by
# `python -m benchmarks.evidence --winners`.
WINNERS = pathlib.Path(__file__).parents[1] / "results/grid/winners.json"

_TRANSFORMER = {"model.dim": 32, "model.heads": 2, "model.mlp_dim": 128}

PROBLEMS = {
    "digits": Problem(cifar10, 0.975, 12_000, factors=(2, 4, 8, 16), trials=12),
    "mnist": Problem(
        *(cifar10, 0.785, 6_000),
        {"dataset.name": "mnist_5k", "model.width": 4, "augmentation.pad": 2},
    ),
    "photographs": Problem(
        *(cifar10, 0.35, 12_000),
        {
            "dataset.name": "cifar10_jpeg",
            "dataset.train_split": "train[:45000]",
            "dataset.validation_split": "train[45000:45400]",
            "model.width": 4,
            "augmentation.pad": 4,
            "augmentation.flip": True,
        },
    ),
    "cells": Problem(
        *(coco, 0.225, 3_000),
        {
            "dataset.name": "bccd",
            "dataset.max_boxes": 40,
            "dataset.canvas": 64,
            "augmentation.crop_size": 64,
            "augmentation.flip": True,
            "model.width": 8,
            "optimizer.schedule.name": "constant",
        },
        coco.MINI_SEARCH_SPACE[:2],
        batch_sizes=(16, 32),
        trials=6,
        buffers=(0, 256),  # 256 hold more than the 205 training photographs
    ),
    "sentences": Problem(
        *(lm1b, 4.6, 8_000),
        _TRANSFORMER
        | {
            "dataset.name": "lm_books",
            "dataset.validation_split": "test[:15%]",
            "dataset.sequence_length": 32,
        },
        _CONSTANT,
        pairs=20,
        augments=False,
    ),
    "documents": Problem(
        *(common_crawl, 4.45, 4_000),
        _TRANSFORMER | {"dataset.name": "lm_docs", "dataset.sequence_length": 128},
        _CONSTANT,
        batch_sizes=(16, 32),
        pairs=20,
        augments=False,
    ),
    "logistic": Problem(
        *(cifar10, 0.875, 12_000),
        {"dataset.name": "mnist_5k", "model.depth": 0, "augmentation.pad": 0},
        factors=(2, 4, 8, 16),
        trials=16,
        augments=False,
    ),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration of a problem."""
    problem = catalog.choose(PROBLEMS, variant)
    config = problem.workload.get_config("mini")
    fields = {
        "target.value": problem.target,
        "budget.fresh_examples": problem.budget,
        "batch_size": problem.batch_sizes[0],
        "evaluate_every_fresh_examples": problem.budget // EVALUATIONS,
        "checkpoint_every_fresh_examples": 0,  # trials take seconds and can start over
        "dataset.test_split": "",
        "gradient_statistics_every_steps": 100,
    }
    config.update_from_flattened_dict(dict(problem.fields) | fields)
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return catalog.choose(PROBLEMS, variant).space


def get_studies(variant: str = "") -> catalog.Studies:
    """`grid`, the `pilot` that determines its target, the studies of figures 7 to 9, of controls,
    of equally many evaluations, and of open questions; for each finished grid and `common_cadence`
    the `confirmation`; and with lm1b AdamW at two batch sizes."""
    problem = catalog.choose(PROBLEMS, variant)
    numbers, sizes, budget = problem.numbers, problem.batch_sizes, problem.budget
    first, insertions = f"b{sizes[0]}", numbers.insertions
    grid = {
        "about": "Every echo factor at two batch sizes, and every insertion point at e = 2.",
        "conditions": numbers.grid(sizes, insertions[:1], problem.factors)
        | numbers.grid(sizes[:1], insertions[1:], (2,)),
        "baseline": f"baseline_{first}",
    }
    compared = ("baseline", *(f"before_augmentation_e{e}" for e in (2, 4, 16)))
    every = {"evaluate_every_fresh_examples": budget // EVALUATIONS}
    common_cadence = grid | {
        "about": "e = 2, 4, and 16, evaluated as often per fresh example as no echoing: how much "
        "of the gain in `grid` is due to more evaluations, each of which may reach the target?",
        "conditions": {
            f"{name}_{first}": grid["conditions"][f"{name}_{first}"] | every for name in compared
        },
    }
    studies = {
        "grid": grid,
        "pilot": {
            "about": "The best value of the baseline over the budget, with separate seeds; it "
            "determines the target of `grid`.",
            "conditions": numbers.grid(sizes, (), ()),
            "baseline": f"baseline_{first}",
            "overrides": {"target.value": numbers.never, "seed.data": 1000, "seed.model": 10**7},
            "score": "best_value",
            "searches": 1,
        },
        "fractions": {
            "about": "Factors between the grid's: e = 1.5 and 3 beside 2 and 4.",
            "conditions": catalog.BASELINE | numbers.before(1.5, 2, 3, 4),
        },
        "weight_decay": {
            "about": "Does weight decay make a large factor better than it makes no echoing?",
            "conditions": _with_decay(catalog.BASELINE | numbers.before(16), (0.0, 1e-3, 1e-2)),
            "baseline": "baseline_decay_0",
        },
        "controls": catalog.of(numbers)["controls"],
        "common_cadence": common_cadence,
    }
    # At the larger batch size the target may be out of reach without echoing: figure 7 halves the
    # first.
    half = sizes[0] // 2
    halved = catalog.of(dataclasses.replace(numbers, batch_sizes=(sizes[0], half)))
    studies |= {name: halved[name] for name in ("batch_size", "shuffle", "quality")}
    if problem.workload.get_config("mini").model.ghost_batch_size > half:
        # Both batch sizes normalize over equally many examples.
        studies["batch_size"]["overrides"]["model.ghost_batch_size"] = half
    winners = json.loads(WINNERS.read_text()) if WINNERS.exists() else {}
    if own := winners.get(variant):
        studies["confirmation"] = _confirmation(grid, problem.pairs, own)
        if f"before_augmentation_e16_{first}" in own:
            studies["weight_decay_of_winners"] = _decay_of_winners(studies["confirmation"], first)
    if own := winners.get(COMMON_CADENCE + variant):
        confirmed = _confirmation(common_cadence, problem.pairs, own)
        studies["confirmation_common_cadence"] = confirmed | {
            "about": "Each condition of `common_cadence` at its best hyperparameters, beside no "
            "echoing at its own, with the matched seeds of `confirmation`."
        }
    if problem.workload is lm1b:
        studies |= _adamw(catalog.of(numbers)["optimizer"])
    return numbers.completed(studies)


def _with_decay(conditions: catalog.Conditions, decays: tuple[float, ...]) -> catalog.Conditions:
    return {
        f"{name}_decay_{decay:g}": overrides | {"optimizer.weight_decay": decay}
        for name, overrides in conditions.items()
        for decay in decays
    }


def _confirmation(
    study: dict[str, Any], pairs: int, winners: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The conditions of a study at their winners (hyperparameters by condition), with new matched
    seeds; those that have winners, as no echoing at their batch size must have."""
    return study | {
        "about": "Each condition of the grid at its best hyperparameters, beside no echoing at its "
        "own, with new matched seeds: search k is pair k.",
        "conditions": {
            name: overrides | dict(winners[name])
            for name, overrides in study["conditions"].items()
            if name in winners and f"baseline_b{overrides['batch_size']}" in winners
        },
        "overrides": {"seed.data": 10_000, "seed.model": 20_000_000},
        "space": (),
        "trials": 1,
        "searches": pairs,
    }


def _decay_of_winners(confirmation: dict[str, Any], size: str) -> dict[str, Any]:
    none = confirmation["conditions"][f"baseline_{size}"]
    large = confirmation["conditions"][f"before_augmentation_e16_{size}"]
    echoed = {field: value for field, value in large.items() if field.startswith("echo.")}
    settings = {"baseline": none, "e16": large, "e16_untuned": none | echoed}
    return confirmation | {
        "about": "Does weight decay make a large factor better than it makes no echoing? At the "
        "best hyperparameters of each without it, and, for the factor, at those of no echoing.",
        "conditions": _with_decay(settings, (0.0, 1e-4, 1e-3, 1e-2)),
        "baseline": "baseline_decay_0",
        "searches": 12,
    }


def _adamw(study: dict[str, Any]) -> catalog.Studies:
    """The catalog's study of AdamW at two batch sizes, whose targets are losses in nats from
    pilots: two conditions, two axes, more searches. Both have one budget: 1,000 steps of 32, or
    125 of 256."""
    fields = {
        "optimizer.momentum": 0.9,
        "optimizer.beta2": 0.98,
        "budget.fresh_examples": 32_000,
        "evaluate_every_fresh_examples": 32_000 // EVALUATIONS,
    }
    own = {
        "conditions": catalog.BASELINE
        | {"before_augmentation_e2": catalog.echo("before_augmentation", 2, 1024)},
        "space": catalog.space(learning_rate=(2e-3, 0.1), budgets_of_decay=(1 / 8, 2.0)),
        "trials": 6,
        "searches": 8,
    }
    return {
        f"optimizer_b{size}": study
        | own
        | {"overrides": study["overrides"] | fields | {"batch_size": size, "target.value": target}}
        for size, target in ((32, 4.1), (256, 4.6))
    }
