"""Logistic regression: its size, its start, and the optimum that scikit-learn finds."""

import numpy as np
import pytest
from flax import nnx
from sklearn.linear_model import LogisticRegression as Reference

from tests.helpers.runs import mini
from training import optimizer, sharding
from training.experiment import make_experiment

LOGISTIC = {"model__depth": 0, "augmentation__pad": 0, "augmentation__flip": False}


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
    step = run.program.compile("train", run.program.train, (state, *arguments))
    for number in range(400):
        state, metrics = step(state, *arguments)
        if number == 0:
            assert float(metrics["loss"]) == pytest.approx(np.log(10), abs=1e-6)
    head = nnx.to_pure_dict(state.params)["head"]
    reached = objective(np.float64(head["kernel"]), np.float64(head["bias"]))
    assert best - 1e-6 <= reached <= best + 1e-3
    assert best < 0.5  # far from where it starts
