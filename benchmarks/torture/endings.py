"""What a run or a study has come to, without what it measures of time: to be compared."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from runs import records, trial_records
from runs.checkpoints import Checkpoints

# What a run measures of itself; what is pending is sent to the device again after a restart.
MEASURED = (
    "train_seconds",
    "wall_seconds",
    "input_wait_fraction",
    "bytes_sent",
    "seconds_to_target",
)


def of_result(workdir: pathlib.Path) -> Any:
    """result.json without clocks."""
    return unmeasured(trial_records.read_result(workdir))


def of_run(workdir: pathlib.Path) -> dict[str, Any]:
    """Result, records, and the newest checkpoint: its counters, and its arrays bit for bit."""
    checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
    step = max(checkpoints.steps())
    return {
        "result": of_result(workdir),
        "metrics": [unmeasured(record) for record in records.read_metrics(workdir)],
        "step": step,
        "counters": checkpoints.value(step)["counters"],
        "input": checkpoints.value(step)["input"],
        "arrays": _arrays(workdir / records.CHECKPOINTS / str(step) / "arrays"),
    }


def of_study(outdir: pathlib.Path) -> dict[str, Any]:
    """Every trial's."""
    return {
        f"{place.condition}/{place.search}/{place.trial}": of_run(workdir)
        for place, workdir in records.trials_on_disk(outdir)
    }


def unmeasured(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without clocks."""
    return {name: value for name, value in record.items() if name not in MEASURED}


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two endings differ first; '' if they are equal."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        return next(filter(None, (difference(one[k], other[k], f"{path}/{k}") for k in one)), "")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = zip(one, other, strict=True)
        return next(
            filter(None, (difference(a, b, f"{path}/{i}") for i, (a, b) in enumerate(pairs))), ""
        )
    return "" if one == other else f"{path}: {str(one)[:100]} there, {str(other)[:100]} expected"


def _arrays(directory: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each array of a checkpoint, by name."""
    with ocp.PyTreeCheckpointer() as reader:
        arrays = jax.device_get(reader.restore(directory.absolute()))
    return {
        name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        for name, value in arrays.items()
    }
