"""Studies of many trials: time and memory to analyze and resume them, and overhead of scheduling.

    python -m benchmarks.study_scale --out=results/study_scale.md
    python -m benchmarks.study_scale --sizes=100000x20 --keep=DIR      4 GB; keeps the study in DIR

A study is run by the code behind sweep.py with eight shards on one directory, but its trials train
nothing: each writes the records of a run with the given number of evaluations, by the code that
train.py writes them with. What a shard needs besides that writing is the overhead of scheduling.
With Ray installed, a second study of up to 1,000 trials is run by as many Ray workers on one
directory; Ray's own processes are not measured. The finished study is then resumed by one process,
analyzed (`python -m analysis`). Every part runs in a new process.
Memory is the largest increase after imports.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import math
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np
from ml_collections import ConfigDict

import train
from benchmarks import common
from configs import base, catalog, cifar10
from data.splits import open_data
from pipeline.map_datasets import CORES
from runs import environment, records, workdirs
from runs.progress import Progress
from runs.study import Study
from runs.tracking import Followers, Recorder
from studies import runner
from studies.search import make_study
from studies.trial import Outcome, attempt

SHARDS = 8
FACTORS = (2, 3, 4, 5, 6, 8, 10, 12, 16)  # with the baseline, ten conditions
MAX_RAY_TRIALS = 1_000
HEADER = ("trials", "evaluations", "what", "seconds", "processor seconds", "ms per trial", "MB")


@dataclasses.dataclass(frozen=True)
class Size:
    """Trials in all, and evaluations of each."""

    trials: int
    evaluations: int

    @classmethod
    def of(cls, text: str) -> "Size":
        """Parses '1000x500'; raises argparse.ArgumentTypeError."""
        with contextlib.suppress(ValueError):
            size = cls(*map(int, text.split("x")))
            if size.trials >= 100 and size.evaluations >= 1:
                return size
        raise argparse.ArgumentTypeError(
            f"got {text!r}; allowed: TRIALSxEVALUATIONS with at least 100 trials, such as 1000x500"
        )


# --- a study that trains nothing


def study_of(size: Size) -> Study:
    """Ten conditions. Searches, and the trials of each, grow with the square root of the size."""
    per_condition = size.trials // (len(FACTORS) + 1)
    searches = max(2, round(math.sqrt(per_condition / 2)))
    config = cifar10.get_config("mini")
    config.budget.fresh_examples = 96 * size.evaluations * config.batch_size
    config.evaluate_every_fresh_examples = 96 * config.batch_size
    conditions = catalog.BASELINE | {
        f"e{e}": catalog.echo("before_augmentation", e, 256) for e in FACTORS
    }
    return make_study(
        "scale",
        config,
        conditions,
        cifar10.get_search_space("mini"),
        trials=per_condition // searches,
        searches=searches,
        baseline="baseline",
        config_flag="configs/cifar10.py:mini",
    )


@functools.cache
def _dataset() -> dict[str, Any]:
    return open_data(cifar10.get_config("mini"))[2].to_record()


class Writer:
    """Stands in for `train.train`: writes a run's records, and adds up the seconds that it needs.

    Its accuracy approaches 1 at a rate that depends on seed and factor; one run in ten stops short
    of the target.
    """

    def __init__(self, evaluations: int):
        self._evaluations = evaluations
        self.trials, self.seconds, self.processor_seconds = 0, 0.0, 0.0
        self._first = 0.0, 0.0

    def __call__(self, config: ConfigDict, workdir: pathlib.Path, *_, **__) -> dict[str, Any]:
        wall, processor = time.perf_counter(), time.process_time()
        if not self.trials:
            self._first = wall, processor
        record = {"config": config.to_dict(), "dataset": _dataset()}
        record |= environment.describe()
        workdirs.enter(workdir, record, base.MAY_CHANGE_ON_RESUME, None)
        recorder = Recorder(workdir, 0, Followers({}, lambda line: None))
        result = _write(recorder, config, self._evaluations)
        recorder.close()
        recorder.write_result(result)
        self.trials += 1
        self.seconds += time.perf_counter() - wall
        self.processor_seconds += time.process_time() - processor
        return result

    def overhead(self) -> tuple[float, float]:
        """Seconds, and processor seconds, since the first trial began that were not spent here."""
        wall, processor = self._first
        return (
            time.perf_counter() - wall - self.seconds,
            time.process_time() - processor - self.processor_seconds,
        )


def _write(recorder: Recorder, config: ConfigDict, evaluations: int) -> dict[str, Any]:
    """Writes metrics.jsonl; returns the content of result.json."""
    rng = np.random.default_rng(config.seed.model)
    rate, limit = rng.uniform(2, 8) * config.echo.factor**0.5, rng.uniform(0.965, 1.0)
    target, every = records.Target(**config.target.to_dict()), 96 * config.batch_size
    best: dict[str, Any] = {"metric": target.metric, "value": None, "fresh_examples": None}
    at, status = {}, "exhausted"
    for number in range(1, evaluations + 1):
        accuracy = float(limit * (1 - math.exp(-rate * number / evaluations)))
        if number <= 0.9 * evaluations:  # so that records are long
            accuracy = min(accuracy, target.value - 0.001)
        at = {
            "step": int(96 * number * config.echo.factor),
            "fresh_examples": number * every,
            "train_seconds": 1.5 * number,
            "wall_seconds": 1.75 * number,
            "input_wait_fraction": 0.125,
        }
        recorder.write(at | {"split": "train", "loss": 2 * (1 - accuracy), "learning_rate": 0.1})
        recorder.write(
            at | {"split": "validation", "loss": 2 * (1 - accuracy), target.metric: accuracy}
        )
        best |= {"value": accuracy, "fresh_examples": number * every}
        if target.reached(accuracy):
            status = "reached"
            break
    reached = status == "reached"
    return at | {
        "status": status,
        "target": dataclasses.asdict(target),
        "fresh_examples_to_target": at["fresh_examples"] if reached else None,
        "steps_to_target": at["step"] if reached else None,
        "seconds_to_target": at["train_seconds"] if reached else None,
        "best": best,
    }


# --- what is measured, each part in a new process


def run_shard(directory: pathlib.Path, size: Size, index: int) -> tuple[int, common.Usage]:
    """Runs one shard of the study; returns its trials, and the overhead of scheduling them. What a
    launch checks before its first trial is left out."""
    writer = Writer(size.evaluations)
    work = functools.partial(_run, size, directory, (index, SHARDS))
    with mock.patch.object(train, "train", writer):
        usage = common.usage(work)
    return writer.trials, common.Usage(*writer.overhead(), usage.memory)


def run_on_ray(directory: pathlib.Path, size: Size) -> common.Usage:
    """Runs the study with Ray. The CPU time is that of this process, with what a launch
    checks, and the overhead of the workers; the seconds are those of the whole run."""
    from benchmarks import study_scale  # by its name, under which workers can import it
    from studies import ray_executor

    study, quiet = study_of(size), Progress(quiet=True)
    counts = pathlib.Path(tempfile.mkdtemp(dir=directory.parent))

    evaluations = size.evaluations

    def task(*arguments: Any) -> Outcome:
        return study_scale.attempt_on_ray(counts, evaluations, *arguments)

    with mock.patch.object(ray_executor, "attempt", task):
        executor = ray_executor.RayExecutor(study, directory, quiet, cpus=CORES / SHARDS)
        status = []
        usage = common.usage(
            lambda: status.append(runner.run(study, directory, quiet, lambda *_: executor))
        )
    assert status == ["finished"], status
    workers = [json.loads(path.read_text()) for path in counts.iterdir()]
    shutil.rmtree(counts)
    return dataclasses.replace(
        usage, processor_seconds=usage.processor_seconds + math.fsum(workers)
    )


_writers: dict[int, Writer] = {}  # of this process, by evaluations


def attempt_on_ray(counts: pathlib.Path, evaluations: int, *arguments: Any) -> Outcome:
    """Replaces `attempt` in a Ray worker: trains nothing, and notes the worker's overhead."""
    writer = _writers.setdefault(evaluations, Writer(evaluations))
    with mock.patch.object(train, "train", writer):
        outcome = attempt(*arguments)
    (counts / str(os.getpid())).write_text(json.dumps(writer.overhead()[1]))
    return outcome


