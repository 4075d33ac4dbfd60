"""Detection: decoding, augmentation, loss, metrics, and whole runs of the shrunk mini."""

import functools
import io
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SLOTS, run_command, slot
from PIL import Image

import train
import workloads
from configs import base, coco
from models.ssd import default_boxes
from pipeline import sources, stages
from runs import command, records
from training import check, optimizer
from workloads import boxes as geometry
from workloads import coco_metrics
from workloads.detection import Detection, multibox_loss

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
    config = coco.get_config("mini")
    for name, value in (SHRUNK | {k.replace("__", "."): v for k, v in fields.items()}).items():
        command.set_field(config, name, value, base.FIELDS)
    return config


def workload(**fields) -> Detection:
    config = mini(**fields)
    return workloads.make(config, sources.open_source(config.dataset.name, "train")[1])


def jpeg(pixels, mode="RGB") -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(encoded, "JPEG", quality=95)
    return encoded.getvalue()


GREY = np.full((48, 64, 3), 128, np.uint8)


def record(boxes=(), labels=None, image=None, **objects):
    labels = [1] * len(boxes) if labels is None else labels
    given = {"bbox": [np.float32(box) for box in boxes], "label": labels, **objects}
    return {"image": jpeg(GREY) if image is None else image, "image/id": 7, "objects": given}


# Decoding


def test_decoded_arrays_have_fixed_shapes_and_say_what_is_padding():
    area, crowd = [11, 22], [False, True]
    data = workload().decode(
        [record([[0, 0, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]], area=area, is_crowd=crowd), record()]
    )
    assert {name: (array.shape, str(array.dtype)) for name, array in data.items()} == {
        "image": ((2, 40, 40, 3), "uint8"),
        "boxes": ((2, 8, 4), "float32"),
        "labels": ((2, 8), "int32"),
        "crowd": ((2, 8), "bool"),
        "area": ((2, 8), "float32"),
        "size": ((2, 2), "int32"),
        "bad_boxes": ((2,), "int32"),
    }
    assert data["labels"].tolist() == [[1, 1] + [-1] * 6, [-1] * 8]
    assert data["area"][0, :2].tolist() == area
    assert data["crowd"][0, :2].tolist() == crowd
    assert data["size"].tolist() == [[48, 64]] * 2


def test_area_is_the_boxs_in_pixels_where_the_data_set_gives_none():
    data = workload().decode([record([[0, 0, 0.5, 0.25]])])
    assert data["area"][0, 0] == pytest.approx(0.5 * 48 * 0.25 * 64)
    assert not data["crowd"].any()


def test_boxes_outside_are_cut_off_and_empty_ones_dropped_and_both_counted():
    inside, outside, beyond = [0, 0, 1, 1.0005], [-0.5, 0.2, 0.5, 1.5], [1.2, 0, 1.5, 1]
    empty, unknown = [0.3, 0.3, 0.3, 0.6], [np.nan, 0, 1, 1]
    with pytest.warns(UserWarning, match="cut off.*dropped"):
        data = workload().decode([record([inside, outside, beyond, empty, unknown])])
    assert data["bad_boxes"].tolist() == [4]
    assert data["labels"][0].tolist() == [1, 1] + [-1] * 6
    np.testing.assert_allclose(data["boxes"][0, :2], [[0, 0, 1, 1], [0, 0.2, 0.5, 1]])


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_images_are_converted(mode):
    data = workload().decode([record(image=jpeg(GREY, mode))])
    assert np.abs(data["image"].astype(int) - 128).max() <= 3


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            {"image": jpeg(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))[:900]},
            "",
        ),
        ({"image": b"no image"}, "no whole image"),
        ({"boxes": [[0, 0, 1, 1]], "labels": [10]}, "label 10; allowed: 0 to 9"),
        ({"boxes": [[0, 0, 1, 1]], "labels": [-1]}, "label -1; allowed: 0 to 9"),
        ({"boxes": [[0, 0, 1, 1]] * 9}, "9 boxes; allowed: up to config.dataset.max_boxes, 8"),
    ],
    ids=["truncated", "no image", "label", "negative label", "too many"],
)
def test_a_record_that_cannot_be_used_is_named(bad, reason):
    class Records(list):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    source = Records([record(), record(), record(**bad)])
    read = stages.Read(source, 0, 3, lambda given, _: workload().decode(given))
    with pytest.raises(stages.RecordError, match=f"record 2 .*'image/id': 7.*{reason}"):
        read.stacked_items(range(3))


def test_a_damaged_validation_image_is_an_input_error_at_the_start(monkeypatch):
    source, info = sources.open_source("digit_scenes", "validation")
    broken = [*source.__getitems__(range(4)), record(image=b"no image")]

    class Broken:
        __len__ = broken.__len__
        __getitem__ = broken.__getitem__

        def __getitems__(self, indices):
            return [broken[i] for i in indices]

    monkeypatch.setattr(train, "open_data", lambda config: (source, Broken(), info))
    with pytest.raises(command.InputError, match=r"record 4 .*'image/id': 7.*no whole image"):
        train.prepare(mini(augment_on="device"))


