"""Networks with randomness of their own: dropout, in a network that does not know of evaluation."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import train
from runs import cli, records
from tests.helpers.runs import EIGHT_STEPS, assert_equal_runs, echoing, mini, preempt
from training import optimizer
from training.experiment import make_experiment
from workloads import networks

STILL = optimizer.Hyperparameters(0.0, 0.0, 0.0)


class Dropped(nnx.Module):
    """Linear on pixels of which a half is dropped; `noise` is a stream with another name."""

    def __init__(self, *, size, num_classes, rngs):
        self.head = nnx.Linear(size, num_classes, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.noise = nnx.Dropout(0.01, rngs=rngs, rng_collection="noise")

    def __call__(self, images_BxHxWxC, *, train):
        return self.head(self.noise(self.dropout(images_BxHxWxC.reshape(len(images_BxHxWxC), -1))))


@pytest.fixture(autouse=True)
def dropped(monkeypatch):
    def make(config, shape, num_classes):
        return networks.Network.of(Dropped, size=int(np.prod(shape)), num_classes=num_classes)

    monkeypatch.setitem(networks.SMALL, "resnet", make)


def configuration(**fields):
    return mini(**EIGHT_STEPS, log_every_steps=1, **fields)


def a_batch(experiment):
    batch = next(iter(experiment.batches))
    return batch.data, batch.index.astype(np.uint32), batch.copy.astype(np.uint32)


def test_each_step_drops_other_inputs_which_depend_on_the_model_seed_alone():
    experiment = make_experiment(configuration())
    rows, step = a_batch(experiment), jax.jit(experiment.program.train_step)

    def losses(seed):
        state, values = experiment.program.init(seed), []
        for _ in range(3):
            state, metrics = step(state, rows, STILL, np.uint32(0))
            values.append(float(metrics["loss"]))
        return values

    assert len(set(losses(0))) == 3
    assert losses(0) == losses(0)
    assert not set(losses(0)) & set(losses(1))


def test_parameters_are_those_of_the_network_without_dropout():
    program = make_experiment(configuration()).program
    alone = nnx.Linear(64, 10, rngs=nnx.Rngs(params=jax.random.key(7)))
    kernel = program.init(7).params["head"]["kernel"][...]
    np.testing.assert_allclose(kernel, alone.kernel[...], rtol=1e-6)


def test_an_evaluation_drops_nothing():
    experiment = make_experiment(configuration())
    state = experiment.program.init(0)
    head, losses = nnx.Linear(64, 10, rngs=nnx.Rngs(0)), []
    nnx.update(head, state.params["head"])
    for data, mask_B in experiment.validation:
        logits = head((data["image"].reshape(len(mask_B), -1) - 127.5) / 64.0)
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, data["label"])
        losses.append(rows[mask_B == 1])
    values = experiment.program.evaluate(state, experiment.validation)
    assert values["loss"] == pytest.approx(float(np.concatenate(losses).mean()), rel=1e-4)


def test_a_run_that_is_stopped_ends_like_one_that_is_not_and_is_exported(tmp_path):
    config = configuration(**echoing("before_augmentation", 20, factor=2))
    for name in "ab":
        if name == "b":
            preempt(config, tmp_path / name, 5)
        assert train.train(config, tmp_path / name)["status"] == "exhausted"
    assert_equal_runs(config, tmp_path / "a", tmp_path / "b")
    assert cli.guarded(train.main, [f"--evaluate={tmp_path / 'b'}"]) == cli.OK
    arrays = np.load(tmp_path / "b" / records.PARAMETERS)
    assert arrays["model_state/dropout/rngs/key"].dtype == np.uint32
    assert arrays["model_state/dropout/rngs/count"] > 0
