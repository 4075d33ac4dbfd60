"""The cases tried so far and their outcomes: a JSON Lines file that invocations append to."""

import collections
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import common

# Outcomes of a case. The first two count as survived.
EQUAL, NAMED = "equal", "named"
DIFFERING, TRACEBACK, HANG = "differing", "traceback", "hang"
SILENT, UNDETECTABLE = "silent", "undetectable"
FAULTS = (DIFFERING, TRACEBACK, HANG, SILENT)

GOALS = {"kills": 200, "inputs": 5_000, "damages": 2_000}  # without a fault
_HEADER = ("", "tried", "survived", "differing", "tracebacks", "hangs", "silent", "undetectable")


class Ledger:
    """The cases in a file.

    A record has `kind` (a key of GOALS), `seed`, `index`, `group` (its row of the table), `count`
    (its weight), `case` (a description), `outcome`, and, for some outcomes, `detail`.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, record: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)

    def next_index(self, kind: str, seed: int) -> int:
        """The first case of `seed` that has not been tried."""
        taken = [r["index"] for r in self.records if (r["kind"], r["seed"]) == (kind, seed)]
        return max(taken, default=-1) + 1

    def count(self, kind: str) -> int:
        """Cases of `kind` tried so far."""
        return sum(record["count"] for record in self.records if record["kind"] == kind)

    def faults(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["outcome"] in FAULTS]

    def table(self) -> str:
        """A Markdown table with a row per group and per kind."""
        rows = []
        for kind in GOALS:
            of_kind = [record for record in self.records if record["kind"] == kind]
            for group in sorted({record["group"] for record in of_kind}):
                members = [record for record in of_kind if record["group"] == group]
                rows.append([f"{kind}: {group}", *_counts(members)])
            rows.append([f"**all {kind}**", *_counts(of_kind)])
        return common.markdown_table(_HEADER, rows)

    def goals(self) -> str:
        """Counts and faults compared with the goals, one line per kind."""
        lines = []
        for kind, goal in GOALS.items():
            counts = collections.Counter(r["outcome"] for r in self.records if r["kind"] == kind)
            faults = ", ".join(f"{counts[outcome]} {outcome}" for outcome in FAULTS)
            tried = f"{self.count(kind):,} (goal: {goal:,})"
            lines.append(f"* {kind}: {tried}; {faults} (goal: 0 of each)")
        return "\n".join(lines)


def _counts(members: Sequence[dict[str, Any]]) -> list[str]:
    def number(outcomes: Iterable[str]) -> str:
        return f"{sum(r['count'] for r in members if r['outcome'] in outcomes):,}"

    columns = ((EQUAL, NAMED), (DIFFERING,), (TRACEBACK,), (HANG,), (SILENT,), (UNDETECTABLE,))
    return [f"{sum(r['count'] for r in members):,}", *map(number, columns)]
