"""Detection: loss, detections, COCO's metrics, and whole runs of the shrunk mini."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import train
from data import packaged, splits
from models.resnet import STAGES, BasicBlock
from models.ssd import default_boxes
from runs import records
from runs.records import is_share
from tests.helpers.detection import mini, workload
from tests.helpers.runs import echoing, train_lines
from workloads.detection import boxes as geometry
from workloads.detection import coco_metrics
from workloads.detection.task import Detection, multibox_loss

# Loss

match = jax.jit(geometry.match)


def test_multibox_loss_is_that_of_a_plain_loop():
    random = np.random.default_rng(0)
    default = default_boxes(64)
    number, classes = len(default), 3
    truth = np.float32([[0.1, 0.1, 0.4, 0.4], [0.5, 0.4, 0.9, 0.95], [0, 0, 0, 0]])
    labels = np.int32([2, 0, -1])
    offsets = random.normal(size=(number, 4)).astype(np.float32)
    logits = random.normal(size=(number, classes + 1)).astype(np.float32)
    matched = np.asarray(match(truth, labels >= 0, geometry.to_corners(default)))

    box_loss, positive_losses, negative_losses = 0.0, [], []
    for place, which in enumerate(matched):
        log_probability = logits[place] - np.log(np.exp(logits[place]).sum())
        if which < 0:
            negative_losses.append(-log_probability[0])
            continue
        positive_losses.append(-log_probability[labels[which] + 1])
        difference = np.abs(offsets[place] - geometry.encode(truth[which], default[place]))
        box_loss += np.where(difference < 1, difference**2 / 2, difference - 0.5).sum()
    hardest = sorted(negative_losses)[-3 * len(positive_losses) :]

    losses = jax.jit(multibox_loss)(jnp.asarray(default), offsets, logits, truth, labels)
    assert losses["positives"] == len(positive_losses)
    assert len(positive_losses) > 2
    assert float(losses["box"]) == pytest.approx(box_loss, rel=1e-4)
    assert float(losses["class"]) == pytest.approx(sum(positive_losses) + sum(hardest), rel=1e-4)


def test_an_image_without_boxes_has_loss_and_gradient_zero():
    default = jnp.asarray(default_boxes(32))

    def loss(offsets, logits):
        truth = jnp.zeros((2, 4)), jnp.full(2, -1)
        losses = multibox_loss(default, offsets, logits, *truth)
        return losses["box"] + losses["class"]

    arguments = jnp.ones((len(default), 4)), jnp.ones((len(default), 3))
    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*arguments)
    assert value == 0
    assert all((gradient == 0).all() for gradient in gradients)


# Detections and metrics


def perfect_outputs(detection, data):
    """What a network would give that encodes the truth."""
    default = jnp.asarray(default_boxes(detection.crop_size))

    def one(boxes, labels):
        matched = geometry.match(boxes, labels >= 0, geometry.to_corners(default))
        offsets = geometry.encode(boxes[matched], default)
        classes = jnp.where(matched >= 0, labels[matched] + 1, 0)
        hit = matched >= 0
        logits = 12.0 * jax.nn.one_hot(classes, detection.num_classes + 1)
        return jnp.where(hit[:, None], offsets, 0.0), logits

    return jax.jit(jax.vmap(one))(data["boxes"], data["labels"])


@functools.cache
def decoded_scenes(number=12):
    # fine enough a grid of default boxes that no two of these digits share their best one
    detection = workload(augmentation__crop_size=128)
    source, _ = splits.open_source("digit_scenes", "validation")
    return detection, detection.decode(source.__getitems__(range(number)))


@functools.cache
def compiled(detection):
    @jax.jit
    def evaluate(data, outputs, mask):
        return detection.evaluate(lambda images, train: outputs, data, mask)

    return evaluate


def summarized(detection, data, outputs, mask):
    sums = compiled(detection)(data, outputs, jnp.asarray(mask))
    return detection.summarize([jax.device_get(sums)])


def test_a_perfect_network_has_map_one_and_masked_rows_do_not_count():
    detection, data = decoded_scenes()
    offsets, logits = perfect_outputs(detection, data)
    mask = np.float32([1] * 9 + [0] * 3)
    offsets = offsets.at[9:].set(5.0)  # wrong where nobody looks
    values = summarized(detection, data, (offsets, logits), mask)
    assert set(values) == set(detection.metrics)
    assert values["mAP"] == pytest.approx(1.0, abs=1e-3)
    assert values["AR_100"] == pytest.approx(1.0, abs=1e-3)
    assert values["AP_large"] == -1  # there are none
    everything = summarized(detection, data, (offsets, logits), np.ones(12, np.float32))
    assert everything["AP50"] < values["AP50"]
    data = data | {"bad_boxes": np.arange(12, dtype=np.int32)}
    values = summarized(detection, data, (offsets, logits), mask)
    assert values["bad_boxes"] == sum(range(9))
    rows = {name: array[:9] for name, array in data.items()}
    alone = summarized(detection, rows, (offsets[:9], logits[:9]), np.ones(9, np.float32))
    assert values == pytest.approx(alone, rel=1e-5)


def test_scores_compare_a_class_with_the_background_too():
    """A box that is surely background is no detection, however sure its class would be."""
    detection, _ = decoded_scenes()
    number = len(default_boxes(detection.crop_size))
    logits = np.zeros((1, number, detection.num_classes + 1), np.float32)
    logits[..., 0] = 30.0
    logits[0, 5, [0, 2]] = 0.0, 1.0  # class 1
    logits[0, 70, 3] = 20.0  # class 2, but e^10 times less likely than background
    found = detection.detect(np.zeros((1, number, 4), np.float32), logits)
    share = math.e / (math.e + detection.num_classes)
    assert (found["labels"][0, 0], found["scores"][0, 0]) == (1, pytest.approx(share, rel=1e-5))
    assert (np.asarray(found["scores"][0, 1:]) < 0.2).all()


def test_a_crowd_is_background_in_the_loss_of_an_evaluation():
    detection, data = decoded_scenes()
    outputs, mask = perfect_outputs(detection, data), np.ones(12, np.float32)
    first = np.arange(data["labels"].shape[1]) == 0
    losses = [
        summarized(detection, data | changed, outputs, mask)["loss"]
        for changed in (
            {"crowd": data["crowd"] | first},
            {"labels": np.where(first, -1, data["labels"])},
            {},
        )
    ]
    assert losses[0] == losses[1] > 2 * losses[2]


@pytest.mark.parametrize(("classes", "objects"), [(1, 20), (3, 30), (80, 4)])
def test_metrics_are_those_of_pycocotools(classes, objects):
    """Detections near true boxes, with ties, crowds, empty images, and absent classes."""
    random, images, detections = np.random.default_rng(classes), 12, 40
    low = random.uniform(0, 0.7, (images, objects, 2))
    boxes = np.concatenate([low, low + random.uniform(0.02, 0.3, low.shape)], -1)
    size = random.integers(60, 640, (images, 2))
    labels = random.integers(0, classes, (images, objects))
    labels[random.uniform(size=labels.shape) < 0.3] = -1
    labels[0] = -1
    sides = boxes[..., 2:] - boxes[..., :2]
    truth = {
        "size": size,
        "boxes": boxes,
        "labels": labels,
        "crowd": random.uniform(size=labels.shape) < 0.1,
        "area": sides.prod(-1) * size.prod(-1)[:, None] * random.uniform(0.5, 1, labels.shape),
    }
    near = random.integers(0, objects, (images, detections))
    scores = random.uniform(size=near.shape).round(1)
    scores[1] = 0
    moved = np.take_along_axis(boxes, near[..., None], 1)
    found = {
        "boxes": moved + random.normal(0, 0.03, 2)[[0, 1, 0, 1]] * random.uniform(size=moved.shape),
        "labels": np.maximum(np.take_along_axis(labels, near, 1), 0),
        "scores": scores,
    }
    ours = coco_metrics.evaluate(truth, found, classes)
    assert 0 < ours["mAP"] < ours["AP50"] < 1
    assert list(ours.values()) == pytest.approx(metrics_of_pycocotools(truth, found, classes))


def metrics_of_pycocotools(truth, found, classes):
    def loaded(data, present, more):
        height, width = data["size"][:, :1], data["size"][:, 1:]
        ymin, xmin, ymax, xmax = np.moveaxis(data["boxes"], -1, 0)
        sides = (xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height)
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(len(present))],
            "categories": [{"id": label} for label in range(classes)],
            "annotations": [
                {
                    "id": number,
                    "image_id": int(place[0]),
                    "category_id": int(data["labels"][tuple(place)]),
                    "bbox": [float(side[tuple(place)]) for side in sides],
                    **more(tuple(place)),
                }
                for number, place in enumerate(np.argwhere(present), 1)
            ],
        }
        coco.createIndex()
        return coco

    def of_object(place):
        return {"iscrowd": int(truth["crowd"][place]), "area": float(truth["area"][place])}

    def of_detection(place):
        ymin, xmin, ymax, xmax = found["boxes"][place] * np.tile(truth["size"][place[0]], 2)
        area = (ymax - ymin) * (xmax - xmin)
        return {"iscrowd": 0, "area": float(area), "score": float(found["scores"][place])}

    evaluation = COCOeval(
        loaded(truth, truth["labels"] >= 0, of_object),
        loaded(found | {"size": truth["size"]}, found["scores"] > 0, of_detection),
        iouType="bbox",
    )
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return list(evaluation.stats)


def test_cocos_metrics_are_shares_and_losses_are_not():
    assert [name for name in Detection.metrics if is_share(name)] == list(coco_metrics.NAMES)


# Whole runs


@pytest.mark.long
def test_the_mini_trains_and_records_cocos_metrics(tmp_path, monkeypatch):
    # fewer scenes to compose and to score, and one block per stage: a third of the time
    monkeypatch.setitem(packaged.NUM_SCENES, "validation", 40)
    monkeypatch.setitem(STAGES, 18, (BasicBlock, (1, 1, 1, 1)))
    config = mini(**echoing("before_augmentation", 20, factor=2))
    assert train.train(config, tmp_path)["status"] == "exhausted"
    assert set(coco_metrics.NAMES) <= set(records.read_metrics(tmp_path)[-1])
    losses = [line["loss"] for line in train_lines(tmp_path)]
    assert losses[-1] < losses[0]
