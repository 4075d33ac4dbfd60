"""A loader that is echoed, as `echo.sequential.SequentialReader` reads it: passes and states."""

import inspect
import itertools
import operator
import sys
from collections.abc import Iterator
from typing import Any

from echo import torch
from echo.echo_pass import check_fields
from echo.spec import MAX_POSITION, checked_integer


class Parent:
    """The iterable that is echoed, and what has been done to it here.

    Attributes:
        keeps_loaded: whether it starts every pass of an epoch from the last state that was loaded,
            as data sets of Hugging Face do. They start over after the state {}.
        has_state: whether its `state_dict` and `load_state_dict` work.
        changed: whether items have been read, or a state has been loaded.
        loaded: whether a state has been loaded that later passes must not continue from.
    """

    def __init__(self, iterable: Any, keeps_loaded: bool):
        self.iterable, self.keeps_loaded = iterable, keeps_loaded
        methods = (getattr(iterable, name, None) for name in ("state_dict", "load_state_dict"))
        self.has_state = all(map(callable, methods))
        self.changed = self.loaded = False


class Source:
    """A new pass over the iterable, as an iterator.

    A state holds that of the iterable, and its epoch: that of a Hugging Face data set, or of the
    sampler of a PyTorch loader.
    """

    def __init__(self, parent: Parent):
        self._parent = parent
        self._iterator: Any = None
        self._read = False
        if parent.loaded and parent.keeps_loaded:
            parent.iterable.load_state_dict({})
            parent.loaded = False

    def __next__(self) -> Any:
        self._open()
        # Before `next`, since an iterable without state cannot return to an item that failed.
        self._read = self._parent.changed = True
        return next(self._iterator)

    def get_state(self) -> dict[str, Any] | None:
        parent, state = self._parent, None
        if parent.has_state:  # otherwise later: iter() may draw a permutation
            self._open()
        # A generator runs from the first `next` on. Until then its iterable has an old state.
        if parent.has_state and (self._read or not inspect.isgenerator(self._iterator)):
            try:
                state = parent.iterable.state_dict()
            # Accelerate's loaders have the method in any case; MosaicML's requires arguments.
            except (AttributeError, NotImplementedError, TypeError):
                parent.has_state = parent.keeps_loaded = False
        if self._read and state is None:
            return None
        parts = torch.parts_with_epochs(parent.iterable)
        epochs = [part.epoch for part in parts if getattr(part, "epoch", None) is not None]
        return {"epoch": int(epochs[0]) if epochs else None, "state": state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Begins from `state`."""
        check_fields(state, ("epoch", "state"))
        parent, iterable = self._parent, self._parent.iterable
        if state["epoch"] is not None:  # in another one Hugging Face ignores states
            epoch = checked_integer("epoch", state["epoch"], 0, MAX_POSITION)
            torch.set_epoch(iterable, epoch)
        once = parent.has_state or isinstance(parent.iterable, Iterator)
        if state["state"] is not None:  # otherwise it is that of the start
            parent.changed = parent.loaded = True
            iterable.load_state_dict(state["state"])
        elif parent.changed and once and not parent.keeps_loaded:
            raise ValueError(
                f"the iterable, a {type(iterable).__name__}, has been read from and cannot start "
                "again; restore the state over a new one, or an object that makes one for each "
                "iter()"
            )

    def _open(self) -> None:
        if self._iterator is not None:
            return
        iterable = self._parent.iterable
        torch.warn_unprepared(iterable)
        self._iterator = iter(iterable)
        if not hasattr(iterable, "__iter__"):  # indexed, perhaps without an IndexError at its end
            length = operator.length_hint(iterable, sys.maxsize)
            self._iterator = itertools.islice(self._iterator, length)
