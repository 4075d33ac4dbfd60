"""A loop over a PyTorch DataLoader: repeats examples while the step would wait."""
# pyright: reportMissingImports=false

import time

import torch
from torch.utils.data import DataLoader

import echo  # echo


class Slow(torch.utils.data.Dataset):  # yours
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((4,), index / 256), torch.tensor([index / 128])


loader = DataLoader(Slow(), batch_size=32, shuffle=True)
loader = echo.auto(loader)  # echo
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        steps += 1
print(steps, "steps")
print(loader)  # echo
