"""From a configuration to the parts of a run: data, program, target. Nothing is written here."""

import copy
import dataclasses
from typing import Any

import workloads
from pipeline import build, sources
from pipeline.opening import open_data, open_splits
from pipeline.stages import RecordError
from pipeline.upstream import UpstreamError
from runs import command, records
from training import check, sharding
from training import step as steps
from workloads.base import WorkloadError

# Evaluation has no gradients to keep, so it takes larger batches than training.
_EVALUATION_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a configuration is made into, before anything is written."""

    config: Any
    info: sources.DatasetInfo
    program: steps.Program
    batches: Any  # a Grain IterDataset of pipeline.stages.Batch
    validation: Any  # an iterable of (arrays, mask)
    target: records.Target
    total_steps: int


def prepare(config) -> Parts:
    """Checks `config` and makes its parts; raises InputError if it cannot be run."""
    try:
        check.check(config)
        source, held_out, info = open_data(config)
        workload = workloads.make(config, info)
        mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
        check.check_devices(config, mesh.shape["data"])
        held = check.held_streams(config, sharding.local_rows(mesh, config.batch_size))
        augments = config.augment_on == "device"
        task = steps.Task(workload, config.optimizer.name, augments, mesh, config.sharding)
        program = steps.program(task)
    except (check.ConfigError, sources.SourceError, WorkloadError, sharding.MeshError) as error:
        raise command.InputError(str(error)) from error
    if config.target.metric not in workload.metrics:
        raise command.InputError(
            f"config.target.metric is {config.target.metric!r}, which evaluating workload "
            f"{config.workload!r} does not report; allowed: {', '.join(workload.metrics)}"
        )
    try:  # the first records are decoded here
        batches = build.build(config, source, workload, held)
        validation = _evaluation_batches(config, held_out, task)
    except (RecordError, UpstreamError) as error:
        raise command.InputError(str(error)) from error
    return Parts(
        config=config,
        info=info,
        program=program,
        batches=batches,
        validation=validation,
        target=records.Target(**config.target),
        total_steps=build.total_steps(config),
    )


def test_split(parts: Parts) -> Any:
    """The test split, as `Parts.validation` is the other; InputError if there is none."""
    config = copy.deepcopy(parts.config)
    config.dataset.validation_split = config.dataset.test_split
    try:
        _, held_out, _ = open_splits(config.dataset)
    except sources.SourceError as error:
        raise command.InputError(str(error)) from error
    return _evaluation_batches(config, held_out, parts.program.task)


def _evaluation_batches(config, held_out: sources.Source, task: steps.Task) -> Any:
    batch_size = config.batch_size * _EVALUATION_BATCHES
    held = sharding.local_rows(task.mesh, batch_size)
    return build.evaluation_batches(held_out, task.workload, batch_size, held)
