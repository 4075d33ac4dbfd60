"""Hugging Face's Trainer: it requires a loader with a length, so the factor is fixed."""
# pyright: reportMissingImports=false

import time

import torch
from transformers import Trainer, TrainingArguments

import echo  # echo


class Slow(torch.utils.data.Dataset):  # yours
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return {"x": torch.full((4,), index / 256), "labels": torch.tensor([index / 128])}


class Model(torch.nn.Module):  # yours
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


arguments = TrainingArguments(
    "out", per_device_train_batch_size=32, num_train_epochs=2, save_strategy="no", report_to=[]
)
trainer = Trainer(Model(), arguments, train_dataset=Slow())
loader = trainer.get_train_dataloader()  # echo
loader = echo.echo_iterable(loader, factor=4, shuffle_buffer=4)  # echo
trainer.get_train_dataloader = lambda: loader  # echo
trainer.train()
steps = trainer.state.global_step
print(steps, "steps")
