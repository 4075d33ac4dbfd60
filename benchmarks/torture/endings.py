"""The outcome of a run or study without its timings, for comparison."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from runs import records, trial_records
from runs.checkpoints import Checkpoints

# Fields that depend on timing; a restart sends pending data to the device again (bytes_sent).
TIMINGS = (
    "train_seconds",
    "wall_seconds",
    "input_wait_fraction",
    "bytes_sent",
    "seconds_to_target",
)


def of_result(workdir: pathlib.Path) -> Any:
    """result.json without timings."""
    return without_timings(trial_records.read_result(workdir))


def of_run(workdir: pathlib.Path) -> dict[str, Any]:
    """Result, records, and the newest checkpoint: counters, input state, and array hashes."""
    checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
    step = max(checkpoints.steps())
    return {
        "result": of_result(workdir),
        "metrics": [without_timings(record) for record in records.read_metrics(workdir)],
        "step": step,
        "counters": checkpoints.value(step)["counters"],
        "input": checkpoints.value(step)["input"],
        "arrays": _arrays(workdir / records.CHECKPOINTS / str(step) / "arrays"),
    }


def of_study(outdir: pathlib.Path) -> dict[str, Any]:
    """The outcome of every trial, by `condition/search/trial`."""
    return {
        f"{place.condition}/{place.search}/{place.trial}": of_run(workdir)
        for place, workdir in records.trials_on_disk(outdir)
    }


def without_timings(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without timings."""
    return {name: value for name, value in record.items() if name not in TIMINGS}


def difference(actual: Any, expected: Any, path: str = "") -> str:
    """Describes the first difference of two outcomes; '' if they are equal."""
    if isinstance(actual, dict) and isinstance(expected, dict) and set(actual) == set(expected):
        keys = actual.keys()
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        keys = range(len(actual))
    else:
        keys = ()
    for key in keys:
        if text := difference(actual[key], expected[key], f"{path}/{key}"):
            return text
    return (
        ""
        if keys or actual == expected
        else f"{path}: got {str(actual)[:100]}, expected {str(expected)[:100]}"
    )


def _arrays(directory: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each array of a checkpoint, by name."""
    with ocp.PyTreeCheckpointer() as reader:
        arrays = jax.device_get(reader.restore(directory.absolute()))
    return {
        name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        for name, value in arrays.items()
    }
