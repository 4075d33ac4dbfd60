"""COCO's twelve detection metrics of a split, computed by faster-coco-eval.

It gives pycocotools' numbers (a test compares them) and matches detections in C++. pycocotools does
so in Python, which can take longer than the training between two evaluations.
"""

from typing import Any

import numpy as np

# In the order of COCOeval.stats. `mAP` averages over classes and the IoU thresholds .50:.05:.95.
NAMES = (
    "mAP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR_1",
    "AR_10",
    "AR_100",
    "AR_small",
    "AR_medium",
    "AR_large",
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

    present_IxM, detected_IxD = truth["labels"] >= 0, detected["scores"] > 0
    boxes = _pixel_boxes(truth["boxes"], truth["size"])
    objects = _annotations(present_IxM, boxes, truth["labels"])
    for annotation, place in zip(objects, np.argwhere(present_IxM), strict=True):
        annotation["iscrowd"] = int(truth["crowd"][tuple(place)])
        annotation["area"] = float(truth["area"][tuple(place)])
    detections = _annotations(
        detected_IxD, _pixel_boxes(detected["boxes"], truth["size"]), detected["labels"]
    )
    for annotation, score in zip(detections, detected["scores"][detected_IxD], strict=True):
        annotation["score"] = float(score)
    evaluation = COCOeval_faster(
        _dataset(objects, len(present_IxM), num_classes),
        _dataset(detections, len(present_IxM), num_classes),
        iouType="bbox",
    )
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


def _annotations(present_IxM, boxes_IxMx4, labels_IxM) -> list[dict]:
    """One annotation per box; its area is that of the box."""
    images, _ = np.nonzero(present_IxM)
    columns = zip(images, boxes_IxMx4[present_IxM], labels_IxM[present_IxM], strict=True)
    return [
        {
            "id": number,
            "image_id": int(image),
            "bbox": box.tolist(),
            "category_id": int(label),
            "area": float(box[2] * box[3]),
            "iscrowd": 0,
        }
        for number, (image, box, label) in enumerate(columns, 1)
    ]


def _dataset(annotations: list[dict], num_images: int, num_classes: int) -> Any:
    from faster_coco_eval import COCO

    return COCO(
        {
            "images": [{"id": image} for image in range(num_images)],
            "categories": [{"id": label} for label in range(num_classes)],
            "annotations": annotations,
        }
    )
