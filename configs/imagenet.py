"""ResNet-50 on ImageNet, and its mini: ResNet-18 (an eighth as wide) on digits as small JPEGs.

python train.py --config=configs/imagenet.py --workdir=DIR         (ImageNet prepared by TFDS)
python train.py --config=configs/imagenet.py:mini --workdir=DIR    (no download, two minutes)
python sweep.py --config=configs/imagenet.py:mini --study=demo --outdir=DIR
"""

from configs import base, cifar10

SEARCH_SPACE = ()
MINI_SEARCH_SPACE = ()


def get_config(variant: str = ""):
    """The configuration; `variant` is '' or 'mini'."""
    config = base.get_config()
    config.workload = "imagenet"
    config.dataset.name = "imagenet2012"
    config.dataset.train_split = "train"
    config.dataset.validation_split = "validation"
    config.model.depth = 50
    config.model.width = 64
    config.model.ghost_batch_size = 32
    config.batch_size = 1024
    config.optimizer.weight_decay = 1e-4
    config.budget.fresh_examples = 90 * 1_281_167
    config.evaluate_every_fresh_examples = 1_281_167
    config.checkpoint_every_fresh_examples = 1_281_167
    config.target.value = 0.75
    if variant == "mini":
        config.dataset.name = "digits_jpeg"
        config.dataset.canvas = 48
        config.augmentation.crop_size = 24
        config.augmentation.min_area = 0.35
        config.augmentation.flip = False  # a mirrored digit is no digit
        config.model.depth = 18
        config.model.width = 8
        config.model.stem = "cifar"
        config.model.ghost_batch_size = 16
        config.batch_size = 32
        config.optimizer.weight_decay = 0.0
        config.optimizer.schedule.final_factor = 0.1
        config.budget.fresh_examples = 16_000
        config.evaluate_every_fresh_examples = 400
        config.checkpoint_every_fresh_examples = 4_000
        config.target.value = 0.95
    elif variant:
        raise ValueError(f"configs/imagenet.py has no variant {variant!r}; allowed: mini, or none")
    return config
