"""Keras on JAX: `fit` takes a generator of batches, which here is one without end."""

import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import echo  # echo


def batches():  # yours
    rng = np.random.default_rng(0)
    while True:
        time.sleep(0.02)
        x = rng.random((32, 4), np.float32)
        yield x, x.sum(1)


loader = batches()
loader = echo.auto(loader)  # echo
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit((batch for batch in loader), steps_per_epoch=20, epochs=2)
steps = int(model.optimizer.iterations)
print(steps, "steps")
