"""From a configuration to everything that a run consists of: data, program, batches, target.

`make_experiment` is the place where optional capabilities are chosen. It writes nothing.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import grain
from jax.sharding import Mesh
from ml_collections import ConfigDict

import workloads
from data import throttle
from data.sources import DatasetInfo, Source
from data.splits import open_split, open_splits
from pipeline import build
from pipeline.augment import host_augmentation
from pipeline.evaluation import EvaluationBatch, evaluation_batches
from pipeline.map_datasets import Arrays, Batch, Examples, use_this_thread
from pipeline.streams import FixedPolicy
from runs import cli, processes, records
from training import check, sharding
from training.sharding import Transfer, stream_devices
from training.step import Program, Task, program

# Evaluation keeps no gradients, so its batches are larger than those of training by this factor.
EVALUATION_BATCHES = 4

OpenData = tuple[Source, Source, DatasetInfo]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run before its first step, checked and ready to start."""

    config: ConfigDict  # resolved
    info: DatasetInfo
    source: Source  # raw training examples, as slow as config.upstream makes them
    first: Arrays  # the first training example, decoded, each array [1, ...]
    program: Program
    held_streams: range  # the streams that this process reads
    policy: FixedPolicy  # what depends on echo.policy
    batches: grain.IterDataset[Batch]  # of training
    transfer: Transfer  # brings batches to the devices
    held_out: Source  # raw examples of the validation split
    validation: Iterable[EvaluationBatch]  # (arrays, mask) pairs of the validation split
    target: records.Target  # at which the run ends
    upstream_clock: throttle.StoppableClock | None  # stopped while the run does not train


def open_data(config: ConfigDict) -> OpenData:
    """Checks `config` and opens its training and its validation split, of which nothing is read
    yet; raises InputError."""
    check.check(config)
    source, held_out, info = open_splits(config.dataset)
    if config.dataset.test_split:  # which only `train.py --evaluate` reads
        open_split(config.dataset, config.dataset.test_split)
    check.check_processes(config, info, {"training": len(source), "validation": len(held_out)})
    return source, held_out, info


def make_experiment(config: ConfigDict, data: OpenData | None = None) -> Experiment:
    """Checks `config` and builds its experiment.

    Args:
        config: a resolved configuration.
        data: the result of `open_data`, if it has been called already.

    Raises:
        InputError: the configuration cannot be run.
    """
    source, held_out, info = data or open_data(config)
    clock = None
    if any(config.upstream.values()):  # the training split alone is slow
        clock = throttle.StoppableClock()
        source = throttle.throttled(config, source, clock)

    # Devices and network. This process holds some rows of each batch, which some streams fill.
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
    check.check_devices(config, mesh.shape["data"])
    held = check.held_streams(config, sharding.local_rows(mesh, config.batch_size))
    made = make_program(config, info, mesh)
    workload = made.task.workload

    # The input. Of a test split, which only `train.py --evaluate` reads, labels are often missing.
    if config.dataset.test_split and not config.dataset.text:
        test, _ = open_split(config.dataset, config.dataset.test_split)
        build.first_example(config, test, workload)
    first = build.first_example(config, source, workload)
    policy, workers = FixedPolicy(config, held), None
    if config.echo.policy == "auto":
        from training import auto_policy

        policy = auto_policy.of_run(config)
    if count := build.chosen_workers(config, info):
        from pipeline.workers import Workers

        given = config.to_dict(), [*cli.OWN_FILES]
        workers = Workers(functools.partial(examples_in_worker, *given), count)
    stores = config.echo.insertion != "none" and config.echo.placement == "device"
    devices = stream_devices(mesh, held) if stores else None
    enters = config.echo.insertion.startswith("after") and config.augment_on == "device"
    return Experiment(
        config=config,
        info=info,
        source=source,
        first=first,
        program=made,
        held_streams=held,
        policy=policy,
        batches=build.build(config, source, workload, held, policy, first, clock, workers, devices),
        transfer=Transfer(mesh, stores, first if enters else None),
        held_out=held_out,
        validation=held_out_batches(config, held_out, made),
        target=records.Target(**config.target),
        upstream_clock=clock,
    )


def examples_in_worker(
    config: dict[str, Any], own_files: Iterable[str], key: tuple[int, bool]
) -> Examples:
    """In a worker process: the examples of a stream, augmented or not, as `key` says. The user's
    own configuration files may add workloads."""
    use_this_thread()
    processes.check_devices()  # and JAX's settings, which a run may not take from the environment
    for path in own_files:
        cli.load_module(path)
    (stream, augmented), config_ = key, ConfigDict(config)
    source, _, info = open_splits(config_.dataset)
    workload = workloads.make(config_, info)
    examples = build.examples_of(config_, source, workload, stream)
    if not augmented:
        return examples
    first = build.first_example(config_, source, workload)
    return examples.then(host_augmentation(config_, workload, first))


def sharing_input(config: ConfigDict, other: Experiment) -> Experiment:
    """The experiment of a configuration that differs from that of `other` in optimizer, loss, and
    model seed only, with the data of `other`: nothing is opened, read, or decoded again.

    Args:
        config: a resolved configuration with echo.policy=fixed.
        other: the experiment whose source, batches, transfer, and validation split are used.

    Raises:
        InputError: the configuration cannot be run.
    """
    check.check(config)
    check.check_processes(config, other.info)
    return dataclasses.replace(
        other,
        config=config,
        program=make_program(config, other.info, other.program.task.mesh),
        policy=FixedPolicy(config, other.held_streams),
        target=records.Target(**config.target),
    )


def make_program(config: ConfigDict, info: DatasetInfo, mesh: Mesh) -> Program:
    """The programs of the configured workload on this data set; raises InputError."""
    workload = workloads.make(config, info)
    check.check_workload(config, workload)
    # After an echo stage that repeats augmented examples there is nothing left to augment.
    augments = config.augment_on == "device" and not config.echo.insertion.startswith("after")
    return program(Task(workload, config.optimizer.name, augments, mesh, config.sharding))


def held_out_batches(
    config: ConfigDict, held_out: Source, program: Program
) -> Iterable[EvaluationBatch]:
    """(arrays, mask) pairs of a validation or test split."""
    batch_size = config.batch_size * EVALUATION_BATCHES
    held = sharding.local_rows(program.task.mesh, batch_size)
    skip = config.dataset.damaged == "skip"
    return evaluation_batches(held_out, program.task.workload, batch_size, held, skip)
