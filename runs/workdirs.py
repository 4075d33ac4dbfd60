"""Entering a run's directory: a new one, one to resume in, or one that is finished."""

import contextlib
import itertools
import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any

from runs import cli, locks, records, trial_records
from runs.cli import InputError


def enter(
    workdir: pathlib.Path,
    record: dict[str, Any],
    may_change: Collection[str],
    lock: contextlib.ExitStack | None,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Makes `workdir` and its config.json, or checks that the run in it is this one.

    Args:
        workdir: the run's directory.
        record: the content of config.json: `config`, `dataset` with its fingerprint, and what else
            is to be kept with the run.
        may_change: fields of the configuration that may differ from the run that is there.
        lock: is given the directory's lock, which is not taken for a finished run; None where the
            caller holds it.
        say: called with a line where a damaged result is set aside.

    Returns:
        The result if the run is finished, else None.

    Raises:
        InputError: the directory cannot be used, holds something else, an unfinished run of another
            schema version, or one that another process is training; no run has been changed then.
    """
    with cli.writing_to(workdir):
        if finished := _checked(workdir, record, may_change):
            return finished
        workdir.mkdir(parents=True, exist_ok=True)
        if lock is not None:
            if not lock.enter_context(locks.held(workdir / records.LOCK)):
                raise InputError(
                    f"{workdir} is being trained by another process; wait until that ends, or give "
                    "another directory"
                )
            # again, under the lock: whoever had it before may just have finished
            if finished := _checked(workdir, record, may_change):
                return finished
        records.remove_stale(workdir)
        _set_damaged_result_aside(workdir, say)
        if not (workdir / records.CONFIG).exists():
            whole = {"schema_version": records.SCHEMA_VERSION, **record}
            records.write_json(workdir / records.CONFIG, whole)
        return None


def _checked(
    workdir: pathlib.Path, record: dict[str, Any], may_change: Collection[str]
) -> dict[str, Any] | None:
    """The result of the finished run in `workdir`; None if a run of `record` may be trained there.

    Nothing is written.
    """
    there = _recorded(workdir)
    if not there:
        if os.path.lexists(workdir) and not is_new(workdir):
            raise InputError(
                f"{workdir} is there already and holds no run; give a new or empty directory"
            )
        return None
    other_version = records.schema_version(there) != records.SCHEMA_VERSION
    compared = differences_in_shared if other_version else differences
    changed = compared(there["config"], record["config"], may_change)
    if there["dataset"]["fingerprint"] != record["dataset"]["fingerprint"]:
        changed.append(f"the data themselves (fingerprint {there['dataset']['fingerprint']} there)")
    finished = _finished(workdir)
    if other_version and (changed or not finished):
        raise InputError(version_sentence(workdir, there, "run", "directory"))
    if changed:
        raise InputError(
            f"{workdir} holds a run of another configuration, which differs in "
            f"{'; '.join(changed)}; give those values, or another directory"
        )
    return finished


def _recorded(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of config.json, empty where there is none; InputError for a damaged one."""
    try:
        there = trial_records.read_config(workdir)
        if (workdir / records.CONFIG).exists() and not (
            there.get("config") and (there.get("dataset") or {}).get("fingerprint")
        ):
            raise records.Damaged(f"{records.CONFIG} lacks the configuration or the data set")
    except records.Damaged as error:
        raise InputError(
            f"the run in {workdir} is damaged ({error}); restore that file from a copy, or give "
            "another directory"
        ) from error
    return there


def _finished(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The result, if there is a whole one that ends the run."""
    try:
        result = trial_records.read_result(workdir)
    except records.Damaged:
        return None
    return result if result.get("status") in records.FINISHED else None


def _set_damaged_result_aside(workdir: pathlib.Path, say: Callable[[str], None]) -> None:
    """It follows from the last checkpoint, or from training again, and is written anew."""
    try:
        trial_records.read_result(workdir)
    except records.Damaged as error:
        aside = records.set_aside(workdir / records.RESULT, workdir / records.DAMAGED)
        say(f"warning: {workdir}: {error}; it is set aside as {aside}, and the run resumes")


def version_sentence(where: pathlib.Path, there: dict[str, Any], what: str, other: str) -> str:
    """Says that a run or a study was recorded by code of another schema version.

    Args:
        there: its config.json or study.json.
        what: 'run' or 'study'.
        other: what to give for another one.
    """
    commit = f"commit {there['commit']}" if there.get("commit") else "the code that started it"
    return (
        f"{where} holds a {what} of schema version {records.schema_version(there)}, which code of "
        f"version {records.SCHEMA_VERSION} cannot continue; use {commit}, or give another {other}"
    )


def is_new(workdir: pathlib.Path) -> bool:
    """Empty, but for what a study puts there before the trial starts, what a killed process left
    half written (hidden names, as of `records.is_temporary`), and damaged records set aside."""
    names = [path.name for path in workdir.iterdir()] if workdir.is_dir() else ["a file"]
    kept = (records.HPARAMS, records.LOCK, records.DAMAGED)
    return all(name in kept or name.startswith(".") for name in names)


def set_aside(workdir: pathlib.Path) -> pathlib.Path:
    """Moves what a run's directory holds into a new directory in WORKDIR/damaged, so that the run
    can start anew.

    Its lock stays, whose holder alone may call this. Returns the new directory.
    """
    held = [p for p in workdir.iterdir() if p.name not in (records.LOCK, records.DAMAGED)]
    damaged = workdir / records.DAMAGED
    numbered = (damaged / f"run_{number}" for number in itertools.count(1))
    place = next(path for path in numbered if not os.path.lexists(path))
    place.mkdir(parents=True)
    for path in held:
        path.rename(place / path.name)
    return place


def differences(
    there: dict[str, Any], here: dict[str, Any], may_change: Collection[str], prefix: str = ""
) -> list[str]:
    """Fields whose values differ and may not, as 'echo.factor (2.0 there, 4.0 here)'."""
    found = []
    for name in sorted(set(there) | set(here)):
        full, old, new = prefix + name, there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, may_change, f"{full}.")
        elif old != new and full not in may_change:
            found.append(f"{full} ({old!r} there, {new!r} here)")
    return found


def differences_in_shared(
    there: dict[str, Any], here: dict[str, Any], may_change: Collection[str] = ()
) -> list[str]:
    """`differences` in the fields that both have: versions of the code have different ones."""
    return differences(_shared(there, here), _shared(here, there), may_change)


def _shared(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    nested = {k for k in record if isinstance(record[k], dict) and isinstance(other.get(k), dict)}
    return {
        name: _shared(value, other[name]) if name in nested else value
        for name, value in record.items()
        if name in other
    }
