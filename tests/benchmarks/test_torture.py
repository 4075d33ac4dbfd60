"""benchmarks/torture with a few kills, damages and inputs: none of them may be a fault.

Which cases are drawn is fixed. When a kill comes is not, and what is demanded holds for any moment.
"""

import json
import random

import pytest

from benchmarks.torture import damages, endings, ledger
from tests.helpers.runs import run_command


def test_a_bounded_torture_finds_no_fault(tmp_path):
    results = tmp_path / "results.jsonl"
    amounts = ["--kills=1", "--damages=20", "--inputs=30"]
    done = run_command("benchmarks.torture", f"--results={results}", *amounts)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert sum(record["kind"] == "kills" for record in found) == 1
    assert sum(record["kind"] == "damages" for record in found) == 20
    assert sum(record["kind"] == "inputs" for record in found) == 30
    assert {record["outcome"] for record in found} >= {ledger.EQUAL, ledger.NAMED}
    assert "| **all damages** | 20 |" in done.stdout
    # without an amount: the table of what is there, and nothing is tried
    again = run_command("benchmarks.torture", f"--results={results}")
    assert again.stdout == done.stdout
    assert len(results.read_text().splitlines()) == len(found)


def test_counts_accumulate_and_a_fault_is_told(tmp_path):
    path = tmp_path / "results.jsonl"
    record = {"kind": "kills", "seed": 0, "group": "g", "count": 3, "case": "c"}
    for index, outcome in enumerate((ledger.EQUAL, ledger.DIFFERING)):
        ledger.Ledger(path).add(record | {"index": index, "outcome": outcome})
    both = ledger.Ledger(path)
    assert (both.next_index("kills", 0), both.next_index("kills", 1)) == (2, 0)
    assert both.tried("kills") == 6
    assert "| **all kills** | 6 | 3 | 3 | 0 | 0 | 0 | 0 |" in both.table()
    assert [fault["index"] for fault in both.faults()] == [1]
    done = run_command("benchmarks.torture", f"--results={path}")
    assert done.returncode == 1
    assert "differing: kills 0 1" in done.stderr


@pytest.mark.parametrize("how", damages.HOWS)
def test_every_damage_changes_a_file(how, tmp_path):
    path = tmp_path / "result.json"
    content = json.dumps({"step": 12, "best": {"value": 0.5}, "more": list(range(100))})
    for seed in range(20):
        path.write_text(content)
        damages.HOWS[how](path, random.Random(seed))
        if not path.is_file() or path.read_bytes() != content.encode():
            return
        path.unlink()
    pytest.fail("it is as it was")


def test_what_nothing_can_notice_is_a_value_outside_of_checksums_alone(tmp_path):
    intact = tmp_path / "intact" / "result.json"
    intact.parent.mkdir()
    intact.write_text('{"step": 12, "status": "reached"}')

    def unnoticeable(name, content):
        path = tmp_path / name
        path.write_text(content)
        return damages.unnoticeable(path, intact)

    assert unnoticeable("result.json", '{"step": 13, "status": "reached"}')
    assert not unnoticeable("result.json", '{"stdp": 12, "status": "reached"}')
    assert not unnoticeable("result.json", '{"step": "1", "status": "reached"}')
    assert not unnoticeable("result.json", '{"step": 12, "status": "reac')
    assert not unnoticeable("metadata", '{"step": 13, "status": "reached"}')


def test_a_difference_is_found_wherever_it_is():
    one = {"metrics": [{"step": 1, "loss": 0.5}], "arrays": {"x": "ab"}}
    assert endings.difference(one, json.loads(json.dumps(one))) == ""
    other = {"metrics": [{"step": 1, "loss": 0.25}], "arrays": {"x": "ab"}}
    assert "/metrics/0/loss: 0.5 there, 0.25 expected" in endings.difference(one, other)
    assert endings.difference(one, {"metrics": []})
    assert endings.difference(one, one | {"metrics": []})
