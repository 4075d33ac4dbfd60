"""The problems of results/protocol.md: diverse, and small enough for two cores.

    python sweep.py --config=configs/problems.py:digits --study=grid --outdir=DIR

The variants are `digits`, `mnist`, `photographs`, `cells`, `sentences`, `documents`, and
`logistic`. `photographs`, `cells`, `sentences`,
and `documents` read `cifar10_jpeg`, `bccd`, `lm_books`, and `lm_docs` from $TFDS_DATA_DIR (CIFAR-10
recompressed as JPEG; microscope photographs of blood cells with the features of `coco/2017`;
English sentences with those of `lm1b`; technical documents with those of `c4`). The budgets of
`photographs`, `sentences`, and `documents` are below one pass over the data, so that every fresh
example is new to the network.

Each problem is a shipped mini except for the fields set here. Search spaces, except that of
`cells`, are wider than those of the minis, whose ends held some optima. Targets follow the rule in
the protocol.
"""

import dataclasses
import json
import pathlib
from typing import Any

import ml_collections

from configs import catalog, cifar10, coco, common_crawl, lm1b

_RATE_AND_MOMENTUM = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.003, "max": 3.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.01, "max": 0.5},
)
_DECAYING = (
    *_RATE_AND_MOMENTUM,
    {"field": "optimizer.schedule.final_factor", "scale": "log", "min": 0.01, "max": 1.0},
    catalog.HORIZON,
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, as changes to a shipped mini.

    Attributes:
        workload: the module whose mini it starts from.
        fields: fields that differ from the mini.
        space: axes of its searches.
        batch_sizes: the two batch sizes that the grid compares.
        factors: echo factors before augmentation, besides 1.
        trials: trials of each search that must not diverge.
        augments: whether examples are augmented; if not, the first two insertion points are equal.
        buffers: sizes that the study of shuffling compares, if they differ from the mini's.
    """

    workload: Any
    fields: dict[str, Any]
    space: tuple[dict[str, Any], ...]
    batch_sizes: tuple[int, int] = (32, 64)
    factors: tuple[int, ...] = (2, 4, 16)
    trials: int = 8
    augments: bool = True
    buffers: tuple[int, ...] = ()

    @property
    def pairs(self) -> int:
        """Matched seeds with which a condition is confirmed."""
        return TEXT_PAIRS if self.workload in (lm1b, common_crawl) else PAIRS


COMMON_CADENCE = "common_cadence_"  # and a problem: its packed records
SEARCHES = 5  # per condition; the smallest number whose range covers a median above 90%
PAIRS, TEXT_PAIRS = 64, 20  # of matched seeds, with which a condition is confirmed
EVALUATIONS = 64  # per budget without echoing; resolves a score of a third of the budget to 5%

# The best hyperparameters of each condition of a finished grid, by problem, and of a finished
# `common_cadence`, by COMMON_CADENCE and the problem; written by
# `python -m benchmarks.evidence --winners`.
WINNERS = pathlib.Path(__file__).parents[1] / "results/grid/winners.json"

PROBLEMS = {
    "digits": Problem(
        cifar10,
        {"target.value": 0.975, "budget.fresh_examples": 12_000},
        _DECAYING,
        factors=(2, 4, 8, 16),
        trials=12,
    ),
    "mnist": Problem(
        cifar10,
        {
            "dataset.name": "mnist_5k",
            "model.width": 4,
            "augmentation.pad": 2,
            "target.value": 0.785,
            "budget.fresh_examples": 6_000,
        },
        _DECAYING,
    ),
    "photographs": Problem(
        cifar10,
        {
            "dataset.name": "cifar10_jpeg",
            "dataset.train_split": "train[:45000]",
            "dataset.validation_split": "train[45000:45400]",
            "model.width": 4,
            "augmentation.pad": 4,
            "augmentation.flip": True,
            "target.value": 0.35,
            "budget.fresh_examples": 12_000,
        },
        _DECAYING,
    ),
    "cells": Problem(
        coco,
        {
            "dataset.name": "bccd",
            "dataset.max_boxes": 40,
            "dataset.canvas": 64,
            "augmentation.crop_size": 64,
            "augmentation.flip": True,
            "model.width": 8,
            "optimizer.schedule.name": "constant",
            "target.value": 0.225,
            "budget.fresh_examples": 3_000,
        },
        coco.MINI_SEARCH_SPACE[:2],
        batch_sizes=(16, 32),
        trials=6,
        buffers=(0, 256),  # 256 hold more than the 205 training photographs
    ),
    "sentences": Problem(
        lm1b,
        {
            "dataset.name": "lm_books",
            "dataset.validation_split": "test[:15%]",
            "dataset.sequence_length": 32,
            "model.dim": 32,
            "model.heads": 2,
            "model.mlp_dim": 128,
            "target.value": 4.6,
            "budget.fresh_examples": 8_000,
        },
        _RATE_AND_MOMENTUM,
        augments=False,
    ),
    "documents": Problem(
        common_crawl,
        {
            "dataset.name": "lm_docs",
            "dataset.sequence_length": 128,
            "model.dim": 32,
            "model.heads": 2,
            "model.mlp_dim": 128,
            "target.value": 4.45,
            "budget.fresh_examples": 4_000,
        },
        _RATE_AND_MOMENTUM,
        batch_sizes=(16, 32),
        augments=False,
    ),
    "logistic": Problem(
        cifar10,
        {
            "dataset.name": "mnist_5k",
            "model.depth": 0,
            "augmentation.pad": 0,
            "target.value": 0.875,
            "budget.fresh_examples": 12_000,
        },
        _DECAYING,
        factors=(2, 4, 8, 16),
        trials=16,
        augments=False,
    ),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration of a problem."""
    problem = _problem(variant)
    config = problem.workload.get_config("mini")
    fields = problem.fields | {
        "batch_size": problem.batch_sizes[0],
        "evaluate_every_fresh_examples": problem.fields["budget.fresh_examples"] // EVALUATIONS,
        "checkpoint_every_fresh_examples": 0,  # trials take seconds and can start over
        "dataset.test_split": "",
        "gradient_statistics_every_steps": 100,
    }
    config.update_from_flattened_dict(fields)
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return _problem(variant).space


def get_studies(variant: str = ""):
    """`grid`, the `pilot` that determines its target, the studies of figures 7 to 9, of controls,
    of equally many evaluations, and of open questions; for each finished grid and `common_cadence`
    the `confirmation`; and with lm1b AdamW at two batch sizes."""
    problem = _problem(variant)
    numbers = dataclasses.replace(
        problem.workload.MINI_NUMBERS,
        batch_sizes=problem.batch_sizes,
        trials=problem.trials,
        searches=SEARCHES,
        augments=problem.augments,
        buffers=problem.buffers or problem.workload.MINI_NUMBERS.buffers,
    )
    winners = json.loads(WINNERS.read_text()) if WINNERS.exists() else {}
    studies = catalog.registered(numbers, problem.factors, problem.pairs, winners.get(variant, {}))
    # At the larger batch size the target may be out of reach without echoing: figure 7 halves the
    # first.
    half = numbers.batch_size // 2
    halved = dataclasses.replace(numbers, batch_sizes=(numbers.batch_size, half))
    studies |= {name: catalog.of(halved)[name] for name in ("batch_size", "shuffle", "quality")}
    if problem.workload.get_config("mini").model.ghost_batch_size > half:
        # Both batch sizes normalize over equally many examples.
        studies["batch_size"]["overrides"]["model.ghost_batch_size"] = half
    studies["controls"] = catalog.of(numbers)["controls"]
    studies["common_cadence"] = _common_cadence(problem, studies["grid"])
    if seldom := winners.get(COMMON_CADENCE + variant):
        confirmed = catalog.confirmation_of(studies["common_cadence"], problem.pairs, seldom)
        studies["confirmation_common_cadence"] = confirmed | {
            "about": "Each condition of `common_cadence` at its best hyperparameters, beside no "
            "echoing at its own, with the matched seeds of `confirmation`."
        }
    if problem.workload is lm1b:
        studies |= _adamw(catalog.of(numbers)["optimizer"])
    return studies


def _common_cadence(problem: Problem, grid: dict[str, Any]) -> dict[str, Any]:
    """The grid's factors at the first batch size. The grid evaluates their trials e times as
    often."""
    size, budget = problem.batch_sizes[0], problem.fields["budget.fresh_examples"]
    factors = [f"before_augmentation_e{e}_b{size}" for e in (2, 4, 16)]
    every = {"evaluate_every_fresh_examples": budget // EVALUATIONS}
    return grid | {
        "about": "e = 2, 4, and 16, evaluated as often per fresh example as no echoing: how much "
        "of the gain in `grid` is due to more evaluations, each of which may reach the target?",
        "conditions": {
            name: grid["conditions"][name] | every for name in (grid["baseline"], *factors)
        },
    }


# One budget of fresh examples for both batch sizes: 1,000 steps of 32, or 125 of 256.
_ADAMW = {
    "optimizer.momentum": 0.9,
    "optimizer.beta2": 0.98,
    "budget.fresh_examples": 32_000,
    "evaluate_every_fresh_examples": 32_000 // EVALUATIONS,
}
_ADAMW_TARGETS = {32: 4.1, 256: 4.6}  # by batch size; losses in nats, from the pilots
_ADAMW_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 2e-3, "max": 0.1},
    catalog.HORIZON | {"min": 1 / 8},
)
_ADAMW_PILOT = {
    "conditions": catalog.BASELINE,
    "space": ({**_ADAMW_SPACE[0], "min": 1e-4, "max": 3e-2}, catalog.HORIZON),
    "score": "best_value",
    "trials": 12,
    "searches": 1,
}


