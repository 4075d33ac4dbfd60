"""ResNet-50 on ImageNet, and its mini: a narrow ResNet-18 on digits as small JPEGs.

    python train.py --config=configs/imagenet.py --workdir=DIR         (ImageNet prepared by TFDS)
    python train.py --config=configs/imagenet.py:mini --workdir=DIR    (no download, a minute)
    python sweep.py --config=configs/imagenet.py:mini --study=demo --outdir=DIR

From the paper: ResNet-50, batch size 1024, Nesterov momentum, linear decay. From memory, not
verified: the target of 75% top-1, ghost batches of 32, random-resized crops with flips and color
distortion. Our choice: budget, weight decay, crops of 8 to 100% of the area at 224 pixels, the
center crop of 224 of 256 for evaluation, no color distortion by default, and the search ranges,
which follow Shallue et al. (2018). On the canvas of 384 pixels a typical photograph of 500 x 375 is
reduced to 384 x 288, and 10,000 canvases in a shuffle buffer take 4.4 GB. Runs that do not echo
before augmentation can set config.dataset.fused_decode, which crops the original pixels.

Full size has not been run here; docs/scaling.md has its cost.

The mini encodes scikit-learn's digits as JPEGs of 21 to 74 pixels per side. Its crops are at least
35% of the area, so that digits stay recognizable. It reaches 0.96 after about half its budget.
"""

import functools

from configs import base, catalog

SEARCH_SPACE = {
    "learning_rate": (0.01, 10.0),
    "one_minus_momentum": (0.001, 0.1),
    "final_factor": (0.0001, 0.1),
    "budgets_of_decay": catalog.DECAY,
    "label_smoothing": (0.0, 0.01, 0.1),
}
MINI_SEARCH_SPACE = {
    "learning_rate": (0.02, 1.0),
    "one_minus_momentum": (0.02, 0.3),
    "final_factor": (0.01, 1.0),
    "budgets_of_decay": catalog.DECAY,
}

NUMBERS = catalog.Numbers(
    batch_sizes=(1024, 4096),
    buffer=10_000,
    buffers=(0, 2_000, 10_000, 100_000),  # of 1,000, one batch would be stored: no shuffling
    upstream=400,
    budget=90 * 1_281_167,
    trials=50,
    searches=5,
    overrides={},
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(32, 64, 16),
    upstream=100,
    budget=16_000,
    demo={"trials": 4, "searches": 1},
)

FIELDS = {
    "workload": "imagenet",
    "dataset.name": "imagenet2012",
    "dataset.train_split": "train",
    "dataset.validation_split": "validation",
    "model.depth": 50,
    "model.width": 64,
    "model.ghost_batch_size": 32,
    "batch_size": 1024,
    "optimizer.weight_decay": 1e-4,
    "budget.fresh_examples": NUMBERS.budget,
    "evaluate_every_fresh_examples": 1_281_167,
    "checkpoint_every_fresh_examples": 1_281_167,
    "target.value": 0.75,
}
MINI_FIELDS = FIELDS | {
    "dataset.name": "digits_jpeg",
    "dataset.canvas": 48,
    "dataset.test_split": "test",
    "augmentation.crop_size": 24,
    "augmentation.min_area": 0.35,
    "augmentation.flip": False,  # a mirrored digit is not a digit
    "model.depth": 18,
    "model.width": 8,
    "model.stem": "cifar",
    "model.ghost_batch_size": 16,
    "batch_size": 32,
    "optimizer.learning_rate": 0.2,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule.final_factor": 0.1,
    "budget.fresh_examples": MINI_NUMBERS.budget,
    "evaluate_every_fresh_examples": 320,
    "checkpoint_every_fresh_examples": 4_000,
    "target.value": 0.96,
}

SEARCHES = {"": (SEARCH_SPACE, NUMBERS), "mini": (MINI_SEARCH_SPACE, MINI_NUMBERS)}

get_config = functools.partial(base.get_variant, {"": FIELDS, "mini": MINI_FIELDS})
get_search_space = functools.partial(catalog.get_search_space, SEARCHES)
get_studies = functools.partial(catalog.get_studies, SEARCHES)
