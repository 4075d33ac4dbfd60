"""Prints the golden steps as this project takes them, in double precision, as JSON.

    python -m tests.helpers.golden_worker

A process of its own, because that switch is for the whole process. In double precision the
processor's order of summation does not show, and no rounding carries an activation over relu's
kink, so that the comparison can be tight and holds on every machine. Parameters and batches are
made by rule, alike here and in the script that made golden.json with PyTorch.
"""

import json
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from models import resnet, ssd, transformer, vision_transformer
from runs.checkpoints import by_path
from training import optimizer, sharding
from training import step as steps
from workloads.classification import SmallImageClassification
from workloads.detection.task import Detection
from workloads.language import LanguageModel
from workloads.large_images import LargeImageClassification
from workloads.networks import Network

STEPS, HYPER = 3, {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01, "beta2": 0.0}
VOCABULARY, DETECTION_CLASSES = 40, 3
SIDES = {"cifar10": 8, "imagenet": 64, "vit": 12, "ssd": 64}  # of images

# One block a stage, of ResNet-18 and of ResNet-50: a quarter of the time to compile.
SHORT_STAGES = {
    10: (resnet.BasicBlock, (1, 1, 1, 1)),
    14: (resnet.Bottleneck, (1, 1, 1, 1)),
}


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
    side = SIDES[workload]
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


def workloads(dtype="float64"):
    """Each network's task by name; resnet.STAGES needs SHORT_STAGES too."""
    typed = {"dtype": jnp.dtype(dtype)}
    common, ghosts = typed | {"num_classes": 10}, {"width": 8, "ghost_batch_size": 4}
    layers = {"num_layers": 2, "model_dim": 16, "num_heads": 4, "mlp_dim": 24}
    shape = (SIDES["vit"], SIDES["vit"], 3)
    small = Network.of(resnet.CifarResNet, depth=8, width=4, **common)
    large = Network.of(resnet.ImageNetResNet, depth=14, **ghosts, **common)
    patches = {"image_shape": shape, "patch_size": 4}
    vit = Network.of(vision_transformer.VisionTransformer, **patches, **layers, **common)
    text = Network.of(transformer.Transformer, vocab_size=VOCABULARY, **layers, **typed)
    detects = {"image_size": SIDES["ssd"], "num_classes": DETECTION_CLASSES}
    detector = Network.of(ssd.SSD, depth=10, **detects, **ghosts, **typed)
    # Fields of augmentation and decoding, which a step on a ready batch does not look at.
    unused = {"flip": False, "color": False, "min_area": 1.0, "canvas": 64, "max_pixels": 2**26}
    unused |= {"stratified": False}
    return {
        "cifar10": SmallImageClassification((8, 8, 3), 10, 0, False, small, 0.0),
        "imagenet": LargeImageClassification(
            **{"num_classes": 10, "channels": 3, "crop_size": SIDES["imagenet"]},
            network=large,
            label_smoothing=0.1,
            **unused,
        ),
        "transformer": LanguageModel(8, text),
        "vit": SmallImageClassification(shape, 10, 0, False, vit, 0.0),
        "ssd": Detection(
            **{"num_classes": DETECTION_CLASSES, "max_boxes": 3, "crop_size": SIDES["ssd"]},
            network=detector,
            **unused,
        ),
    }


def first_steps(name, workload):
    """Losses of the first steps, and the first update of every parameter (summarized)."""
    mesh = sharding.make_mesh(1, 1)
    program = steps.Program(steps.Task(workload, "nesterov", False, mesh))
    # Shapes alone: every parameter is given, and the rest starts as zero. (A training step does not
    # look at batch norm's running statistics.)
    state = jax.tree.map(lambda x: _in_double(np.zeros(x.shape, x.dtype)), program.state_shapes)
    before = {k: _in_double(parameter(k, v.shape)) for k, v in _arrays(state.params).items()}
    structure = jax.tree.structure(state.params)
    state.params = jax.tree.unflatten(structure, map(np.array, before.values()))
    data = jax.tree.map(_in_double, batch(name))
    rows = np.zeros(len(next(iter(data.values()))), np.uint32)
    sent = sharding.put_batch(mesh, (data, rows, rows))
    hyper = optimizer.Hyperparameters(**{k: np.float64(value) for k, value in HYPER.items()})
    state = jax.device_put(state, sharding.replicated(mesh))
    step = program.compile("train", program.train, (state, sent, hyper, np.uint32(0)))

    losses, updates = [], {}
    for number in range(STEPS):
        state, metrics = step(state, sent, hyper, np.uint32(0))
        losses.append(float(metrics["loss"]))
        if number == 0:
            after = _arrays(state.params)
            updates = {k: summary(k, before[k] - after[k]) for k in before}
    assert all(leaf.dtype != np.float32 for leaf in jax.tree.leaves((state, metrics["loss"])))
    return {"losses": losses, "updates": updates}


def _in_double(array):
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _arrays(params):
    return {k.removesuffix("/value"): np.asarray(v) for k, v in by_path(params).items()}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    resnet.STAGES |= SHORT_STAGES
    found = {name: first_steps(name, workload) for name, workload in workloads().items()}
    json.dump(found, sys.stdout)
