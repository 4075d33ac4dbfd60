"""Runs with echoed items on the device: the host's numbers, fewer bytes, refused combinations."""

import numpy as np
import pytest

from pipeline import accounting
from tests.helpers.runs import decisions_file, echoing, losses_of, mini, placed, train_lines
from training.experiment import make_experiment

EXAMPLE = 8 * 8 + 4  # bytes: a digit and its label
ROW = 4  # of the store
NUMBERS = 4 + 4  # of each row: its fresh example and its copy number


@pytest.mark.long
@pytest.mark.parametrize(
    ("insertion", "buffer"),
    [("before_augmentation", 100), ("after_augmentation", 0), ("after_batching", 4)],
)
def test_losses_are_those_of_the_host_bit_for_bit_and_items_are_sent_once(
    insertion, buffer, uninterrupted
):
    fields = echoing(insertion, buffer, factor=4) | {"log_every_steps": 1}
    # after augmentation the host has augmented; before it, each copy is augmented in the step
    fields["augment_on"] = "host" if insertion.startswith("after") else "device"
    host, device = (
        train_lines(uninterrupted(mini(**fields, echo__placement=placement)))
        for placement in ("host", "device")
    )
    assert len(host) == accounting.total_steps(mini(**fields)) == 640 * 4 // 32
    for name in ("loss", "fresh_examples", "step", "learning_rate"):
        assert [r[name] for r in device] == [r[name] for r in host]

    steps = np.arange(1, len(host) + 1)
    assert [r["bytes_sent"] for r in host] == (steps * 32 * (EXAMPLE + NUMBERS)).tolist()
    # An item's bytes and row are sent once, and a row for each copy.
    sent = [r["bytes_sent"] for r in device]
    assert sent[-1] == 640 * (EXAMPLE + ROW) + len(host) * 32 * (ROW + NUMBERS)
    assert np.diff(sent).min() >= 32 * (ROW + NUMBERS)


@pytest.mark.parametrize("insertion", ["after_augmentation", "after_batching"])
def test_augmenting_on_entry_to_the_device_gives_the_hosts_losses(insertion, uninterrupted):
    host, device = (uninterrupted(mini(**where(insertion, 4))) for where in (echoing, placed))
    assert losses_of(host) == losses_of(device)


@pytest.mark.parametrize("policy", ["fixed", "auto"])
def test_streams_with_unequal_buffers_share_a_store(policy, tmp_path):
    """Four streams of 26, 26, 25 and 25 slots: equal rows for each, enough for the largest."""
    fields = placed("before_augmentation", 102, factor=2.5 if policy == "fixed" else 1)
    fields |= {"echo__streams": 4, "echo__policy": policy, "budget__fresh_examples": 1280}
    if policy == "auto":
        decisions = [[8] * 4] * 20 + [[3, 0, 2, 1], [0] * 4, [8, 8, 2, 8]] * 5
        fields["echo__replay"] = decisions_file(tmp_path / "decisions", decisions)
    images = {}
    for placement in ("host", "device"):
        opened = make_experiment(mini(**fields | {"echo__placement": placement}))
        images[placement] = [opened.transfer.put(batch)[0]["image"] for batch in opened.batches]
    assert len(images["host"]) == (35 if policy == "auto" else 1280 * 2.5 // 32)
    np.testing.assert_array_equal(images["host"], images["device"])


def test_without_echoing_the_placement_has_no_effect():
    parts = make_experiment(mini(echo__placement="device"))
    batch = next(iter(parts.batches))
    parts.transfer.put(batch)
    assert parts.transfer.bytes_sent == 32 * (EXAMPLE + NUMBERS)
