"""From a configuration to everything that a run consists of: data, program, batches, target.

`make_experiment` is the place where optional capabilities are chosen. It writes nothing.
"""

import copy
import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import grain
from jax.sharding import Mesh
from ml_collections import ConfigDict

import workloads
from configs import base
from data.sources import DatasetInfo, RecordError, Source, UpstreamError
from data.splits import open_data, open_splits
from data.throttle import StoppableClock, limits
from echo.diagnostics import CopyDiagnostics
from pipeline import accounting, build
from pipeline.evaluation import EvaluationBatch, decode_for_evaluation, evaluation_batches
from pipeline.map_datasets import Arrays, Batch
from pipeline.streams import FixedStreams
from runs import cli, processes, records
from training import check, memory, sharding
from training.auto_policy import AutoPolicy
from training.step import Program, Task, program
from training.stepper import StackedStepper, Stepper
from training.transfer import Transfer, make_transfer
from workloads.interface import Workload


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
        policy: the part of training that depends on echo.policy.
        batches: the training batches.
        transfer: brings batches to the devices.
        stepper: takes the training steps.
        validation: (arrays, mask) pairs of the validation split.
        target: the value at which the run ends.
        upstream_clock: what the limits of config.upstream go by; stopped while the run does not
            train.
        copies: how repeats are spread over the batches.
        repeated_rows: which rows of a batch are repeats.
    """

    config: ConfigDict
    info: DatasetInfo
    source: Source
    first: Arrays
    program: Program
    held_streams: range
    policy: "FixedPolicy | AutoPolicy"
    batches: grain.IterDataset[Batch]
    transfer: Transfer
    stepper: Stepper | StackedStepper
    validation: Iterable[EvaluationBatch]
    target: records.Target
    upstream_clock: StoppableClock
    copies: CopyDiagnostics
    repeated_rows: accounting.RepeatedRows


def make_experiment(config: ConfigDict) -> Experiment:
    """Checks `config` and builds its experiment.

    Args:
        config: a resolved configuration.

    Raises:
        InputError: the configuration cannot be run.
    """
    try:
        return _make_experiment(config)
    except (RecordError, UpstreamError) as error:
        raise cli.InputError(str(error)) from error


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
    processes.check_same(_fields(config))
    mesh = other.program.task.mesh
    programs = _checked_program(config, workloads.make(config, other.info), mesh)
    policy = FixedPolicy(config, other.held_streams)
    return dataclasses.replace(
        other,
        config=config,
        program=programs,
        policy=policy,
        stepper=policy.stepper(programs, config.seed.data),
        target=records.Target(**config.target),
        copies=accounting.copy_diagnostics(config, len(other.source)),
        repeated_rows=accounting.repeated_rows(config, other.held_streams),
    )


def _make_experiment(config: ConfigDict) -> Experiment:
    check.check(config)

    # Data: the training split may be throttled, the validation split never is.
    upstream_clock = StoppableClock()
    source, held_out, info = open_data(config, upstream_clock)
    _check_same_everywhere(config, info, len(source), len(held_out))
    check.check_speed(limits(config))

    # Devices: this process holds some rows of each batch, which some streams fill.
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
    workload = workloads.make(config, info)
    check.check_devices(config, mesh.shape["data"])
    held_rows = sharding.local_rows(mesh, config.batch_size)
    held_streams = check.held_streams(config, held_rows)
    programs = _checked_program(config, workload, mesh)

    # The input. Memory is checked before anything of the size of a batch or buffer is allocated.
    first = build.first_example(config, source, workload)
    evaluated = first
    if config.dataset.fused_decode:  # a crop; evaluation decodes onto the canvas
        evaluated = decode_for_evaluation(held_out, workload, [0])
    memory.check_batches(config, first, evaluated, programs, held_rows)
    transfer = make_transfer(config, first, workload, mesh, held_streams)
    copies = accounting.copy_diagnostics(config, len(source))
    auto = config.echo.policy == "auto"
    policy = AutoPolicy(config, copies) if auto else FixedPolicy(config, held_streams)
    batches = build.build(
        config, source, workload, held_streams, policy.streams, first, upstream_clock
    )

    return Experiment(
        config=config,
        info=info,
        source=source,
        first=first,
        program=programs,
        held_streams=held_streams,
        policy=policy,
        batches=batches,
        transfer=transfer,
        stepper=policy.stepper(programs, config.seed.data),
        validation=_evaluation_batches(config, held_out, programs.task),
        target=records.Target(**config.target),
        upstream_clock=upstream_clock,
        copies=copies,
        repeated_rows=accounting.repeated_rows(config, held_streams),
    )


def _checked_program(config: ConfigDict, workload: Workload, mesh: Mesh) -> Program:
    """The compiled programs; raises ConfigError if the devices have no room for their state."""
    # After an echo stage that repeats augmented examples there is nothing left to augment.
    augments = config.augment_on == "device" and not config.echo.insertion.startswith("after")
    programs = program(Task(workload, config.optimizer.name, augments, mesh, config.sharding))
    memory.check_state(programs)
    check.check_workload(config, workload)
    return programs


def _check_same_everywhere(
    config: ConfigDict, info: DatasetInfo, training: int, validation: int
) -> None:
    """Raises InputError if the processes of this run differ in their configuration or data, with
    which they would wait for one another forever, or mix different orders of the examples."""
    values = _fields(config)
    values |= {f"the data set's {name}": of for name, of in dataclasses.asdict(info).items()}
    values |= {"the number of training examples": training}
    values |= {"the number of validation examples": validation}
    processes.check_same(values)


def _fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that must be the same in all processes, by name."""
    names = [field.name for field in base.FIELDS if field.name not in base.OF_A_MACHINE]
    return {f"config.{name}": cli.get_field(config, name) for name in names}


class FixedPolicy:
    """The part of training that depends on echo.policy, for 'fixed': the order of the batches is
    known in advance, so there is nothing to time, to record, or to repeat.

    Attributes:
        streams: how the streams of the run echo, count fresh examples, and end.
        total_steps: in the budget; None if not known in advance.
        horizon_steps: in the horizon of the learning-rate schedule; None likewise.
        repeats: whether examples may be repeated.
    """

    def __init__(self, config: ConfigDict, held: range):
        self.streams = FixedStreams(config, held)
        self.total_steps = accounting.total_steps(config)
        self.horizon_steps = accounting.horizon_steps(config)
        echoes = config.echo.insertion != "none" and config.echo.factor > 1
        self.repeats = echoes or config.dataset.spaced_epochs > 1

    def stepper(self, program: Program, data_seed: int) -> Stepper:
        """The stepper of a run."""
        return Stepper(program, data_seed)

    def busy(self, seconds: float) -> float:
        """For how many of the `seconds` that the loop just waited for input the device was
        running because the policy chose to wait."""
        del seconds
        return 0.0

    def resume(self, workdir: pathlib.Path, step: int) -> None:
        """Called once before the first batch, with the step of the checkpoint or 0."""

    def stepped(self, step: int, batch: Batch) -> None:
        """Called after each step, with its number and the batch that it took."""

    def sync(self) -> dict[str, records.Extent]:
        """Forces records to disk; by file name, the extent that a checkpoint covers."""
        return {}

    def close(self) -> None:
        """Called once at the end of the run."""


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
    batch_size = config.batch_size * memory.EVALUATION_BATCHES
    held = sharding.local_rows(task.mesh, batch_size)
    return evaluation_batches(held_out, task.workload, batch_size, held)
