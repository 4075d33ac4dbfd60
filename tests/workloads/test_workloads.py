"""A workload can be added with a few lines: the class in docs/workloads.md, taken from there."""

import dataclasses
import re

import numpy as np
import optax
import pytest
from flax import nnx

import train
import workloads
from runs import cli
from tests.helpers.runs import ROOT, mini, slot


@pytest.fixture
def linear(monkeypatch):
    page = (ROOT / "docs" / "workloads.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {
        "dataclasses": dataclasses,
        "nnx": nnx,
        "np": np,
        "optax": optax,
        "workloads": workloads,
    }
    exec(code, names)
    monkeypatch.setitem(workloads.CLASSES, "linear", names["Linear"])


@pytest.mark.parametrize(("insertion", "buffer"), [("none", 0), ("after_batching", 4)])
def test_the_workload_of_the_page_trains_echoed_and_learns(linear, insertion, buffer, tmp_path):
    config = mini(
        **slot(insertion, buffer),
        workload="linear",
        optimizer__learning_rate=0.1,
        budget__fresh_examples=5_000,
        evaluate_every_fresh_examples=2_500,
    )
    result = train.train(config, tmp_path / "run")
    assert result["status"] == "exhausted"
    assert result["fresh_examples"] == 4_992
    assert result["best"]["value"] > 0.8  # chance is 0.1


def test_an_unknown_workload_is_one_sentence_with_those_there_are(tmp_path):
    with pytest.raises(cli.InputError, match="allowed: cifar10, imagenet, lm1b"):
        train.train(mini(workload="resnet"), tmp_path / "run")
