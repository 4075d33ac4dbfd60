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
    never=2.0,
    trials=100,
    searches=5,
    demo=(100, 5),
    demo_factors=(2, 4),
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(32, 64, 16),
    buffer=256,
    buffers=(0, 64, 256, 1024),
    upstream=1_500,
    budget=12_000,
    never=2.0,
    trials=16,
    searches=3,
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
    overrides={"checkpoint_every_fresh_examples": 0},  # trials take seconds, so they start over
)


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is '' or 'mini'."""
    config = base.get_config()
    config.workload = "cifar10"
    config.dataset.name = "cifar10"
    config.dataset.train_split = "train[:45000]"
    config.dataset.validation_split = "train[45000:]"
    config.dataset.test_split = "test"
    config.optimizer.weight_decay = 1e-4
    config.budget.fresh_examples = NUMBERS.budget
    config.evaluate_every_fresh_examples = 45_000
    config.checkpoint_every_fresh_examples = 10 * 45_000
    if variant == "mini":
        config.dataset.name = "digits"
        config.dataset.train_split = "train"
        config.dataset.validation_split = "validation"
        config.augmentation.pad = 1
        config.augmentation.flip = False  # a mirrored digit is not a digit
        config.model.depth = 8
        config.model.width = 8
        config.batch_size = 32
        config.optimizer.weight_decay = 0.0
        config.optimizer.schedule.final_factor = 0.1
        config.budget.fresh_examples = MINI_NUMBERS.budget
        config.evaluate_every_fresh_examples = 288
        config.checkpoint_every_fresh_examples = 3_000
        config.target.value = 0.97
    elif variant:
        raise ValueError(f"configs/cifar10.py has no variant {variant!r}; allowed: mini, or none")
    return config


def get_search_space(variant: str = "") -> tuple[dict[str, Any], ...]:
    """The hyperparameters that a study searches for each condition."""
    return MINI_SEARCH_SPACE if variant == "mini" else SEARCH_SPACE


def get_studies(variant: str = "") -> catalog.Studies:
    """The studies by name."""
    return catalog.of(MINI_NUMBERS if variant == "mini" else NUMBERS)
