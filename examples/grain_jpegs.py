"""Digits as JPEGs on slow storage, with Grain and JAX."""

import time

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import echo
from examples import slow_storage

BATCH = 64
MAX_STEPS = 2_000
EVALUATE_EVERY = 10  # steps


class Jpegs:
    """Files of storage by index, for `grain.MapDataset.source`."""

    def __init__(self, url):
        self.url = url

    def __len__(self):
        return slow_storage.NUM_TRAIN

    def __getitem__(self, index):
        jpeg, label = slow_storage.get(f"{self.url}/{index}")
        return {"jpeg": jpeg, "label": np.int32(label)}


def decode(record):
    return {"image": slow_storage.decode(record["jpeg"]), "label": record["label"]}


def augment(batch, rng):
    """Shifts each image by up to two pixels each way."""
    shifts = rng.integers(-2, 3, (BATCH, 2)).tolist()
    images = [np.roll(x, s, (0, 1)) for x, s in zip(batch["image"], shifts, strict=True)]
    return batch | {"image": np.stack(images)}


def stack(rows):
    return {name: np.stack([row[name] for row in rows]) for name in ("image", "label")}


def make_loader(url, seed=0):
    examples = grain.MapDataset.source(Jpegs(url)).seed(seed).shuffle().repeat().map(decode)
    batches = examples.to_iter_dataset(grain.ReadOptions(2, 128)).batch(BATCH)
    return batches.seed(seed).random_map(augment)


def make_loader_with_echo(url, seed=0):
    examples = grain.MapDataset.source(Jpegs(url)).seed(seed).shuffle().repeat().map(decode)
    batches = echo.EchoIterDataset(examples, factor=4, shuffle_buffer=512, batch_size=BATCH)
    return batches.seed(seed).random_map(augment)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.convolution_1 = nnx.Conv(1, 16, (3, 3), 2, rngs=rngs)
        self.convolution_2 = nnx.Conv(16, 32, (3, 3), 2, rngs=rngs)
        self.hidden = nnx.Linear(32 * 8 * 8, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images_BxHxW):
        x = nnx.relu(self.convolution_1(images_BxHxW[..., None] / 255.0))
        x = nnx.relu(self.convolution_2(x))
        return self.out(nnx.relu(self.hidden(x.reshape(len(x), -1))))


@nnx.jit
def update(model, optimizer, batch):
    def loss_of(model):
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    optimizer.update(model, nnx.grad(loss_of)(model))


@nnx.jit
def accuracy_of(model, images, labels):
    return jnp.mean(model(images).argmax(1) == labels)


def make_step(seed):
    """The network, and a function that trains it on a batch."""
    model = Network(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.sgd(0.03, 0.9), wrt=nnx.Param)

    def step(batch):
        update(model, optimizer, batch)
        jax.block_until_ready(nnx.state(model))

    return model, step


def train(url, seed, target, make_loader=make_loader):
    """Seconds and steps until the validation accuracy reaches `target`, compilation excluded."""
    return fit(lambda: make_loader(url, seed), seed, target)


def fit(make_batches, seed, target):
    """What `train` returns, for any batches."""
    images, labels = slow_storage.local("validation")
    model, step = make_step(seed)
    step({"image": np.zeros((BATCH, 32, 32), np.uint8), "label": np.zeros(BATCH, np.int32)})
    accuracy_of(model, images, labels)
    model, step = make_step(seed)
    start = time.perf_counter()
    for steps, batch in enumerate(make_batches(), 1):
        step(batch)
        if steps % EVALUATE_EVERY == 0 and accuracy_of(model, images, labels) >= target:
            return {"seconds": time.perf_counter() - start, "steps": steps}
        if steps == MAX_STEPS:
            break
    raise RuntimeError(f"the accuracy is below {target} after {MAX_STEPS} steps")


def advice(url, seconds):
    files = Jpegs(url)
    stages = [
        ("read", lambda call: files[call % len(files)]),
        ("decode", decode),
        ("batch", stack),
        ("augment", lambda batch: augment(batch, np.random.default_rng(0))),
    ]
    # A model of its own: advise trains it for as many steps as it measures, on a few batches.
    return echo.advise(stages, make_step(0)[1], batch_size=BATCH, workers=2, seconds=seconds)


if __name__ == "__main__":
    slow_storage.run_job(train, make_loader_with_echo)
