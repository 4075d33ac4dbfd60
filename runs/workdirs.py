"""Entering a run's directory: a new one, one to go on in, or one that is finished."""

import pathlib
from collections.abc import Collection
from typing import Any

from runs import records
from runs.command import InputError


def enter(
    workdir: pathlib.Path, record: dict[str, Any], may_change: Collection[str]
) -> dict[str, Any] | None:
    """Makes `workdir` and its config.json, or checks that the run in it is this one.

    Args:
        workdir: the run's directory.
        record: the content of config.json: `config`, `dataset` with its fingerprint, and what else
            is to be kept with the run.
        may_change: fields of the configuration that may differ from the run that is there.

    Returns:
        The result if the run is finished, else None.

    Raises:
        InputError: the directory holds something else, or an unfinished run of another schema
            version; nothing has been written.
    """
    there = records.read_json(workdir / records.CONFIG)
    if there is None:
        if workdir.exists() and not _is_new(workdir):
            raise InputError(
                f"{workdir} is there already and holds no run; give a new or empty directory"
            )
        workdir.mkdir(parents=True, exist_ok=True)
        record = {"schema_version": records.SCHEMA_VERSION, **record}
        records.write_json(workdir / records.CONFIG, record)
        return None
    other_version = records.schema_version(there) != records.SCHEMA_VERSION
    compared = differences_in_shared if other_version else differences
    changed = compared(there["config"], record["config"], may_change)
    if there["dataset"]["fingerprint"] != record["dataset"]["fingerprint"]:
        changed.append(f"the data themselves (fingerprint {there['dataset']['fingerprint']} there)")
    result = records.read_json(workdir / records.RESULT)
    finished = result if result and result["status"] in records.FINISHED else None
    if other_version and (changed or not finished):
        raise InputError(version_sentence(workdir, there, "run", "directory"))
    if changed:
        raise InputError(
            f"{workdir} holds a run of another configuration, which differs in "
            f"{'; '.join(changed)}; give those values, or another directory"
        )
    return finished


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


def _is_new(workdir: pathlib.Path) -> bool:
    """Empty, but for what a study puts there before the trial starts, and what a killed process
    left half written."""
    names = [path.name for path in workdir.iterdir()] if workdir.is_dir() else ["a file"]
    return all(name in (records.HPARAMS, records.LOCK) or name.startswith(".") for name in names)


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
