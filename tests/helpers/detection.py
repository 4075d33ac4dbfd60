"""What the tests of detection share: the shrunk mini, and records made by hand."""

import io

import numpy as np
from PIL import Image

import workloads
from configs import coco
from data import splits
from tests.helpers.runs import shrunk

SHRUNK = {
    "model.width": 4,
    "dataset.canvas": 40,
    "augmentation.crop_size": 32,
    "batch_size": 16,
    "budget.fresh_examples": 160,
    "evaluate_every_fresh_examples": 80,
    "checkpoint_every_fresh_examples": 80,
    "log_every_steps": 1,
    "target.value": 1.1,
}


def mini(**fields):
    """The mini of COCO, shrunk, with `fields` given as echo__factor=2."""
    return shrunk(coco, SHRUNK, fields)


def workload(**fields):
    config = mini(**fields)
    return workloads.make(config, splits.open_source(config.dataset.name, "train")[1])


def jpeg(pixels) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=95)
    return encoded.getvalue()


GRAY = np.full((48, 64, 3), 128, np.uint8)


def record(boxes=(), labels=None, image=None, **objects):
    labels = [1] * len(boxes) if labels is None else labels
    given = {"bbox": [np.float32(box) for box in boxes], "label": labels, **objects}
    return {"image": jpeg(GRAY) if image is None else image, "image/id": 7, "objects": given}
