"""Lightning: the Trainer takes any iterable of batches."""
# pyright: reportMissingImports=false

import time

import lightning
import torch
from torch.utils.data import DataLoader

import echo  # echo


class Slow(torch.utils.data.Dataset):  # yours
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((4,), index / 256), torch.tensor([index / 128])


class Model(lightning.LightningModule):  # yours
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = DataLoader(Slow(), batch_size=32, shuffle=True)
loader = echo.auto(loader)  # echo
trainer = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False)
trainer.fit(Model(), loader)
steps = trainer.global_step
print(steps, "steps")
