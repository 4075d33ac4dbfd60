"""The benchmark of the training step: its requirements, its batches, and its FLOP counts."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import workloads
from benchmarks import step_time
from tests.helpers.refusals import refusal
from tests.helpers.runs import HANGS, ROOT
from training import optimizer, sharding
from training import step as steps

# The benchmark requires only JAX, Flax, Optax, and ml-collections; imports of these fail.
WITHOUT = """
import sys
names = "tensorflow_datasets grain cv2 simplejpeg dm_pix sentencepiece torch".split()
names += ["faster_coco_eval"]
sys.modules |= dict.fromkeys(names)
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in names else find_spec(name)
from benchmarks import step_time
step_time.main(sys.argv[1:])
"""


@pytest.mark.long
def test_quick_run_without_optional_packages_prints_a_row_per_workload(tmp_path):
    out = tmp_path / "new" / "report.md"
    argv = ["--size=mini", "--quick", "--batch_size=4", "--workloads=lm1b", f"--out={out}"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text() == done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["| lm1b, batch 4"]
    assert float(rows[0][1].split()[0].replace(",", "")) > 0
    assert "PyTorch is not installed here" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("size", ["full", "mini"])
@pytest.mark.parametrize("name", step_time.CONFIGS)
def test_batches_fit_the_loss(name, size):
    config = step_time.configuration(name, size, 2)
    info = step_time.data_set(name, size, config)
    workload = workloads.make(config, info)

    def loss(data):
        return workload.loss(workload.model(nnx.Rngs(0)), data)[0]

    assert jax.eval_shape(loss, step_time.random_batch(config, info)).shape == ()


@pytest.mark.slow
def test_transformer_flops_are_six_per_parameter_and_token_plus_attention():
    """Kaplan et al. 2020, section 2.1, for a batch whose logits are computed in groups."""
    config = step_time.configuration("lm1b", "full", 1024)
    info = step_time.data_set("lm1b", "full", config)
    batch, rows = step_time.random_batch(config, info), np.zeros(1024, np.uint32)
    workload, mesh = workloads.make(config, info), sharding.make_mesh(1, 1)
    task = steps.Task(workload, "nesterov", False, mesh)
    state = steps.Program(task).state_shapes
    hyper = optimizer.hyperparameters(config, 0.0)
    flops = step_time.model_flops(task, (state, (batch, rows, rows), hyper, np.uint32(0)))
    tokens, length, dim, layers = 1024 * 64, 64, 512, 6
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    expected = 6 * parameters * tokens + 12 * layers * length * dim * tokens
    assert flops == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("cpu", None),
    ],
)
def test_peak_is_that_of_the_longest_prefix(kind, tera):
    assert step_time.peak_flops(kind) == (tera and tera * 1e12)


@pytest.mark.parametrize(
    "wrong", ["--workloads=resnet", "--rounds=0", "--seconds=-1", "--batch_size=-1"]
)
def test_wrong_input_exits_with_one_sentence(wrong, capsys):
    assert "; allowed: " in refusal(step_time.main, [wrong], capsys)
