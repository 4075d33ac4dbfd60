"""Grain: the stage goes after slow reading, and before augmentation, so that copies differ."""

import time

import grain
import jax.numpy as jnp
import numpy as np

import echo  # echo


def read(index):  # yours
    time.sleep(0.001)
    return np.full(4, index / 256, np.float32)


def augment(x, rng):  # yours
    return x + rng.normal(0, 0.01, 4)


examples = grain.MapDataset.range(256).shuffle(seed=0).map(read).to_iter_dataset()
examples = echo.EchoIterDataset(examples, factor=4, shuffle_buffer=128)  # echo
batches = examples.seed(0).random_map(augment).batch(32)
steps, total = 0, jnp.zeros(4)
for batch in batches:
    total += jnp.asarray(batch).mean(0)
    steps += 1
print(steps, "steps")
