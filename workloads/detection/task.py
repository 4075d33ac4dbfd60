"""Object detection: SSD on COCO and other TFDS data sets with the same features."""

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.ssd import SSD, default_boxes
from runs.records import nested
from workloads import color, crops, networks
from workloads.classification import checked_labels, normalized
from workloads.detection import boxes as geometry
from workloads.detection import coco_metrics, windows
from workloads.interface import Arrays, copy_keys, field, lacks, require, total

# Liu et al. 2016, section 2.2: at most three negatives per positive, the hardest ones.
_NEGATIVES_PER_POSITIVE = 3

# Liu et al. 2016, section 3.7: scores of at least 0.01, suppression at IoU 0.45. As in the MLPerf
# training benchmark, the best 200 of each class take part (400 in the authors' code). COCO
# evaluates 100 detections per image.
_MIN_SCORE, _SUPPRESSION_IOU, _CANDIDATES, _DETECTIONS = 0.01, 0.45, 200, 100

_MIN_SIZE = 32  # pixels: the network reduces images to an eighth, then five times by half

# Boxes may extend this far beyond their image without a report: rounding of about a pixel.
_TOLERANCE = 0.002

# Boxes beyond this are in pixels.
_FARTHEST = 10


@dataclasses.dataclass(frozen=True)
class Detection(crops.RandomCrops):
    """SSD, multibox loss, and COCO's metrics.

    An example is `image` uint8 [C, C, 3] (the whole photograph, resized to a square), `boxes`
    float32 [M, 4] (ymin, xmin, ymax, xmax as shares of the image), and `labels` int32 [M], -1 for
    padding.

    Attributes:
        max_boxes: maximum number of boxes M in an image.
        network: an `SSD`.
    """

    num_classes: int
    max_boxes: int
    network: networks.Network

    metrics = (*coco_metrics.NAMES, "loss", "bad_boxes")

    @classmethod
    def from_config(cls, config, info) -> "Detection":
        if not info.has_boxes:
            raise lacks(config, info, "images with labeled boxes")
        require(config.model.depth in (18, 34), config, "model.depth", "18, 34")
        for name in ("dataset.canvas", "augmentation.crop_size"):
            require(nested(config, name) >= _MIN_SIZE, config, name, f"{_MIN_SIZE} or more")
        num_classes = info.object_classes or info.num_classes
        sizes = {"num_classes": num_classes, "image_size": config.augmentation.crop_size}
        return cls(
            **cls.settings(config),
            num_classes=num_classes,
            max_boxes=config.dataset.max_boxes,
            network=networks.convolutional(SSD, config, **sizes),
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Decodes records to image, boxes, labels, and the arrays that evaluation needs.

        The latter are `crowd` bool [n, M] (a box around many objects, which metrics ignore), `area`
        float32 [n, M] (of the object in pixels of the photograph, or of its box where the data set
        gives none or NaN), `size` int32 [n, 2] (height and width of the photograph in pixels), and
        `bad_boxes` int32 [n] (number of boxes that were clipped to the image or, if empty,
        dropped).

        Raises:
            ValueError: an image is damaged, has more than `max_boxes` boxes, or a wrong label.
        """
        rows = [self._decode_one(record) for record in records]
        data = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if data["bad_boxes"].any():
            # Python shows a constant message once per process.
            warnings.warn(
                "some boxes extend beyond their image or are empty; the former are clipped, the "
                "latter dropped (the metric bad_boxes counts both)",
                stacklevel=2,
            )
        return data

    def _decode_one(self, record: dict[str, Any]) -> dict[str, np.ndarray]:
        from workloads import decoding  # a step on prepared batches does not need it

        head = decoding.header(field(record, "image"), self.max_pixels)
        image = decoding.decode_at(record["image"], (self.canvas, self.canvas), 3, head=head)
        size_2 = np.array(head[0], np.int32)
        objects = field(record, "objects")
        given_Mx4 = np.asarray(field(objects, "bbox"), np.float32).reshape(-1, 4)
        if (np.abs(given_Mx4) > _FARTHEST).any():
            raise ValueError(f"a box of {np.abs(given_Mx4).max():g}; allowed: shares of the image")
        boxes_Mx4 = np.clip(given_Mx4, 0.0, 1.0)
        box_area_M = (boxes_Mx4[:, 2:] - boxes_Mx4[:, :2]).prod(1) * size_2.prod()
        columns = {
            "labels": field(objects, "label"),
            "area": objects.get("area", box_area_M),
            "is_crowd": objects.get("is_crowd", np.zeros(len(given_Mx4), bool)),
        }
        for name, values in columns.items():
            columns[name] = np.asarray(values).reshape(-1)
            if len(columns[name]) != len(given_Mx4):
                raise ValueError(f"it has {len(given_Mx4)} boxes and {len(columns[name])} {name}")
        area_M = columns["area"].astype(np.float32)
        nonempty_M = (boxes_Mx4[:, 2:] > boxes_Mx4[:, :2]).all(1)  # False for NaN
        clipped_M = (np.abs(boxes_Mx4 - given_Mx4) > _TOLERANCE).any(1)
        if (boxes := int(nonempty_M.sum())) > self.max_boxes:
            raise ValueError(
                f"it has {boxes} boxes; allowed: up to config.dataset.max_boxes, {self.max_boxes}"
            )

        def padded(values_M: np.ndarray, fill: Any) -> np.ndarray:
            rows = np.full((self.max_boxes, *values_M.shape[1:]), fill, values_M.dtype)
            rows[:boxes] = values_M[nonempty_M]
            return rows

        return {
            "image": image if image.shape[-1] == 3 else image.repeat(3, -1),  # a grayscale array
            "boxes": padded(boxes_Mx4, 0),
            "labels": padded(checked_labels(columns["labels"], self.num_classes), -1),
            "crowd": padded(columns["is_crowd"].astype(bool), False),
            "area": padded(np.where(np.isnan(area_M), box_area_M, area_M).astype(np.float32), 0),
            "size": size_2,
            "bad_boxes": np.asarray((clipped_M | ~nonempty_M).sum(), np.int32),
        }

    def draw(self, data: Arrays, seed, index_B, copy_B):
        """As in `RandomCrops`. Boxes are transformed with the image.

        Boxes whose center is outside the crop are dropped, and so are crowds: in training their
        regions are background (our choice).
        """
        keys_B = jax.vmap(functools.partial(jax.random.split, num=3), out_axes=1)(
            copy_keys(seed, index_B, copy_B)
        )
        crop_key_B, flip_key_B, color_key_B = keys_B
        mirror_B = self.mirrored(flip_key_B, seed, index_B, copy_B)
        colors = jax.vmap(color.draw)(color_key_B) if self.color else None
        labels_BxM = jnp.where(data["crowd"], -1, data["labels"])
        windows_Bx4, boxes_BxMx4, labels_BxM = jax.vmap(self._crop_boxes)(
            crop_key_B, data["boxes"], labels_BxM, mirror_B
        )
        others = {"boxes": boxes_BxMx4, "labels": labels_BxM, "bad_boxes": data["bad_boxes"]}
        return windows_Bx4, mirror_B, colors, others

    def _crop_boxes(self, key, boxes_Mx4, labels_M, mirror):
        """A random window of an image [4], and the boxes in it, [M, 4] and [M]."""
        window_4 = jnp.array([0, 0, self.canvas, self.canvas])
        if self.min_area < 1:
            given = key, boxes_Mx4, labels_M >= 0
            window_4 = windows.random_window(*given, self.canvas, self.min_area)
        return window_4, *windows.crop_boxes(boxes_Mx4, labels_M, window_4, self.canvas, mirror)

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.network(rngs)

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        offsets_BxNx4, logits_BxNxK1 = model(normalized(data["image"]), train=True)
        losses = self._losses(offsets_BxNx4, logits_BxNxK1, data["boxes"], data["labels"])
        positives = jnp.maximum(losses["positives"].sum(), 1.0)
        box_loss, class_loss = losses["box"].sum() / positives, losses["class"].sum() / positives
        bad_boxes = data["bad_boxes"].sum().astype(jnp.float32)
        metrics = {"box_loss": box_loss, "class_loss": class_loss, "bad_boxes": bad_boxes}
        return box_loss + class_loss, {"loss": box_loss + class_loss, **metrics}

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        """Detections and true boxes of the batch (arrays [B, ...]), and sums for the loss."""
        whole_Bx4 = jnp.tile(jnp.array([0, 0, self.canvas, self.canvas]), (len(data["image"]), 1))
        images_BxSxSx3 = normalized(crops.crop_rows(data["image"], whole_Bx4, self.crop_size))
        offsets_BxNx4, logits_BxNxK1 = model(images_BxSxSx3, train=False)
        labels_BxM = jnp.where(data["crowd"], -1, data["labels"])
        losses = self._losses(offsets_BxNx4, logits_BxNxK1, data["boxes"], labels_BxM)
        sums = {name: (value_B * mask_B).sum() for name, value_B in losses.items()}
        return {
            "sums": {**sums, "bad_boxes": (data["bad_boxes"] * mask_B).sum()},
            "detected": self.detect(offsets_BxNx4, logits_BxNxK1),
            "truth": {name: data[name] for name in ("boxes", "labels", "crowd", "area", "size")},
            "mask": mask_B,
        }

    def summarize(self, outputs: list[dict[str, Any]]) -> dict[str, float]:
        def rows_of(group: str) -> dict[str, np.ndarray]:
            return {
                name: np.concatenate([out[group][name][out["mask"] > 0] for out in outputs])
                for name in outputs[0][group]
            }

        sums = total([out["sums"] for out in outputs])
        metrics = coco_metrics.evaluate(rows_of("truth"), rows_of("detected"), self.num_classes)
        metrics["loss"] = (sums["box"] + sums["class"]) / max(sums["positives"], 1.0)
        metrics["bad_boxes"] = sums["bad_boxes"]
        return metrics

    def detect(self, offsets_BxNx4: jax.Array, logits_BxNxK1: jax.Array) -> Arrays:
        """The best detections of each image, in descending order of their scores.

        Returns boxes [B, D, 4], labels [B, D], and scores [B, D], which are 0 for padding.
        """
        boxes_BxNx4 = geometry.decode(offsets_BxNx4, jnp.asarray(default_boxes(self.crop_size)))
        scores_BxNxK = jax.nn.softmax(logits_BxNxK1)[..., 1:]
        return jax.vmap(_detect_one)(jnp.clip(boxes_BxNx4, 0.0, 1.0), scores_BxNxK)

    def _losses(self, offsets_BxNx4, logits_BxNxK1, boxes_BxMx4, labels_BxM) -> Arrays:
        """Box loss, classification loss, and number of positives, summed over each image, [B]."""
        default_Nx4 = jnp.asarray(default_boxes(self.crop_size), offsets_BxNx4.dtype)
        return jax.vmap(functools.partial(multibox_loss, default_Nx4))(
            offsets_BxNx4, logits_BxNxK1, boxes_BxMx4, labels_BxM
        )


def multibox_loss(default_Nx4, offsets_Nx4, logits_NxK1, boxes_Mx4, labels_M) -> Arrays:
    """SSD's loss for one image (Liu et al. 2016, eq. 1 to 3), before division by the positives.

    Args:
        default_Nx4: default boxes as centers and sizes.
        offsets_Nx4, logits_NxK1: outputs of the network; class 0 is the background.
        boxes_Mx4, labels_M: true boxes and labels; label -1 = padding.

    Returns:
        `box`, the smooth L1 loss over the positives; `class`, the cross-entropy over positives and
        hardest negatives; `positives`, their number. All float32.
    """
    matched_N = geometry.match(boxes_Mx4, labels_M >= 0, geometry.to_corners(default_Nx4))
    positive_N = matched_N >= 0
    target_Nx4 = geometry.encode(boxes_Mx4[matched_N], default_Nx4)
    # The encoding of padding is arbitrary.
    target_Nx4 = jnp.where(positive_N[:, None], target_Nx4, 0.0)
    box_N = optax.huber_loss(offsets_Nx4, target_Nx4, delta=1.0).sum(-1)
    classes_N = jnp.where(positive_N, labels_M[matched_N] + 1, 0)
    class_N = optax.softmax_cross_entropy_with_integer_labels(logits_NxK1, classes_N)

    hardness_N = jnp.where(positive_N, -jnp.inf, jax.lax.stop_gradient(class_N))
    rank_N = jnp.argsort(jnp.argsort(-hardness_N))  # 0 = the hardest
    hard_N = ~positive_N & (rank_N < _NEGATIVES_PER_POSITIVE * positive_N.sum())
    return {
        "box": (box_N * positive_N).sum(),
        "class": (class_N * (positive_N | hard_N)).sum(),
        "positives": positive_N.sum().astype(jnp.float32),
    }


def _detect_one(boxes_Nx4: jax.Array, scores_NxK: jax.Array) -> Arrays:
    """The best candidates of each class after suppression, then the best over all classes."""
    candidates = min(_CANDIDATES, len(boxes_Nx4))
    scores_KxC, places_KxC = jax.lax.top_k(scores_NxK.T, candidates)
    scores_KxC = jnp.where(scores_KxC >= _MIN_SCORE, scores_KxC, 0.0)
    boxes_KxCx4 = boxes_Nx4[places_KxC]
    suppress = functools.partial(geometry.suppress, threshold=_SUPPRESSION_IOU)
    scores_KxC = scores_KxC * jax.vmap(suppress)(boxes_KxCx4, scores_KxC)
    detections = min(_DETECTIONS, scores_KxC.size)
    scores_D, places_D = jax.lax.top_k(scores_KxC.reshape(-1), detections)
    return {
        "boxes": boxes_KxCx4.reshape(-1, 4)[places_D],
        "labels": (places_D // candidates).astype(jnp.int32),
        "scores": scores_D,
    }
