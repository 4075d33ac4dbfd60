"""Resuming an interrupted run: its newest usable checkpoint, and what differs since it began."""

import functools
import pathlib
from collections.abc import Callable, Collection, Mapping
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
    None if there are no checkpoints.

    Checkpoints that are not usable and a damaged result, which resuming the run writes again, are
    moved to WORKDIR/damaged and reported.

    Args:
        like: a pytree with the structure and sharding of the arrays.
        say: called with a line for everything that is moved.

    Raises:
        NothingToResume: there are checkpoints, but none is usable. Nothing is changed then.
    """
    damaged, unusable, newest = workdir / records.DAMAGED, dict[int, str](), None
    for step in checkpoints.steps():
        try:
            value = checkpoints.value(step)  # of all: Orbax reads their metadata when it saves
            if (own := value["counters"]["step"]) != step:  # Orbax would save nothing before it
                raise Damaged(f"it is a copy of checkpoint {own}")
            if newest is None:
                missing = functools.partial(_missing, workdir, value["records"])
                if why := processes.decided_by_first(missing):
                    raise Damaged(why)
                newest = step, checkpoints.restore(step, like), value
        except Damaged as error:
            unusable[step] = str(error)
    if newest is None and unusable:
        reasons = (f"checkpoint {step}: {why}" for step, why in unusable.items())
        raise NothingToResume(workdir, "; ".join(reasons))
    for step, why in unusable.items():
        processes.decided_by_first(functools.partial(checkpoints.set_aside, step, damaged))
        say(f"warning: checkpoint {step} of {workdir} cannot be used: {why}")
    processes.decided_by_first(lambda: _set_result_aside(workdir, say))
    if newest and unusable:
        say(f"resuming from checkpoint {newest[0]}; the others are in {damaged}")
    return newest


def _missing(workdir: pathlib.Path, extents: dict[str, dict[str, Any]]) -> str:
    """The reasons why files do not begin with what a checkpoint covers; '' if they do."""
    reasons = (records.Extent(**e).missing_from(workdir / name) for name, e in extents.items())
    return ", ".join(filter(None, reasons))


def _set_result_aside(workdir: pathlib.Path, say: Callable[[str], None]) -> None:
    try:
        records.read_json(workdir / records.RESULT)
    except Damaged as error:
        with cli.writing_to(workdir):
            aside = records.free_path(workdir / records.DAMAGED, records.RESULT)
            (workdir / records.RESULT).rename(aside)
        say(f"warning: {workdir}: {error}; it is moved to {aside}, and the run resumes")


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
    workdir: pathlib.Path,
    record: Mapping[str, Any],
    step: int,
    change_rounding: Collection[str],
    say: Callable[[str], None],
) -> None:
    """Lists what a run resumes with in its config.json, if it differs from what it had before.

    Entries after the checkpoint are dropped, since their steps are taken again.

    Args:
        workdir: the run's directory.
        record: what config.json would contain if the run began now.
        step: of the checkpoint that the run resumes from; 0 if there is none.
        change_rounding: fields of the configuration that may change the numbers by rounding. So may
            packages and hardware, such as the number of devices that mesh.data=0 uses.
        say: called with a line if something differs.
    """
    there = records.read_json(workdir / records.CONFIG)
    noted = there.get(records.RESUMED) or []
    kept = [entry for entry in noted if entry["step"] < step]
    began, wanted = flat(there["config"]), flat(record["config"])
    now: dict[str, Any] = {name: record.get(name) for name in records.ORIGIN}
    now["fields"] = {name: value for name, value in wanted.items() if began.get(name) != value}
    before = origins.of_run(there | {records.RESUMED: kept})[-1]
    old, new = (
        flat({name: origin[name] for name in records.ORIGIN}) | began | origin["fields"]
        for origin in (before, now)
    )
    if changed := [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]:
        kept = [*kept, {"step": step, **now}]
        computes = [name for name in changed if name.startswith(("packages.", "hardware."))]
        rounded = {*computes, *changed} & {*computes, *change_rounding} - {
            f"hardware.{origins.SYSTEM}"
        }
        listed = "; ".join(f"{n} ({old.get(n)!r} before, {new.get(n)!r} now)" for n in changed)
        rest = "; the rest may agree with an uninterrupted run to rounding only"
        say(f"{workdir} resumes at step {step} with {listed}{rest if step and rounded else ''}")
    if kept != noted:
        records.write_json(workdir / records.CONFIG, there | {records.RESUMED: kept})
