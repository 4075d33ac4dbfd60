"""A digits mini that trains in a second, for benchmarks/torture.

    python train.py --config=benchmarks/torture/small.py --workdir=DIR

Variants: '' (ResNet-8 of width 4) and `logistic`, which compiles faster.
"""

from benchmarks import common
from configs import catalog, cifar10

FIELDS = {
    "model.width": 4,
    "budget.fresh_examples": 320,
    "evaluate_every_fresh_examples": 96,
    "checkpoint_every_fresh_examples": 64,
    "log_every_steps": 1,
    "target.value": 1.1,  # out of reach, so that a run uses its whole budget
}
LOGISTIC = {"model.depth": 0, "augmentation.pad": 0, "budget.fresh_examples": 192}

_ECHO = catalog.echo("before_augmentation", 2, 64)


def get_config(variant: str = ""):
    """The configuration; `variant` is '' or 'logistic'."""
    config = cifar10.get_config("mini")
    return common.overridden(config, FIELDS | (LOGISTIC if variant == "logistic" else {}))


def get_search_space(variant: str = ""):
    """The learning rate only, so that lanes can share their input."""
    return ({"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 0.1},)


def get_studies(variant: str = ""):
    """One study of two conditions."""
    study = {
        "about": "Two conditions, for benchmarks/torture.",
        "conditions": catalog.BASELINE | {"echoed": _ECHO},
        "baseline": "baseline",
        "trials": 2,
        "searches": 1,
    }
    return {"small": study}
