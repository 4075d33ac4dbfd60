"""Several processes: who joins, what each reads, and that together they give the numbers of one."""

import signal

import jax
import numpy as np
import pytest

import train
import workloads
from data.splits import open_splits
from pipeline import accounting, build, streams
from pipeline.evaluation import evaluation_batches
from runs import cli, processes, records
from tests.helpers.processes import errors_of
from tests.helpers.runs import (
    HANGS,
    INSERTIONS_AND_BUFFERS,
    command,
    echoing,
    mini,
    placed,
    wait_until_held,
)
from training import check

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_PROCID": "0"}
MPI = {"OMPI_MCA_orte_hnp_uri": "x"}
BY_HAND = {"JAX_COORDINATOR_ADDRESS": "host:1234", "JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}
JOINED = {"coordinator_address": "host:1234", "num_processes": 2, "process_id": 1}
ALONE, BY_JAX, WRONG = None, {}, cli.InputError  # JAX itself handles launchers of several

WHO = [
    ({}, ALONE),
    (SLURM | {"SLURM_NTASKS": "1"}, ALONE),
    ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, ALONE),  # salloc without srun: one process
    (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, ALONE),
    ({"TPU_WORKER_HOSTNAMES": "localhost"}, ALONE),
    (SLURM | {"SLURM_NTASKS": "²"}, ALONE),
    (BY_HAND | {"JAX_NUM_PROCESSES": "1"}, ALONE),
    (SLURM | {"SLURM_NTASKS": "2"}, BY_JAX),
    (MPI | {"OMPI_COMM_WORLD_SIZE": "8"}, BY_JAX),
    ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, BY_JAX),
    (BY_HAND, JOINED | {"cluster_detection_method": "deactivate"}),
    *((BY_HAND | {"JAX_NUM_PROCESSES": n}, WRONG) for n in ("", "two", "²", "9" * 5000)),
    (BY_HAND | {"JAX_PROCESS_ID": "2"}, WRONG),
    *((BY_HAND | {"JAX_COORDINATOR_ADDRESS": a}, WRONG) for a in ("host", ":1234", "host:port")),
]


@pytest.mark.parametrize(("environment", "arguments"), WHO, ids=range(len(WHO)))
def test_who_joins_others(environment, arguments):
    if arguments is WRONG:
        with pytest.raises(cli.InputError, match="JAX_NUM_PROCESSES"):
            processes.detect(environment)
    else:
        assert processes.detect(environment) == arguments


# 102: slots that four streams cannot share evenly; 699: streams of different lengths
@pytest.mark.long
@pytest.mark.parametrize(
    ("insertion", "buffer", "budget"),
    [(*case, 699) for case in INSERTIONS_AND_BUFFERS] + [("before_augmentation", 102, 640)],
)
def test_two_halves_of_the_streams_give_the_whole_batches(insertion, buffer, budget):
    config = mini(**echoing(insertion, buffer), echo__streams=4, budget__fresh_examples=budget)
    source, _, info = open_splits(config.dataset)
    workload = workloads.make(config, info)

    def batches(held):
        return iter(build.build(config, source, workload, held))

    whole, first, second = batches(None), batches(range(2)), batches(range(2, 4))
    for number in range(accounting.total_steps(config)):
        if number == 5:  # continue from the state of both halves, each with a fresh iterator
            state = streams.merge_states([half.get_state() for half in (first, second)])
            for old in (first, second, whole):
                old.close()
            whole, first, second = batches(None), batches(range(2)), batches(range(2, 4))
            for new in (first, second, whole):
                new.set_state(state)
        wanted, *halves = (next(iterator) for iterator in (whole, first, second))
        joined = streams.concatenate(halves)
        np.testing.assert_array_equal(joined.index, wanted.index)
        np.testing.assert_array_equal(joined.data["image"], wanted.data["image"])
        assert {half.fresh_examples for half in halves} == {wanted.fresh_examples}
    for iterator in (whole, first, second):
        assert next(iterator, None) is None
        iterator.close()


def test_each_process_evaluates_its_share_of_each_batch():
    config = mini()
    _, held_out, info = open_splits(config.dataset)
    workload = workloads.make(config, info)

    def batches(held):
        return list(evaluation_batches(held_out, workload, 256, held))

    for (data, mask), *halves in zip(
        batches(None), batches(range(128)), batches(range(128, 256)), strict=True
    ):
        np.testing.assert_array_equal(np.concatenate([m for _, m in halves]), mask)
        shown = np.concatenate([d["label"] for d, _ in halves])
        np.testing.assert_array_equal(shown[mask == 1], data["label"][mask == 1])


def test_streams_that_the_processes_cannot_share_are_refused(monkeypatch):
    assert check.held_streams(mini(echo__streams=4), range(16, 32)) == range(2, 4)
    with pytest.raises(check.ConfigError, match=r"echo\.streams"):
        check.held_streams(mini(), range(16))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(check.ConfigError, match=r"echo\.policy"):  # each would decide alone
        check.held_streams(mini(echo__policy="auto", echo__streams=2), range(16))


def last_lines(both):
    """What two processes print last, once they have ended well."""
    said, errors = zip(*[process.communicate(timeout=HANGS) for process in both], strict=True)
    assert [process.returncode for process in both] == [0, 0], errors
    return [text.splitlines()[-1] for text in said]


