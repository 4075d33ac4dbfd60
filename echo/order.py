"""What an echo pass (echo_pass.py) asks of an order: which items to emit, and when to read more.

`echo.schedule.EchoCursor` and `echo.auto.AutoOrder` are the two orders.
"""

from typing import Any, NamedTuple, Protocol, Self

import numpy as np


class Emission(NamedTuple):
    """The next batches of n outputs.

    Attributes:
        index: their fresh items, int64 [batches, n].
        copy: their copy numbers, int64 [batches, n], each once per item, in any order.
        dropped: stored items that will not be emitted again although copies are left, int64 [m]. If
            there are any, there is one batch.
    """

    index: np.ndarray
    copy: np.ndarray
    dropped: np.ndarray


class Order(Protocol):
    """The order of one pass over an echoed stream.

    Attributes:
        admitted: the number of fresh items that the batches emitted so far have admitted: prefill
            included, read-ahead excluded.
    """

    @property
    def admitted(self) -> int: ...

    def next(self, intake: Any) -> Emission:
        """Reads what the next batch requires; StopIteration at the end. Returns it, and any batches
        after it that are settled and require no reading. It is not called again until all
        of them have been emitted.

        Args:
            intake: the pass. `num_read` is the number of fresh items read so far, emitted or not;
                `num_items` the length of the fresh stream, None until the end is known.
                `read(stop, seconds)` reads the next items, about as far as item `stop`, waits up to
                `seconds` (None: without limit), and returns whether any came.
        """
        ...

    def emitted(self, n: int) -> None:
        """Called after each batch, with the number of its outputs."""

    def copies(self, fresh: np.ndarray) -> np.ndarray:
        """How often to emit items that have just been read, int64 [n]; `fresh` is contiguous."""
        ...

    def pending(self) -> dict[int, int]:
        """Stored items, in order of entry, with the number of copies left."""
        ...

    def oldest(self) -> int:
        """The earliest item that later outputs may contain."""
        ...

    def get_state(self) -> dict[str, Any]:
        """The position of this order, in JSON."""
        ...

    def at(self, state: dict[str, Any], num_items: int | None) -> Self:
        """This order at the position of `state`, which may be invalid (ValueError)."""
        ...
