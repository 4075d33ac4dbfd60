"""Enters a run's directory: a new one, an interrupted run to resume, or a finished one."""

import contextlib
import fcntl
import itertools
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

from runs import cli, records, trial_records
from runs.cli import InputError


def enter(
    workdir: pathlib.Path,
    record: dict[str, Any],
    may_change: Collection[str],
    lock: contextlib.ExitStack | None,
) -> dict[str, Any] | None:
    """Creates `workdir` and its config.json, or checks that `workdir` contains the same run.

    Args:
        workdir: the run's directory.
        record: the content of config.json: `config`, `dataset` with its fingerprint, and anything
            else to record.
        may_change: fields of the configuration that may differ from the existing run.
        lock: receives the directory's lock, which is not taken for a finished run; None if the
            caller holds it.

    Returns:
        The result of a finished run, else None.

    Raises:
        InputError: the directory cannot be used, or contains something else, an unfinished run of
            another schema version, or a run that another process is training. Nothing is changed
            then.
    """
    with cli.writing_to(workdir):
        if finished := checked(workdir, record, may_change):
            return finished
        workdir.mkdir(parents=True, exist_ok=True)
        if lock is not None:
            if not lock.enter_context(held(workdir / records.LOCK)):
                raise InputError(
                    f"{workdir} is in use by another process; wait until it ends, or give "
                    "another directory"
                )
            # check again under the lock: its previous owner may just have finished the run
            if finished := checked(workdir, record, may_change):
                return finished
        if not (workdir / records.CONFIG).exists():
            content = {"schema_version": records.SCHEMA_VERSION, **record}
            records.write_json(workdir / records.CONFIG, content)
        return None


def checked(
    workdir: pathlib.Path, record: dict[str, Any], may_change: Collection[str]
) -> dict[str, Any] | None:
    """The result of the finished run in `workdir`; None if `record` may be trained there. Writes
    nothing.

    Args:
        workdir, record, may_change: as of `enter`.

    Raises:
        InputError: `record` may not be trained there.
    """
    check_kinds(workdir)
    there = _recorded(workdir)
    if not there:
        if os.path.lexists(workdir) and not is_new(workdir):
            raise InputError(f"{workdir} exists but contains no run; give a new or empty directory")
        return None
    other_version = records.schema_version(there) != records.SCHEMA_VERSION
    compared = differences_in_shared if other_version else differences
    changed = compared(there["config"], record["config"], may_change)
    if there["dataset"]["fingerprint"] != record["dataset"]["fingerprint"]:
        changed.append(f"the data (fingerprint {there['dataset']['fingerprint']} there)")
    result = trial_records.intact_result(workdir)
    finished = result if result.get("status") in records.FINISHED else None
    if other_version and (changed or not finished):
        raise InputError(version_sentence(workdir, there, "run", "directory"))
    if changed:
        raise InputError(
            f"{workdir} contains a run with another configuration, which differs in "
            f"{'; '.join(changed)}; give those values, or another directory"
        )
    return finished


