"""What a run is trained with: config.json says how it began, and what differed when it resumed."""

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runs import records, trial_records
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
    there = trial_records.read_config(workdir)
    noted = there.get(records.RESUMED) or []
    kept = [entry for entry in noted if entry["step"] < step]
    began, wanted = flat(there["config"]), flat(record["config"])
    now = {name: record.get(name) for name in records.ORIGIN}
    now["fields"] = {name: value for name, value in wanted.items() if began.get(name) != value}
    before = of_run(there | {records.RESUMED: kept})[-1]
    if changed := _changed(_values(before, began), _values(now, began)):
        kept = [*kept, {"step": step, **now}]
        rounded = [name for name in changed if _may_round(name, change_rounding)]
        listed = "; ".join(f"{name} {values}" for name, values in changed.items())
        rest = "; the rest may agree with an uninterrupted run to rounding only"
        say(f"{workdir} resumes at step {step} with {listed}{rest if step and rounded else ''}")
    if kept != noted:
        records.write_json(workdir / records.CONFIG, there | {records.RESUMED: kept})


def _values(origin: dict[str, Any], began: dict[str, Any]) -> dict[str, Any]:
    """Everything that an entry of `of_run` states, by dotted name.

    Args:
        origin: the entry.
        began: the configuration with which the run began, by dotted name.
    """
    return flat({name: origin[name] for name in records.ORIGIN}) | began | origin["fields"]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What differs, by name, such as {'prefetch': '(2 before, 0 now)'}."""
    return {
        name: f"({before.get(name)!r} before, {now.get(name)!r} now)"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }


def _may_round(name: str, fields: Collection[str]) -> bool:
    computes = name.startswith(("packages.", "hardware.")) and name != f"hardware.{SYSTEM}"
    return name in fields or computes
