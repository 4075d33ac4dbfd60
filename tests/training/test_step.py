"""The compiled step: optimizers against their formulas, sharding against one device, evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import train
from pipeline import accounting
from tests.helpers.runs import INSERTIONS_AND_BUFFERS, RESNET, echoing, losses_of, mini, train_lines
from training import optimizer
from training.experiment import make_experiment


@pytest.mark.parametrize("name", ["nesterov", "momentum"])
def test_momentum_is_the_formula(name):
    """Sutskever et al. (2013) in the form of Goyal et al. (2017): m <- mu m + g."""
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(5, 3)).astype(np.float32)
    hyper = optimizer.Hyperparameters(0.1, 0.9, 0.01)
    params = {"layer": {"kernel": jnp.ones(3), "bias": jnp.ones(3)}}
    transformation = optimizer.transformation(name, hyper)
    state = transformation.init(params)
    wanted = {"kernel": np.ones(3), "bias": np.ones(3)}
    trace = {"kernel": np.zeros(3), "bias": np.zeros(3)}
    for g in grads:
        updates, state = transformation.update({"layer": {"kernel": g, "bias": g}}, state, params)
        params = jax.tree.map(lambda p, u: p + u, params, updates)
        for leaf, decay in (("kernel", 0.01), ("bias", 0.0)):
            slope = g + decay * wanted[leaf]
            trace[leaf] = 0.9 * trace[leaf] + slope
            ahead = slope + 0.9 * trace[leaf] if name == "nesterov" else trace[leaf]
            wanted[leaf] = wanted[leaf] - 0.1 * ahead
    for leaf, value in wanted.items():
        np.testing.assert_allclose(params["layer"][leaf], value, rtol=1e-5)


def test_adamw_is_that_of_optax():
    params = {"layer": {"kernel": jnp.ones(3), "bias": jnp.ones(3)}}
    mask = {"layer": {"kernel": True, "bias": False}}
    wanted, mine = params, params
    reference = optax.adamw(0.1, b1=0.8, b2=0.9, weight_decay=0.05, mask=mask)
    hyper = optimizer.Hyperparameters(0.1, 0.8, 0.05, beta2=0.9)
    own = optimizer.transformation("adamw", hyper)
    theirs, state = reference.init(params), own.init(params)
    for grad in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        grads = {"layer": {"kernel": grad, "bias": grad}}
        update, theirs = reference.update(grads, theirs, wanted)
        wanted = optax.apply_updates(wanted, update)
        update, state = own.update(grads, state, mine)
        mine = optax.apply_updates(mine, update)
    for leaf in ("kernel", "bias"):
        np.testing.assert_allclose(mine["layer"][leaf], wanted["layer"][leaf], rtol=1e-6)


def test_a_step_moves_the_running_statistics_of_batch_norm_towards_those_of_the_batch():
    experiment = make_experiment(mini(**RESNET))
    program, batch = experiment.program, next(iter(experiment.batches))
    rows = (batch.data, batch.index.astype(np.uint32), batch.copy.astype(np.uint32))
    state, still = program.init(0), optimizer.Hyperparameters(0.0, 0.0, 0.0)
    step = jax.jit(program.train_step)
    statistics = [jax.tree.leaves(state.model_state)]
    for _ in range(2):
        state, _ = step(state, rows, still, np.uint32(0))
        statistics.append(jax.tree.leaves(state.model_state))
    assert statistics[0]
    # Without a change of the parameters, each step goes the same share of what is left.
    for first, second, third in zip(*statistics, strict=True):
        np.testing.assert_allclose(third - second, 0.9 * (second - first), rtol=1e-3, atol=1e-6)
        assert abs(second - first).max() > 0


def test_schedules_run_over_their_horizon():
    config = mini(optimizer__learning_rate=2.0, optimizer__schedule__final_factor=0.1)
    rates = [optimizer.hyperparameters(config, step / 100).learning_rate for step in range(101)]
    assert rates[0] == 2.0
    assert rates[50] == pytest.approx(2.0 * 0.55)
    assert rates[100] == pytest.approx(0.2)
    config.optimizer.schedule.name = "constant"
    assert optimizer.hyperparameters(config, 0.99).learning_rate == 2.0


def test_only_the_learning_rate_follows_a_schedule():
    values = {"learning_rate": 0.5, "momentum": 0.75, "weight_decay": 0.125, "beta2": 0.9375}
    config = mini(**{f"optimizer__{name}": value for name, value in values.items()})
    for progress in (0.0, 1.0):
        hyper = optimizer.hyperparameters(config, progress)._asdict()
        assert hyper == values | {"learning_rate": hyper["learning_rate"]}


@pytest.mark.parametrize("at", INSERTIONS_AND_BUFFERS)
@pytest.mark.parametrize("horizon", [0, 320, 1280])
def test_the_horizon_in_steps_is_what_each_condition_takes_on_it(at, horizon):
    config = mini(**echoing(*at), optimizer__schedule__horizon_fresh_examples=horizon)
    # floor(e * H) copies in whole batches of 32, whatever the buffer
    assert accounting.total_steps(config, horizon) == (horizon or 640) * config.echo.factor // 32


@pytest.mark.parametrize("at", [("none", 0), ("before_augmentation", 100), ("after_batching", 4)])
def test_a_schedule_follows_the_steps_of_its_condition_on_its_horizon(at, tmp_path):
    """In a run's records: echoing stretches the decay, prefill is no leap, and past the horizon the
    last rate stays."""
    horizon = {"optimizer__schedule__horizon_fresh_examples": 320}
    config = mini(**echoing(*at), **horizon, optimizer__learning_rate=0.1, log_every_steps=1)
    train.train(config, tmp_path / "run")
    rates = [line["learning_rate"] for line in train_lines(tmp_path / "run")]
    shares = np.minimum(np.arange(len(rates)) / (len(rates) / 2), 1.0)
    np.testing.assert_allclose(rates, 0.1 * (1 - 0.9 * shares), rtol=1e-6)


# Losses of the first three steps of a shrunk mini. If a change of the model, the data or their
# randomness is meant, put what the test prints here; if none is meant, the change is a bug.
GOLDEN_LOSSES = [2.398116, 2.373794, 2.374711]


def test_the_first_steps_of_the_mini_are_what_they_were(uninterrupted):
    losses = losses_of(
        uninterrupted(mini(**RESNET, **echoing("before_augmentation", 100), log_every_steps=1))
    )
    print(losses[:3])
    np.testing.assert_allclose(losses[:3], GOLDEN_LOSSES, rtol=1e-4)


def test_records_say_which_share_of_a_batch_repeats(uninterrupted):
    config = mini(**RESNET, **echoing("before_augmentation", 100), log_every_steps=1)
    logged = train_lines(uninterrupted(config))
    batches = list(make_experiment(config).batches)
    assert [r["repeated"] for r in logged] == [np.mean(b.copy != 0) for b in batches]
    assert [r["unique_fraction"] for r in logged] == [len({*b.index}) / 32 for b in batches]
    assert {r["repeated"] for r in logged} > {0.5}


def test_evaluation_over_padded_batches_is_the_mean_over_examples():
    parts = make_experiment(mini())
    state = parts.program.init(0)
    assert len(parts.validation) * 128 > 300  # so the last batch is partly padding
    got = parts.program.evaluate(state, parts.validation)
    rows = [
        {name: array[mask == 1] for name, array in data.items()} for data, mask in parts.validation
    ]
    whole = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    wanted = parts.program.evaluate(state, [(whole, np.ones(300, np.float32))])
    assert got == pytest.approx(wanted, rel=1e-5)


def test_evaluation_waits_for_the_batch_before_the_last(monkeypatch):
    parts, waits = make_experiment(mini()), []
    state, batch = parts.program.init(0), parts.validation[0]
    monkeypatch.setattr(jax, "block_until_ready", lambda outputs: waits.append(len(outputs)))
    parts.program.evaluate(state, [batch] * 4)
    assert waits == [0, 0, 1, 1]


def test_initial_parameters_depend_on_the_model_seed_alone():
    program = make_experiment(mini(**RESNET)).program
    one, same, other = (jax.tree.leaves(program.init(seed).params) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.long
def test_bfloat16_activations_keep_float32_parameters_and_learn_alike(uninterrupted):
    exact = losses_of(uninterrupted(mini(**RESNET, log_every_steps=1)))
    coarse = losses_of(uninterrupted(mini(**RESNET, log_every_steps=1, dtype="bfloat16")))
    np.testing.assert_allclose(coarse[:3], exact[:3], rtol=0.1)
    state = make_experiment(mini(**RESNET, dtype="bfloat16")).program.init(0)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
