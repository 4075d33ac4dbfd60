"""Evaluates a run's best checkpoint on held-out splits, and exports its parameters."""

import contextlib
import functools
import hashlib
import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from configs import base
from data.sources import RecordError
from runs import checkpoints, cli, processes, records, trial_records, workdirs
from runs.study import is_number
from training import memory
from training.experiment import Experiment, batches_of_test_split, make_experiment
from training.step import TrainState

# Fields that an evaluation may set: where the data are, and how the devices are used.
MAY_CHANGE = ("dataset.data_dir", "dataset.cache_dir", *base.CHANGE_ROUNDING)

_INTERRUPTED = "interrupted"  # the status of a run without a result


def evaluate(workdir: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates the run in `workdir`. A finished run is evaluated once; a second call returns the
    stored result. An interrupted run may still find a better checkpoint, so its stored result is
    replaced by the next call.

    Writes WORKDIR/evaluation.json (`status` of the run, `step` and `fresh_examples` of the best
    checkpoint, metrics by split, null if not finite, and the digest `sha256` of the other file) and
    WORKDIR/parameters.npz, which numpy.load reads: every variable of the network by name, such as
    params/stem/conv/kernel or model_state/stem/norm/mean.

    Args:
        workdir: the directory of a run that no process is training.
        overrides: '--config.FIELD=VALUE' for fields in MAY_CHANGE.

    Returns:
        The content of evaluation.json.

    Raises:
        InputError: there is no run, it is being trained, it has no evaluated checkpoint, or a
            record cannot be decoded, or a device has too little memory.
    """
    for override in overrides:
        name = override.removeprefix("--config.").partition("=")[0]
        if name not in MAY_CHANGE:
            raise cli.InputError(
                f"config.{name} cannot be given with --evaluate, which uses the run's own; "
                f"allowed: {', '.join(MAY_CHANGE)}"
            )
    config, status, best = processes.decided_by_first(lambda: _run_of(workdir))
    finished = status in records.FINISHED
    if finished and (stored := processes.decided_by_first(lambda: _stored_evaluation(workdir))):
        return stored
    configured = _configured(config, overrides)
    experiment = make_experiment(_without_training(configured))
    with memory.exhaustion_explained(experiment.config):
        state, counters = _best(workdir, experiment, best if finished else None)
        values = _evaluated(experiment, state)
    arrays = _on_host({"params": state.params, "model_state": state.model_state})
    parameters = _npz(arrays)
    evaluation = {
        "status": status,
        "step": counters["step"],
        "fresh_examples": counters["fresh_examples"],
        "splits": values,
        "sha256": {records.PARAMETERS: hashlib.sha256(parameters).hexdigest()},
    }
    if processes.is_first():
        records.write_bytes(workdir / records.PARAMETERS, parameters)
        records.write_json(workdir / records.EVALUATION, evaluation)
    return evaluation


def _without_training(config: ConfigDict) -> ConfigDict:
    """The configuration without what only training needs: the examples' upstream, the decisions
    that were replayed, the memory of a buffer, a schedule, whose horizon may be less than a batch
    without echoing."""
    streams, default = config.echo.streams, base.get_config()
    config.upstream, config.echo = default.upstream, default.echo
    config.optimizer.schedule = default.optimizer.schedule
    config.echo.streams = streams  # which may have to suit the number of processes
    config.budget.fresh_examples = max(config.budget.fresh_examples, config.batch_size)  # a step
    return config


def _evaluated(experiment: Experiment, state: TrainState) -> dict[str, dict[str, float | None]]:
    """Metrics by split, None for one that is not finite; raises InputError for a record that cannot
    be decoded."""
    dataset, splits = experiment.config.dataset, {}
    splits[dataset.validation_split] = experiment.validation
    try:  # opening a split may decode its records, evaluating it does
        if dataset.test_split:
            splits[dataset.test_split] = batches_of_test_split(experiment)
        return {
            name: records.without_nonfinite(experiment.program.evaluate(state, batches))
            for name, batches in splits.items()
        }
    except RecordError as error:
        raise cli.InputError(str(error)) from error


def _run_of(workdir: pathlib.Path) -> tuple[dict[str, Any], str, dict[str, Any] | None]:
    """The configuration, the status, and the best value of a run that no process is training."""
    with cli.damage_explained(f"the run in {workdir}"), cli.writing_to(workdir):
        record = trial_records.read_config(workdir)
        result = trial_records.read_result(workdir)
    if not record.get("config"):
        raise cli.InputError(
            f"{workdir} contains no run (no {records.CONFIG}); give the directory of a run"
        )
    status = result.get("status", _INTERRUPTED)
    if status not in records.FINISHED:
        workdirs.check_kinds(workdir)
        with cli.writing_to(workdir), workdirs.held(workdir / records.LOCK) as free:
            if not free:
                raise cli.InputError(f"another process is training in {workdir}; stop it first")
    return record["config"], status, result.get("best")


def _stored_evaluation(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The result of an earlier call for the finished run; None if there is none, or if one of its
    files is damaged."""
    with contextlib.suppress(records.Damaged, OSError):
        stored = records.read_object(workdir / records.EVALUATION)
        if stored and _is_evaluation(stored):
            with records.open_file(workdir / records.PARAMETERS) as parameters:
                digest = {records.PARAMETERS: hashlib.file_digest(parameters, "sha256").hexdigest()}
            return stored if stored.get("sha256", digest) == digest else None  # older: no digest
    return None


def _is_evaluation(stored: dict[str, Any]) -> bool:
    """Whether a value has the structure that `evaluate` returns for a finished run."""
    counts = (stored.get("step"), stored.get("fresh_examples"))
    splits = stored.get("splits")
    if not all(type(count) is int for count in counts) or not isinstance(splits, dict):
        return False
    if stored.get("status", "exhausted") not in records.FINISHED:  # older ones have no status
        return False
    return all(
        isinstance(values, dict) and all(x is None or is_number(x) for x in values.values())
        for values in splits.values()
    )


def _configured(stored: dict[str, Any], overrides: Sequence[str]) -> ConfigDict:
    """A stored configuration with `overrides`; fields that did not exist yet get their defaults."""
    config = base.get_config()
    try:
        config.update(ConfigDict(stored))
    except (AttributeError, KeyError, TypeError) as error:
        raise cli.InputError(
            f"the run's configuration is not of this version ({error}); use the commit in its "
            f"{records.CONFIG}"
        ) from error
    cli.override(config, overrides)
    return config


def _best(
    workdir: pathlib.Path, experiment: Experiment, value: dict[str, Any] | None
) -> tuple[TrainState, dict[str, Any]]:
    """State and counters of the best checkpoint. `value` is the finished run's best; None for an
    interrupted run, whose newest intact checkpoint decides."""
    kept = checkpoints.Checkpoints(workdir / records.CHECKPOINTS)
    steps = kept.steps()
    best = _best_step(kept, steps, value)
    if best == -1 or (value and value["value"] is None):
        raise cli.InputError(
            f"the run in {workdir} has no best checkpoint, since no evaluation has given a finite "
            f"{experiment.target.metric}; resume it if it was interrupted, or give another run"
        )
    if best is None or best not in steps:
        raise cli.InputError(
            f"the run in {workdir} kept no evaluated checkpoint that is intact; train with a "
            "config.checkpoint_every_fresh_examples above 0"
        )
    like = experiment.program.init(experiment.config.seed.model)
    try:
        return _intact(kept, best, lambda: (kept.restore(best, like), _counters(kept, best)))
    except records.Damaged as error:
        raise cli.InputError(
            f"checkpoint {best} of {workdir} cannot be used: {error}; restore its files, or train "
            "in another directory"
        ) from error


def _best_step(
    kept: checkpoints.Checkpoints, steps: Sequence[int], best: dict[str, Any] | None
) -> int | None:
    """The best step according to the newest intact checkpoint, -1 if it knows of none; None if that
    contradicts `best`."""
    for step in steps:
        with contextlib.suppress(records.Damaged):
            counters = _intact(kept, step, functools.partial(_counters, kept, step))
            return counters["best_step"] if best in (None, counters["best"]) else None
    return None


def _counters(kept: checkpoints.Checkpoints, step: int) -> dict[str, Any]:
    return kept.value(step)["counters"]


def _intact(kept: checkpoints.Checkpoints, step: int, read: Callable[[], Any]) -> Any:
    """What `read` returns of a checkpoint, or, if it is damaged, of the one it was replacing."""
    try:
        return read()
    except records.Damaged:
        if not kept.use_replaced(step):
            raise
        return read()


def _on_host(tree: Any) -> dict[str, np.ndarray]:
    """Whole arrays by name, even if they are split over devices and processes."""
    arrays = checkpoints.by_path(multihost_utils.process_allgather(tree, tiled=True))
    return {name.removesuffix("/value"): array for name, array in arrays.items()}


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()
