"""Copies of an example that complement each other: config.echo.copies=stratified."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import train
from configs import imagenet
from tests.helpers.runs import echoing, mini, records_of, shrunk
from training.experiment import make_experiment
from workloads import networks
from workloads.classification import SmallImageClassification
from workloads.interface import strata

uint32s = st.integers(0, 2**32 - 1)


def rows(index, copies):
    """(index, copy) of all copies of each example, in order."""
    return np.repeat(np.uint32(index), copies), np.tile(
        np.arange(copies, dtype=np.uint32), len(index)
    )


@settings(max_examples=20)
@given(seed=uint32s, index=uint32s, first=st.integers(0, 8), number=st.sampled_from([2, 4]))
def test_copies_take_each_part_once_before_any_again(seed, index, first, number):
    index_B, copy_B = rows([index], 4 * 4)
    parts = np.asarray(strata(np.uint32(seed), index_B, copy_B, number, use=0))
    for round_ in parts.reshape(-1, number):
        assert sorted(round_) == list(range(number))
    # A row does not depend on the others of its batch.
    alone = strata(np.uint32(seed), index_B[first:][:1], copy_B[first:][:1], number, use=0)
    assert alone[0] == parts[first]


def test_copy_zero_takes_all_parts_equally_often_and_draws_are_independent():
    index_B = np.arange(4000, dtype=np.uint32)
    sides, quarters = (
        np.asarray(strata(np.uint32(0), index_B, index_B * 0, number, use))
        for use, number in enumerate((2, 4))
    )
    counts = np.bincount(4 * sides + quarters, minlength=8)
    np.testing.assert_allclose(counts, 500, atol=5 * 500**0.5)  # five standard deviations


def test_crops_of_small_images_change_quarters_and_mirrored_ones_alternate():
    network = networks.Network.of(None)
    pad, side = 2, 5
    workload = SmallImageClassification(
        (side, side, 1), 2, pad, flip=True, network=network, label_smoothing=0.0, stratified=True
    )
    image = np.arange(1, side * side + 1, dtype=np.uint8).reshape(side, side, 1)
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    crops = {
        np.asarray(padded[y : y + side, x : x + side][:, ::flip]).tobytes(): (y, x, flip)
        for y in range(2 * pad + 1)
        for x in range(2 * pad + 1)
        for flip in (1, -1)
    }
    index_B, copy_B = rows(range(100), 4)
    data = {"image": image[None].repeat(400, 0)}
    images = np.asarray(workload.augment(data, np.uint32(0), index_B, copy_B)["image"])
    found = np.array([crops[image.tobytes()] for image in images]).reshape(100, 4, 3)
    assert (found[:, ::2, 2] == -found[:, 1::2, 2]).all()
    # The middle offset lies in two quarters; 0 and 1 only in the first half, 3 and 4 in the other.
    lows, highs = (found[..., :2] <= pad).sum(1), (found[..., :2] >= pad).sum(1)
    assert (lows >= 2).all()
    assert (highs >= 2).all()
    assert set(found[..., 0].ravel()) == set(range(2 * pad + 1))


def test_crops_of_photographs_change_quarters_and_mirrored_ones_alternate():
    fields = echoing("before_augmentation", 0) | {"echo__copies": "stratified"}
    config = shrunk(imagenet, {"augmentation.min_area": 0.08, "augmentation.flip": True}, fields)
    workload = make_experiment(config).program.task.workload
    index_B, copy_B = rows(range(50), 4)
    size_Bx2 = np.tile(np.int32([400, 600]), (200, 1))
    boxes_Bx4, mirror_B, _, _ = jax.jit(workload.draw)(
        {"size": size_Bx2, "label": index_B}, np.uint32(0), index_B, copy_B
    )
    free_Bx2 = size_Bx2 - boxes_Bx4[:, 2:]
    late_Bx2 = np.asarray(boxes_Bx4[:, :2] >= (free_Bx2 + 1) / 2)
    quarters = (2 * late_Bx2[:, 0] + late_Bx2[:, 1]).reshape(50, 4)
    assert (np.sort(quarters) == np.arange(4)).mean() > 0.95  # but for ends that are rounded
    sides = np.asarray(mirror_B).reshape(-1, 2)
    assert (sides.sum(1) == 1).all()


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_run_trains_on_them(place, tmp_path, uninterrupted):
    fields = echoing("before_augmentation", 100) | {"augment_on": place}
    train.train(mini(**fields, echo__copies="stratified"), tmp_path / "run")
    assert records_of(tmp_path / "run") != records_of(uninterrupted(mini(**fields)))