@pytest.mark.long
def test_two_processes_stop_together_and_one_process_resumes(
    two_processes, tmp_path, uninterrupted
):
    fields = {"echo__streams": 2, "log_every_steps": 1, "evaluate_every_fresh_examples": 1600}
    fields["budget__fresh_examples"] = 3200  # steps go on while the stop is agreed on
    # images come from each process's own store, and what belongs to them from its host
    config = mini(**placed("before_augmentation", 50), **fields)
    workdir = tmp_path / "run"
    words = command(config, workdir)
    both = two_processes(["train.py", *words], ["-m", "tests.helpers.held_training", "8", *words])
    wait_until_held(both[1])
    both[1].send_signal(signal.SIGUSR1)  # to the one that does not write
    errors = errors_of(both[::-1])
    assert [process.returncode for process in both] == [cli.PREEMPTED] * 2, errors
    assert records.read_json(workdir / records.CONFIG)["hardware"]["processes"] == 2
    stopped = len(records.read_metrics(workdir))
    stopped_at = records.read_json(workdir / records.RESULT)["step"]
    assert train.train(config, workdir)["status"] == "exhausted"
    (resumed,) = records.read_json(workdir / records.CONFIG)["resumed"]
    assert (resumed["step"], resumed["hardware"]["processes"]) == (stopped_at, 1)
    one, two = (records.read_metrics(directory) for directory in (uninterrupted(config), workdir))
    assert 6 <= stopped < len(two)
    assert [r["fresh_examples"] for r in two] == [r["fresh_examples"] for r in one]
    trained = [[r for r in run if r["split"] == "train"] for run in (two, one)]
    losses = [[r["loss"] for r in run[:5]] for run in trained]
    np.testing.assert_allclose(*losses, rtol=2e-4)


BROKEN = """
import itertools, os, sys
sys.path.insert(0, os.getcwd())
import train
from data import sources, throttle
from runs import cli
if os.environ["JAX_PROCESS_ID"] == "0":  # its storage fails in the middle of the run
    reads, read = itertools.count(), throttle.SlowSource.__getitems__
    def fails(self, indices):
        if next(reads) > 5:
            raise sources.RecordError("the storage is gone")
        return read(self, indices)
    throttle.SlowSource.__getitems__ = fails
sys.exit(cli.guarded(train.main, sys.argv[1:]))
"""


@pytest.mark.long
def test_a_process_whose_input_fails_ends_all(two_processes, tmp_path):
    config = mini(echo__streams=2, upstream__examples_per_second=30.0)
    both = two_processes(["-c", BROKEN, *command(config, tmp_path / "run")])
    first, _ = errors_of(both)  # JAX aborts all
    assert all(process.returncode for process in both), first
    assert "the storage is gone" in first
    assert records.read_json(tmp_path / "run" / records.RESULT)["status"] == "failed"


STOP = """
import os, signal, sys
import jax, numpy as np
from jax._src.distributed import global_state
from runs import checkpoints, processes, signals
processes.initialize()
own, saves = jax.process_index(), sys.argv[2] == "after saving"
calls = 4 - own if saves else 0
with signals.stop_requested() as stop:
    kept = checkpoints.Checkpoints(sys.argv[1])
    for step in range(16, 16 + calls):
        assert not stop()
        if step == 16:
            kept.save(step, {"x": np.zeros(3)}, None, step)
    kept.close()  # the checkpoint of step 16 is complete only now
    if own:
        os.kill(os.getpid(), signal.SIGTERM)
    global_state.client.blocking_key_value_get(f"PREEMPTION_CURRENT_COUNTER/{own}", 60_000)
    print([call for call in range(calls, 8) if stop()])
"""


@pytest.mark.parametrize("when", ["before the first step", "after saving"])
def test_processes_stop_at_the_same_call_whatever_the_step(when, two_processes, tmp_path):
    """JAX's service misses a stop if the numbers that it receives go back or start at a step."""
    both = two_processes(["-c", STOP, str(tmp_path / "checkpoints"), when])
    assert last_lines(both) == ["[4]" if when == "after saving" else "[1]"] * 2


SAVE_AND_DAMAGE = """
import os, pathlib, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from runs import checkpoints, processes, resuming
processes.initialize()
own, work = jax.process_index(), pathlib.Path(sys.argv[1])
rows = NamedSharding(Mesh(np.asarray(jax.devices()), "data"), PartitionSpec("data"))
def whole(seed):
    return np.random.default_rng(seed).normal(size=(4, 20_000)).astype(np.float32)
def array(seed):
    return jax.make_array_from_process_local_data(rows, whole(seed)[2 * own : 2 * own + 2])
kept = checkpoints.Checkpoints(work / "checkpoints")
for step in (1, 2):
    value = {"counters": {"step": step}, "records": {}}
    kept.save(step, {"x": array(step)}, value, -1)
kept.close()
processes.gather(None)
if own:
    for path in (work / "checkpoints/2/arrays/ocdbt.process_1").rglob("*"):
        if path.is_file() and path.stat().st_size > 10_000:
            path.write_bytes(path.read_bytes()[:5000])
processes.gather(None)
step, restored, _ = resuming.newest_usable(work, kept, {"x": array(0)}, print)
assert np.array_equal(restored["x"].addressable_data(0), array(1).addressable_data(0))
processes.gather(None)
print("from", step)
"""


def test_processes_take_the_checkpoint_that_is_whole(two_processes, tmp_path):
    assert last_lines(two_processes(["-c", SAVE_AND_DAMAGE, str(tmp_path)])) == ["from 1"] * 2
    assert [path.name for path in (tmp_path / records.DAMAGED).iterdir()] == ["checkpoint_2"]


def test_processes_with_other_configurations_are_one_sentence(two_processes, tmp_path):
    runs = (command(mini(seed__model=seed), tmp_path / "run") for seed in (0, 1))
    both = two_processes(*(["train.py", *words] for words in runs))
    errors = errors_of(both)
    assert [process.returncode for process in both] == [cli.WRONG_INPUT] * 2, errors
    assert all("config.seed.model" in text for text in errors)
    assert not (tmp_path / "run").exists()
