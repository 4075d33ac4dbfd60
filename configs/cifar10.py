"""ResNet-32 on CIFAR-10, and its mini: ResNet-8 on scikit-learn's 8x8 digits.

    python train.py --config=configs/cifar10.py --workdir=DIR          (CIFAR-10 prepared by TFDS)
    python train.py --config=configs/cifar10.py:mini --workdir=DIR     (no download, one minute)
    python sweep.py --config=configs/cifar10.py:mini --study=demo --outdir=DIR

From the paper: model, batch size 128, Nesterov momentum, linear decay. From memory, not verified:
the target of 91% top-1, augmentation (pad 4, crop, flip), plain batch norm. Our choice: budget,
weight decay, 45,000 / 5,000 images for training and validation, and the search ranges, which follow
Shallue et al. (2018). Full size requires an accelerator.
"""

import functools

from configs import base, catalog

SEARCH_SPACE = {
    "learning_rate": (0.01, 10.0),
    "one_minus_momentum": (0.001, 0.1),
    "final_factor": (0.0001, 0.1),
    "budgets_of_decay": catalog.DECAY,
}
MINI_SEARCH_SPACE = {
    "learning_rate": (0.01, 1.0),
    "one_minus_momentum": (0.01, 0.3),
    "final_factor": (0.01, 1.0),
    "budgets_of_decay": catalog.DECAY,
}

NUMBERS = catalog.Numbers(
    batch_sizes=(128, 512, 2048),
    buffer=10_000,
    buffers=(0, 1_000, 10_000, 40_000),
    upstream=3_000,
    budget=200 * 45_000,
    trials=100,
    searches=5,
    demo_factors=(4,),
    overrides={},
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(32, 64, 16),
    upstream=1_500,
    budget=12_000,
    # An easy target, and hyperparameters that reach it in about 100 steps: many pairs in minutes.
    demo={
        "trials": 4,
        "searches": 5,
        "overrides": {"target.value": 0.9, "evaluate_every_fresh_examples": 160},
        "space": {"learning_rate": (0.03, 0.3), "one_minus_momentum": (0.05, 0.3)},
    },
    demo_factors=(4,),
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

SEARCHES = {"": (SEARCH_SPACE, NUMBERS), "mini": (MINI_SEARCH_SPACE, MINI_NUMBERS)}

get_config = functools.partial(base.get_variant, {"": FIELDS, "mini": MINI_FIELDS})
get_search_space = functools.partial(catalog.get_search_space, SEARCHES)
get_studies = functools.partial(catalog.get_studies, SEARCHES)
