"""From a configuration to everything that a run consists of: data, program, batches, target.

`make_experiment` is the place where optional capabilities are chosen. It writes nothing.
"""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import grain
from jax.sharding import Mesh
from ml_collections import ConfigDict

import workloads
from configs import base
from data.sources import DatasetInfo, Source
from data.splits import open_data, open_splits
from data.throttle import StoppableClock
from echo.diagnostics import CopyDiagnostics
from pipeline import accounting, build
from pipeline.evaluation import EvaluationBatch, evaluation_batches
from pipeline.map_datasets import Arrays, Batch
from pipeline.streams import FixedPolicy
from runs import processes, records
from runs.study import nested
from training import check, sharding
from training.step import Program, Task, program
from training.transfer import Transfer
from workloads.interface import Workload

# Evaluation keeps no gradients, so its batches are larger than those of training by this factor.
EVALUATION_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run before its first step, checked and ready to start.

    Attributes:
        config: the resolved configuration.
        info: what is known about the data set.
        source: raw training examples, as slow as config.upstream makes them.
        first: the first training example, decoded, each array [1, ...].
        program: the compiled programs.
        held_streams: the streams that this process reads.
        policy: what depends on echo.policy.
        batches: the training batches.
        transfer: brings batches to the devices.
        validation: (arrays, mask) pairs of the validation split.
        target: the value at which the run ends.
        upstream_clock: what the limits of config.upstream go by; stopped while the run does not
            train.
        copies: how repeats are spread over the batches.
    """

    config: ConfigDict
    info: DatasetInfo
    source: Source
    first: Arrays
    program: Program
    held_streams: range
    policy: FixedPolicy
    batches: grain.IterDataset[Batch]
    transfer: Transfer
    validation: Iterable[EvaluationBatch]
    target: records.Target
    upstream_clock: StoppableClock
    copies: CopyDiagnostics


class OpenData(NamedTuple):
    """The splits of a checked configuration, of which nothing has been read; see `Experiment`."""

    source: Source
    held_out: Source
    info: DatasetInfo
    upstream_clock: StoppableClock


def open_splits_of(config: ConfigDict) -> OpenData:
    """Checks `config` and opens its data; raises InputError."""
    check.check(config)
    clock = StoppableClock()  # the training split may be throttled, the validation split never is
    source, held_out, info = open_data(config, clock)
    data = {f"the data set's {name}": value for name, value in dataclasses.asdict(info).items()}
    data |= {"the number of training examples": len(source)}
    _check_same(config, data | {"the number of validation examples": len(held_out)})
    return OpenData(source, held_out, info, clock)


def _check_same(config: ConfigDict, data: dict[str, Any]) -> None:
    """Raises InputError if the processes of this run differ in their configuration or data, with
    which they would wait for one another forever, or mix different orders of the examples."""
    names = [field.name for field in base.FIELDS if field.name not in base.OF_A_MACHINE]
    processes.check_same({f"config.{name}": nested(config, name) for name in names} | data)


def make_experiment(config: ConfigDict, data: OpenData | None = None) -> Experiment:
    """Checks `config` and builds its experiment.

    Args:
        config: a resolved configuration.
        data: the result of `open_splits_of`, if it has been called already.

    Raises:
        InputError: the configuration cannot be run.
    """
    source, held_out, info, clock = data or open_splits_of(config)

    # Devices: this process holds some rows of each batch, which some streams fill.
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
    workload = workloads.make(config, info)
    check.check_devices(config, mesh.shape["data"])
    held = check.held_streams(config, sharding.local_rows(mesh, config.batch_size))
    programs = _program(config, workload, mesh)

    # The input.
    first = build.first_example(config, source, workload)
    copies = accounting.copy_diagnostics(config, len(source))
    if config.echo.policy == "auto":
        from training.auto_policy import RunPolicy

        policy = RunPolicy(config, copies)
    else:
        policy = FixedPolicy(config, held)
    store = None
    if config.echo.insertion != "none" and config.echo.placement == "device":
        from training.device_store import make_store

        store = make_store(config, first, workload, mesh, held)
    return Experiment(
        config=config,
        info=info,
        source=source,
        first=first,
        program=programs,
        held_streams=held,
        policy=policy,
        batches=build.build(config, source, workload, held, policy, first, clock),
        transfer=Transfer(mesh, store),
        validation=_evaluation_batches(config, held_out, programs.task),
        target=records.Target(**config.target),
        upstream_clock=clock,
        copies=copies,
    )


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
    _check_same(config, {})
    workload, mesh = workloads.make(config, other.info), other.program.task.mesh
    return dataclasses.replace(
        other,
        config=config,
        program=_program(config, workload, mesh),
        policy=FixedPolicy(config, other.held_streams),
        target=records.Target(**config.target),
        copies=accounting.copy_diagnostics(config, len(other.source)),
    )


def _program(config: ConfigDict, workload: Workload, mesh: Mesh) -> Program:
    check.check_workload(config, workload)
    # After an echo stage that repeats augmented examples there is nothing left to augment.
    augments = config.augment_on == "device" and not config.echo.insertion.startswith("after")
    return program(Task(workload, config.optimizer.name, augments, mesh, config.sharding))


def batches_of_test_split(experiment: Experiment) -> Iterable[EvaluationBatch]:
    """Batches of the test split, like `Experiment.validation`.

    Raises:
        InputError: the data set has no such split.
    """
    config = copy.deepcopy(experiment.config)
    config.dataset.validation_split = config.dataset.test_split
    _, held_out, _ = open_splits(config.dataset)
    return _evaluation_batches(config, held_out, experiment.program.task)


def _evaluation_batches(
    config: ConfigDict, held_out: Source, task: Task
) -> Iterable[EvaluationBatch]:
    batch_size = config.batch_size * EVALUATION_BATCHES
    held = sharding.local_rows(task.mesh, batch_size)
    return evaluation_batches(held_out, task.workload, batch_size, held)