def resume(directory: pathlib.Path, size: Size) -> common.Usage:
    with mock.patch.object(train, "train", None):  # nothing is left to train
        return common.usage(lambda: _run(size, directory))


def _run(size: Size, directory: pathlib.Path, shard: tuple[int, int] = (0, 1)) -> None:
    status = runner.run(study_of(size), directory, Progress(quiet=True), shard=shard)
    assert status == "finished", status


def analyze(directory: pathlib.Path, size: Size) -> common.Usage:
    from analysis import __main__ as command

    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        return common.usage(lambda: command.main([str(directory), f"--out={out}"]))


PARTS = {"resume": resume, "analyze": analyze}


def measure(size: Size, directory: pathlib.Path) -> list[list[str]]:
    """The rows of one size."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        jobs = [
            pool.submit(common.in_new_process, run_shard, directory, size, index)
            for index in range(SHARDS)
        ]
        shards = [job.result() for job in jobs]
    elapsed = time.perf_counter() - start
    trials = sum(number for number, _ in shards)
    common.progress(f"{trials:,} trials written in {elapsed:.0f} s")
    scheduling = common.Usage(
        sum(usage.seconds for _, usage in shards),
        sum(usage.processor_seconds for _, usage in shards),
        max(usage.memory for _, usage in shards),
    )
    rows = [_row(size, trials, f"schedule, {SHARDS} shards", scheduling)]
    if importlib.util.find_spec("ray") and size.trials <= MAX_RAY_TRIALS:
        beside = directory.with_name(f"{directory.name}_ray")
        usage = common.in_new_process(run_on_ray, beside, size)
        rows.append(_row(size, trials, f"schedule, {SHARDS} Ray workers", usage))
        shutil.rmtree(beside)
    for name, part in PARTS.items():
        rows.append(_row(size, trials, name, common.in_new_process(part, directory, size)))
        common.progress(", ".join(rows[-1]))
    return rows


def _row(size: Size, trials: int, name: str, usage: common.Usage) -> list[str]:
    return [
        f"{trials:,}",
        str(size.evaluations),
        name,
        f"{usage.seconds:,.1f}",
        f"{usage.processor_seconds:,.1f}",
        f"{1000 * usage.processor_seconds / trials:.2f}",
        f"{usage.memory / 1e6:,.0f}",
    ]


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    common.add_list(parser, "--sizes", Size.of, "1000x20,10000x20,1000x500,10000x500")
    parser.add_argument(
        "--keep", type=pathlib.Path, metavar="DIR", help="keep the studies in this new directory"
    )
    options = parser.parse_args(argv)
    if options.keep:
        try:
            options.keep.mkdir(parents=True)
        except OSError as error:
            parser.error(f"--keep: {error}; allowed: a directory that does not exist yet")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.sizes:
            name = f"{size.trials}x{size.evaluations}"
            directory = (options.keep or pathlib.Path(temporary)) / name
            rows += measure(size, directory)
            if not options.keep:
                shutil.rmtree(directory)
    text = [
        "# Studies of many trials",
        "What do studies with many trials cost? Measured by `python -m benchmarks.study_scale` on "
        + common.machine(["jax", "numpy", "pandas", "matplotlib"]),
        f"Ten conditions. Seconds of scheduling are summed over {SHARDS} processes that share the "
        "machine. Milliseconds are of CPU time.",
        common.markdown_table(HEADER, rows),
    ]
    common.publish("\n\n".join(text), options.out)


if __name__ == "__main__":
    main()
