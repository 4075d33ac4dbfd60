"""Tests of GhostBatchNorm against nnx.BatchNorm and against numpy, group by group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.norm import GhostBatchNorm
from tests.helpers.runs import cpu_devices, run_python


def example_batch(batch=6, seed=0):
    scale_C, shift_C = np.array([1.0, 4.0, 0.5]), np.array([0.0, -2.0, 1.0])
    x_BxHxWxC = np.random.default_rng(seed).normal(size=(batch, 2, 4, 3)) * scale_C + shift_C
    return x_BxHxWxC.astype(np.float32)


def test_without_groups_it_agrees_with_the_library():
    ours = GhostBatchNorm(3)
    theirs = nnx.BatchNorm(3, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))
    for norm in (ours, theirs):
        norm.scale[...] = jnp.array([1.0, 2.0, 3.0])
        norm.bias[...] = jnp.array([0.5, 0.0, -0.5])
    for seed in range(2):
        x = example_batch(seed=seed)
        expected = theirs(x, use_running_average=False)
        np.testing.assert_allclose(ours(x, train=True), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.mean[...], theirs.mean[...], rtol=1e-5)
    np.testing.assert_allclose(ours.var[...], theirs.var[...], rtol=1e-5)
    expected = theirs(x, use_running_average=True)
    np.testing.assert_allclose(ours(x, train=False), expected, rtol=1e-5, atol=1e-5)


def test_each_group_is_normalized_by_itself_and_the_running_statistics_average_the_groups():
    norm, x = GhostBatchNorm(3, group_size=2), example_batch(6)
    y, means, variances = np.asarray(norm(x, train=True)), [], []
    for start in (0, 2, 4):
        group = x[start : start + 2].astype(np.float64)
        means.append(group.mean((0, 1, 2)))
        variances.append(group.var((0, 1, 2)))
        expected = (group - means[-1]) / np.sqrt(variances[-1] + 1e-5)
        np.testing.assert_allclose(y[start : start + 2], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.mean[...], 0.1 * np.mean(means, 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.var[...], 0.9 + 0.1 * np.mean(variances, 0), rtol=1e-4)


def test_a_batch_smaller_than_a_group_is_one_group_and_evaluation_takes_any():
    x, plain = example_batch(6), GhostBatchNorm(3)
    small = GhostBatchNorm(3, group_size=32)
    np.testing.assert_array_equal(small(x, train=True), plain(x, train=True))
    norm = GhostBatchNorm(3, group_size=4)
    with pytest.raises(ValueError, match="reshape"):
        norm(x, train=True)
    assert norm(x, train=False).shape == (6, 2, 4, 3)


def test_vectors_are_normalized_too():
    norm, x_BxC = GhostBatchNorm(3, group_size=3), example_batch(6)[:, 0, 0]
    expected = [(g - g.mean(0)) / np.sqrt(g.var(0) + 1e-5) for g in (x_BxC[:3], x_BxC[3:])]
    np.testing.assert_allclose(norm(x_BxC, train=True), np.concatenate(expected), atol=1e-5)


def test_bfloat16_activations_keep_float32_statistics():
    norm = GhostBatchNorm(3, dtype=jnp.bfloat16)
    x = jnp.asarray(example_batch(), jnp.bfloat16)
    assert norm(x, train=True).dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(norm))} == {jnp.dtype("float32")}
    expected = np.asarray(x, np.float64).mean((0, 1, 2))
    np.testing.assert_allclose(norm.mean[...], 0.1 * expected, rtol=1e-3, atol=1e-5)


# Run in a process of its own, since the number of devices is fixed when JAX starts.
SHARDED = """
import jax, jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from models.norm import GhostBatchNorm

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("data"))
x = jax.device_put(jax.random.normal(jax.random.key(0), (16, 2, 2, 3)), sharding)

def normalized(x, group_size):
    return GhostBatchNorm(3, group_size=group_size)(x, train=True)

for group_size in (0, 2, 4):
    compiled = jax.jit(normalized, static_argnums=1).lower(x, group_size).compile()
    text, y = compiled.as_text(), compiled(x)
    communicates = any(name in text for name in ("all-reduce", "all-gather", "all-to-all"))
    same = jnp.allclose(jax.device_get(y), normalized(jax.device_get(x), group_size), atol=1e-5)
    print(group_size, communicates, bool(same), y.sharding == sharding)
"""


@pytest.mark.long
def test_whole_groups_on_a_device_need_no_communication():
    result = run_python(["-c", SHARDED], cpu_devices(4))
    expected = ["0 True True True", "2 False True True", "4 False True True"]
    assert result.stdout.splitlines() == expected, result.stderr
