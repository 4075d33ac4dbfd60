"""A StatefulDataLoader: each example four times, resumed exactly where a checkpoint was taken."""
# pyright: reportMissingImports=false

import itertools

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import echo  # echo


class Slow(torch.utils.data.Dataset):  # yours
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((4,), index / 256), torch.tensor([index / 128])


def make_loader():
    generator = torch.Generator().manual_seed(0)
    loader = StatefulDataLoader(Slow(), batch_size=32, shuffle=True, generator=generator)
    loader = echo.echo_iterable(loader, factor=4, shuffle_buffer=128, rebatch=32)  # echo
    return loader


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, state = 0, None
for stop in (5, None):  # the second time stands for a new process
    loader = make_loader()
    if state:
        loader.load_state_dict(state)
    for x, y in itertools.islice(loader, stop):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        steps += 1
    state = loader.state_dict()
print(steps, "steps")
