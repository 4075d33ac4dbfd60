"""COCO's twelve detection metrics of a split, computed by faster-coco-eval.

It gives pycocotools' numbers (a test compares them) and matches detections in C++. pycocotools does
so in Python, which can take longer than the training between two evaluations.
"""

from typing import Any

import numpy as np

# In the order of COCOeval.stats. `mAP` averages over classes and the IoU thresholds .50:.05:.95.
NAMES = (
    *("mAP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large"),
)


def evaluate(
    truth: dict[str, np.ndarray], detected: dict[str, np.ndarray], num_classes: int
) -> dict[str, float]:
    """The metrics by name, in [0, 1]; -1 if the split has no such objects, as COCO defines it.

    Args:
        truth: size int [I, 2] (height, width of the photograph in pixels), boxes float [I, M, 4]
            (ymin, xmin, ymax, xmax as shares), labels int [I, M] (-1 = no box), crowd bool [I, M],
            area float [I, M] (pixels).
        detected: boxes [I, D, 4], labels [I, D], scores [I, D] (0 = no detection).
        num_classes: labels are 0 .. num_classes - 1.
    """
    from faster_coco_eval import COCOeval_faster  # training does not need it

    boxes_IxDx4 = _pixel_boxes(detected["boxes"], truth["size"])
    objects = _dataset(
        truth["labels"] >= 0,
        num_classes,
        bbox=_pixel_boxes(truth["boxes"], truth["size"]),
        category_id=truth["labels"],
        area=truth["area"],
        iscrowd=truth["crowd"].astype(int),
    )
    detections = _dataset(
        detected["scores"] > 0,
        num_classes,
        bbox=boxes_IxDx4,
        category_id=detected["labels"],
        area=boxes_IxDx4[..., 2:].prod(-1),
        iscrowd=np.zeros_like(detected["labels"]),
        score=detected["scores"],
    )
    evaluation = COCOeval_faster(objects, detections, iouType="bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return dict(zip(NAMES, map(float, evaluation.stats), strict=True))


def _pixel_boxes(boxes_IxMx4: np.ndarray, size_Ix2: np.ndarray) -> np.ndarray:
    """COCO's boxes: x, y, width, height in pixels of the photograph."""
    height_Ix1, width_Ix1 = np.moveaxis(size_Ix2.astype(np.float64)[:, :, None], 1, 0)
    ymin, xmin, ymax, xmax = np.moveaxis(boxes_IxMx4.astype(np.float64), -1, 0)
    sides = (xmin * width_Ix1, ymin * height_Ix1)
    return np.stack([*sides, (xmax - xmin) * width_Ix1, (ymax - ymin) * height_Ix1], -1)


def _dataset(present_IxM: np.ndarray, num_classes: int, **columns: np.ndarray) -> Any:
    """COCO's form of the boxes that are present; a column has a value [I, M, ...] for each."""
    from faster_coco_eval import COCO

    images, _ = np.nonzero(present_IxM)
    names = ("id", "image_id", *columns)
    values = (column[present_IxM].tolist() for column in columns.values())
    rows = zip(range(1, len(images) + 1), images.tolist(), *values, strict=True)
    return COCO(
        {
            "images": [{"id": image} for image in range(len(present_IxM))],
            "categories": [{"id": label} for label in range(num_classes)],
            "annotations": [dict(zip(names, row, strict=True)) for row in rows],
        }
    )
