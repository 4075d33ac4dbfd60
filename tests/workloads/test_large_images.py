"""ImageNet's workload: canvases, random-resized crops, color, and its mini end to end."""

import dataclasses

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from configs import imagenet
from data import splits
from models.resnet import STAGES, BasicBlock
from pipeline import build, map_datasets
from tests.helpers.runs import SHRUNK, batches_of, echoing, shrunk
from training.experiment import make_experiment
from workloads import color, crops, decoding, large_images

# The mini, shrunk to seconds, as one workload throughout, since each compiles again. A ResNet-10,
# one block a stage, compiles in half the time of a ResNet-18.
SMALL = SHRUNK | {
    "dataset.canvas": 96,
    "augmentation.crop_size": 16,
    "augmentation.flip": True,
    "model.depth": 10,
    "model.width": 4,
    "budget.fresh_examples": 160,
    "evaluate_every_fresh_examples": 160,
    "checkpoint_every_fresh_examples": 96,
    "log_every_steps": 1,
}


@pytest.fixture(autouse=True)
def _shallow(monkeypatch):
    monkeypatch.setitem(STAGES, 10, (BasicBlock, (1, 1, 1, 1)))


def mini(**fields):
    return shrunk(imagenet, SMALL, fields)


def workload_of(config):
    return make_experiment(config).program.task.workload


# --- crops

crop_and_resize = jax.jit(crops.crop_and_resize, static_argnums=3)


@pytest.mark.parametrize("box", [(0, 0, 40, 30), (5, 7, 30, 20), (39, 29, 1, 1), (3, 0, 17, 30)])
@pytest.mark.parametrize("out", [8, 24, 64])
def test_cropping_is_jaxs_and_opencvs_bilinear_resize(box, out):
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    y, x, h, w = box
    mine = np.asarray(crop_and_resize(image, jnp.asarray(box), False, out)).astype(int)
    part = image[y : y + h, x : x + w]
    with_jax = jax.image.resize(part.astype(np.float32), (out, out, 3), "bilinear", antialias=False)
    np.testing.assert_allclose(mine, with_jax, atol=0.51)
    assert abs(mine - cv2.resize(part, (out, out))).max() <= 1
    mirrored = crop_and_resize(image, jnp.asarray(box), True, out)
    np.testing.assert_array_equal(mirrored, mine[:, ::-1])


def test_every_position_of_a_box_is_equally_likely():
    draw = jax.vmap(lambda key: crops.random_box(key, jnp.asarray([8, 8]), 0.5, 1.0))
    y, x, height, width = np.asarray(draw(jax.random.split(jax.random.key(0), 6_000))).T
    for corner, side in ((y, height), (x, width)):
        for shape in (6, 7):  # sides of enough boxes
            counts = np.bincount(corner[side == shape], minlength=9 - shape)
            assert len(counts) == 9 - shape
            assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("size", [(480, 640), (30, 30), (640, 427)])
def test_random_boxes_are_inceptions(size):
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.vmap(lambda key: crops.random_box(key, jnp.asarray(size), 0.08, 4 / 3))
    y, x, h, w = np.asarray(draw(keys)).T
    height, width = size
    assert min(h.min(), w.min()) >= 1
    assert min(y.min(), x.min()) >= 0
    assert ((y + h <= height) & (x + w <= width)).all()
    wanted = np.stack(_torchvision_shapes(size, 4000))
    for mine, theirs in (
        (h * w / (height * width), wanted[:, 0] * wanted[:, 1] / (height * width)),
        (w / h, wanted[:, 1] / wanted[:, 0]),
    ):
        for quantile in (0.1, 0.5, 0.9):
            expected = np.quantile(theirs, quantile)
            assert np.quantile(mine, quantile) == pytest.approx(expected, abs=0.04)


def _torchvision_shapes(size, n):
    """(height, width) of n boxes by the loop in torchvision's RandomResizedCrop.get_params."""
    rng, shapes = np.random.default_rng(1), []
    height, width = size
    while len(shapes) < n:
        area = height * width * rng.uniform(0.08, 1)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            shapes.append((h, w))
    return shapes


def test_a_photograph_at_another_size_is_cropped_alike():
    def draw(key, size):
        return crops.random_box(key, jnp.asarray(size), 0.08, 4 / 3)

    for key in jax.random.split(jax.random.key(0), 20):
        small, large = draw(key, (288, 384)), draw(key, (480, 640))
        np.testing.assert_allclose(large / 5, small / 3, atol=1)


@pytest.mark.parametrize(
    ("size", "box"), [((1, 700), (0, 350, 1, 1)), ((600, 100), (234, 0, 133, 100))]
)
def test_a_picture_too_long_for_any_crop_gives_its_middle(size, box):
    for seed in range(5):
        drawn = crops.random_box(jax.random.key(seed), jnp.asarray(size), 0.9, 4 / 3)
        np.testing.assert_allclose(drawn, box, atol=1)
    assert crops.center_box(jnp.asarray((256, 340)), 0.875).tolist() == [16, 58, 224, 224]


# --- canvas and fused decoding


def test_a_picture_is_copied_unchanged_to_its_canvas():
    source, _ = splits.open_source("digits_jpeg", "train")
    raw = [source[i] for i in range(20)]
    data = workload_of(mini()).decode(raw)
    assert data["image"].shape == (20, 96, 96, 3)
    for row, record in enumerate(raw):
        picture = decoding.decode(record["image"], 3)
        height, width = data["size"][row]
        np.testing.assert_array_equal(data["image"][row, :height, :width], picture)
        assert not data["image"][row, height:].any()
        assert not data["image"][row, :, width:].any()


