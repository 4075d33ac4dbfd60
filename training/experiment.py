"""From a configuration to the parts of a run: data, program, target. Nothing is written here."""

import copy
import dataclasses
from typing import Any

import numpy as np

import workloads
from data import sources, splits
from data.errors import RecordError, SourceError
from data.splits import open_data, open_splits
from data.throttle import StoppableClock, UpstreamError, record_bytes
from echo.diagnostics import CopyDiagnostics
from pipeline import accounting, build
from pipeline.evaluation import evaluation_batches
from runs import cli, distributed, records
from training import check, footprint, sharding
from training import step as steps
from training import transfer as inputs
from training.auto_policy import Pace
from workloads.interface import WorkloadError


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a configuration is made into, before anything is written."""

    config: Any
    info: sources.DatasetInfo
    program: steps.Program
    batches: Any  # a Grain IterDataset of pipeline.map_datasets.Batch
    input: inputs.Input  # sends them to the step
    validation: Any  # an iterable of (arrays, mask)
    target: records.Target
    total_steps: int | None  # of the budget; None where it is not known before
    horizon_steps: int | None  # of the schedule's horizon; likewise
    pace: Pace
    upstream_clock: StoppableClock  # stands still while the run does not train
    exchange: distributed.Exchange  # between those that echo.policy=auto decides for
    earlier: dict[int, list[int]]  # decisions of batches that were emitted before an interruption
    copies: CopyDiagnostics
    repeated_rows: accounting.RepeatedRows


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a configuration names: its data, and the compiled programs of its workload."""

    source: sources.Source
    held_out: sources.Source
    info: sources.DatasetInfo
    program: steps.Program
    held_streams: range  # the sub-streams that this process reads
    upstream_clock: StoppableClock


def opened(config) -> Opened:
    """Checks `config` and opens what it names; raises InputError if it cannot be run."""
    try:
        check.check(config)
        clock = StoppableClock()
        source, held_out, info = open_data(config, clock)
        _check_speed(config, held_out)
        workload = workloads.make(config, info)
        mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
        check.check_devices(config, mesh.shape["data"])
        held = check.held_streams(config, sharding.local_rows(mesh, config.batch_size))
        # after an echo of augmented items the step has nothing to augment
        augments = config.augment_on == "device" and not config.echo.insertion.startswith("after")
        task = steps.Task(workload, config.optimizer.name, augments, mesh, config.sharding)
        program = steps.program(task)
        footprint.check_state(program)
        return Opened(source, held_out, info, program, held, clock)
    except (
        check.ConfigError,
        SourceError,
        RecordError,
        WorkloadError,
        sharding.MeshError,
    ) as error:
        raise cli.InputError(str(error)) from error


def prepare(config) -> Parts:
    """Checks `config` and makes its parts; raises InputError if it cannot be run."""
    run = opened(config)
    task = run.program.task
    if config.target.metric not in task.workload.metrics:
        raise cli.InputError(
            f"config.target.metric is {config.target.metric!r}, which evaluating workload "
            f"{config.workload!r} does not report; allowed: {', '.join(task.workload.metrics)}"
        )
    if config.dataset.fused_decode and not hasattr(task.workload, "decode_cropped"):
        raise cli.InputError(
            f"config.dataset.fused_decode is true, which workload {config.workload!r} does not "
            "have; allowed: false"
        )
    try:  # the first records are decoded here
        held, decisions = run.held_streams, _decisions_to_replay(config)
        pace, exchange, earlier = Pace(), distributed.Exchange(), {}
        first = build.first_example(config, run.source, task.workload)
        rows = sharding.local_rows(task.mesh, config.batch_size)
        footprint.check_batches(config, first, task.workload, run.program, rows)
        # What is kept is checked before anything of a batch's size is made.
        step_input = inputs.make_input(config, first, task.workload, task.mesh, held)
        batches = build.build(
            config, run.source, task.workload, held, pace, decisions, exchange, first, earlier
        )
        validation = _evaluation_batches(config, run.held_out, task)
    except (check.ConfigError, RecordError, UpstreamError) as error:
        raise cli.InputError(str(error)) from error
    return Parts(
        config=config,
        info=run.info,
        program=run.program,
        batches=batches,
        input=step_input,
        validation=validation,
        target=records.Target(**config.target),
        total_steps=accounting.total_steps(config) if config.echo.policy == "fixed" else None,
        horizon_steps=accounting.horizon_steps(config) if config.echo.policy == "fixed" else None,
        copies=accounting.copy_diagnostics(config, len(run.source)),
        repeated_rows=accounting.repeated_rows(config, held),
        pace=pace,
        upstream_clock=run.upstream_clock,
        exchange=exchange,
        earlier=earlier,
    )


def _check_speed(config, held_out: sources.Source) -> None:
    """Checks the limits on the upstream by a record that need not pass them."""
    limits = splits.limits(config)
    if not limits.none and len(held_out):
        check.check_speed(limits, record_bytes(held_out[0]))


def _decisions_to_replay(config) -> np.ndarray | None:
    """What config.echo.replay recorded, in examples, int64 [steps, streams]; None for nothing."""
    path = config.echo.replay
    if not path:
        return None
    try:
        rows = [record["fresh"] for record in records.read_lines(path)]
        if not rows:
            raise ValueError("it is empty")
        decisions = np.asarray(rows, np.int64).reshape(len(rows), config.echo.streams)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise cli.InputError(
            f"config.echo.replay is {path!r}, which holds no decisions of a run with "
            f"echo.streams={config.echo.streams} ({error}); allowed: {records.DECISIONS} of a run "
            "with echo.policy=auto"
        ) from error
    return decisions


def test_split(parts: Parts) -> Any:
    """The test split, as `Parts.validation` is the other; InputError if there is none."""
    config = copy.deepcopy(parts.config)
    config.dataset.validation_split = config.dataset.test_split
    try:
        _, held_out, _ = open_splits(config.dataset)
    except SourceError as error:
        raise cli.InputError(str(error)) from error
    return _evaluation_batches(config, held_out, parts.program.task)


def _evaluation_batches(config, held_out: sources.Source, task: steps.Task) -> Any:
    batch_size = config.batch_size * footprint.EVALUATION_BATCHES
    held = sharding.local_rows(task.mesh, batch_size)
    return evaluation_batches(held_out, task.workload, batch_size, held)
