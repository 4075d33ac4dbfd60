"""Sweeps of two processes that train each trial together."""

import time

import pytest

from configs import cifar10
from runs import records, workdirs
from studies.plan import load_study, open_study
from tests.helpers.processes import errors_of
from tests.helpers.runs import HANGS, flags, mini

SWEEP = """
import sys
from runs import cli, processes
processes._SHUTDOWN_SECONDS = 2
import sweep
sys.exit(cli.guarded(sweep.main, sys.argv[1:]))
"""


MINI = "configs/cifar10.py:mini"


def sweep_words(outdir, *more, **fields):
    """A sweep of two trials without echoing."""
    config = mini(**{"budget__fresh_examples": 1280, "echo__streams": 2} | fields)
    words = ["-c", SWEEP, f"--config={MINI}", "--study=demo", "--trials=2"]
    words += ["--searches=1", "--shard=0/5", f"--outdir={outdir}", "--tracker=none"]
    return [*words, *flags(config), *more]


@pytest.mark.long
def test_lanes_of_two_processes_save_at_the_same_time(two_processes, tmp_path):
    often = {"checkpoint_every_fresh_examples": 320}
    both = two_processes(sweep_words(tmp_path / "study", "--lanes=2", **often))
    errors = errors_of(both)
    assert [process.returncode for process in both] == [0, 0], errors
    results = [
        records.read_json(directory / records.RESULT)
        for _, directory in records.trials_on_disk(tmp_path / "study")
    ]
    assert [result["status"] for result in results] == ["exhausted"] * 2


BROKEN = """
import itertools, os
from data import sources, throttle
if os.environ["JAX_PROCESS_ID"] == "1":  # its storage fails in the middle of a trial
    reads, read = itertools.count(), throttle.SlowSource.__getitems__
    def fails(self, indices):
        if next(reads) > 5:
            raise sources.RecordError("the storage is gone")
        return read(self, indices)
    throttle.SlowSource.__getitems__ = fails
"""


@pytest.mark.long
def test_a_trial_that_fails_in_one_process_ends_the_sweep_in_all(two_processes, tmp_path):
    words = sweep_words(tmp_path / "study", upstream__examples_per_second=1000.0)
    words[1] = BROKEN + words[1]
    both = two_processes(words)
    errors = errors_of(both)
    assert all(process.returncode for process in both)
    (says,) = [line for line in errors[1].splitlines() if line.startswith("error: ")]
    assert "process 1: " in says
    assert "has failed (" in says
    assert "the storage is gone" in says
    # Process 0 ends with the other, or notices before that it waits in vain, and records a failure.
    results = map(records.read_json, (tmp_path / "study").rglob(records.RESULT))
    assert all(result["status"] == "failed" for result in results)


HURRIED = """
import itertools, os, time, types
from studies import runner
if os.environ["JAX_PROCESS_ID"] == "1":  # whenever it looks, any wait is over
    clock = itertools.count(step=1000)
    runner.time = types.SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep)
"""


@pytest.mark.long
def test_processes_start_a_held_trial_at_the_same_time_whatever_their_clocks(
    two_processes, tmp_path
):
    words = sweep_words(tmp_path / "study", budget__fresh_examples=320)
    words[1] = HURRIED + words[1]
    overrides = [word for word in words if word.startswith("--config.")]
    open_study(
        load_study(mini(), cifar10, MINI, "demo", overrides, trials=2, searches=1),
        tmp_path / "study",
    )
    held, other = (tmp_path / "study" / "baseline" / "0" / trial for trial in "01")
    held.mkdir(parents=True)
    with workdirs.held(held / records.LOCK) as here:
        assert here
        both = two_processes(words)
        latest = time.monotonic() + HANGS
        while not (other / records.RESULT).exists():
            ended = any(process.poll() is not None for process in both)
            if ended or time.monotonic() > latest:
                pytest.fail("\n\n".join(errors_of(both)))
            time.sleep(0.1)
    errors = errors_of(both)
    assert [process.returncode for process in both] == [0, 0], errors
    assert (held / records.RESULT).exists()
