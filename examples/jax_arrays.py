"""The job of grain_jpegs.py with its images in memory: the step is slower than the input."""

import numpy as np

import echo
from examples import slow_storage
from examples.grain_jpegs import BATCH, augment, fit, make_step


class Batches:
    """Shuffled epochs of decoded examples, in batches, without end."""

    def __init__(self, seed):
        self.images, self.labels = slow_storage.local("train")
        self.seed = seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        while True:
            order = rng.permutation(len(self.labels))
            for start in range(0, len(order) - BATCH + 1, BATCH):
                yield self.rows(order[start : start + BATCH])

    def rows(self, numbers):
        return {"image": self.images[numbers], "label": self.labels[numbers].astype(np.int32)}


def make_loader(url, seed=0):
    batches = Batches(seed)
    rng = np.random.default_rng(seed)
    return (augment(batch, rng) for batch in batches)


def make_loader_with_echo(url, seed=0):
    batches = echo.echo_iterable(Batches(seed), factor=4, shuffle_buffer=8, seed=seed)
    rng = np.random.default_rng(seed)
    return (augment(batch, rng) for batch in batches)


def train(url, seed, target, make_loader=make_loader):
    """Seconds and steps until the validation accuracy reaches `target`, compilation and loading
    the images excluded."""
    slow_storage.local("train")
    return fit(lambda: make_loader(url, seed), seed, target)


def advice(url, seconds):
    batches = Batches(0)
    stages = [
        ("read", lambda call: batches.rows(np.arange(BATCH) + call % BATCH)),
        ("augment", lambda batch: augment(batch, np.random.default_rng(0))),
    ]
    # A model of its own: advise trains it for as many steps as it measures, on a few batches.
    step = make_step(0)[1]
    return echo.advise(stages, step, batch_size=BATCH, workers=1, seconds=seconds)


if __name__ == "__main__":
    slow_storage.run_job(train, make_loader_with_echo)
