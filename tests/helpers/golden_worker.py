"""Prints the golden steps as this project takes them, in double precision, as JSON.

    python -m tests.helpers.golden_worker

A process of its own, because that switch is for the whole process. In double precision the
processor's order of summation does not show, and no rounding carries an activation over relu's
kink, so that the comparison can be tight and holds on every machine.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from models import resnet, ssd, transformer, vision_transformer
from runs.checkpoints import by_path
from tests.helpers import golden
from training import optimizer, sharding
from training import step as steps
from workloads.classification import SmallImageClassification
from workloads.detection.task import Detection
from workloads.language import LanguageModel
from workloads.large_images import LargeImageClassification
from workloads.networks import Network

# One block a stage, of ResNet-18 and of ResNet-50: a quarter of the time to compile.
SHORT_STAGES = {
    10: (resnet.BasicBlock, (1, 1, 1, 1)),
    14: (resnet.Bottleneck, (1, 1, 1, 1)),
}

# Fields of augmentation and decoding, which a step on a ready batch does not look at.
UNUSED = {"flip": False, "color": False, "min_area": 1.0, "canvas": 64, "max_pixels": 2**26}


def workloads(dtype="float64"):
    """Each network's task by name; resnet.STAGES needs SHORT_STAGES too."""
    common = {"num_classes": golden.IMAGENET_CLASSES, "dtype": jnp.dtype(dtype)}
    small = Network.of(resnet.CifarResNet, depth=8, width=4, **common)
    large = Network.of(
        resnet.ImageNetResNet,
        depth=14,
        width=golden.IMAGENET_WIDTH,
        ghost_batch_size=golden.GHOST_BATCH,
        **common,
    )
    shape = (golden.VIT_SIZE, golden.VIT_SIZE, 3)
    patches = Network.of(
        vision_transformer.VisionTransformer, image_shape=shape, **golden.VIT, **common
    )
    text = Network.of(
        transformer.Transformer,
        vocab_size=golden.VOCABULARY,
        num_layers=golden.TRANSFORMER["layers"],
        model_dim=golden.TRANSFORMER["dim"],
        num_heads=golden.TRANSFORMER["heads"],
        mlp_dim=golden.TRANSFORMER["mlp_dim"],
        dtype=jnp.dtype(dtype),
    )
    detector = Network.of(
        ssd.SSD,
        image_size=golden.DETECTION_SIZE,
        depth=10,
        width=golden.DETECTION_WIDTH,
        ghost_batch_size=golden.GHOST_BATCH,
        **common | {"num_classes": golden.DETECTION_CLASSES},
    )
    return {
        "cifar10": SmallImageClassification((8, 8, 3), 10, 0, False, small, 0.0),
        "imagenet": LargeImageClassification(
            num_classes=golden.IMAGENET_CLASSES,
            channels=3,
            crop_size=golden.IMAGENET_SIZE,
            network=large,
            label_smoothing=golden.LABEL_SMOOTHING,
            **UNUSED,
        ),
        "transformer": LanguageModel(8, text),
        "vit": SmallImageClassification(shape, 10, 0, False, patches, 0.0),
        "ssd": Detection(
            num_classes=golden.DETECTION_CLASSES,
            max_boxes=3,
            crop_size=golden.DETECTION_SIZE,
            network=detector,
            **UNUSED,
        ),
    }


def first_steps(name, workload):
    """Losses of the first steps, and the first update of every parameter (summarized)."""
    mesh = sharding.make_mesh(1, 1)
    program = steps.Program(steps.Task(workload, "nesterov", False, mesh))
    # Shapes alone: every parameter is given, and the rest starts as zero. (A training step does not
    # look at batch norm's running statistics.)
    shapes = jax.eval_shape(program._init_arrays, np.uint32(0))
    state = jax.tree.map(lambda x: _in_double(np.zeros(x.shape, x.dtype)), shapes)
    before = {k: _in_double(golden.parameter(k, v.shape)) for k, v in _arrays(state.params).items()}
    structure = jax.tree.structure(state.params)
    state.params = jax.tree.unflatten(structure, map(np.array, before.values()))
    data = jax.tree.map(_in_double, golden.batch(name))
    rows = np.zeros(len(next(iter(data.values()))), np.uint32)
    batch = sharding.put_batch(mesh, (data, rows, rows))
    rates = (golden.LEARNING_RATE, golden.MOMENTUM, golden.WEIGHT_DECAY, 0)
    hyper = optimizer.Hyperparameters(*map(np.float64, rates))
    state = jax.device_put(state, sharding.replicated(mesh))
    step = program.compile_train(state, batch, hyper, np.uint32(0))

    losses, updates = [], {}
    for number in range(golden.STEPS):
        state, metrics = step(state, batch, hyper, np.uint32(0))
        losses.append(float(metrics["loss"]))
        if number == 0:
            after = _arrays(state.params)
            updates = {k: golden.summary(k, before[k] - after[k]) for k in before}
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