def test_data_without_boxes_are_refused():
    with pytest.raises(workloads.WorkloadError, match="'digits' has no images with labelled boxes"):
        workloads.make(mini(), sources.open_source("digits", "train")[1])


@pytest.mark.parametrize("field", ["model__depth", "dataset__canvas", "augmentation__min_area"])
def test_a_model_that_cannot_be_made_is_refused(field):
    with pytest.raises(workloads.WorkloadError, match=f"{field.replace('__', '.')} is .*; allowed"):
        workload(**{field: 0})


def test_scenes_are_a_function_of_split_and_index_and_their_boxes_hold_the_ink():
    source, _ = sources.open_source("digit_scenes", "train")
    other, _ = sources.open_source("digit_scenes", "validation")
    assert source[3]["image"] == sources.open_source("digit_scenes", "train")[0][3]["image"]
    assert source[3]["image"] != other[3]["image"]
    scenes = source.__getitems__(range(50))
    counts = [len(scene["objects"]["label"]) for scene in scenes]
    assert set(counts) == {1, 2, 3, 4, 5}
    boxes = np.concatenate([scene["objects"]["bbox"] for scene in scenes])
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    assert (boxes[:, 2:] - boxes[:, :2]).min() > 0.04
    assert len({Image.open(io.BytesIO(scene["image"])).size for scene in scenes}) > 40


# Augmentation


def painted(box, side=96):
    """A dark image with a bright rectangle, as decoded."""
    image = np.full((side, side, 3), 20, np.uint8)
    ymin, xmin, ymax, xmax = (round(float(edge) * side) for edge in box)
    image[ymin:ymax, xmin:xmax] = 220
    return image


def test_boxes_follow_the_pixels_through_crop_and_mirror():
    detection = workload(
        dataset__canvas=96,
        augmentation__crop_size=64,
        augmentation__min_area=0.1,
        augmentation__flip=True,
    )
    rows = 128
    boxes = np.tile(np.float32([0.25, 0.5, 0.5, 0.875]), (rows, 1))
    data = {
        "image": np.tile(painted(boxes[0]), (rows, 1, 1, 1)),
        "boxes": np.pad(boxes[:, None], ((0, 0), (1, 2), (0, 0))),  # the second of four places
        "labels": np.tile(np.int32([-1, 5, -1, -1]), (rows, 1)),
        "crowd": np.zeros((rows, 4), bool),
        "bad_boxes": np.zeros(rows, np.int32),
    }
    out = jax.jit(detection.augment)(
        data, 0, np.arange(rows, dtype=np.uint32), np.uint32([0] * rows)
    )
    # some object is in every crop, and here there is one
    assert out["labels"].tolist() == [[-1, 5, -1, -1]] * rows
    seen = []
    for image, box in zip(np.asarray(out["image"]), np.asarray(out["boxes"][:, 1]), strict=True):
        ys, xs = np.nonzero(image[..., 0] > 120)
        pixels = [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1]
        np.testing.assert_allclose(pixels, box * 64, atol=1.01)
        seen.append(tuple(pixels))
    assert len(set(seen)) > rows / 2
    assert any(xmin == 0 for _, xmin, _, _ in seen)  # cut off at an edge


def test_without_augmentation_an_image_is_only_resized():
    detection = workload(dataset__canvas=64, augmentation__crop_size=32, augmentation__min_area=1.0)
    data = detection.decode([record([[0, 0, 0.5, 0.5]], image=jpeg(painted([0, 0, 0.5, 0.5])))])
    out = jax.jit(detection.augment)(data, 0, np.uint32([0]), np.uint32([0]))
    np.testing.assert_array_equal(out["boxes"], data["boxes"])
    np.testing.assert_array_equal(out["labels"], data["labels"])
    np.testing.assert_allclose(out["image"][0, 4:12, 4:12], 220, atol=6)


def test_crowds_and_images_without_boxes_go_through_augmentation():
    detection = workload(augmentation__color=True)
    data = detection.decode([record(), record([[0, 0, 1, 1]], is_crowd=[True])])
    out = jax.jit(detection.augment)(data, 0, np.uint32([0, 1]), np.uint32([0, 0]))
    assert (np.asarray(out["labels"]) == -1).all()
    assert np.isfinite(out["boxes"]).all()


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
    source, _ = sources.open_source("digit_scenes", "validation")
    return detection, detection.decode(source.__getitems__(range(number)))


def summarized(detection, data, outputs, mask):
    @jax.jit
    def evaluate(data, outputs, mask):
        return detection.evaluate(lambda images, train: outputs, data, mask)

    return detection.summarize([jax.device_get(evaluate(data, outputs, jnp.asarray(mask)))])


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


