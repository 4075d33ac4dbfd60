"""Chooses the checkpoint to resume from: the newest that is intact and whose records exist. Only
then is anything moved."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from runs import cli, processes, records
from runs.checkpoints import Checkpoints
from runs.records import Damaged


class NothingToResume(cli.InputError):
    """The run in `workdir` has checkpoints, but none is usable."""

    def __init__(self, workdir: pathlib.Path, reasons: str):
        super().__init__(
            f"{workdir} contains a run that cannot be resumed ({reasons}); restore those files, or "
            "give another directory"
        )
        self.workdir, self.reasons = workdir, reasons

    def __reduce__(self) -> tuple:  # by default it would be made from its message alone
        return type(self), (self.workdir, self.reasons)


def newest_usable(
    workdir: pathlib.Path, checkpoints: Checkpoints, like: Any, say: Callable[[str], None]
) -> tuple[int, Any, Any] | None:
    """The (step, arrays, value) of a checkpoint; None if there are no checkpoints.

    Checkpoints that are not usable and a damaged result, which resuming the run writes again, are
    moved to WORKDIR/damaged and reported.

    Args:
        like: a pytree with the structure and sharding of the arrays.
        say: called with a line for everything that is moved.

    Raises:
        NothingToResume: there are checkpoints, but none is usable. Nothing is changed then.
    """
    unusable: list[tuple[int, str]] = []
    newest, steps = None, checkpoints.steps()
    for step in steps:
        try:
            checkpoints.check_metadata(step)  # of all: Orbax reads it when it saves the next one
            if newest is None:
                value = checkpoints.value(step)
                _check_records(workdir, value["records"])
                newest = step, checkpoints.restore(step, like), value
        except Damaged as error:
            unusable.append((step, str(error)))
    if newest is None and unusable:
        reasons = "; ".join(f"checkpoint {step}: {why}" for step, why in unusable)
        raise NothingToResume(workdir, reasons)
    for step, why in unusable:
        processes.decided_by_first(
            functools.partial(checkpoints.set_aside, step, workdir / records.DAMAGED)
        )
        say(f"warning: checkpoint {step} of {workdir} cannot be used: {why}")
    processes.decided_by_first(lambda: _set_result_aside(workdir, say))
    if newest and unusable:
        say(f"resuming from checkpoint {newest[0]}; the others are in {workdir / records.DAMAGED}")
    return newest


def _check_records(workdir: pathlib.Path, extents: dict[str, dict[str, Any]]) -> None:
    """Raises Damaged if a file no longer begins with what the checkpoint covers."""

    def missing() -> str:
        reasons = (
            records.Extent(**extent).missing_from(workdir / name)
            for name, extent in extents.items()
        )
        return ", ".join(filter(None, reasons))

    if why := processes.decided_by_first(missing):
        raise Damaged(why)


def _set_result_aside(workdir: pathlib.Path, say: Callable[[str], None]) -> None:
    try:
        records.read_json(workdir / records.RESULT)
    except Damaged as error:
        with cli.writing_to(workdir):
            aside = records.set_aside(workdir / records.RESULT, workdir / records.DAMAGED)
        say(f"warning: {workdir}: {error}; it is moved to {aside}, and the run resumes")
