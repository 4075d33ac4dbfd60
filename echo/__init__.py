"""Data echoing: repeat what a slow upstream produced instead of waiting for it.

    import echo
    batches = echo.EchoIterDataset(grain_dataset, factor=4, shuffle_buffer=10_000, batch_size=128)
    batches = echo.echo_iterable(any_loader, factor=2)
    batches = echo.OpportunisticIterDataset(grain_dataset, max_factor=8, shuffle_buffer=10_000)

The only hard dependency is numpy; Grain and JAX are imported where a name that needs them is first
asked for.
"""

from echo.iterables import EchoIterable, EchoIterator, echo_iterable
from echo.orders import Order
from echo.schedule import EchoCursor, EchoSchedule
from echo.spec import INSERTIONS, PLACEMENTS, EchoSpec, EchoSpecError

__all__ = [
    "INSERTIONS",
    "PLACEMENTS",
    "DeviceStore",
    "EchoCursor",
    "EchoIterDataset",
    "EchoIterable",
    "EchoIterator",
    "EchoSchedule",
    "EchoSpec",
    "EchoSpecError",
    "Echoed",
    "OpportunisticIterDataset",
    "Order",
    "echo_iterable",
]


def __getattr__(name: str):
    if name in ("EchoIterDataset", "Echoed"):
        from echo import grain_dataset

        return getattr(grain_dataset, name)
    if name == "OpportunisticIterDataset":
        from echo import opportunistic

        return opportunistic.OpportunisticIterDataset
    if name == "DeviceStore":
        from echo import device

        return device.DeviceStore
    raise AttributeError(f"module 'echo' has no attribute {name!r}")
