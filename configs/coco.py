"""SSD300 with a ResNet-34 backbone on COCO 2017, and its mini: a small SSD on synthetic scenes.

    python train.py --config=configs/coco.py --workdir=DIR         (coco/2017 prepared by TFDS)
    python train.py --config=configs/coco.py:mini --workdir=DIR    (no download, two minutes)
    python sweep.py --config=configs/coco.py:mini --study=demo --outdir=DIR

Other data sets with the same features need only --config.dataset.name=NAME. Full size has not been
run here; docs/scaling.md has its cost.

From the paper: SSD, batch size 256, heavy-ball momentum, linear warmup, then two step decays. From
memory, not verified: mAP 0.24, warmup of 3.5 epochs, ghost batches of 128, crop, flip, and color
distortion. From the MLPerf training benchmark: 300 pixels, 8,732 default boxes, the ResNet-34
backbone, weight decay. From SSD's authors: the random crop, the loss, matching, suppression. Our
choice: the backbone is trained from scratch; 100 epochs with decays by 10 after 70 and 90; a
learning rate of 0.02 (MLPerf's 2.5e-3 at batch size 32, times 8); the search ranges; a canvas of
480x480 pixels, the shorter side of most photographs, which takes 0.7 MB in the echo buffer.

The mini's target, 0.3 AP at IoU 0.5, is our choice: seed 0 reaches it after 7,008 of 16,000 fresh
examples. The mini exercises every stage; it is not meant for comparing detectors.
"""

import functools

from configs import base, catalog

EXAMPLES = 118_287  # of COCO 2017's training split
EPOCHS = 100

SEARCH_SPACE = {
    "learning_rate": (0.001, 1.0),
    "one_minus_momentum": (0.001, 0.3),
    "budgets_of_decay": catalog.DECAY,  # the decays stay at 0.7 and 0.9 of it
    "step_factor": (0.01, 0.5),
}
MINI_SEARCH_SPACE = {
    "learning_rate": (0.01, 0.5),
    "one_minus_momentum": (0.03, 0.3),
    "budgets_of_decay": catalog.DECAY,
}

NUMBERS = catalog.Numbers(
    batch_sizes=(256, 1024),
    buffer=10_000,
    buffers=(0, 1_000, 10_000, 40_000),
    upstream=100,
    budget=EPOCHS * EXAMPLES,
    trials=50,
    searches=5,
    overrides={},
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(16, 32),
    upstream=30,
    budget=16_000,
    demo={"trials": 3, "searches": 1},
)

FIELDS = {
    "workload": "coco",
    "dataset.name": "coco/2017",
    "dataset.validation_split": "validation",
    "dataset.canvas": 480,
    "augmentation.crop_size": 300,
    "augmentation.min_area": 0.09,
    "augmentation.color": True,
    "model.depth": 34,
    "model.width": 64,
    "model.ghost_batch_size": 128,
    "batch_size": 256,
    "optimizer.name": "momentum",
    "optimizer.learning_rate": 0.02,
    "optimizer.weight_decay": 5e-4,
    "optimizer.schedule.name": "two_steps",
    "optimizer.schedule.warmup_progress": 3.5 / EPOCHS,
    "optimizer.schedule.first_step_progress": 0.7,
    "optimizer.schedule.second_step_progress": 0.9,
    "budget.fresh_examples": NUMBERS.budget,
    "evaluate_every_fresh_examples": 2 * EXAMPLES,
    "checkpoint_every_fresh_examples": 2 * EXAMPLES,
    "target.metric": "mAP",
    "target.value": 0.24,
}
MINI_FIELDS = FIELDS | {
    "dataset.name": "digit_scenes",
    "dataset.max_boxes": 8,
    "dataset.canvas": 96,
    "augmentation.crop_size": 96,
    "augmentation.min_area": 0.5,
    "augmentation.color": False,
    "augmentation.flip": False,  # a mirrored digit is not a digit
    "model.depth": 18,
    "model.width": 16,
    "model.ghost_batch_size": 16,
    "batch_size": 16,
    "optimizer.learning_rate": 0.05,
    "budget.fresh_examples": MINI_NUMBERS.budget,
    "evaluate_every_fresh_examples": 320,
    "checkpoint_every_fresh_examples": 4_000,
    "target.metric": "AP50",
    "target.value": 0.3,
}

SEARCHES = {"": (SEARCH_SPACE, NUMBERS), "mini": (MINI_SEARCH_SPACE, MINI_NUMBERS)}

get_config = functools.partial(base.get_variant, {"": FIELDS, "mini": MINI_FIELDS})
get_search_space = functools.partial(catalog.get_search_space, SEARCHES)
get_studies = functools.partial(catalog.get_studies, SEARCHES)
