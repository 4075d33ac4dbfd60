"""The benchmarks of the step: FLOPs against a formula, and collectives by kind."""

import re

import jax
import numpy as np
import pytest

import workloads
from benchmarks import step, tpu
from training import optimizer, sharding
from training import step as steps


def test_collectives_are_counted_by_kind():
    text = """
  %second = bf16[24,80]{1,0} all-gather(%p3), replica_groups=[1,8]<=[8]
  %start = (f32[16]{0}, f32[16]{0}) all-reduce-start(%p2), to_apply=%add
  %done = f32[16]{0} all-reduce-done(%start)
  ROOT %mine = f32[2,128]{1,0} fusion(%all-reduce), calls=%all-reduce-scatter.1
"""
    assert tpu.collectives(text) == "1 all-gather, 1 all-reduce"
    assert tpu.collectives("ENTRY %main () -> f32[] {\n}\n") == "-"


def test_transformer_flops_are_six_per_parameter_and_token_plus_attention():
    """Kaplan et al. 2020, section 2.1, for a batch whose logits are computed in groups."""
    config = step.configuration("lm1b", "full", 1024)
    info = step.data_set("lm1b", "full", config)
    batch, rows = step.random_batch(config, info), np.zeros(1024, np.uint32)
    task = steps.Task(workloads.make(config, info), "nesterov", False, sharding.make_mesh(1, 1))
    state = steps.Program(task).state_shapes
    hyper = optimizer.hyperparameters(config, 0.0)
    flops = step.model_flops(task, (state, (batch, rows, rows), hyper, np.uint32(0)))
    tokens, length, dim, layers = 1024 * 64, 64, 512, 6
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    expected = 6 * parameters * tokens + 12 * layers * length * dim * tokens
    assert flops == pytest.approx(expected, rel=0.02)


def test_the_peak_is_that_of_the_longest_prefix():
    peaks = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "TPU v5p": 459e12}
    for kind, peak in (peaks | {"TPU v5 lite": 197e12, "cpu": None}).items():
        assert step.peak_flops(kind) == peak


def test_a_small_run_prints_a_row_per_workload(capsys):
    words = ["--size=mini", "--quick", "--batch_size=4", "--workloads=cifar10"]
    assert step.main(words) == 0
    (row,) = re.findall(r"^\| cifar10, batch 4 \|.*", capsys.readouterr().out, re.MULTILINE)
    assert float(row.split(" | ")[4]) > 0  # ms per step
