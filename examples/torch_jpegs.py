"""Digits as JPEGs on slow storage, with a PyTorch DataLoader."""

import time

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.utils.data import (  # pyright: ignore[reportMissingImports]
    DataLoader,
    Dataset,
    default_collate,
)

import echo
from examples import slow_storage

BATCH = 64
MAX_STEPS = 2_000
EVALUATE_EVERY = 10  # steps


class Jpegs(Dataset):
    """Examples (uint8 [32, 32], label), each read from storage and decoded when it is required."""

    def __init__(self, url):
        self.url = url

    def __len__(self):
        return slow_storage.NUM_TRAIN

    def __getitem__(self, index):
        jpeg, label = slow_storage.get(f"{self.url}/{index}")
        return torch.from_numpy(slow_storage.decode(jpeg).copy()), label


def augment(rows):
    """A batch, shifted by up to two pixels each way."""
    images, labels = default_collate(rows)
    shifts = torch.randint(-2, 3, (len(images), 2)).tolist()
    shifted = [torch.roll(x, s, (0, 1)) for x, s in zip(images, shifts, strict=True)]
    return torch.stack(shifted), labels


def make_loader(url):
    examples = Jpegs(url)
    return DataLoader(
        examples, BATCH, shuffle=True, num_workers=2, collate_fn=augment, drop_last=True
    )


def make_loader_with_echo(url):
    examples = Jpegs(url)
    examples = DataLoader(examples, None, shuffle=True, num_workers=2, prefetch_factor=BATCH)
    examples = echo.echo_iterable(examples, factor=4, shuffle_buffer=512)
    return DataLoader(examples, BATCH, collate_fn=augment, drop_last=True)


def make_step(seed):
    """The network, and a function that trains it on a batch."""
    torch.set_num_threads(1)  # the network is small, and decoding has work for the other cores
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def step(batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(model(images[:, None] / 255.0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, step


def train(url, seed, target, make_loader=make_loader):
    """Seconds and steps until the validation accuracy reaches `target`."""
    model, step = make_step(seed)
    images, labels = map(torch.from_numpy, slow_storage.local("validation"))
    loader, steps, start = make_loader(url), 0, time.perf_counter()
    while steps < MAX_STEPS:
        for batch in loader:
            step(batch)
            steps += 1
            if steps % EVALUATE_EVERY == 0:
                with torch.no_grad():
                    accuracy = np.mean((model(images[:, None] / 255.0).argmax(1) == labels).numpy())
                if accuracy >= target:
                    return {"seconds": time.perf_counter() - start, "steps": steps}
    raise RuntimeError(f"the accuracy is below {target} after {steps} steps")


def advice(url, seconds):
    # A model of its own: advise trains it for as many steps as it measures, on a few batches.
    return echo.advise(make_loader(url), make_step(0)[1], batch_size=BATCH, seconds=seconds)


if __name__ == "__main__":
    slow_storage.run_job(train, make_loader_with_echo)
