"""benchmarks/torture with a few kills, damages, and inputs, none of which may be a fault.

The cases are fixed by their seed. The moment of a kill is not, but what is checked holds for all.
"""

import collections
import json
import random

import pytest

from benchmarks.torture import __main__ as torture
from benchmarks.torture import damages, endings, ledger
from tests.helpers.runs import run_command


@pytest.mark.long
@pytest.mark.multiprocess
def test_a_few_cases_cause_no_fault(tmp_path):
    results = tmp_path / "results.jsonl"
    amounts = {"kills": 1, "damages": 2, "inputs": 3}
    flags = [f"--{kind}={number}" for kind, number in amounts.items()]
    done = run_command("benchmarks.torture", f"--results={results}", *flags)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in results.read_text().splitlines()]
    assert collections.Counter(case["kind"] for case in cases) == amounts
    assert {case["outcome"] for case in cases} >= {ledger.EQUAL, ledger.NAMED}
    assert "| **all damages** | 2 |" in done.stdout


def test_counts_accumulate_and_faults_are_reported(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    record = {"kind": "kills", "seed": 0, "group": "g", "count": 3, "case": "c"}
    for index, outcome in enumerate((ledger.EQUAL, ledger.DIFFERING)):
        ledger.Ledger(path).add(record | {"index": index, "outcome": outcome})
    cases = ledger.Ledger(path)
    assert (cases.next_index("kills", 0), cases.next_index("kills", 1)) == (2, 0)
    assert cases.count("kills") == 6
    assert [fault["index"] for fault in cases.faults()] == [1]
    before = path.read_bytes()
    assert torture.main([f"--results={path}"]) == 1  # without an amount, only prints the table
    printed = capsys.readouterr()
    assert "| **all kills** | 6 | 3 | 3 | 0 | 0 | 0 | 0 |" in printed.out
    assert "differing: kills 0 1" in printed.err
    assert path.read_bytes() == before


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
    pytest.fail("the file is unchanged")


def test_only_values_not_covered_by_a_checksum_are_unnoticeable(tmp_path):
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


def test_difference_finds_nested_differences():
    one = {"metrics": [{"step": 1, "loss": 0.5}], "arrays": {"x": "ab"}}
    assert endings.difference(one, json.loads(json.dumps(one))) == ""
    other = {"metrics": [{"step": 1, "loss": 0.25}], "arrays": {"x": "ab"}}
    assert "/metrics/0/loss: got 0.5, expected 0.25" in endings.difference(one, other)
    assert endings.difference(one, {"metrics": []})
    assert endings.difference(one, one | {"metrics": []})
