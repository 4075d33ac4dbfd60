"""What a configuration, a mesh, or a replay may not be: each is refused before anything is written,
by an error that names the field."""

import jax
import numpy as np
import pytest

import train
from runs import cli
from tests.helpers import tfds_data
from tests.helpers.runs import echoing, mini, placed
from training import check, sharding

AUTO = {"echo__insertion": "before_augmentation", "echo__policy": "auto"}
SCHEDULE = "optimizer__schedule__"
HORIZON = {SCHEDULE + "horizon_fresh_examples": 320}

REFUSED = [
    ({"echo__factor": 4}, "echo.insertion.*before_augmentation"),
    ({"echo__policy": "auto"}, "echo.policy"),
    (AUTO | {"echo__factor": 2}, "echo.factor is 2"),
    (AUTO | {"echo__shuffle_buffer": 31}, "echo.shuffle_buffer is 31"),
    (AUTO | {"echo__max_factor": -1}, "echo.max_factor is -1"),
    (AUTO | {"echo__replay": "nowhere"}, "echo.replay is 'nowhere'.*No such file"),
    (AUTO | {"echo__replay": __file__}, "echo.replay"),
    (AUTO | {"echo__policy": "fixed", "echo__replay": "x"}, "echo.replay is 'x'"),
    (echoing("after_augmentation", 3, factor=1) | {"echo__streams": 4}, "shuffle_buffer is 3"),
    ({"echo__streams": 5}, "echo.streams is 5"),
    ({"dataset__spaced_epochs": 2, "echo__streams": 2}, "dataset.spaced_epochs is 2"),
    (echoing("before_augmentation", 0) | {"dataset__spaced_epochs": 2}, "spaced_epochs is 2"),
    ({"loader__workers": 1024}, "loader.workers is 1024"),
    ({"loader__workers": 1, "dataset__damaged": "skip"}, "loader.workers is 1"),
    ({"loader__workers": 1, "upstream__examples_per_second": 9.0}, "loader.workers is 1"),
    ({"upstream__stall_seconds": 1.0}, "upstream.stall_seconds is 1"),
    ({"upstream__slow_share": 0.05}, "upstream.slow_share is 0.05"),
    ({"upstream__examples_per_second": 0.001}, "upstream"),
    ({"budget__fresh_examples": 31}, "budget.fresh_examples is 31"),
    ({SCHEDULE + "horizon_fresh_examples": 31}, "horizon_fresh_examples is 31"),
    *(
        (HORIZON | {SCHEDULE + "name": name, SCHEDULE + last: 0.0}, "horizon_fresh_examples is 320")
        for name, last in {
            "linear": "final_factor",
            "cosine": "final_factor",
            "two_steps": "step_factor",
        }.items()
    ),
    ({"target__metric": "loss", "target__value": 1.0}, "target.mode is 'above'"),
    ({"target__mode": "below"}, "target.mode is 'below'"),
    ({"target__metric": "nothing"}, "target.metric is 'nothing'"),
    ({"dataset__test_split": "tset"}, "tset"),  # which only an evaluation afterwards reads
    ({"dataset__fused_decode": True}, "dataset.fused_decode"),
    ({"model__ghost_batch_size": 5, "model__depth": 8}, "ghost_batch_size is 5"),
    ({"sharding": "zero"}, "sharding is 'zero'"),
    ({"sharding": "tensor"}, "sharding is 'tensor'"),
    ({"mesh__data": 3}, "mesh is data=3"),
    ({"mesh__model": 3}, "model=3"),
    ({"echo__insertion": "before_augmentation", "echo__placement": "device"}, "augment_on"),
    ({"echo__copies": "stratified"}, "echo.copies is 'stratified'"),
    ({"echo__insertion": "after_batching", "augment_on": "device"}, "augment_on is 'device'"),
    (
        placed("before_augmentation", 10**12) | {"budget__fresh_examples": 4 * 10**9},
        "shuffle_buffer",
    ),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=str)
