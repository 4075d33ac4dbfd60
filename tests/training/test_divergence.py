"""Divergence: each kind is found at its step, alone and in lanes; nothing follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import train
from runs import cli, records, trial_records
from runs.progress import Progress
from tests.helpers.runs import (
    RESNET,
    command,
    latest_step,
    losses_of,
    mini,
    stop_at,
    train_lines,
)
from training import lanes
from training.step import nonfinite, why_diverged
from workloads.classification import SmallImageClassification

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of ENDLESS

WAYS = ("alone", "lanes")

# Infinite in float32: the first update leaves no parameter finite; the first loss is normal.
ENDLESS = 1e39
# One step at this rate makes the loss millions of times as large.
HUGE = 1e7
SMALL = 0.01


def configs(rates, **fields):
    """Runs that are evaluated and saved after every step."""
    cadence = {"evaluate_every_fresh_examples": 32, "checkpoint_every_fresh_examples": 32}
    fields = {"budget__fresh_examples": 96, "log_every_steps": 1} | cadence | fields
    return [mini(**RESNET, optimizer__learning_rate=rate, **fields) for rate in rates]


def trained(way, configs, directory):
    """Results, and the directories that they are in."""
    workdirs = [directory / way / str(number) for number in range(len(configs))]
    if way == "alone":
        return [train.train(*run) for run in zip(configs, workdirs, strict=True)], workdirs
    return lanes.train(configs, workdirs, Progress(quiet=True)), workdirs


def assert_diverged(result, workdir, step, why):
    """At `step`, which is neither evaluated nor saved nor counted further."""
    assert (result["status"], result["step"]) == ("diverged", step)
    assert result["fresh_examples"] == 32 * step
    assert why in result["error"]
    lines = records.read_metrics(workdir)
    assert all(np.isfinite(line["loss"]) for line in lines)  # so the loss did not tell
    assert [line["step"] for line in lines if line["split"] == "validation"] == [*range(1, step)]
    assert latest_step(workdir) == (step - 1 or None)


def losses(workdir):
    assert not any("nonfinite" in line for line in train_lines(workdir))
    return losses_of(workdir)


@pytest.mark.parametrize("way", WAYS)
def test_parameters_and_the_bound_on_the_loss(way, tmp_path):
    results, workdirs = trained(way, configs([ENDLESS, SMALL, HUGE]), tmp_path)
    assert_diverged(results[0], workdirs[0], 1, "a parameter is not finite at step 1 (training")
    assert_diverged(results[2], workdirs[2], 2, "more than 1000 times that of step 1, ")
    first, second = losses(workdirs[2])
    assert second > 1e3 * 1000 * first  # far from the bound, whatever computes it
    assert f"{second:g} at step 2" in results[2]["error"]
    assert f"step 1, {first:g}" in results[2]["error"]
    # they do not affect the one between them
    assert results[1]["status"] == "exhausted"
    train.train(configs([SMALL])[0], tmp_path / "by itself")
    assert losses(workdirs[1]) == losses(tmp_path / "by itself")


def test_a_gradient_that_is_not_finite_beside_a_finite_loss(tmp_path, monkeypatch):
    original = SmallImageClassification.loss

    def loss(self, model, data):
        """The same value; the slope of the root at 0 is infinite, and times 0 it is NaN."""
        value, metrics = original(self, model, data)
        leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
        largest = jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in leaves]))
        return value + 0.0 * jnp.sqrt(jnp.maximum(100.0 - largest, 0.0)), metrics

    monkeypatch.setattr(SmallImageClassification, "loss", loss)
    fields = {"loss__label_smoothing": 0.0123}  # a program that no other test is given
    results, workdirs = trained("alone", configs([HUGE, SMALL], **fields), tmp_path)
    assert_diverged(results[0], workdirs[0], 2, "a gradient is not finite at step 2 (training")
    assert results[1]["status"] == "exhausted"


def test_a_workload_need_not_log_its_loss(tmp_path, monkeypatch):
    """Divergence is seen, and steps are logged, by the loss that it returns."""
    original = SmallImageClassification.loss
    monkeypatch.setattr(SmallImageClassification, "loss", lambda *given: (original(*given)[0], {}))
    (config,) = configs([SMALL], loss__label_smoothing=0.0124)  # a program of its own
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    assert len(steps := losses(tmp_path / "run")) == 3
    assert min(steps) > 0


@pytest.mark.parametrize(("rate", "step"), [(ENDLESS, 1), (HUGE, 2)])
def test_a_step_dispatched_after_the_divergence_does_not_count(rate, step, tmp_path):
    never = {"evaluate_every_fresh_examples": 0, "checkpoint_every_fresh_examples": 0}
    result = train.train(configs([rate], **never)[0], tmp_path / "run")
    assert (result["status"], result["step"]) == ("diverged", step)
    assert result["fresh_examples"] == 32 * step


def test_a_run_that_was_stopped_before_ends_at_the_same_step(tmp_path):
    (config,) = configs([HUGE])
    assert train.train(config, tmp_path, on_step=stop_at(1))["status"] == "preempted"
    assert_diverged(train.train(config, tmp_path), tmp_path, 2, "more than 1000 times")
    assert cli.guarded(train.main, command(config, tmp_path)) == cli.DIVERGED


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_that_is_not_finite_is_named(bad):
    found = jax.jit(nonfinite)
    good = {"kernel": np.full((3, 5), 3e38, np.float32), "bias": np.ones(2, np.float32)}
    spoiled = good | {"bias": np.asarray([1.0, bad], np.float32)}
    zero, nothing = np.float32(0), np.float32(bad)
    assert found(zero, good, good) == 0  # also where a sum would overflow
    assert found(zero, good, spoiled) == 1
    assert found(zero, spoiled, good) == found(zero, spoiled, spoiled) == 2
    assert found(nothing, good, good) == found(nothing, spoiled, spoiled) == 3


def test_a_first_loss_of_zero_sets_no_bound():
    assert why_diverged(2, 5.0, 0, 0.0) == ""
    assert why_diverged(2, 5000.0, 0, 5.0) == ""
    assert "5001 at step 2, more than 1000" in why_diverged(2, 5001.0, 0, 5.0)
    assert "the loss is not finite at step 2" in why_diverged(2, np.nan, 3, 0.0)
    for initial_loss in (0.0, 5.0):  # also if the compiled check has missed it
        assert "loss is nan at step 2" in why_diverged(2, np.nan, 0, initial_loss)


def test_a_validation_loss_that_is_not_finite_is_no_best_value(tmp_path):
    """The first evaluation may overflow one step before the training loss does."""
    target = {"target__metric": "loss", "target__mode": "below", "target__value": 0.01}
    (config,) = configs([1e38], **target)
    result = train.train(config, tmp_path / "run")
    assert result["status"] == "diverged"
    (first,) = trial_records.read(tmp_path / "run").validation
    assert result["best"]["value"] == first["loss"]  # None; where it does not overflow, a number
    assert records.read_json(tmp_path / "run" / records.RESULT) == result
