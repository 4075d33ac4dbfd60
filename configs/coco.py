"""SSD300 with a ResNet-34 backbone on COCO 2017, and its mini: a small SSD on synthetic scenes.

    python train.py --config=configs/coco.py --workdir=DIR         (coco/2017 prepared by TFDS)
    python train.py --config=configs/coco.py:mini --workdir=DIR    (no download, two minutes)
    python sweep.py --config=configs/coco.py:mini --study=demo --outdir=DIR

Other data sets with the same features need only --config.dataset.name=NAME; the number of classes
is read from them. Full size requires accelerators and enough host cores to decode about 1,100
photographs per second. Neither its time nor its score has been measured here; the target is what
the paper's baseline reached, quoted from memory. By arithmetic, a step takes 91.5 GFLOP per image
(benchmarks/step.py counts them) and 100 epochs 1.1e18 FLOP: 3 hours at 100 TFLOP/s, a fifth of
the peak of a TPU v3-8 (8 x 61.5).

From the paper: SSD, batch size 256, heavy-ball momentum, linear warmup, then two step decays. From
memory, not verified: mAP 0.24, warmup of 3.5 epochs, ghost batches of 128, crop, flip, and color
distortion. From the MLPerf training benchmark: 300 pixels, 8,732 default boxes, the ResNet-34
backbone, weight decay. From SSD's authors: the random crop, the loss, matching, suppression.

Our choice, since the paper does not specify them: the backbone is trained from scratch, without
ImageNet; 100 epochs with decays by 10 after 70 and 90; a learning rate of 0.02 (MLPerf's 2.5e-3 at
batch size 32, times 8); the search ranges. Photographs are decoded to 480x480 pixels, the shorter
side of most, so that crops of a third of the side keep their detail and all examples in the echo
buffer have one size: 0.7 MB. With config.dataset.canvas=300 they take 0.27 MB, and small crops are
blurred.

The mini's target, 0.3 AP at IoU 0.5, is our choice: seed 0 reaches it after 7,008 of 16,000 fresh
examples. The mini exercises every stage; it is not meant for comparing detectors.
"""

from typing import Any

import ml_collections

from configs import base, catalog

EXAMPLES = 118_287  # of COCO 2017's training split
EPOCHS = 100

# Searched separately for each condition. `log_one_minus` spaces 1 - value evenly in log.
SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.001, "max": 1.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.001, "max": 0.3},
    catalog.HORIZON,  # the decays stay at 0.7 and 0.9 of it
    {"field": "optimizer.schedule.step_factor", "scale": "log", "min": 0.01, "max": 0.5},
)

MINI_SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 0.5},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.03, "max": 0.3},
    catalog.HORIZON,
)

# Sizes for the studies of configs/catalog.py.
NUMBERS = catalog.Numbers(
    batch_sizes=(256, 1024),
    buffer=10_000,
    buffers=(0, 1_000, 10_000, 40_000),
    upstream=100,
    budget=EPOCHS * EXAMPLES,
    never=2.0,
    trials=50,
    searches=5,
    demo=(50, 5),
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(16, 32),
    buffer=256,
    buffers=(0, 64, 256, 1024),
    upstream=30,
    budget=16_000,
    never=2.0,
    trials=16,
    searches=3,
    demo=(3, 1),
    overrides={"checkpoint_every_fresh_examples": 0},  # an interrupted trial starts over
)


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is '' or 'mini'."""
    config = base.get_config()
    config.workload = "coco"
    config.dataset.name = "coco/2017"
    config.dataset.validation_split = "validation"
    config.dataset.canvas = 480
    config.augmentation.crop_size = 300
    config.augmentation.min_area = 0.09
    config.augmentation.color = True
    config.model.depth = 34
    config.model.width = 64
    config.model.ghost_batch_size = 128
    config.batch_size = 256
    config.optimizer.name = "momentum"
    config.optimizer.learning_rate = 0.02
    config.optimizer.weight_decay = 5e-4
    config.optimizer.schedule.name = "two_steps"
    config.optimizer.schedule.warmup_progress = 3.5 / EPOCHS
    config.optimizer.schedule.first_step_progress = 0.7
    config.optimizer.schedule.second_step_progress = 0.9
    config.budget.fresh_examples = NUMBERS.budget
    config.evaluate_every_fresh_examples = 2 * EXAMPLES
    config.checkpoint_every_fresh_examples = 2 * EXAMPLES
    config.target.metric = "mAP"
    config.target.value = 0.24
    if variant == "mini":
        config.dataset.name = "digit_scenes"
        config.dataset.max_boxes = 8
        config.dataset.canvas = 96
        config.augmentation.crop_size = 96
        config.augmentation.min_area = 0.5
        config.augmentation.color = False
        config.augmentation.flip = False  # a mirrored digit is not a digit
        config.model.depth = 18
        config.model.width = 16
        config.model.ghost_batch_size = 16
        config.batch_size = 16
        config.optimizer.learning_rate = 0.05
        config.budget.fresh_examples = MINI_NUMBERS.budget
        config.evaluate_every_fresh_examples = 320
        config.checkpoint_every_fresh_examples = 4_000
        config.target.metric = "AP50"
        config.target.value = 0.3
    elif variant:
        raise ValueError(f"configs/coco.py has no variant {variant!r}; allowed: mini, or none")
    return config


def get_search_space(variant: str = "") -> tuple[dict[str, Any], ...]:
    """The hyperparameters that a study searches for each condition."""
    return MINI_SEARCH_SPACE if variant == "mini" else SEARCH_SPACE


def get_studies(variant: str = "") -> catalog.Studies:
    """The studies by name."""
    return catalog.of(MINI_NUMBERS if variant == "mini" else NUMBERS)
