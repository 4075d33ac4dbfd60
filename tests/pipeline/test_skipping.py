"""Damaged images: skipped in place, counted alike by a resumed run, and found before any run."""

import numpy as np
import pytest

import train
from data import splits
from data.sources import RecordError
from pipeline.map_datasets import num_skipped, record_numbers
from runs import cli, records
from tests.helpers import path_data
from tests.helpers.runs import (
    EIGHT_STEPS,
    INSERTIONS_AND_BUFFERS,
    assert_equal_runs,
    batches_of,
    echoing,
    mini,
    preempt,
)
from training import evaluate
from training.experiment import make_experiment


@pytest.fixture
def own(tmp_path):
    return path_data.write_folder(tmp_path / "own", {"train": range(60), "val": range(60, 80)})


def config_of(own, **fields):
    where = {"dataset__name": "folder:own", "dataset__data_dir": str(own.parent)}
    return mini(**EIGHT_STEPS | where | {"dataset__test_split": ""} | fields)


def damage(own, split, *numbers):
    source, _ = splits.open_source("folder:own", split, str(own.parent))
    for number in numbers:
        path = own / source[number]["file_name"]
        path.write_bytes(path.read_bytes()[:-20])  # its header is intact


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS[::2])
def test_the_next_record_takes_the_place_of_a_damaged_one(insertion, buffer, own):
    fields = echoing(insertion, buffer) | {"augmentation__pad": 0, "batch_size": 64}
    sound = batches_of(config_of(own, **fields))
    damage(own, "train", 0, 17, 18, 59)
    following = {0: 1, 17: 19, 18: 19, 59: 1}
    opened = make_experiment(config_of(own, **fields, dataset__damaged="skip"))
    source, _ = splits.open_source("folder:own", "train", str(own.parent))
    labels = [source[number]["label"] for number in range(60)]
    for before, after in zip(sound, opened.batches, strict=True):
        assert before.index.tolist() == after.index.tolist()
        assert before.copy.tolist() == after.copy.tolist()
        assert before.fresh_examples == after.fresh_examples
        numbers = record_numbers(before.index, 60, 0)
        fresh = np.isin(numbers, list(following)) & (before.copy == 0)
        assert num_skipped(opened.source, 0, after) == fresh.sum()
        for row, number in enumerate(numbers):
            assert after.data["label"][row] == labels[following.get(number, number)]
            if number not in following:
                np.testing.assert_array_equal(before.data["image"][row], after.data["image"][row])


def test_damaged_examples_are_left_out_of_an_evaluation(own):
    damage(own, "validation", 0, 7)
    ((data, mask),) = make_experiment(config_of(own, dataset__damaged="skip")).validation
    assert np.flatnonzero(mask == 0).tolist() == [0, 7, *range(20, len(mask))]
    source, _ = splits.open_source("folder:own", "validation", str(own.parent))
    wanted = [record["label"] for n, record in enumerate(source) if n not in (0, 7)]
    assert data["label"][mask == 1].tolist() == wanted


def test_a_resumed_run_counts_what_an_uninterrupted_one_skips(own, tmp_path):
    damage(own, "train", 3, 40)
    damage(own, "validation", 5)
    config = config_of(own, dataset__damaged="skip", **echoing("before_augmentation", 20, factor=2))
    train.train(config, tmp_path / "whole")
    preempt(config, tmp_path / "ended", 5)
    result = train.train(config, tmp_path / "ended")
    assert_equal_runs(config, tmp_path / "whole", tmp_path / "ended")
    numbers = record_numbers(np.arange(128), 60, 0)
    assert result["skipped_examples"] == np.isin(numbers, [3, 40]).sum()
    assert result["skipped_validation_examples"] == 1
    evaluated = evaluate.evaluate(tmp_path / "whole")["splits"]
    assert evaluated["validation"]["skipped_examples"] == 1


def test_a_run_that_a_damaged_image_has_ended_resumes_without_it(own, tmp_path):
    (last,) = record_numbers(np.array([59]), 60, 0)
    damage(own, "train", last)
    ended = train.train(config_of(own), tmp_path / "run")
    assert (ended["status"], ended["step"]) == ("failed", 3)
    assert "dataset.damaged" in ended["error"]
    result = train.train(config_of(own, dataset__damaged="skip"), tmp_path / "run")
    assert (result["status"], result["skipped_examples"]) == ("exhausted", 2)


def test_a_split_without_a_sound_image_is_refused(own):
    damage(own, "train", *range(60))
    with pytest.raises(RecordError, match="damaged"):
        make_experiment(config_of(own, dataset__damaged="skip"))


@pytest.mark.parametrize("bad", [False, True])
def test_one_command_lists_what_cannot_be_used(bad, own, tmp_path, capsys):
    if bad:
        damage(own, "train", 3, 40)
        damage(own, "validation", 5)
    config, flags = config_of(own), []
    for name in ("name", "data_dir", "test_split"):
        flags.append(f"--config.dataset.{name}={config.dataset[name]}")
    code = train.main(["--check-data", "--config=configs/cifar10.py:mini", *flags])
    assert code == (cli.WRONG_INPUT if bad else cli.OK)
    lines = capsys.readouterr().out.splitlines()
    found = [line.partition(" (")[0] for line in lines if line.startswith("record")]
    wanted = [f"record {number} of split 'train'" for number in (3, 40)]
    assert found == [*wanted, "record 5 of split 'validation'"] * bad
    assert not (tmp_path / records.CONFIG).exists()


@pytest.mark.parametrize("limit", [63, 64])
def test_the_configuration_states_the_largest_image(limit, own):
    config = config_of(own, dataset__max_pixels=limit)
    if limit == 64:
        make_experiment(config)
    else:
        with pytest.raises(RecordError, match=r"8 x 8 .*63 .*dataset\.max_pixels"):
            make_experiment(config)
