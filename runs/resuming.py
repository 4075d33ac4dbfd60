"""Resuming an interrupted run: its newest usable checkpoint, and what differs since it began."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from runs import cli, origins, processes, records
from runs.checkpoints import Checkpoints
from runs.records import Damaged, flat


class NothingToResume(cli.InputError):
    """The run in `workdir` has checkpoints, but none is usable."""

    def __init__(self, workdir: pathlib.Path, reasons: str):
        super().__init__(
            f"{workdir} contains a run that cannot be resumed ({reasons}); restore those files, or "
            "give another directory"
        )
        self.workdir, self.reasons = workdir, reasons


def newest_usable(
    workdir: pathlib.Path, checkpoints: Checkpoints, like: Any, say: Callable[[str], None]
) -> tuple[int, Any, Any] | None:
    """The (step, arrays, value) of the newest checkpoint that is intact and whose records exist;
    None if there is none. Those that are not usable are moved to WORKDIR/damaged.

    Args:
        like: a pytree with the structure and sharding of the arrays.
        say: called with a line for each checkpoint that is moved.

    Raises:
        NothingToResume: there are others, but none is usable. Nothing is changed then.
        Damaged: its arrays are not those of `like`.
    """
    step, value, said = processes.decided_by_first(lambda: _chosen(workdir, checkpoints))
    for line in said:
        say(line)
    return None if step is None else (step, checkpoints.restore(step, like), value)


def _chosen(workdir: pathlib.Path, checkpoints: Checkpoints) -> tuple[int | None, Any, list[str]]:
    """The step and the value of the newest usable checkpoint, and a line for each moved one."""
    unusable, newest = dict[int, Exception](), (None, None)
    for step in checkpoints.steps():
        try:
            value = checkpoints.value(step)  # of all: they count as the newest
            if (own := value["counters"]["step"]) != step:
                raise Damaged(f"it is a copy of checkpoint {own}")
            if newest[0] is None:
                for name, extent in value["records"].items():
                    if why := records.Extent(**extent).missing_from(workdir / name):
                        raise Damaged(why)
                newest = step, value
        except (Damaged, OSError) as error:
            unusable[step] = error
    if newest[0] is None and unusable:
        reasons = (f"checkpoint {step}: {why}" for step, why in unusable.items())
        raise NothingToResume(workdir, "; ".join(reasons))
    said = []
    for step, why in unusable.items():
        checkpoints.set_aside(step, workdir / records.DAMAGED)
        line = f"warning: checkpoint {step} of {workdir} cannot be used: {why}; it is now in "
        said.append(f"{line}{records.DAMAGED}/")
    return newest[0], newest[1], said


def set_aside(workdir: pathlib.Path) -> pathlib.Path:
    """Moves the content of a run's directory to a new directory in WORKDIR/damaged, so that the run
    can start over. The lock stays; its owner must be the caller. Returns the new directory."""
    content = [p for p in workdir.iterdir() if p.name not in (records.LOCK, records.DAMAGED)]
    # The result first: if this process is killed, what is left must not look like a finished run.
    content.sort(key=lambda path: path.name != records.RESULT)
    place = records.free_path(workdir / records.DAMAGED, "run")
    place.mkdir()
    for path in content:
        path.rename(place / path.name)
    return place


def note(
    workdir: pathlib.Path, record: Mapping[str, Any], step: int, say: Callable[[str], None]
) -> None:
    """Lists what a run resumes with in its config.json, if it differs from what it had before.

    Entries after the checkpoint are dropped, since their steps are taken again.

    Args:
        workdir: the run's directory.
        record: what config.json would contain if the run began now.
        step: of the checkpoint that the run resumes from; 0 if there is none.
        say: called with a line if something differs.
    """
    there = records.read_json(workdir / records.CONFIG)
    noted = there.get(records.RESUMED) or []
    kept = [entry for entry in noted if entry["step"] < step]
    began, here = flat(there["config"]), flat(record["config"])
    fields = {name: value for name, value in here.items() if began.get(name) != value}
    now = {**{name: record.get(name) for name in records.ORIGIN}, "fields": fields}
    before = origins.of_run(there | {records.RESUMED: kept})[-1]
    was, becomes = (
        {name: entry.get(name) for name in records.ORIGIN} | began | dict(entry["fields"])
        for entry in (before, now)
    )
    if changed := records.differences(was, becomes, ()):
        kept = [*kept, {"step": step, **now}]
        say(f"{workdir} resumes at step {step} with {'; '.join(changed)}")
    if kept != noted:
        records.write_json(workdir / records.CONFIG, there | {records.RESUMED: kept})
