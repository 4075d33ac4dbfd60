"""Enters a run's directory: a new one, an interrupted run to resume, or a finished one."""

import contextlib
import fcntl
import itertools
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from configs import base
from runs import cli, records, trial_records
from runs.cli import InputError
from runs.study import flat


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
    with cli.damage_explained(f"the run in {workdir}", "restore that file, or give another one"):
        there = records.read_json(workdir / records.CONFIG)
    if there is None:
        if os.path.lexists(workdir) and not is_new(workdir):
            raise InputError(f"{workdir} exists but contains no run; give a new or empty directory")
        return None
    changed = differences(there["config"], record["config"], may_change)
    if there["dataset"]["fingerprint"] != record["dataset"]["fingerprint"]:
        changed.append(f"the data (fingerprint {there['dataset']['fingerprint']} there)")
    if changed:
        raise InputError(
            f"{workdir} contains a run with another configuration, which differs in "
            f"{'; '.join(changed)}; give those values, or another directory"
        )
    result = trial_records.intact_result(workdir)
    return result if result.get("status") in records.FINISHED else None


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


def is_new(workdir: pathlib.Path) -> bool:
    """Whether a directory contains no run. It may contain what a study writes before a trial
    starts, also for one whose workers were killed then; hidden files; and damaged records."""
    kept = [records.HPARAMS, records.LOCK, records.DAMAGED]
    if trial_records.intact_result(workdir).get("status") == "failed":
        kept.append(records.RESULT)
    names = [path.name for path in workdir.iterdir()] if workdir.is_dir() else ["a file"]
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
    there: Mapping[str, Any], here: Mapping[str, Any], may_change: Collection[str]
) -> list[str]:
    """Fields that differ but must not, such as 'echo.factor (2.0 there, 4.0 here)'. A field that
    did not exist then had its default."""
    defaults = {field.name: field.default for field in base.FIELDS}
    old, new = ({**defaults, **flat(config)} for config in (there, here))
    return [
        f"{name} ({old.get(name)!r} there, {new.get(name)!r} here)"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and name not in may_change
    ]


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
