"""The job of grain_jpegs.py with its images in memory: the step is slower than the input."""

import grain
import numpy as np

import echo
from examples import slow_storage
from examples.grain_jpegs import BATCH, augment, fit, make_step, stack


class Rows:
    """Decoded examples, for `grain.MapDataset.source`."""

    def __init__(self):
        self.images, self.labels = slow_storage.local("train")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": np.int32(self.labels[index])}


def make_loader(url, seed=0):
    examples = grain.MapDataset.source(Rows()).seed(seed).shuffle().repeat()
    batches = examples.to_iter_dataset(grain.ReadOptions(2, 128)).batch(BATCH)
    return batches.seed(seed).random_map(augment)


def make_loader_with_echo(url, seed=0):
    examples = grain.MapDataset.source(Rows()).seed(seed).shuffle().repeat()
    batches = echo.EchoIterDataset(examples, factor=4, shuffle_buffer=512, batch_size=BATCH)
    return batches.seed(seed).random_map(augment)


def train(url, seed, target, make_loader=make_loader):
    """Seconds and steps until the validation accuracy reaches `target`, compilation excluded."""
    return fit(lambda: make_loader(url, seed), seed, target)


def advice(url, seconds):
    rows = Rows()
    stages = [
        ("read", lambda call: rows[call % len(rows)]),
        ("batch", stack),
        ("augment", lambda batch: augment(batch, np.random.default_rng(0))),
    ]
    return echo.advise(stages, make_step(0)[1], batch_size=BATCH, workers=2, seconds=seconds)


if __name__ == "__main__":
    slow_storage.run_job(train, make_loader_with_echo)