@pytest.mark.parametrize("spaced_epochs", [1, 2])
def test_fused_decoding_gives_the_crops_that_the_canvas_gives(spaced_epochs):
    plain, fused = (
        batches_of(mini(dataset__fused_decode=fuses, dataset__spaced_epochs=spaced_epochs))
        for fuses in (False, True)
    )
    assert len(plain) == len(fused) == 5 * spaced_epochs
    for left, right in zip(plain, fused, strict=True):
        np.testing.assert_array_equal(left.data["label"], right.data["label"])
        difference_BxHxWxC = abs(left.data["image"].astype(int) - right.data["image"])
        equal_B = (difference_BxHxWxC <= 1).all((1, 2, 3))  # to the rounding of OpenCV's resize
        assert equal_B.mean() > 0.3  # the others are decoded at a half or a quarter of the size
        assert difference_BxHxWxC.mean() < 12


@pytest.mark.long
@pytest.mark.parametrize("fuses", [False, True])
def test_no_batch_waits_for_the_compiler(fuses):
    """Batches of 40 are read in chunks of 32 and 8 records."""
    config = mini(dataset__fused_decode=fuses, batch_size=40, model__ghost_batch_size=8)
    jax.clear_caches()
    batches, compiled = make_experiment(config).batches, []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert len(list(batches)) == 4
        assert not compiled
        jax.jit(lambda x: x + 3)(2)
        assert compiled  # so they would have been seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_device_augments_as_the_host_does():
    fields = echoing("before_augmentation", 20) | {"augmentation__color": True}
    on_host = batches_of(mini(**fields))
    config = mini(**fields, augment_on="device")
    augment = jax.jit(workload_of(config).augment)
    for host, raw in zip(on_host, batches_of(config), strict=True):
        assert raw.data["image"].shape == (32, 96, 96, 3)
        data = augment(
            raw.data, np.uint32(0), raw.index.astype(np.uint32), raw.copy.astype(np.uint32)
        )
        # Equal crops and colors, or most pixels would differ; equal to the rounding of OpenCV's
        # resize, which contrast and saturation multiply.
        difference = abs(np.asarray(data["image"]).astype(int) - host.data["image"])
        assert difference.max() <= 8
        assert difference.mean() < 0.3
        np.testing.assert_array_equal(data["label"], host.data["label"])


def test_a_subclass_with_its_own_augmentation_is_not_cropped_by_its_parents_on_the_host():
    class Inverted(large_images.LargeImageClassification):
        def augment(self, data, seed, index_B, copy_B):
            data = super().augment(data, seed, index_B, copy_B)
            return data | {"image": 255 - data["image"]}

    config = mini()
    plain, opened = workload_of(config), make_experiment(config)
    inverted = Inverted(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    batch = map_datasets.Batch(opened.first, np.zeros(1, int), np.zeros(1, int), 0)
    images = [
        build.host_augmentation(config, workload, opened.first)(batch).data["image"].astype(int)
        for workload in (plain, inverted)
    ]
    np.testing.assert_allclose(images[0] + images[1], 255, atol=1)


# --- color


@pytest.mark.parametrize("kind", ["noise", "smooth", "dark", "gray", "one channel"])
def test_the_host_distorts_colors_to_a_gray_level_of_dm_pix(kind):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, 24, 25, 3), np.uint8)
    if kind == "smooth":
        images = np.stack([cv2.resize(image[:4, :4], (25, 24)) for image in images])
    elif kind == "dark":  # brightness makes pixels negative
        images //= 10
    elif kind == "gray":
        images = np.repeat(images[..., :1], 3, axis=-1)
    elif kind == "one channel":
        images = images[..., :1]
    keys = jax.random.split(jax.random.key(0), 32)
    drawn = jax.vmap(color.draw)(keys)
    by_dm_pix = np.asarray(jax.jit(jax.vmap(color.distort))(images, drawn)).astype(int)
    on_host = color.distort_rows(images, jax.device_get(drawn))
    assert on_host.dtype == np.uint8
    assert on_host.shape == images.shape
    assert abs(on_host - by_dm_pix).max() <= 1


# --- the mini, the whole


def test_digits_as_jpegs_are_the_digits_at_many_sizes():
    source, info = splits.open_source("digits_jpeg", "validation")
    digits, _ = splits.open_source("digits", "validation")
    assert len(source) == len(digits) == 300
    assert (info.num_classes, info.image_shape, info.channels) == (10, None, 3)
    sizes = {decoding.header(record["image"])[0] for record in source}
    assert len(sizes) > 150
    assert all(18 <= side <= 80 for size in sizes for side in size)
    for jpeg, digit in zip(source, digits, strict=True):
        assert jpeg["label"] == digit["label"]
        small = cv2.resize(decoding.decode(jpeg["image"], 1), (8, 8), interpolation=cv2.INTER_AREA)
        assert np.corrcoef(small.ravel(), digit["image"].ravel())[0, 1] > 0.9


def test_label_smoothing_is_a_mixture_with_the_uniform_distribution():
    workload = dataclasses.replace(workload_of(mini()), label_smoothing=0.1)
    logits = np.random.default_rng(0).normal(size=(4, 10)).astype(np.float32)
    labels = np.arange(4)
    data = {"image": np.zeros((4, 8, 8, 3), np.uint8), "label": labels}
    loss, _ = workload.loss(lambda images, train: jnp.asarray(logits), data)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    wanted = -0.9 * log_p[labels, labels].mean() - 0.1 * log_p.mean()
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
