"""A finished run's best checkpoint: evaluated on what was held out, its parameters written out."""

import contextlib
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.experimental import multihost_utils

from configs import base
from data.errors import RecordError
from runs import checkpoints, cli, distributed, records, trial_records
from runs.study import is_number
from training import evaluation, experiment
from training.state import TrainState


def evaluate(workdir: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates the run in `workdir`, once: a second call returns what the first one found.

    Writes WORKDIR/evaluation.json (`step` and `fresh_examples` of the best checkpoint, and metrics
    by split) and WORKDIR/parameters.npz: every parameter and batch statistic as an array, by a name
    such as params/stem/conv/kernel or model_state/stem/norm/mean, for numpy.load.

    Args:
        workdir: a finished run's directory.
        overrides: '--config.FIELD=VALUE' for fields in configs.base.MAY_CHANGE_ON_RESUME.

    Returns:
        The content of evaluation.json.

    Raises:
        command.InputError: no run there, an unfinished one, or one without checkpoints; a record
            that cannot be decoded.
    """
    config = distributed.decided_by_first(lambda: _finished_config(workdir))
    if done := distributed.decided_by_first(lambda: _evaluated(workdir)):
        return done
    prepared = experiment.prepare(_configured(config, overrides))
    state, counters = _best(workdir, prepared)
    try:  # a record that cannot be decoded is found when a split is opened, or later
        splits = {prepared.config.dataset.validation_split: prepared.validation}
        if prepared.config.dataset.test_split:
            splits[prepared.config.dataset.test_split] = experiment.test_split(prepared)
        values = {
            name: evaluation.evaluate(prepared.program, state, batches)
            for name, batches in splits.items()
        }
    except RecordError as error:
        raise cli.InputError(str(error)) from error
    found = {
        "step": counters["step"],
        "fresh_examples": counters["fresh_examples"],
        "splits": values,
    }
    arrays = _on_host({"params": state.params, "model_state": state.model_state})
    if distributed.is_first():
        records.write_bytes(workdir / records.PARAMETERS, _npz(arrays))
        records.write_json(workdir / records.EVALUATION, found)
    return found


def _finished_config(workdir: pathlib.Path) -> dict[str, Any]:
    """The configuration that is stored with a finished run."""
    try:
        with cli.writing_to(workdir):
            record = trial_records.read_config(workdir)
            result = trial_records.read_result(workdir)
    except records.Damaged as error:
        raise cli.InputError(
            f"the run in {workdir} is damaged ({error}); restore that file from a copy"
        ) from error
    if not record.get("config"):
        raise cli.InputError(
            f"{workdir} holds no run (no {records.CONFIG}); give a finished run's directory"
        )
    status = result.get("status", "started")
    if status not in records.FINISHED:
        raise cli.InputError(
            f"the run in {workdir} is not finished ({status}); start its training command again"
        )
    return record["config"]


def _evaluated(workdir: pathlib.Path) -> dict[str, Any] | None:
    """What an earlier call found; None where there was none, or its file is damaged."""
    with contextlib.suppress(records.Damaged):
        found = records.read_object(workdir / records.EVALUATION)
        return found if found and _is_evaluation(found) else None
    return None


def _is_evaluation(found: dict[str, Any]) -> bool:
    """Whether it has what `evaluate` returns."""
    counts = (found.get("step"), found.get("fresh_examples"))
    splits = found.get("splits")
    if not all(type(count) is int for count in counts) or not isinstance(splits, dict):
        return False
    return all(
        isinstance(values, dict) and all(is_number(value) for value in values.values())
        for values in splits.values()
    )


def _configured(stored: dict[str, Any], overrides: Sequence[str]) -> ml_collections.ConfigDict:
    """A stored configuration with `overrides`; fields newer than it have their defaults."""
    config = base.get_config()
    try:
        config.update(ml_collections.ConfigDict(stored))
    except (AttributeError, KeyError, TypeError) as error:
        raise cli.InputError(
            f"the run's configuration is not of this version ({error}); use the commit in its "
            f"{records.CONFIG}"
        ) from error
    for override in overrides:
        name = override.removeprefix("--config.").partition("=")[0]
        if name not in base.MAY_CHANGE_ON_RESUME:
            raise cli.InputError(
                f"config.{name} cannot be given with --evaluate, which uses the run's own; "
                f"allowed: {', '.join(base.MAY_CHANGE_ON_RESUME)}"
            )
    cli.override(config, overrides, base.FIELDS)
    return config


def _best(workdir: pathlib.Path, prepared: experiment.Parts) -> tuple[TrainState, dict[str, Any]]:
    """State and counters of the best checkpoint."""
    kept = checkpoints.Checkpoints(workdir / records.CHECKPOINTS)
    steps = kept.steps()
    best = _best_step(kept, steps, trial_records.read_result(workdir)["best"])
    if best not in steps:
        raise cli.InputError(
            f"the run in {workdir} kept no evaluated checkpoint that is intact; train with a "
            "config.checkpoint_every_fresh_examples above 0"
        )
    like = prepared.program.init(prepared.config.seed.model)
    try:
        return kept.restore(best, like), kept.value(best)["counters"]
    except records.Damaged as error:
        raise cli.InputError(
            f"checkpoint {best} of {workdir} cannot be used: {error}; restore its files, or train "
            "in another directory"
        ) from error


def _best_step(
    kept: checkpoints.Checkpoints, steps: Sequence[int], best: dict[str, Any]
) -> int | None:
    """As the newest checkpoint knows it whose value is intact, if its best is the run's `best`."""
    for step in steps:
        with contextlib.suppress(records.Damaged):
            counters = kept.value(step)["counters"]
            return counters["best_step"] if counters["best"] == best else None
    return None


def _on_host(tree: Any) -> dict[str, np.ndarray]:
    """Whole arrays by name, wherever their parts are."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    arrays = checkpoints.by_path(jax.device_get(tree))
    return {name.removesuffix("/value"): array for name, array in arrays.items()}


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
