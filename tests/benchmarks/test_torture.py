"""benchmarks/torture with a few kills, damages, and inputs, none of which may be a fault."""

import collections
import json
import random

import pytest

from benchmarks import torture
from tests.helpers.runs import run_command, run_python


@pytest.mark.long
def test_a_few_cases_cause_no_fault(tmp_path):
    results = tmp_path / "results.jsonl"
    amounts = {"kills": 1, "damages": 2, "inputs": 3}
    flags = [f"--{kind}={number}" for kind, number in amounts.items()]
    done = run_command("benchmarks.torture", f"--results={results}", *flags)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in results.read_text().splitlines()]
    assert collections.Counter(case["kind"] for case in cases) == amounts
    assert "| **all damages** | 2 |" in done.stdout


CASES = """
import os, pathlib, sys
from benchmarks import torture

def attempt(number):
    (pathlib.Path(sys.argv[1]) / "output.txt").write_text("")
    if number == 3:
        os._exit(9)
    return {"group": "g", "case": "", "outcome": "silent" if number == 5 else "equal"}

for number, case in torture._cases(attempt, range(8), pathlib.Path(sys.argv[1])):
    print(number, case["outcome"])
"""


@pytest.mark.long
def test_a_case_that_ends_the_process_or_is_a_fault_is_judged_alone(tmp_path):
    done = run_python(["-c", CASES, str(tmp_path)])
    expected = dict.fromkeys(range(8), "equal") | {3: "differing", 5: "silent"}
    assert done.stdout.splitlines() == [f"{n} {outcome}" for n, outcome in expected.items()]


@pytest.mark.parametrize("seed", range(20))
def test_every_damage_changes_a_file(seed, tmp_path):
    path, rng = tmp_path / "result.json", random.Random(seed)
    content = json.dumps({"step": 12, "best": {"value": 0.5}, "more": list(range(100))})
    for _ in range(20):
        path.write_text(content)
        torture._damage(path, rng)
        if not path.is_file() or path.read_bytes() != content.encode():
            return
    pytest.fail("the file is unchanged")


def test_difference_finds_nested_differences():
    one = {"metrics": [{"step": 1, "loss": 0.5}], "arrays": {"x": "ab"}}
    assert torture.difference(one, json.loads(json.dumps(one))) == ""
    other = {"metrics": [{"step": 1, "loss": 0.25}], "arrays": {"x": "ab"}}
    assert "/metrics/0/loss" in torture.difference(one, other)
    assert torture.difference(one, {"metrics": []})