def test_a_network_that_finds_nothing_scores_zero():
    detection, data = decoded_scenes()
    offsets, logits = perfect_outputs(detection, data)
    background = jnp.zeros_like(logits).at[..., 0].set(20.0)
    values = summarized(detection, data, (offsets, background), np.ones(12, np.float32))
    assert values["mAP"] == values["AR_100"] == 0
    assert np.isfinite(list(values.values())).all()


def test_average_precision_by_hand(capsys):
    """Two objects in 100 x 200 pixels: one found, one missed, one false alarm between them."""
    truth = {
        "size": np.int32([[100, 200]]),
        "boxes": np.float32([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0, 0, 0]]]),
        "labels": np.int32([[0, 0, -1]]),
        "crowd": np.zeros((1, 3), bool),
        "area": np.float32([[500, 5000, 0]]),  # small, medium
    }
    found = {
        "boxes": np.float32([[[0, 0.5, 0.5, 1], [0, 0, 0.5, 0.5]]]),
        "labels": np.int32([[0, 0]]),
        "scores": np.float32([[0.9, 0.8]]),
    }
    values = coco_metrics.evaluate(truth, found, num_classes=2)
    # precision 1/2 up to recall 1/2: 51 of the 101 recall levels
    assert values["mAP"] == values["AP50"] == pytest.approx(0.5 * 51 / 101)
    assert values["AR_100"] == pytest.approx(0.5)
    assert values["AR_1"] == 0
    assert (values["AR_small"], values["AR_medium"], values["AR_large"]) == (1, 0, -1)
    assert capsys.readouterr().out == ""
    # a crowd in the place of the false alarm excuses it
    truth["boxes"][0, 2], truth["labels"][0, 2], truth["crowd"][0, 2] = [0, 0.5, 0.5, 1], 0, True
    truth["area"][0, 2] = 5000
    values = coco_metrics.evaluate(truth, found, num_classes=2)
    assert values["mAP"] == pytest.approx(51 / 101)


# Schedule, and whole runs


def test_two_steps_after_a_warm_up():
    schedule = coco.get_config().optimizer.schedule
    schedule.warmup_progress, schedule.step_factor = 0.1, 0.1
    schedule.first_step_progress, schedule.second_step_progress = 0.6, 0.8
    at = [0.0, 0.05, 0.1, 0.59, 0.6, 0.79, 0.8, 1.0]
    factors = [optimizer.schedule_factor(schedule, progress) for progress in at]
    np.testing.assert_allclose(factors, [0, 0.5, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_the_full_configuration_is_the_studys():
    config = coco.get_config()
    check.check(config)
    info = sources.DatasetInfo("coco/2017", "1", "", 80, None, 3, has_boxes=True)
    detection = workloads.make(config, info)
    assert len(default_boxes(detection.crop_size)) == 8732
    assert (config.batch_size, config.model.ghost_batch_size) == (256, 128)
    assert (config.target.metric, config.target.value) == ("mAP", 0.24)


class StopAt:
    """Tells a run to stop once it has taken so many steps."""

    def __init__(self, monkeypatch, step):
        original = train._Run._train_on

        def train_on(run, batch):
            original(run, batch)
            if run.counters.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(train._Run, "_train_on", train_on)


def without_clocks(workdir):
    clocks = ("train_seconds", "wall_seconds", "input_wait_fraction")
    lines = records.read_metrics(workdir)
    return [{k: v for k, v in line.items() if k not in clocks} for line in lines]


@pytest.mark.parametrize(("insertion", "buffer"), [s for s in SLOTS if s[1] or s[0] == "none"])
def test_runs_at_every_insertion_point_and_resumes_exactly(
    insertion, buffer, tmp_path, monkeypatch
):
    config = mini(**slot(insertion, min(buffer, 20)))
    result = train.train(config, tmp_path / "whole")
    assert result["status"] == "exhausted"
    with monkeypatch.context() as patch:
        StopAt(patch, 7)
        assert train.train(config, tmp_path / "stopped")["status"] == "preempted"
    assert train.train(config, tmp_path / "stopped")["status"] == "exhausted"
    lines = without_clocks(tmp_path / "whole")
    assert lines == without_clocks(tmp_path / "stopped")
    validation = [line for line in lines if line["split"] == "validation"]
    assert set(coco_metrics.NAMES) <= set(validation[-1])
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert losses[-1] < losses[0]


def test_the_command_explains_what_is_wrong(tmp_path):
    done = run_command(
        "train.py",
        "--config=configs/coco.py:mini",
        f"--workdir={tmp_path / 'run'}",
        "--config.target.metric=map",
    )
    assert done.returncode == 2
    assert "'map'" in done.stderr
    assert "mAP, AP50" in done.stderr
    assert done.stderr.count("\n") == 1
