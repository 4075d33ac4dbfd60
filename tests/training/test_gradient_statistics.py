"""Gradient statistics: against explicit computations, and the records of whole runs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import nnx

import train
from analysis import gradients, load
from models.resnet import STAGES
from runs import records
from tests.helpers import golden_worker
from tests.helpers.runs import (
    RESNET,
    echoing,
    last_saved,
    mini,
    placed,
    records_of,
    stop_at,
)
from training import gradient_statistics

NAMES = ("gradient_squared_norm", "gradient_noise_trace", "gradient_cosine", "gradient_norm_ratio")


def perceptron(params, x_BxD, y_B):
    """Squared errors of a small network, [B]."""
    return (jnp.tanh(x_BxD @ params["in"]) @ params["out"] - y_B) ** 2


@pytest.fixture(scope="module")
def population():
    """Three examples, and each one's gradient as float64 [3, parameters]."""
    rng = np.random.default_rng(0)
    params = {"in": rng.normal(size=(4, 5)), "out": rng.normal(size=5)}
    params = jax.tree.map(np.float32, params)
    x_NxD, y_N = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((3, 4), 3))

    def loss(params, x_D, y):
        return perceptron(params, x_D[None], y[None])[0]

    each = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x_NxD, y_N)
    flat = [np.asarray(leaf, np.float64).reshape(3, -1) for leaf in jax.tree.leaves(each)]
    return params, (x_NxD, y_N), np.concatenate(flat, 1)


def over_all_batches(population, index_B):
    """Statistics of every batch that can be drawn: the examples of the population, independent and
    equally likely, one for each index."""
    params, (x_NxD, y_N), gradients_NxP = population
    examples, place_B = np.unique(index_B, return_inverse=True)
    drawn = np.asarray(list(itertools.product(range(len(y_N)), repeat=len(examples))))

    def of_one(drawn_B):
        def row_losses(params):
            return perceptron(params, x_NxD[drawn_B], y_N[drawn_B]), jnp.ones(len(drawn_B))

        nothing_B = jnp.zeros(len(drawn_B), bool)
        return gradient_statistics.statistics(row_losses, params, index_B, nothing_B, np.uint32(0))

    found = jax.jit(jax.vmap(of_one))(drawn[:, place_B])
    mean_P = gradients_NxP.mean(0)
    wanted = mean_P @ mean_P, ((gradients_NxP - mean_P) ** 2).sum(1).mean()
    return {name: np.asarray(found[name], np.float64) for name in NAMES[:2]}, wanted


def indices_with(in_first, rows):
    """Indices of which so many fall in the first half."""
    some = np.arange(100, dtype=np.uint32)
    first = np.asarray(gradient_statistics.in_first_half(some, np.uint32(0)))
    return np.concatenate([some[first][:in_first], some[~first][: rows - in_first]])


