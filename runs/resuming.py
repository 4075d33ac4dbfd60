"""Which checkpoint a run resumes from: the newest that is intact and whose records are there."""

import pathlib
from collections.abc import Callable
from typing import Any

from runs import distributed, records
from runs.checkpoints import Checkpoints
from runs.cli import InputError
from runs.records import Damaged


class NothingToResume(InputError):
    """The run in `workdir` has checkpoints, and none can be used."""

    def __init__(self, workdir: pathlib.Path, reasons: str):
        super().__init__(
            f"{workdir} holds a run that cannot be resumed ({reasons}); restore those files, or "
            "give another directory"
        )
        self.workdir, self.reasons = workdir, reasons


def newest_usable(
    workdir: pathlib.Path, checkpoints: Checkpoints, like: Any, say: Callable[[str], None]
) -> tuple[int, Any, Any] | None:
    """The (step, arrays, value) of a checkpoint; None for a run that has none yet.

    Newer ones that cannot be used are set aside in WORKDIR/damaged, and named.

    Args:
        like: a pytree that the arrays take structure and sharding from.
        say: called with a line for each checkpoint that is set aside.

    Raises:
        NothingToResume: there are checkpoints, of which none can be used. All is left as it is.
    """
    lost: list[tuple[int, str]] = []
    for step in checkpoints.steps():
        try:
            value = checkpoints.value(step)
            _check_records(workdir, value["records"])
            arrays = checkpoints.restore(step, like)
        except Damaged as error:
            lost.append((step, str(error)))
            continue
        for number, why in lost:
            _first_sets_aside(checkpoints, number, workdir)
            say(f"warning: checkpoint {number} of {workdir} cannot be used: {why}")
        if lost:
            say(f"it resumes from checkpoint {step}; the others are in {workdir / records.DAMAGED}")
        return step, arrays, value
    if lost:
        reasons = "; ".join(f"checkpoint {step}: {why}" for step, why in lost)
        raise NothingToResume(workdir, reasons)
    return None


def _check_records(workdir: pathlib.Path, extents: dict[str, dict[str, Any]]) -> None:
    """Raises Damaged where a file no longer begins with what the checkpoint covers."""

    def missing() -> str:
        found = (
            records.Extent(**extent).missing_from(workdir / name)
            for name, extent in extents.items()
        )
        return ", ".join(filter(None, found))

    if why := distributed.decided_by_first(missing):
        raise Damaged(why)


def _first_sets_aside(checkpoints: Checkpoints, step: int, workdir: pathlib.Path) -> None:
    damaged = workdir / records.DAMAGED
    distributed.decided_by_first(lambda: checkpoints.set_aside(step, damaged))
