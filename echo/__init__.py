"""Data echoing: repeat what a slow upstream produced instead of waiting for it.

    import echo
    batches = echo.EchoIterDataset(grain_dataset, factor=4, shuffle_buffer=10_000, batch_size=128)
    batches = echo.echo_iterable(any_loader, factor=2)
    dataset = tf_dataset.apply(echo.tf_data.echo(factor=2, shuffle_buffer=10_000))
    batches = echo.OpportunisticIterDataset(grain_dataset, max_factor=8, shuffle_buffer=10_000)

The only hard dependency is numpy; Grain and TensorFlow are imported when first asked for.
"""

import importlib

from echo import tf_data
from echo.advice import Advice, advise
from echo.iterables import EchoIterable, EchoIterator, echo_iterable
from echo.schedule import EchoCursor, EchoSchedule
from echo.spec import INSERTIONS, PLACEMENTS, EchoSpec, EchoSpecError, missing_package

__all__ = [
    "INSERTIONS",
    "PLACEMENTS",
    "Advice",
    "EchoCursor",
    "EchoIterDataset",
    "EchoIterable",
    "EchoIterator",
    "EchoSchedule",
    "EchoSpec",
    "EchoSpecError",
    "Echoed",
    "OpportunisticIterDataset",
    "advise",
    "echo_iterable",
    "tf_data",
]


# What needs Grain, and the module that it is in.
_WITH_GRAIN = {
    "EchoIterDataset": "grain_dataset",
    "Echoed": "grain_dataset",
    "OpportunisticIterDataset": "opportunistic",
}


def __getattr__(name: str):
    if name not in _WITH_GRAIN:
        raise AttributeError(f"module 'echo' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"echo.{_WITH_GRAIN[name]}")
    except ModuleNotFoundError as error:
        if error.name != "grain":
            raise
        raise missing_package(f"echo.{name}", "grain", "grain") from error
    return getattr(module, name)
