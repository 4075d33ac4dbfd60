"""SSD300 with a ResNet-34 backbone on COCO 2017, and its mini."""

from configs import base

EXAMPLES = 118_287  # of COCO 2017's train split
EPOCHS = 100


def get_config(variant: str = ""):
    config = base.get_config()
    config.workload = "coco"
    config.dataset.name = "coco/2017"
    config.dataset.train_split = "train"
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
    config.budget.fresh_examples = EPOCHS * EXAMPLES
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
        config.augmentation.flip = False  # a mirrored digit is no digit
        config.model.depth = 18
        config.model.width = 16
        config.model.ghost_batch_size = 16
        config.batch_size = 32
        config.optimizer.learning_rate = 0.02
        config.budget.fresh_examples = 20_000
        config.evaluate_every_fresh_examples = 2_000
        config.checkpoint_every_fresh_examples = 4_000
        config.target.metric = "AP50"
        config.target.value = 0.99
    elif variant:
        raise ValueError(f"configs/coco.py has no variant {variant!r}; allowed: mini, or none")
    return config
