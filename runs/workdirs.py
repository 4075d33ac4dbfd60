"""A run's directory: what it may contain, and the lock on it."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from configs import base
from runs import cli, records
from runs.checkpoints import check_path
from runs.cli import InputError


def checked(workdir: pathlib.Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """The result of the finished run in `workdir`; None if `record` may be trained there. Writes
    nothing.

    Args:
        workdir: the run's directory.
        record: the content of config.json: `config`, `dataset` with its fingerprint, and anything
            else to record.

    Raises:
        InputError: the directory contains something else, or a run of another configuration or data
            set.
        Damaged: its config.json is damaged, or of another schema version.
    """
    there = records.read_json(workdir / records.CONFIG)
    if not there:
        if os.path.lexists(workdir) and not is_new(workdir):
            raise InputError(f"{workdir} exists but contains no run; give a new or empty directory")
        return None
    changed = records.differences(there["config"], record["config"], base.MAY_CHANGE_ON_RESUME)
    if there["dataset"]["fingerprint"] != record["dataset"]["fingerprint"]:
        changed.append(f"the data (fingerprint {there['dataset']['fingerprint']} there)")
    if changed:
        raise InputError(
            f"{workdir} contains a run with another configuration, which differs in "
            f"{'; '.join(changed)}; give those values, or another directory"
        )
    result = records.intact_result(workdir)
    return result if result.get("status") in records.FINISHED else None


def enter(
    workdir: pathlib.Path, record: dict[str, Any], lock: contextlib.ExitStack | None
) -> tuple[dict[str, Any] | None, bool]:
    """Locks `workdir`, checks it again, and writes its config.json if there is none.

    Args:
        workdir, record: as of `checked`, which has passed.
        lock: receives the directory's lock; None if the caller holds it.

    Returns:
        The result of a run that another process has just finished, else None; and whether there
        was a run, which is to be resumed.

    Raises:
        InputError: another process is training in the directory.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    if lock is not None and not lock.enter_context(held(workdir / records.LOCK)):
        raise InputError(
            f"{workdir} is in use by another process; wait until it ends, or give another directory"
        )
    finished = checked(workdir, record)
    resumes = (workdir / records.CONFIG).exists()
    if not resumes:
        content = {"schema_version": records.SCHEMA_VERSION, **record}
        records.write_json(workdir / records.CONFIG, content)
    return finished, resumes


def check_place(directory: pathlib.Path, config: Any, flag: str) -> None:
    """Raises InputError if `directory`, the value of `flag`, cannot have checkpoints, or has the
    data's cache, which is written before it is known whether the run or study can be."""
    check_path(directory)
    cache = config.dataset.cache_dir
    # Not by `resolve`, which raises RuntimeError for a loop of symbolic links.
    if cache and pathlib.Path(os.path.realpath(cli.expanded(cache))).is_relative_to(
        os.path.realpath(directory)
    ):
        raise InputError(
            f"dataset.cache_dir is {cache}, which is in {flag}={directory}; allowed: a directory "
            "outside it"
        )


def is_new(workdir: pathlib.Path) -> bool:
    """Whether a directory contains no run. It may contain what a study writes before a trial
    starts; hidden files; and damaged records."""
    kept = [records.HPARAMS, records.LOCK, records.DAMAGED, records.MIRROR]
    names = [path.name for path in workdir.iterdir()] if workdir.is_dir() else ["a file"]
    return all(name in kept or name.startswith(".") for name in names)


@contextlib.contextmanager
def held(path: pathlib.Path, wait: bool = False) -> Iterator[bool]:
    """Locks the file `path`, which is created, within the context; yields False if another process
    holds the lock, unless it is to `wait`.

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