@pytest.mark.parametrize(("in_first", "copies"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_both_estimates_are_unbiased_for_halves_of_any_size(population, in_first, copies):
    """Also where each example is there twice: such a batch is twice as noisy."""
    found, (squared_norm, trace) = over_all_batches(
        population, indices_with(in_first, 4).repeat(copies)
    )
    assert len(found["gradient_noise_trace"]) == 3**4
    assert found["gradient_squared_norm"].mean() == pytest.approx(squared_norm, rel=1e-5)
    assert found["gradient_noise_trace"].mean() == pytest.approx(copies * trace, rel=1e-5)


def test_equal_halves_give_the_estimates_of_mccandlish(population):
    """Appendix A.1 in their own terms, on one batch."""
    params, (x_NxD, y_N), gradients_NxP = population
    index_B, drawn_B = indices_with(2, 4), np.asarray([0, 1, 2, 2])
    first_B = np.asarray(gradient_statistics.in_first_half(index_B, np.uint32(0)))
    halves = [gradients_NxP[drawn_B[rows_B]].mean(0) for rows_B in (first_B, ~first_B)]
    big = gradients_NxP[drawn_B].mean(0)
    small_square = np.mean([half @ half for half in halves])
    squared_norm = (4 * big @ big - 2 * small_square) / (4 - 2)
    trace = (small_square - big @ big) / (1 / 2 - 1 / 4)
    found = gradient_statistics.statistics(
        lambda params: (perceptron(params, x_NxD[drawn_B], y_N[drawn_B]), jnp.ones(4)),
        params,
        index_B,
        np.zeros(4, bool),
        np.uint32(0),
    )
    assert float(found["gradient_squared_norm"]) == pytest.approx(squared_norm, rel=1e-4)
    assert float(found["gradient_noise_trace"]) == pytest.approx(trace, rel=1e-4)


@pytest.fixture(params=["cifar10", "transformer", "ssd"])
def shipped(request, monkeypatch):
    """(name, parameters, batch, a function of both for each kind of loss)."""
    monkeypatch.setitem(STAGES, 10, golden_worker.SHORT_STAGES[10])
    name, data = request.param, golden_worker.batch(request.param)
    workload = golden_worker.workloads("float32")[name]

    def drawn():
        return nnx.split(workload.model(nnx.Rngs(0)), nnx.Param, ...)[1:]

    graphdef = nnx.graphdef(nnx.eval_shape(lambda: workload.model(nnx.Rngs(0))))
    params, model_state = jax.jit(drawn)()

    def called(method):
        def function(params, data):
            return method(nnx.merge(graphdef, params, model_state, copy=True), data)

        return function

    return name, params, data, called(workload.loss), called(workload.row_losses)


@pytest.mark.long
def test_rows_add_up_to_the_loss_and_groups_of_them_have_their_own_gradients(shipped):
    """Of each shipped network, also with batch normalization: each group's explicit gradient."""
    name, params, data, loss, row_losses = shipped
    rows = len(next(iter(data.values())))
    index_B = indices_with(rows // 2, rows)
    repeat_B = np.arange(rows) % 4 == 1

    @jax.jit
    def explicit(params, data, rows_B):
        def group_loss(params):
            losses_B, weights_B = row_losses(params, data)
            return (rows_B * losses_B).sum() / (rows_B * weights_B).sum()

        return jax.value_and_grad(group_loss)(params)

    @jax.jit
    def measured(params, data):
        def losses(params):
            return row_losses(params, data)

        return gradient_statistics.statistics(losses, params, index_B, repeat_B, np.uint32(0))

    def value_and_flat(found):
        value, gradient = found
        return float(value), np.concatenate(
            [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(gradient)]
        )

    value, gradient = value_and_flat(explicit(params, data, np.ones(rows)))
    assert value == pytest.approx(float(jax.jit(loss)(params, data)[0]), rel=1e-5)
    found = {k: float(v) for k, v in measured(params, data).items()}

    fresh_loss, fresh = value_and_flat(explicit(params, data, 1.0 - repeat_B))
    repeat_loss, repeat = value_and_flat(explicit(params, data, 1.0 * repeat_B))
    norms = np.linalg.norm(fresh), np.linalg.norm(repeat)
    assert found["fresh_loss"] == pytest.approx(fresh_loss, rel=1e-5)
    assert found["repeat_loss"] == pytest.approx(repeat_loss, rel=1e-5)
    assert found["fresh_rows"] == rows - repeat_B.sum()
    assert found["gradient_cosine"] == pytest.approx(fresh @ repeat / norms[0] / norms[1], abs=1e-3)
    assert found["gradient_norm_ratio"] == pytest.approx(norms[1] / norms[0], rel=1e-3)

    first_B = np.asarray(gradient_statistics.in_first_half(index_B, np.uint32(0)))
    (_, one), (_, two) = (
        value_and_flat(explicit(params, data, 1.0 * h)) for h in (first_B, ~first_B)
    )
    scale = one @ one + two @ two
    assert found["gradient_squared_norm"] == pytest.approx(one @ two, abs=1e-3 * scale)
    trace = (one - two) @ (one - two) * rows / 4
    assert found["gradient_noise_trace"] == pytest.approx(trace, rel=2e-3)
    if name == "cifar10":  # rows of equal weights: the halves' mean is the gradient
        estimates = found["gradient_squared_norm"] + found["gradient_noise_trace"] / rows
        assert estimates == pytest.approx(gradient @ gradient, rel=2e-3)


def test_copies_share_a_half_and_halves_are_even_draws():
    index_B = np.arange(10_000, dtype=np.uint32)
    for seed in (0, 7):
        first = np.asarray(gradient_statistics.in_first_half(index_B.repeat(2), np.uint32(seed)))
        np.testing.assert_array_equal(first[::2], first[1::2])
        assert abs(first.mean() - 0.5) < 0.025  # five standard deviations
        for period in (2, 4, 32):  # streams take every n-th index
            assert abs(first[::2][::period].mean() - 0.5) < 2.5 / (len(index_B) / period) ** 0.5


@pytest.mark.parametrize("every", [1, 2, 3, 64])
def test_one_step_per_interval_is_due_at_an_evenly_distributed_place(every):
    steps = [step for step in range(every * 200) if gradient_statistics.due(step, every)]
    assert [step // every for step in steps] == list(range(200))
    for factor in (2, 4):  # repeated whole batches: which copy a step shows
        copies = np.bincount([step % factor for step in steps], minlength=factor)
        assert abs(copies - 200 / factor).max() <= 0.05 * 200


ON = {"gradient_statistics_every_steps": 2}


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(echoing("none", 0), marks=pytest.mark.long),
        echoing("before_augmentation", 100),
        echoing("after_augmentation", 0),
        echoing("after_batching", 4),
        placed("before_augmentation", 100),
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_measuring_changes_no_number_of_a_run(condition, tmp_path, uninterrupted):
    if condition["echo__insertion"] == "none":
        condition = condition | RESNET  # one network with batch normalization, whose state counts
    config = mini(**condition, log_every_steps=1)
    train.train(mini(**condition, log_every_steps=1, **ON), tmp_path / "run")
    measured = [r for r in records_of(tmp_path / "run") if r["split"] == "gradients"]
    kept = [r for r in records_of(tmp_path / "run") if r["split"] != "gradients"]
    assert kept == records_of(uninterrupted(config))
    (arrays, _), (others, _) = (
        last_saved(config, d) for d in (tmp_path / "run", uninterrupted(config))
    )
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(one, other)

    trained = {r["step"]: r for r in records_of(tmp_path / "run") if r["split"] == "train"}
    due = [step + 1 for step in range(len(trained)) if gradient_statistics.due(step, 2)]
    assert [record["step"] for record in measured] == due
    for record in measured:
        alike = trained[record["step"]]
        assert record["fresh_examples"] == alike["fresh_examples"]
        repeats = 32 - record["fresh_rows"]
        assert repeats == 32 * alike["repeated"]
        assert ("fresh_loss" in record, "repeat_loss" in record) == (repeats < 32, repeats > 0)
        assert ("gradient_cosine" in record) == ("gradient_norm_ratio" in record)
        assert ("gradient_cosine" in record) == (0 < repeats < 32)
        sums = record["fresh_rows"] * record.get("fresh_loss", 0.0)
        sums += repeats * record.get("repeat_loss", 0.0)
        assert sums / 32 == pytest.approx(alike["loss"], rel=1e-5)
        assert record["gradient_noise_trace"] > 0
        assert "gradient_squared_norm" in record
    mixes = {0 < record["fresh_rows"] < 32 for record in measured}
    whole_batches = condition["echo__insertion"] in ("none", "after_batching")
    assert mixes == {False} if whole_batches else True in mixes
    if condition["echo__insertion"] == "after_batching":
        assert {record["fresh_rows"] for record in measured} == {0, 32}


def test_reading_gives_one_row_per_measured_step_and_other_analysis_ignores_them(uninterrupted):
    fields = echoing("before_augmentation", 100)
    measured, plain = uninterrupted(mini(**fields, **ON)), uninterrupted(mini(**fields))
    frame = gradients.gradient_statistics(measured)
    assert list(frame.columns[3:]) == list(gradients.NAMES)
    kept = [r for r in records.read_metrics(measured) if r["split"] == "gradients"]
    assert set().union(*kept) - {"wall_seconds", "input_wait_fraction", "split"} == set(frame)
    assert frame["step"].tolist() == [record["step"] for record in kept]
    assert len(gradients.gradient_statistics(plain)) == 0

    timed = ["path", "train_seconds", "seconds_to_target"]
    one, other = (load.read(directory).trials for directory in (measured, plain))
    assert one.drop(columns=timed).equals(other.drop(columns=timed))
    one, other = (load.curves(trials, "accuracy") for trials in (one, other))
    assert one.drop(columns="train_seconds").equals(other.drop(columns="train_seconds"))


def test_the_noise_scale_divides_means_and_not_steps():
    steps = [(4.0, 60.0), (-1.0, 30.0), (0.0, 90.0)]
    frame = pd.DataFrame(steps, columns=["gradient_squared_norm", "gradient_noise_trace"])
    assert gradients.noise_scale(frame) == 60.0
    assert np.isnan(gradients.noise_scale(frame[1:2]))
    assert np.isnan(gradients.noise_scale(frame[:0]))


def test_measuring_may_begin_when_a_run_resumes(tmp_path, uninterrupted):
    fields = echoing("before_augmentation", 100)
    train.train(mini(**fields), tmp_path / "run", on_step=stop_at(9))
    train.train(mini(**fields, **ON), tmp_path / "run")
    whole = [r for r in records_of(uninterrupted(mini(**fields, **ON))) if r["step"] > 9]
    assert [r for r in records_of(tmp_path / "run") if r["step"] > 9] == whole
