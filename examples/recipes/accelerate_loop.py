"""Accelerate: echo what `prepare` returns, so that repeats stay on the device."""
# pyright: reportMissingImports=false

import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import echo  # echo


class Slow(torch.utils.data.Dataset):  # yours
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((4,), index / 256), torch.tensor([index / 128])


accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loader = echo.echo_iterable(loader, factor=4, shuffle_buffer=128, rebatch=32)  # echo
steps = 0
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward((model(x) - y).square().mean())
    optimizer.step()
    steps += 1
print(steps, "steps")
