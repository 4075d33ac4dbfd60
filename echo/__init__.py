"""Data echoing: repeat what a slow upstream produced instead of waiting for it.

    import echo
    batches = echo.EchoIterDataset(grain_dataset, factor=4, shuffle_buffer=10_000, batch_size=128)
    batches = echo.echo_iterable(any_loader, factor=2)
    dataset = tf_dataset.apply(echo.tf_data.echo(factor=2, shuffle_buffer=10_000))
    batches = echo.OpportunisticIterDataset(grain_dataset, max_factor=8, shuffle_buffer=10_000)

The only hard dependency is numpy; Grain, JAX and TensorFlow are imported where a name that needs
them is first asked for.
"""

import importlib

from echo import tf_data
from echo.advice.recommend import Advice, advise
from echo.gather_plan import GatherPlan
from echo.iterables import EchoIterable, EchoIterator, echo_iterable
from echo.schedule import EchoCursor, EchoSchedule
from echo.spec import INSERTIONS, PLACEMENTS, EchoSpec, EchoSpecError, missing_package

__all__ = [
    "INSERTIONS",
    "PLACEMENTS",
    "Advice",
    "DeviceStore",
    "EchoCursor",
    "EchoIterDataset",
    "EchoIterable",
    "EchoIterator",
    "EchoSchedule",
    "EchoSpec",
    "EchoSpecError",
    "Echoed",
    "GatherPlan",
    "OpportunisticIterDataset",
    "advise",
    "echo_iterable",
    "tf_data",
]


# What needs more than numpy: the module that it is in, and the package.
_NEEDS = {
    "DeviceStore": ("device", "jax"),
    "EchoIterDataset": ("stage", "grain"),
    "Echoed": ("stage", "grain"),
    "OpportunisticIterDataset": ("opportunistic", "grain"),
}


def __getattr__(name: str):
    if name not in _NEEDS:
        raise AttributeError(f"module 'echo' has no attribute {name!r}")
    module, package = _NEEDS[name]
    try:
        return getattr(importlib.import_module(f"echo.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise missing_package(f"echo.{name}", package, package) from error
