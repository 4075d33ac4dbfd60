"""Parameters and batches of the golden steps: made by rule, alike here and in PyTorch."""

import zlib

import numpy as np

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, LABEL_SMOOTHING = 0.01, 0.9, 0.01, 0.1
STEPS = 3

IMAGENET_CLASSES, DETECTION_CLASSES, VOCABULARY = 10, 3, 40
TRANSFORMER = {"layers": 2, "dim": 16, "heads": 4, "mlp_dim": 24}
VIT = {"patch_size": 4, "num_layers": 2, "model_dim": 16, "num_heads": 4, "mlp_dim": 24}
VIT_SIZE = 12
DETECTION_SIZE, DETECTION_WIDTH = 64, 8
IMAGENET_SIZE, IMAGENET_WIDTH = 64, 8
GHOST_BATCH = 4


def parameter(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The initial value of the parameter `name`, float32: a function of name and shape alone."""
    normal = _normal(name, shape)
    if name.endswith("scale"):
        return 1 + np.float32(0.1) * normal
    if name.endswith("bias"):
        return np.float32(0.1) * normal
    fan_in = shape[-1] if name.endswith("embedding") else np.prod(shape[:-1])
    return normal / np.float32(fan_in**0.5)


def summary(name: str, update: np.ndarray) -> list[float]:
    """Length of an update, and its extent in a fixed random direction of the same shape."""
    direction = _normal(f"direction of {name}", update.shape)
    return [float(np.linalg.norm(update.ravel())), float(np.vdot(update, direction))]


def _normal(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return rng.standard_normal(shape, np.float32)


def batch(workload: str) -> dict[str, np.ndarray]:
    """The batch that every step is taken on, as the workload's loss takes it."""
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(workload.encode())))
    if workload == "transformer":
        tokens_BxT = rng.integers(3, VOCABULARY, (4, 9), dtype=np.int32)
        tokens_BxT[1, 6:] = tokens_BxT[2, 3:] = 0  # padding
        return {"tokens": tokens_BxT}
    sides = {"cifar10": 8, "imagenet": IMAGENET_SIZE, "vit": VIT_SIZE, "ssd": DETECTION_SIZE}
    side = sides[workload]
    images_BxHxWx3 = rng.integers(0, 256, (8, side, side, 3), dtype=np.uint8)
    if workload != "ssd":
        return {"image": images_BxHxWx3, "label": rng.integers(0, 10, 8, dtype=np.int32)}
    low_BxMx2, sides_BxMx2 = rng.uniform(0, 0.5, (8, 3, 2)), rng.uniform(0.2, 0.5, (8, 3, 2))
    labels_BxM = rng.integers(0, DETECTION_CLASSES, (8, 3), dtype=np.int32)
    labels_BxM[:4, 2], labels_BxM[5] = -1, -1  # images with two boxes, and one without
    return {
        "image": images_BxHxWx3,
        "boxes": np.concatenate([low_BxMx2, low_BxMx2 + sides_BxMx2], -1).astype(np.float32),
        "labels": labels_BxM,
        "bad_boxes": np.zeros(8, np.int32),
    }
