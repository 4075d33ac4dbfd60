"""ResNet-32 on CIFAR-10, and its mini: ResNet-8 on scikit-learn's 8x8 digits.

    python train.py --config=configs/cifar10.py --workdir=DIR          (CIFAR-10 prepared by TFDS)
    python train.py --config=configs/cifar10.py:mini --workdir=DIR     (no download, one minute)
    python sweep.py --config=configs/cifar10.py:mini --study=demo --outdir=DIR

From the paper: model, batch size 128, Nesterov momentum, linear decay. From memory, not verified:
the target of 91% top-1, augmentation (pad 4, crop, flip), plain batch norm. Our choice, since the
paper does not specify them: budget, weight decay, 45,000 / 5,000 images for training and
validation, and the search ranges, which follow Shallue et al. (2018). Full size requires an
accelerator.
"""

from typing import Any

import ml_collections

from configs import base, catalog

# Searched separately for each condition. `log_one_minus` spaces 1 - value evenly in log.
SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 10.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.001, "max": 0.1},
    {"field": "optimizer.schedule.final_factor", "scale": "log", "min": 0.0001, "max": 0.1},
    catalog.HORIZON,
)

MINI_SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 1.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.01, "max": 0.3},
    {"field": "optimizer.schedule.final_factor", "scale": "log", "min": 0.01, "max": 1.0},
    catalog.HORIZON,
)

# Sizes for the studies of configs/catalog.py.
NUMBERS = catalog.Numbers(
    batch_sizes=(128, 512, 2048),
    buffer=10_000,
    buffers=(0, 1_000, 10_000, 40_000),
    upstream=3_000,
    budget=200 * 45_000,
    trials=100,
    searches=5,
    demo=(100, 5),
    demo_factors=(2, 4),
    overrides={},
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(32, 64, 16),
    upstream=1_500,
    budget=12_000,
    demo=(4, 5),
    demo_factors=(2, 4),
    # An easy target, and hyperparameters that reach it in about 100 steps: many pairs in minutes.
    demo_changes={
        "overrides": {"target.value": 0.9, "evaluate_every_fresh_examples": 160},
        "space": (
            {"field": "optimizer.learning_rate", "scale": "log", "min": 0.03, "max": 0.3},
            {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.05, "max": 0.3},
        ),
    },
)


FIELDS = {
    "workload": "cifar10",
    "dataset.name": "cifar10",
    "dataset.train_split": "train[:45000]",
    "dataset.validation_split": "train[45000:]",
    "dataset.test_split": "test",
    "optimizer.weight_decay": 1e-4,
    "budget.fresh_examples": NUMBERS.budget,
    "evaluate_every_fresh_examples": 45_000,
    "checkpoint_every_fresh_examples": 10 * 45_000,
}
MINI_FIELDS = FIELDS | {
    "dataset.name": "digits",
    "dataset.train_split": "train",
    "dataset.validation_split": "validation",
    "augmentation.pad": 1,
    "augmentation.flip": False,  # a mirrored digit is not a digit
    "model.depth": 8,
    "model.width": 8,
    "batch_size": 32,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule.final_factor": 0.1,
    "budget.fresh_examples": MINI_NUMBERS.budget,
    "evaluate_every_fresh_examples": 288,
    "checkpoint_every_fresh_examples": 3_000,
    "target.value": 0.97,
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is '' or 'mini'."""
    return base.get_config(base.choose({"": FIELDS, "mini": MINI_FIELDS}, variant))


def get_search_space(variant: str = "") -> tuple[dict[str, Any], ...]:
    """The hyperparameters that a study searches for each condition."""
    return base.choose({"": SEARCH_SPACE, "mini": MINI_SEARCH_SPACE}, variant)


def get_studies(variant: str = "") -> catalog.Studies:
    """The studies by name."""
    return catalog.of(base.choose({"": NUMBERS, "mini": MINI_NUMBERS}, variant))
