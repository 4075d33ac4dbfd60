"""A folder of your own images: a small ResNet with a size, batch, and budget guessed from them.

    python train.py --config=configs/images.py:PATH --workdir=DIR
    python sweep.py --config=configs/images.py:PATH --vary=echo.factor=1,2,4 --outdir=DIR

PATH has a folder of images for each class; some are held out for validation. Small images of one
size get a ResNet-8, others crops of 64 pixels and a narrow ResNet-18. The budget is 20 passes. All
of it is a first guess, for a laptop, which --config.FIELD=VALUE changes.
"""

import contextlib
import os

import ml_collections
from PIL import Image

from configs import base, cifar10, imagenet

_MAX_SIDE = 64  # of images that are trained on whole
_SAMPLED = 50  # images whose size is looked at
_PASSES = 20

_WHOLE = cifar10.FIELDS | {"model.depth": 8, "model.width": 16}
_CROPPED = imagenet.FIELDS | {
    "dataset.canvas": 96,
    "augmentation.crop_size": 64,
    "augmentation.min_area": 0.25,
    "model.depth": 18,
    "model.width": 16,
    "model.ghost_batch_size": 0,
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration for the images in the folder `variant`."""
    path = os.path.abspath(os.path.expanduser(variant))
    images = sorted(
        os.path.join(directory, name)
        for directory, _, names in os.walk(path)
        for name in names
        if name.lower().endswith(base.IMAGES)
    )
    sizes = set()
    for name in images[:: max(1, -(-len(images) // _SAMPLED))]:
        with contextlib.suppress(OSError), Image.open(name) as image:  # training names damaged ones
            sizes.add(image.size)
    if not variant or not sizes:
        raise ValueError(
            f"there are no images in {path} that can be read; give the directory whose folders are "
            "the classes, as --config=configs/images.py:PATH"
        )
    whole = len(sizes) == 1 and max(next(iter(sizes))) <= _MAX_SIDE
    batch_size = next((size for size in (64, 32, 16) if len(images) >= 20 * size), 8)
    return base.get_config(
        (_WHOLE if whole else _CROPPED)
        | {
            "dataset.name": f"folder:{path}",
            "dataset.train_split": "",
            "dataset.validation_split": "",
            "dataset.test_split": "",
            "batch_size": batch_size,
            "budget.fresh_examples": _PASSES * len(images),
            "evaluate_every_fresh_examples": len(images),
            "checkpoint_every_fresh_examples": 5 * len(images),
            "target.value": 1.0,
            "augmentation.pad": max(1, min(min(size) for size in sizes) // 8),
        }
    )
