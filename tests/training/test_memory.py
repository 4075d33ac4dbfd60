"""Memory: what echoing keeps is checked before a run starts, and exhaustion is put into words."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import advise
import echo
import train
from echo.stores import RowAllocator
from pipeline import accounting
from runs import cli
from tests.helpers.runs import INSERTIONS_AND_BUFFERS, echoing, flags, mini
from training import memory
from training.check import ConfigError
from training.experiment import make_experiment
from training.sharding import make_mesh
from training.step import Program
from training.stepper import Stepper

MINI = "--config=configs/cifar10.py:mini"
HUGE = "--config.echo.shuffle_buffer=1000000000000"


@pytest.mark.parametrize(
    "flags",
    [
        ["--config.echo.factor=2", "--config.budget.fresh_examples=4000000000"],
        ["--config.echo.policy=auto"],
    ],
)
def test_a_buffer_beyond_the_machines_memory_is_one_sentence(flags, tmp_path, capsys):
    workdir = f"--workdir={tmp_path / 'run'}"
    insertion = "--config.echo.insertion=before_augmentation"
    words = [MINI, workdir, insertion, HUGE, *flags]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "error: config.echo.shuffle_buffer is 1,000,000,000,000, where echoing" in error
    assert "items of 68 bytes on the host" in error
    assert "lower config.echo.shuffle_buffer" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({}, "lower config.batch_size or the size of items"),
        ({"echo__shuffle_buffer": 64}, "lower config.echo.shuffle_buffer or the size"),
        ({"echo__policy": "auto"}, "set config.echo.shuffle_buffer below its default, 256, or"),
    ],
)
def test_the_remedy_fits_the_setting(fields, remedy):
    config = mini(**{"echo__insertion": "before_augmentation", "echo__factor": 2, **fields})
    with pytest.raises(ConfigError, match=remedy):
        memory.check_host_store(config, range(1), item_bytes=2**60)


def test_a_buffer_that_the_data_never_fill_takes_the_memory_of_the_data():
    config = mini(**echoing("before_augmentation", 10**12))
    assert accounting.host_size(config, range(1), 64) == (640, 1600)
    assert make_experiment(config).policy.total_steps == 50


def test_large_items_are_not_read_in_long_chunks():
    config = mini(**echoing("before_augmentation", 128))
    assert accounting.host_size(config, range(1), 2**22).rows == 128 + 32 + 1
    assert accounting.host_size(config, range(1), 2**14).rows == 128 + 32 + 128


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS[1:])
@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("streams", [1, 4])
def test_what_is_checked_is_what_stages_reserve(insertion, buffer, policy, streams):
    fields = echoing(insertion, buffer or 32, factor=2.5 if policy == "fixed" else 1)
    if policy == "fixed":
        fields["echo__shuffle_buffer"] = buffer
    config = mini(**fields, echo__policy=policy, echo__streams=streams)
    iterator = iter(make_experiment(config).batches)
    next(iterator)
    stores = [stage._pass.store for stage in _stages(iterator)]
    iterator.close()
    size = accounting.host_size(config, range(streams), 64)
    assert len(stores) == streams
    if insertion == "after_batching":  # a dictionary, which grows
        assert sum(len(store) for store in stores) <= size.rows
    else:
        assert sum(store.rows.capacity for store in stores) == size.rows


def _stages(iterator):
    """The echo stages below a Grain iterator."""
    if hasattr(iterator, "_pass"):
        return [iterator]
    return [stage for parent in iterator._parents for stage in _stages(parent)]


@given(capacity=st.integers(1, 100_000))
def test_the_numbers_kept_with_rows_are_counted(capacity):
    assert bytes_per_row(RowAllocator(capacity)) <= accounting.ROW_BYTES


@pytest.mark.parametrize(("factor", "slots"), [(1, 1_000), (1, 10_000), (1, 70_000), (2, 70_000)])
def test_they_are_counted_also_when_pending_items_are_far_apart(factor, slots):
    schedule, outputs, num_read = echo.EchoSchedule(factor, slots), 1_000, 0
    cursor, rows = schedule.cursor(), RowAllocator(schedule.max_pending(outputs))
    for _ in range(20 * slots // outputs):
        fresh = np.arange(num_read, schedule.admitted(cursor.position + outputs))
        num_read += len(fresh)
        rows.occupy(rows.next_free(len(fresh)), fresh, np.full(len(fresh), factor))
        rows.take(cursor.take(outputs)[0])
    assert 0.2 * accounting.ROW_BYTES < bytes_per_row(rows) <= accounting.ROW_BYTES


def bytes_per_row(rows):
    arrays = [value for value in vars(rows).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays) / rows.capacity


def test_batches_that_auto_does_not_read_ahead_take_no_memory(monkeypatch):
    monkeypatch.setattr(memory, "of_machine", lambda: 10_000_000)
    ahead = {"prefetch": 1024, "batch_size": 256, "budget__fresh_examples": 500_000}
    auto = echoing("before_augmentation", 256, factor=1) | {"echo__policy": "auto"}
    make_experiment(mini(**ahead, **auto))
    with pytest.raises(cli.InputError, match=r"lower config\.batch_size, config\.prefetch"):
        make_experiment(mini(**ahead))


OUT_OF_MEMORY = jax.jit(lambda: jnp.ones(2**60, jnp.uint8))  # beyond any address space


def exhaust(*_):
    """Fails as a step or an evaluation does whose activations do not fit."""
    jax.block_until_ready(OUT_OF_MEMORY())


def is_the_sentence(error, dtype="float32"):
    remedy = "lower config.batch_size or make the network smaller"
    if dtype == "float32":
        remedy = "lower config.batch_size, make the network smaller, or set config.dtype=bfloat16"
    return re.fullmatch(
        f"error: config.batch_size is 32, where the network of config.model in {dtype} needs "
        r"1,152,921,504,606,846,976 bytes at once, of each device's [\d,]+ bytes of memory; "
        f"{remedy}\n",
        error,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_advice_on_a_step_beyond_the_devices_memory_is_one_sentence(dtype, capsys, monkeypatch):
    monkeypatch.setattr(Program, "compile_train", lambda *_: exhaust)
    words = [MINI, "--seconds=0.01", *flags(mini(dtype=dtype))]
    assert cli.guarded(advise.main, words) == cli.WRONG_INPUT
    *_, error = capsys.readouterr().err.splitlines(keepends=True)  # a slow machine sees progress
    assert is_the_sentence(error, dtype)


@pytest.mark.parametrize("place", ["step", "fetch"])
def test_a_run_whose_step_exhausts_the_devices_memory_says_what_to_set(
    place, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(Stepper, place, exhaust)
    words = [MINI, f"--workdir={tmp_path / 'run'}", *flags(mini())]
    assert cli.guarded(train.main, words) == cli.FAILED
    *_, summary, error = capsys.readouterr().err.splitlines(keepends=True)
    assert summary.startswith("failed: ")
    assert is_the_sentence(error)
    assert "RESOURCE_EXHAUSTED" in (tmp_path / "run" / "error.txt").read_text()


def test_an_initialization_or_evaluation_beyond_the_devices_memory_is_one_sentence(
    tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    train.train(mini(budget__fresh_examples=320), run)
    monkeypatch.setattr(Program, "evaluate", exhaust)
    assert cli.guarded(train.main, [f"--evaluate={run}"]) == cli.WRONG_INPUT
    assert is_the_sentence(capsys.readouterr().err)
    monkeypatch.setattr(Program, "init", exhaust)
    words = [MINI, f"--workdir={tmp_path / 'other'}", *flags(mini())]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    assert is_the_sentence(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("Out of memory allocating 173559068520 bytes.", "173,559,068,520 bytes at once, of"),
        ("Out of memory while trying to allocate 1048 bytes.", "1,048 bytes at once, of"),
        ("Out of memory while trying to allocate 16.00GiB.", "16.00GiB at once, of"),
        ("Ran out of memory in memory space hbm. Used 19.7G of 15.4G hbm.", "more than"),
    ],
)
def test_what_each_platform_says_of_exhausted_memory_is_understood(message, needed):
    config, mesh = mini(), make_mesh(0, 1)
    error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {message}")
    assert f" needs {needed} each device's" in memory.exhaustion(error, config, mesh)
    other = jax.errors.JaxRuntimeError(f"INTERNAL: {message}")
    assert memory.exhaustion(other, config, mesh) is None
    assert memory.exhaustion(RuntimeError(str(error)), config, mesh) is None


def test_a_cgroups_limit_is_heeded_at_any_level(tmp_path):
    job = tmp_path / "jobs" / "7"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (tmp_path / "jobs" / "memory.max").write_text("1000\n")
    assert memory.cgroup_limits("0::/jobs/7\n", tmp_path) == [1000]
    (job / "memory.max").write_text("700\n")
    assert memory.cgroup_limits("1:cpu:/x\n0::/jobs/7\n", tmp_path) == [700, 1000]
    # a container: its own cgroup is mounted at the root, under a path that is known outside alone
    (tmp_path / "memory.max").write_text("500\n")
    assert memory.cgroup_limits("0::/docker/abc\n", tmp_path) == [500]
    assert memory.cgroup_limits("4:memory:/x\n", tmp_path) == [500]


def test_the_machines_memory_is_what_the_system_says():
    import os

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert physical / 1000 < memory.of_machine() <= physical