def _adamw(catalogued: dict[str, Any]) -> catalog.Studies:
    """The catalog's study of AdamW at two batch sizes: two conditions, two axes, more searches;
    and the pilots that determine their targets."""
    echoed = {"before_augmentation_e2": catalog.echo("before_augmentation", 2, 1024)}
    studies = {}
    for size, target in _ADAMW_TARGETS.items():
        overrides = catalogued["overrides"] | _ADAMW | {"batch_size": size}
        studies[f"optimizer_b{size}"] = catalogued | {
            "conditions": catalog.BASELINE | echoed,
            "overrides": overrides | {"target.value": target},
            "space": _ADAMW_SPACE,
            "trials": 6,
            "searches": 8,
        }
        seeds = {"target.value": 0.0, "seed.data": 1000, "seed.model": 10**7}
        studies[f"optimizer_pilot_b{size}"] = (
            catalogued
            | _ADAMW_PILOT
            | {
                "about": "The best value of AdamW without echoing over the budget, with separate "
                f"seeds; it determines the target of optimizer_b{size}.",
                "overrides": overrides | seeds,
            }
        )
    return studies


def _problem(variant: str) -> Problem:
    if variant not in PROBLEMS:
        raise ValueError(f"no variant {variant!r}; allowed: {', '.join(PROBLEMS)}")
    return PROBLEMS[variant]