def test_what_cannot_be_run_is_refused_and_nothing_is_written(fields, named, tmp_path):
    with pytest.raises(cli.InputError, match=named) as caught:
        train.train(mini(**fields), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_test_split_without_labels_is_refused_before_training(tmp_path):
    features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
    unlabeled = [record | {"label": -1} for record in tfds_data.pictures(range(4))]
    pictures = {"train": tfds_data.pictures(range(40)), "test": unlabeled}
    tfds_data.write(tmp_path, "own", features, pictures)
    fields = {"name": "own", "data_dir": str(tmp_path), "validation_split": "train[:8]"}
    fields = {f"dataset__{name}": value for name, value in fields.items()}
    with pytest.raises(cli.InputError, match="label -1"):
        train.train(mini(**fields, dataset__test_split="test"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_just_possible_is_not_refused():
    for horizon in (0, 640, 1280):  # of the budget or more: no step has a rate of zero
        last = {SCHEDULE + "final_factor": 0.0, SCHEDULE + "horizon_fresh_examples": horizon}
        check.check(mini(**last))
    check.check(mini(**HORIZON, optimizer__schedule__name="constant"))
    batches = {"echo__insertion": "after_batching", "echo__shuffle_buffer": 3, "echo__streams": 4}
    for policy in ("fixed", "auto"):  # each stream has all slots
        check.check(mini(**batches, echo__policy=policy))
    check.check(mini(**AUTO, echo__shuffle_buffer=32))
    check.check(mini(budget__fresh_examples=32))
    check.check(mini(loader__workers=1))


def test_devices_share_batches_streams_and_ghost_batches():
    config = mini(**placed("after_augmentation", 10), echo__streams=4)
    check.check_devices(config, 2)
    with pytest.raises(check.ConfigError, match="streams is 4"):
        check.check_devices(config, 8)
    check.check_devices(mini(echo__placement="device"), 8)  # without echoing none are kept
    with pytest.raises(check.ConfigError, match="batch_size is 32"):
        check.check_devices(mini(), 5)
    check.check_devices(mini(model__ghost_batch_size=8), 4)
    with pytest.raises(check.ConfigError, match="ghost_batch_size is 8"):
        check.check_devices(mini(model__ghost_batch_size=8), 8)


def split(mesh, choice, **shapes):
    """The axes over which kernels of these shapes are split."""
    kernels = {
        name: {"kernel": {"value": jax.ShapeDtypeStruct(shape, np.float32)}}
        for name, shape in shapes.items()
    }
    mesh = jax.sharding.AbstractMesh(mesh, ("data", "model"))
    found = sharding.parameter_shardings(mesh, choice, kernels)
    return {name: tuple(found[name]["kernel"]["value"].spec) for name in shapes}


@pytest.mark.parametrize(
    ("mesh", "choice", "shapes", "named"),
    [
        ((4, 2), "fsdp", {"conv": (8, 8)}, "mesh.model=2"),
        ((4, 1), "tensor", {"conv": (8, 8)}, "mesh.model=1"),
        ((4, 2), "tensor", {"conv": (8, 8)}, "sharding is 'tensor'"),  # it has no such layers
        ((1, 3), "tensor", {"q": (32, 4, 8)}, "q/kernel"),
    ],
)
def test_a_mesh_that_the_sharding_cannot_use_is_refused(mesh, choice, shapes, named):
    with pytest.raises(cli.InputError, match=named):
        split(mesh, choice, **shapes)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((64, 32), ("data",)),
        ((3, 3, 64, 64), (None, None, None, "data")),
        ((64, 30), ("data",)),
        ((100, 64), (None, "data")),
        ((8, 127), ()),
        ((8, 128), (None, "data")),
        ((33, 35), ()),
    ],
)
def test_fsdp_splits_the_largest_divisible_axis_the_last_of_ties_and_nothing_small(shape, spec):
    assert split((8, 1), "fsdp", kernel=shape) == {"kernel": spec}


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nand more"), "a device"),
        (jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 bytes"), "a device"),
        (MemoryError("Unable to allocate 9 TiB"), "this machine"),
        (jax.errors.JaxRuntimeError("INTERNAL: 9"), None),
        (RuntimeError("RESOURCE_EXHAUSTED: 9"), None),
    ],
    ids=str,
)
def test_an_error_of_memory_names_the_fields_that_set_its_size(error, whose, tmp_path):
    def fail(step):
        raise error

    result = train.train(mini(batch_size=64), tmp_path, on_step=fail)
    assert result["status"] == "failed"
    assert ("config.batch_size" in result["error"]) == (whose is not None)
    assert result["error"].startswith(whose or type(error).__name__)
    assert "\n" not in result["error"]
    assert "9" in result["error"]
