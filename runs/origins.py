"""What a run is trained with: config.json says how it began, and what differed when it resumed."""

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runs import records
from runs.study import flat

SYSTEM = "system"  # in hardware; its version changes neither numbers nor pace


def of_run(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run was trained with, in order.

    Each entry has the `step` from which it holds, its `commit`, `packages`, and
    `hardware`, and the `fields` that differ from `config`, by dotted name. The first entry is of
    step 0. config.json lists the others in `resumed`.

    Args:
        record: the content of config.json.
    """
    resumed = list(record.get(records.RESUMED) or [])
    if resumed and resumed[0]["step"] == 0:  # it started over before its first checkpoint
        return resumed
    first = {name: record.get(name) for name in records.ORIGIN}
    return [{"step": 0, **first, "fields": {}}, *resumed]


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
    there = records.read_json(workdir / records.CONFIG) or {}
    noted = there.get(records.RESUMED) or []
    kept = [entry for entry in noted if entry["step"] < step]
    began, wanted = flat(there["config"]), flat(record["config"])
    now: dict[str, Any] = {name: record.get(name) for name in records.ORIGIN}
    now["fields"] = {name: value for name, value in wanted.items() if began.get(name) != value}
    before = of_run(there | {records.RESUMED: kept})[-1]
    old, new = (
        flat({name: origin[name] for name in records.ORIGIN}) | began | origin["fields"]
        for origin in (before, now)
    )
    if changed := [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]:
        kept = [*kept, {"step": step, **now}]
        computes = [name for name in changed if name.startswith(("packages.", "hardware."))]
        rounded = {*computes, *changed} & {*computes, *change_rounding} - {f"hardware.{SYSTEM}"}
        listed = "; ".join(f"{n} ({old.get(n)!r} before, {new.get(n)!r} now)" for n in changed)
        rest = "; the rest may agree with an uninterrupted run to rounding only"
        say(f"{workdir} resumes at step {step} with {listed}{rest if step and rounded else ''}")
    if kept != noted:
        records.write_json(workdir / records.CONFIG, there | {records.RESUMED: kept})
