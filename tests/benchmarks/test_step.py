"""The benchmarks of the step: FLOPs against a formula, and communication counted by hand."""

import re

import jax
import numpy as np
import pytest

import workloads
from benchmarks import step, tpu
from benchmarks.tpu import Collective
from training import optimizer, sharding
from training import step as steps

# In the form of the TPU compiler: a loop of 8 trips with sums over pairs of chips, one all-gather
# written in the two fusions that it overlaps with, and a reduce-scatter written as a fused
# all-reduce.
MODULE = """
%another (p3: bf16[24,10]) -> bf16[24,80] {
  %p3 = bf16[24,10]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all = bf16[24,80]{1,0} all-gather(%p3), replica_groups=[1,8]<=[8], attributes={chain_id="0"}
}

%all-reduce-scatter.1 (p2: f32[16,128]) -> f32[2,128] {
  %p2 = f32[16,128]{1,0:T(8,128)} parameter(0)
  %whole = f32[16,128]{1,0} all-reduce(%p2), replica_groups=[1,8]<=[8]
  ROOT %part = f32[2,128]{1,0} dynamic-slice(%whole), dynamic_slice_sizes={2,128}
}

%condition (s: (s32[], f32[24,10])) -> pred[] {
  %bound = s32[] constant(8)
  ROOT %less = pred[] compare(%count, %bound), direction=LT
}

%body (t: (s32[], f32[24,10])) -> (s32[], f32[24,10]) {
  %old = f32[24,10]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %new = f32[24,10]{1,0} all-reduce(%old), replica_groups=mesh['a'=4,'b'=2] {'b'}
  ROOT %next = (s32[], f32[24,10]) tuple(%n, %new)
}

ENTRY %main (h: bf16[24,10], g: f32[16,128], y: f32[24,10]) -> f32[24,10] {
  %h = bf16[24,10]{1,0:T(8,128)(2,1)} parameter(0)
  %g = f32[16,128]{1,0:T(8,128)} parameter(1)
  %first = bf16[24,80]{1,0} fusion(%h), kind=kCustom, calls=%another
  %second = bf16[24,80]{1,0} fusion(%h), kind=kCustom, calls=%another
  %mine = f32[2,128]{1,0} fusion(%g), calls=%all-reduce-scatter.1, config={"estimated_cycles":"700"}
  ROOT %loop = (s32[], f32[24,10]) while(%init), condition=%condition, body=%body
}
"""


def test_the_communication_of_a_module_is_that_counted_by_hand():
    collectives, cycles = tpu.counts(MODULE)
    assert collectives == {
        Collective("all-reduce", 24 * 10 * 4, group=2): 8,
        Collective("all-gather", 24 * 80 * 2, group=8): 1,
        Collective("reduce-scatter", 16 * 128 * 4, group=8): 1,
    }
    assert cycles == 700
    rows = tpu.collective_rows("step", collectives)
    assert ["step", "all-reduce", "2", "8", "0.00768", "0.00096"] in rows


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,1,2,3},{4,5,6,7}}",
        "[2,4]<=[4,2]T(1,0)",
        "mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0','axis_1'}",
        "mesh['axis_0'=2,'axis_1'=1,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_2'}",
    ],
)
def test_the_size_of_groups_is_read_in_every_form(groups):
    line = f"  %sum = f32[2]{{0}} all-reduce(%x), replica_groups={groups}, to_apply=%add"
    text = f"ENTRY %main (x: f32[2]) -> f32[2] {{\n  %x = f32[2]{{0}} parameter(0)\n{line}\n}}\n"
    assert tpu.counts(text)[0] == {Collective("all-reduce", 8, group=4): 1}


def test_a_chip_of_a_ring_sends_the_bytes_of_the_textbook():
    """Patarasuk & Yuan 2009: 2 (n - 1) / n of the array for an all-reduce."""
    kinds = {"all-reduce": 1400, "all-gather": 700, "reduce-scatter": 700}
    assert {kind: Collective(kind, 800, group=8).sent for kind in kinds} == kinds


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
