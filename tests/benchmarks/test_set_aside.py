"""Targets follow from pilots by the protocol's rule; the page sets predictions beside truth."""

import math

import pytest

from benchmarks import set_aside
from tests.helpers.runs import ROOT, on_each_step, stop_at_call


@pytest.mark.parametrize(
    ("problem", "target"), [("digits", 0.975), ("logistic", 0.875), ("sentences", 4.6)]
)
def test_targets_are_those_of_the_protocol(problem, target):
    pilot = ROOT / "results" / "grid" / f"pilot_{problem}.tar.xz"
    found, hyperparameters = set_aside.target_and_hyperparameters(pilot)
    assert found == target
    assert 0.003 <= hyperparameters["optimizer.learning_rate"] <= 3
    assert f"| `{problem}` |" in (ROOT / "results" / "protocol.md").read_text()


def test_the_page_sets_predictions_beside_what_was_measured():
    seen = {"observed": False}
    cell = {"fresh_examples": 1_000.0, "fresh_low": 800.0, "fresh_high": 1_500.0} | seen
    record = {
        "problem": "manual",
        "target": 3.9,
        "budget": 10_000,
        "pilot_seconds": 500.0,
        "factor": 4.0,
        "regret": 1.3,
        "doubt": "",
        "cells": {"4": cell, "16": cell},
    }
    assert "Measured regret" not in set_aside.report([record])
    measured = {"4": [900.0, 1_600.0], "16": [500.0, None]}
    page = set_aside.report([record | {"measured": measured}])
    truth = {"4": math.sqrt(900 * 1_600), "16": math.sqrt(500 * 15_000) * 16 / 6}
    assert f"Measured regret: {truth['4'] / min(truth.values()):.2f}." in page
    assert "| 4 | 1,000 (800 to 1,500) | 900, 1,600 | -17% | 1 of 2 | 1,200 |" in page
    assert "| 16 | 1,000 (800 to 1,500) | 500, not reached |  | 0 of 2 |" in page
    beyond = {"fresh_examples": 15_000.0, "fresh_low": 11_000.0, "fresh_high": 20_000.0} | seen
    cells = {"4": cell, "16": beyond}
    page = set_aside.report([record | {"cells": cells, "measured": measured}])
    assert "| 16 | 15,000 (11,000 to 20,000) | 500, not reached |  | 1 of 2 |" in page


@pytest.mark.slow
def test_an_interrupted_measurement_is_not_recorded(tmp_path):
    prediction = {"target": 0.9, "hyperparameters": {}}
    stopped = pytest.raises(SystemExit, match="measured_e1/6000 ended preempted")
    with on_each_step(stop_at_call(2)), stopped:
        set_aside.measure("logistic", prediction, tmp_path)


def test_what_a_pilot_reached_and_what_is_not_finished_are_marked():
    cell = {"fresh_examples": 900.0, "fresh_low": 800.0, "fresh_high": 1_500.0, "observed": True}
    record = {
        **{"problem": "manual", "target": 3.9, "budget": 10_000, "pilot_seconds": 500.0},
        **{"factor": 4.0, "regret": 1.3, "doubt": "", "cells": {"4": cell}},
    }
    page = set_aside.report([record | {"measured": {"4": [900.0]}}])
    assert "900 (800 to 1,500); a pilot's own" in page
    assert "Not finished: a seed of e = 4." in page
