"""Training steps of every network against PyTorch's, from equal parameters on equal batches.

tests/golden.json is what tests/golden_in_torch.py found (PyTorch's and torchvision's layers, losses
and optimizer, in double precision). If it differs, either the step is wrong or it was changed on
purpose; then the network, loss or optimizer in that script has to be changed alike, by hand.
"""

import json
import pathlib

import golden
import jax
import numpy as np
import pytest

from models.resnet_imagenet import STAGES, BasicBlock, Bottleneck
from runs.checkpoints import by_path
from training import optimizer, sharding
from training import step as steps
from workloads.detection import Detection
from workloads.images import ImageClassification
from workloads.language import LanguageModel
from workloads.photographs import PhotographClassification

GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden.json").read_text())

# Fields of augmentation and decoding, which a step on a ready batch does not look at.
UNUSED = {"flip": False, "color": False, "min_area": 1.0, "canvas": 64}


def workload(name):
    if name == "cifar10":
        return ImageClassification((8, 8, 3), 10, 0, False, 8, 4, 0.0, "float32")
    if name == "transformer":
        return LanguageModel(8, golden.VOCABULARY, **golden.TRANSFORMER, dtype="float32")
    common = UNUSED | {"ghost_batch_size": golden.GHOST_BATCH, "dtype": "float32"}
    if name == "ssd":
        size, width = golden.DETECTION_SIZE, golden.DETECTION_WIDTH
        classes = golden.DETECTION_CLASSES
        return Detection(classes, max_boxes=3, crop_size=size, depth=10, width=width, **common)
    return PhotographClassification(
        num_classes=golden.IMAGENET_CLASSES,
        channels=3,
        crop_size=64,
        depth=14,
        width=64,
        stem="imagenet",
        label_smoothing=golden.LABEL_SMOOTHING,
        **common,
    )


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "transformer", "ssd"])
def test_the_first_steps_are_those_of_pytorch(name, monkeypatch):
    # One block a stage, of ResNet-18 and of ResNet-50: a quarter of the time to compile.
    monkeypatch.setitem(STAGES, 10, (BasicBlock, (1, 1, 1, 1)))
    monkeypatch.setitem(STAGES, 14, (Bottleneck, (1, 1, 1, 1)))
    mesh = sharding.make_mesh(1, 1)
    program = steps.Program(steps.Task(workload(name), "nesterov", False, mesh))
    state = program.init(0)
    before = {k: golden.parameter(k, v.shape) for k, v in _arrays(state.params).items()}
    structure = jax.tree.structure(state.params)
    state.params = jax.tree.unflatten(structure, map(np.array, before.values()))
    data = golden.batch(name)
    rows = np.zeros(len(next(iter(data.values()))), np.uint32)
    batch = sharding.put_batch(mesh, (data, rows, rows))
    hyper = optimizer.Hyperparameters(
        *map(np.float32, (golden.LEARNING_RATE, golden.MOMENTUM, golden.WEIGHT_DECAY, 0))
    )
    state = jax.device_put(state, sharding.replicated(mesh))
    step = program.compile_train(state, batch, hyper, np.uint32(0))

    losses, updates = [], {}
    for number in range(golden.STEPS):
        state, metrics = step(state, batch, hyper, np.uint32(0))
        losses.append(float(metrics["loss"]))
        if number == 0:
            after = _arrays(state.params)
            updates = {k: golden.summary(k, before[k] - after[k]) for k in before}
    wanted = GOLDEN[name]
    np.testing.assert_allclose(losses, wanted["losses"], rtol=1e-4)
    assert updates.keys() == wanted["updates"].keys()
    for parameter, (length, extent) in wanted["updates"].items():
        assert updates[parameter][0] == pytest.approx(length, rel=1e-3), parameter
        # wider: rounding carries some activations over relu's kink
        assert updates[parameter][1] == pytest.approx(extent, abs=1e-2 * length), parameter


def _arrays(params):
    return {k.removesuffix("/value"): np.asarray(v) for k, v in by_path(params).items()}
