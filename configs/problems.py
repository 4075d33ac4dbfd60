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

from configs import base, catalog, cifar10, coco, common_crawl, lm1b

_WIDE = {"learning_rate": (0.003, 3.0), "one_minus_momentum": (0.01, 0.5)}
_DECAYING = _WIDE | {"final_factor": (0.01, 1.0), "budgets_of_decay": catalog.DECAY}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, as changes to a shipped mini."""

    workload: Any  # the module whose mini it starts from
    target: float  # the value at which a run stops
    budget: int  # fresh examples per trial
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # others that differ
    space: catalog.Ends = dataclasses.field(default_factory=lambda: _DECAYING)
    batch_sizes: tuple[int, int] = (32, 64)  # that the grid compares


EVALUATIONS = 64  # per budget without echoing; resolves a score of a third of the budget to 5%

# The studies of each problem, as they were registered, by problem: `grid`, the `pilot` that
# determines its target, the studies of figures 7 to 9, of controls, of equally many evaluations
# (`common_cadence`), and of open questions, and the `confirmation` of each condition at its best
# hyperparameters with new matched seeds: search k is pair k.
PLANS = pathlib.Path(__file__).parents[1] / "results/grid/plans.json"

# These hyperparameters, by problem, and for its `common_cadence` by COMMON_CADENCE and the problem.
WINNERS = PLANS.with_name("winners.json")
COMMON_CADENCE = "common_cadence_"

_TRANSFORMER = {"model.dim": 32, "model.heads": 2, "model.mlp_dim": 128}

PROBLEMS = {
    "digits": Problem(cifar10, 0.975, 12_000),
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
        {"learning_rate": (0.01, 0.5), "one_minus_momentum": (0.03, 0.3)},
        batch_sizes=(16, 32),
    ),
    "sentences": Problem(
        *(lm1b, 4.6, 8_000),
        _TRANSFORMER
        | {
            "dataset.name": "lm_books",
            "dataset.validation_split": "test[:15%]",
            "dataset.sequence_length": 32,
        },
        _WIDE,
    ),
    "documents": Problem(
        *(common_crawl, 4.45, 4_000),
        _TRANSFORMER | {"dataset.name": "lm_docs", "dataset.sequence_length": 128},
        _WIDE,
        batch_sizes=(16, 32),
    ),
    "logistic": Problem(
        *(cifar10, 0.875, 12_000),
        {"dataset.name": "mnist_5k", "model.depth": 0, "augmentation.pad": 0},
    ),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration of a problem."""
    problem = base.choose(PROBLEMS, variant)
    config = problem.workload.get_config("mini")
    fields = {
        "target.value": problem.target,
        "budget.fresh_examples": problem.budget,
        "batch_size": problem.batch_sizes[0],
        "evaluate_every_fresh_examples": problem.budget // EVALUATIONS,
        "checkpoint_every_fresh_examples": 0,  # trials take seconds and can start over
        "dataset.test_split": "",
    }
    config.update_from_flattened_dict(dict(problem.fields) | fields)
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return catalog.space(base.choose(PROBLEMS, variant).space)


def get_studies(variant: str = "") -> catalog.Studies:
    """The registered studies of a problem."""
    base.choose(PROBLEMS, variant)
    plans = json.loads(PLANS.read_text())[variant]
    return {name: {"cadence": "step"} | plan for name, plan in plans.items()}
