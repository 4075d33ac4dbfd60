"""The problems of results/protocol.md: diverse, and small enough for two cores.

    python sweep.py --config=configs/problems.py:digits --study=grid --outdir=DIR

results/grid/problems.json defines each as changes to a shipped mini. `photographs`, `cells`,
`sentences`, and `documents` read `cifar10_jpeg`, `bccd`, `lm_books`, and `lm_docs` from
$TFDS_DATA_DIR (CIFAR-10 recompressed as JPEG; microscope photographs of blood cells with the
features of `coco/2017`; English sentences with those of `lm1b`; technical documents with those of
`c4`). The budgets of three of them are below one pass over the data. Search spaces, except that of
`cells`, are wider than those of the minis, whose ends held some optima. Targets follow the rule in
the protocol.
"""

import dataclasses
import importlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from configs import base, catalog

_GRID = pathlib.Path(__file__).parents[1] / "results/grid"

# The studies of each problem, as they were registered, by problem: `grid`, the `pilot` that
# determines its target, the studies of figures 7 to 9, of controls, of equally many evaluations
# (`common_cadence`), and of open questions, and the `confirmation` of each condition at its best
# hyperparameters with new matched seeds: search k is pair k.
PLANS = _GRID / "plans.json"

# These hyperparameters, by problem, and for its `common_cadence` by COMMON_CADENCE and the problem.
WINNERS = _GRID / "winners.json"
COMMON_CADENCE = "common_cadence_"

EVALUATIONS = 64  # per budget without echoing; resolves a score of a third of the budget to 5%


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, as changes to a shipped mini."""

    workload: str  # the file in configs/ whose mini it starts from
    target: float  # the value at which a run stops
    budget: int  # fresh examples per trial
    batch_sizes: tuple[int, int]  # that the grid compares
    fields: Mapping[str, Any]  # others that differ
    space: catalog.Ends


PROBLEMS = {
    name: Problem(**problem)
    for name, problem in json.loads((_GRID / "problems.json").read_text()).items()
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration of a problem."""
    problem = base.choose(PROBLEMS, variant)
    config = importlib.import_module(f"configs.{problem.workload}").get_config("mini")
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
