"""Logistic regression: its size, its start, and the optimum that scikit-learn finds."""

import numpy as np
import pytest
from flax import nnx
from sklearn.linear_model import LogisticRegression as Reference

import train
from models.linear import LogisticRegression
from tests.helpers.networks import parameter_count
from tests.helpers.runs import echoing, mini
from training import optimizer, sharding
from training.experiment import make_experiment
from workloads.interface import WorkloadError
from workloads.small_images import SmallImageClassification

LOGISTIC = {"model__depth": 0, "augmentation__pad": 0, "augmentation__flip": False}


@pytest.mark.parametrize(("shape", "count"), [((28, 28, 1), 7_850), ((32, 32, 3), 30_730)])
def test_there_is_a_weight_for_each_pixel_channel_and_class_and_a_bias_for_each_class(shape, count):
    model = LogisticRegression(in_features=int(np.prod(shape)), num_classes=10, rngs=nnx.Rngs(0))
    assert parameter_count(model) == count
    logits = model(np.random.default_rng(0).normal(size=(4, *shape)), train=True)
    np.testing.assert_array_equal(logits, np.zeros((4, 10)))


@pytest.mark.long
def test_full_batch_gradient_descent_ends_at_scikit_learns_optimum():
    decay = 0.01
    config = mini(
        **LOGISTIC,
        batch_size=1197,
        budget__fresh_examples=1197,
        optimizer__weight_decay=decay,
        optimizer__learning_rate=0.1,
        optimizer__schedule__name="constant",
    )
    run = make_experiment(config)
    workload, source = run.program.task.workload, run.source
    data = workload.decode([source[i] for i in range(len(source))])
    pixels = (data["image"].reshape(len(source), -1) - 127.5) / 64.0

    def objective(weights, bias):
        logits = pixels @ weights + bias
        log_sums = np.logaddexp.reduce(logits, axis=1)
        losses = log_sums - logits[np.arange(len(logits)), data["label"]]
        return losses.mean() + decay / 2 * (weights**2).sum()

    # scikit-learn minimizes |w|^2 / 2 + C * (sum of losses), biases free as here.
    found = Reference(C=1 / (decay * len(pixels)), tol=1e-8, max_iter=10_000)
    found.fit(pixels, data["label"])
    best = objective(found.coef_.T, found.intercept_)

    numbers = np.arange(len(source), dtype=np.uint32)
    rows = sharding.put_batch(run.program.task.mesh, (data, numbers, np.zeros_like(numbers)))
    state = run.program.init(seed=0)
    arguments = rows, optimizer.hyperparameters(config, 0.0), np.uint32(0)
    step = run.program.compile_train(state, *arguments)
    for number in range(400):
        state, metrics = step(state, *arguments)
        if number == 0:
            assert float(metrics["loss"]) == pytest.approx(np.log(10), abs=1e-6)
    head = nnx.to_pure_dict(state.params)["head"]
    reached = objective(np.float64(head["kernel"]), np.float64(head["bias"]))
    assert best - 1e-6 <= reached <= best + 1e-3
    assert best < 0.5  # far from where it starts


@pytest.mark.slow
def test_it_trains_echoed_like_any_other_network(tmp_path):
    config = mini(
        **LOGISTIC,
        **echoing("before_augmentation", 100),
        optimizer__learning_rate=0.01,
        budget__fresh_examples=5_000,
        evaluate_every_fresh_examples=2_500,
    )
    result = train.train(config, tmp_path / "run")
    assert result["best"]["value"] > 0.85  # chance is 0.1


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_other_depths_are_refused_with_those_there_are(depth):
    config = mini(model__depth=depth)
    info = make_experiment(mini()).info
    with pytest.raises(WorkloadError, match=rf"depth is {depth}; allowed: 6n \+ 2, .* or 0"):
        SmallImageClassification.from_config(config, info)
