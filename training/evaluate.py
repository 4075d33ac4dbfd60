"""Evaluates a run's best checkpoint on held-out splits, and exports its parameters."""

import contextlib
import hashlib
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from configs import base
from data import splits
from data.sources import Source
from runs import checkpoints, cli, processes, records, workdirs
from training import check, sharding
from training.experiment import held_out_batches, make_program

# Fields that an evaluation may set: where the data are, and how the devices are used.
MAY_CHANGE = ("dataset.data_dir", "dataset.cache_dir", *base.CHANGE_ROUNDING)


@processes.fixed_settings()
def evaluate(workdir: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates the run in `workdir`.

    Writes WORKDIR/evaluation.json (`status` of the run, `step` and `fresh_examples` of the best
    checkpoint, metrics by split, null if not finite, and `parameters_sha256`, the digest of the
    other file) and WORKDIR/parameters.npz, which numpy.load reads: every variable of the network by
    name, such as params/stem/conv/kernel or model_state/stem/norm/mean.

    Args:
        workdir: the directory of a run that no process is training.
        overrides: '--config.FIELD=VALUE' for fields in MAY_CHANGE.

    Returns:
        The content of evaluation.json.

    Raises:
        InputError: there is no run, it is being trained, it has no evaluated checkpoint, its data
            have changed, a record cannot be decoded, or a device has too little memory.
    """
    for override in overrides:
        name = override.removeprefix("--config.").partition("=")[0]
        if name not in MAY_CHANGE:
            raise cli.InputError(
                f"config.{name} cannot be given with --evaluate, which uses the run's own; "
                f"allowed: {', '.join(MAY_CHANGE)}"
            )
    record, status, step = processes.decided_by_first(lambda: _run_of(workdir))
    config = base.get_config()
    with config.unlocked():  # the run's configuration file may have added fields
        config.update(ConfigDict(record["config"]))
    cli.override(config, overrides)
    config.echo.insertion = "none"  # whatever was echoed, nothing is now
    config.model.ghost_batch_size = 0  # it need not suit the devices: running statistics are used
    mesh, dataset = sharding.make_mesh(config.mesh.data, config.mesh.model), config.dataset
    check.check_devices(config, mesh.shape["data"])
    _, held_out, info = splits.open_splits(dataset)
    check.check_processes(config, info)
    if info.fingerprint != record["dataset"]["fingerprint"]:
        raise cli.InputError(
            f"the data set {dataset.name!r} is not the one that {workdir} was trained on, or has "
            "changed since; restore it, or say where it is with --config.dataset.data_dir"
        )
    program = make_program(config, info, mesh)
    held_out_splits = {dataset.validation_split or "validation": held_out}
    if dataset.test_split:
        held_out_splits[dataset.test_split] = open_test_split(config)
    kept = checkpoints.Checkpoints(workdir / records.CHECKPOINTS)
    try:
        state = kept.restore(step, program.init(config.seed.model))
        fresh_examples = kept.value(step)["counters"]["fresh_examples"]
    except records.Damaged as error:
        raise cli.InputError(
            f"checkpoint {step} of {workdir} cannot be used: {error}; restore its files, or "
            "train in another directory"
        ) from error
    metrics = {}
    for name, split in held_out_splits.items():
        values = program.evaluate(state, held_out_batches(config, split, program))
        if split.damaged:  # with dataset.damaged=skip
            values["skipped_examples"] = len(split.damaged)
        metrics[name] = records.without_nonfinite(values)
    arrays = {"params": state.params, "model_state": state.model_state}
    # whole arrays, even if they are split over devices and processes
    named = checkpoints.by_path(multihost_utils.process_allgather(arrays, tiled=True))
    exported: Any = {name.removesuffix("/value"): np.asarray(x) for name, x in named.items()}
    file = io.BytesIO()
    np.savez(file, **exported)
    evaluation = {
        "status": status,
        "step": step,
        "fresh_examples": fresh_examples,
        "splits": metrics,
        "parameters_sha256": hashlib.sha256(file.getvalue()).hexdigest(),
    }
    if processes.is_first():
        records.write_bytes(workdir / records.PARAMETERS, file.getvalue())
        records.write_json(workdir / records.EVALUATION, evaluation)
    return evaluation


def open_test_split(config: ConfigDict) -> Source:
    """The examples of the test split; raises InputError if the data set has none."""
    dataset = ConfigDict(config.dataset)
    dataset.validation_split = dataset.test_split
    return splits.open_splits(dataset)[1]


def _run_of(workdir: pathlib.Path) -> tuple[dict[str, Any], str, int]:
    """The content of config.json, the status, and the best step of a run that no process trains."""
    record = records.read_json(workdir / records.CONFIG)
    result = records.read_json(workdir / records.RESULT) or {"status": "interrupted"}
    if not record:
        raise cli.InputError(
            f"{workdir} contains no run (no {records.CONFIG}); give the directory of a run"
        )
    if result["status"] not in records.FINISHED:
        with workdirs.held(workdir / records.LOCK) as free:
            if not free:
                raise cli.InputError(f"another process is training in {workdir}; stop it first")
    kept = checkpoints.Checkpoints(workdir / records.CHECKPOINTS)
    step = result["best"]["step"] if "best" in result else _newest_best(kept)
    if step not in kept.steps():
        raise cli.InputError(
            f"the run in {workdir} has no best checkpoint: no evaluation has given a finite value "
            "of its target's metric, or config.checkpoint_every_fresh_examples is 0; resume the "
            "run if it was interrupted, or give another one"
        )
    return record, result["status"], step


def _newest_best(kept: checkpoints.Checkpoints) -> int | None:
    """The best step according to the newest intact checkpoint; None if there is none."""
    for step in kept.steps():
        with contextlib.suppress(records.Damaged):
            return kept.value(step)["counters"]["best_step"]
    return None
