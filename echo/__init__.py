"""Data echoing: repeat what a slow upstream produced instead of waiting for it.

    import echo
    batches = echo.EchoIterDataset(grain_dataset, factor=4, shuffle_buffer=10_000, batch_size=128)
    batches = echo.echo_iterable(any_loader, factor=2)
    dataset = tf_dataset.apply(echo.tf_data.echo(factor=2, shuffle_buffer=10_000))

The only hard dependency is numpy; Grain and TensorFlow are imported when first asked for.
"""

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
    "advise",
    "echo_iterable",
    "tf_data",
]


def __getattr__(name: str):
    if name in ("EchoIterDataset", "Echoed"):
        try:
            from echo import grain_dataset
        except ModuleNotFoundError as error:
            if error.name != "grain":
                raise
            raise missing_package(f"echo.{name}", "grain", "grain") from error
        return getattr(grain_dataset, name)
    raise AttributeError(f"module 'echo' has no attribute {name!r}")