def _recorded(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of config.json, empty if there is none; raises InputError if it is damaged."""
    advice = "restore that file from a copy, or give another directory"
    with cli.damage_explained(f"the run in {workdir}", advice):
        recorded = trial_records.read_config(workdir)
        complete = recorded.get("config") and (recorded.get("dataset") or {}).get("fingerprint")
        if (workdir / records.CONFIG).exists() and not complete:
            raise records.Damaged(f"{records.CONFIG} lacks the configuration or the data set")
    return recorded


def version_sentence(where: pathlib.Path, there: dict[str, Any], what: str, other: str) -> str:
    """The message for a run or study that was recorded with another schema version.

    Args:
        there: its config.json or study.json.
        what: 'run' or 'study'.
        other: what the user should give for another one.
    """
    commit = f"commit {there['commit']}" if there.get("commit") else "the code that started it"
    return (
        f"{where} contains a {what} of schema version {records.schema_version(there)}, which code "
        f"of version {records.SCHEMA_VERSION} cannot continue; use {commit}, or give another "
        f"{other}"
    )


def check_apart(directory: pathlib.Path, config: Any, flag: str) -> None:
    """Raises InputError if the data's cache is in `directory`, the value of `flag`.

    The cache may be written before it is known whether the run or study can be.
    """
    cache = config.dataset.cache_dir
    with cli.writing_to(directory):
        # Not by `resolve`, which raises RuntimeError for a loop of symbolic links.
        place = pathlib.Path(os.path.realpath(cli.expanded(cache)))
        if cache and place.is_relative_to(os.path.realpath(directory)):
            raise InputError(
                f"dataset.cache_dir is {cache}, which is in {flag}={directory}; allowed: a "
                "directory outside it"
            )


def check_kinds(workdir: pathlib.Path) -> None:
    """Raises InputError for an entry of a run's directory that is `misplaced`."""
    for path, kind in misplaced(workdir):
        raise InputError(f"{path} is not {kind}; move it away")


def misplaced(workdir: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """Entries of a run's directory that are of another kind than a run's, and what they should be:
    'a file' or 'a directory'."""
    files = (records.LOCK, records.METRICS, records.DECISIONS)  # opened without `read_bytes`
    kinds = (
        *((name, "a file", pathlib.Path.is_file) for name in files),
        (records.CHECKPOINTS, "a directory", pathlib.Path.is_dir),
        (records.DAMAGED, "a directory", pathlib.Path.is_dir),
    )
    entries = ((workdir / name, kind, is_kind) for name, kind, is_kind in kinds)
    return [(p, kind) for p, kind, is_kind in entries if os.path.lexists(p) and not is_kind(p)]


def is_new(workdir: pathlib.Path) -> bool:
    """Whether a directory contains no run.

    It may contain files that a study writes before a trial starts, or when the trial's workers were
    killed before it started; temporary files of a process that was killed (hidden names, see
    `records.is_temporary`); and damaged records.
    """
    names = [path.name for path in workdir.iterdir()] if workdir.is_dir() else ["a file"]
    kept = [records.HPARAMS, records.LOCK, records.DAMAGED]
    if trial_records.intact_result(workdir).get("status") == "failed":
        kept.append(records.RESULT)
    return all(name in kept or name.startswith(".") for name in names)


def set_aside(workdir: pathlib.Path) -> pathlib.Path:
    """Moves the content of a run's directory to a new directory in WORKDIR/damaged.

    The lock stays; its owner must be the caller. The run can then start over. Returns the new
    directory.
    """
    content = [p for p in workdir.iterdir() if p.name not in (records.LOCK, records.DAMAGED)]
    # The result first: if this process is killed, what is left must not look like a finished run.
    content.sort(key=lambda path: path.name != records.RESULT)
    damaged = workdir / records.DAMAGED
    numbered = (damaged / f"run_{number}" for number in itertools.count(1))
    place = next(path for path in numbered if not os.path.lexists(path))
    place.mkdir(parents=True)
    for path in content:
        path.rename(place / path.name)
    return place


def differences(
    there: dict[str, Any], here: dict[str, Any], may_change: Collection[str], prefix: str = ""
) -> list[str]:
    """Fields that differ but must not, such as 'echo.factor (2.0 there, 4.0 here)'."""
    differing = []
    for name in sorted(set(there) | set(here)):
        full, old, new = prefix + name, there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differing += differences(old, new, may_change, f"{full}.")
        elif old != new and full not in may_change:
            differing.append(f"{full} ({old!r} there, {new!r} here)")
    return differing


def differences_in_shared(
    there: dict[str, Any], here: dict[str, Any], may_change: Collection[str] = ()
) -> list[str]:
    """`differences` in the fields that both records have, for records of other versions."""
    return differences(_shared(there, here), _shared(here, there), may_change)


def _shared(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    nested = {k for k in record if isinstance(record[k], dict) and isinstance(other.get(k), dict)}
    return {
        name: _shared(value, other[name]) if name in nested else value
        for name, value in record.items()
        if name in other
    }


@contextlib.contextmanager
def held(path: pathlib.Path, wait: bool = False) -> Iterator[bool]:
    """Locks the file `path` within the context; yields False if another process holds the lock.

    Args:
        path: the file, which is created if it does not exist.
        wait: whether to wait until no other process holds the lock.

    Raises:
        InputError: the file system does not support locks.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise InputError(
                f"{path} cannot be locked ({error.strerror}); give a directory on a file system "
                "that supports locks"
            ) from error
        yield True
