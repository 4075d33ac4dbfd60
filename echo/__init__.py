"""Data echoing: repeat what a slow upstream produced instead of waiting for it.

    import echo
    batches = echo.watch(any_loader)  # measures, and changes nothing
    batches = echo.EchoIterDataset(grain_dataset, factor=4, shuffle_buffer=10_000, batch_size=128)
    batches = echo.echo_iterable(any_loader, factor=2)
    dataset = tf_dataset.apply(echo.tf_data.echo(factor=2, shuffle_buffer=10_000))
    batches = echo.OpportunisticIterDataset(grain_dataset, max_factor=8, shuffle_buffer=10_000)

The only hard dependency is NumPy. Grain, JAX, and TensorFlow are imported on first use of a name
that requires them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from echo import tf_data
from echo.advice.recommend import Advice, advise
from echo.iterables import EchoIterable, EchoIterator, auto, echo_iterable
from echo.schedule import EchoCursor, EchoSchedule
from echo.spec import INSERTIONS, PLACEMENTS, EchoSpecError
from echo.waiting import Watched, watch

__version__ = "0.1.0"

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
    "EchoSpecError",
    "Echoed",
    "OpportunisticIterDataset",
    "Watched",
    "advise",
    "auto",
    "echo_iterable",
    "tf_data",
    "watch",
]

if TYPE_CHECKING:
    from echo.device import DeviceStore as DeviceStore
    from echo.stage import Echoed as Echoed
    from echo.stage import EchoIterDataset as EchoIterDataset
    from echo.stage import OpportunisticIterDataset as OpportunisticIterDataset

# The modules of names that require more than NumPy.
_LAZY = {
    "DeviceStore": "device",
    "EchoIterDataset": "stage",
    "Echoed": "stage",
    "OpportunisticIterDataset": "stage",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'echo' has no attribute {name!r}")
    return getattr(importlib.import_module(f"echo.{_LAZY[name]}"), name)
