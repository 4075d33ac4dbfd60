"""One pass over an echoed stream: reads fresh items, stores them, emits copies, and resumes.

What to emit, and when to read more, is up to an order: `echo.schedule.EchoCursor` or
`echo.auto_order.AutoOrder`. It has

* `next(intake)`, which reads with `intake.read` what the next batch requires, and returns it, and
  batches after it that are settled and require no reading: their fresh items and copy numbers,
  both int64 [batches, n]; StopIteration at the end. It is called again when all were emitted;
* `emitted(n)`, called after each batch of n outputs, which returns stored items that will not be
  emitted again although copies are left; `position`, the outputs so far; and `admitted`, the
  fresh items that they have admitted: prefill included, read-ahead excluded;
* `copies(fresh)`, how often to emit items that have just been read; `pending()`, the stored items
  in order of entry, with the copies left of each; `oldest()`, the first that may come again;
  `max_pending(n)`, the most items stored at once, if n are emitted at a time;
* `get_state()`, the position in JSON, and `at(state, num_items)`, the order at that position.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from echo.auto_order import AutoOrder
from echo.readers import RandomAccessReader
from echo.rows import RowStore
from echo.schedule import EchoCursor
from echo.sequential import SequentialReader
from echo.stores import ArrayStore, ItemStore

if TYPE_CHECKING:
    from echo.device import DeviceStore

# The reader forgets what it no longer requires after every so many items.
_FORGET_EVERY = 1024


class EchoPass:
    """One pass over an echoed stream. The order decides what to emit; this class reads the items.

    Args:
        reader: where fresh items come from.
        order: the order of the pass.
        new_store: makes an empty store.
    """

    def __init__(
        self,
        reader: RandomAccessReader | SequentialReader,
        order: EchoCursor | AutoOrder,
        new_store: "Callable[[], ItemStore | ArrayStore | RowStore | DeviceStore]",
    ):
        self.reader: Any = reader
        self.order = order
        self._new_store = new_store
        self.store = new_store()
        self._batches: Iterator[tuple[np.ndarray, ...]] = iter(())  # not emitted yet; see `_take`
        self._error: BaseException | None = None  # after which items may be missing
        self._lock = threading.RLock()  # several threads may share a pass

    def next(self) -> tuple[Any, np.ndarray, np.ndarray, int]:
        """The next item, or batch, the fresh items and the copy numbers that it contains, both
        int64 [n], and the fresh items admitted so far; StopIteration at the end.

        An error is raised again by each call until `set_state`. The position stays that of the last
        output, so a state may be taken after an error.
        """
        with self._lock:
            if self._error is not None:
                raise self._error.with_traceback(None)  # or it would get longer each time
            try:
                index, copy, taken = next(self._batches, None) or self._take()
                item = self.store.emit(taken)
            except StopIteration:
                raise
            except BaseException as error:
                self._error = error
                raise
            if len(dropped := self.order.emitted(len(index))):
                self.store.drop(dropped)
            return item, index, copy, self.order.admitted

    def _take(self) -> tuple[np.ndarray, ...]:
        """Takes the next batches from the store, and returns the first."""
        index, copy = self.order.next(self)
        self._batches = zip(index, copy, self.store.take(index), strict=True)
        return next(self._batches)

    @property
    def num_read(self) -> int:
        """The number of fresh items read so far, emitted or not."""
        return self.reader.next_index

    @property
    def num_items(self) -> int | None:
        """The length of the fresh stream; None until the end is known."""
        return self.reader.num_items

    def read(self, stop: int, seconds: float | None = None) -> bool:
        """Moves the next fresh items to the store, about as far as item `stop`. Waits up to
        `seconds` (None: without limit), and returns whether any came."""
        start = self.num_read
        chunk = self.reader.read(stop - start, seconds)
        if chunk is None or not len(chunk[0]):
            return False
        fresh, items = chunk
        self.store.put(fresh, items, self.order.copies(fresh))
        if self.num_read // _FORGET_EVERY > start // _FORGET_EVERY:
            self.reader.state(self.order.oldest)
        return True

    def get_state(self) -> dict[str, Any]:
        """The position of this pass: small, in JSON, valid in any process."""
        with self._lock:
            return {**self.order.get_state(), **self.reader.state(self.order.oldest)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: the state is of a stage with other settings, or over another kind of parent,
                and this pass remains at its position; or the parent has too few items or refuses
                its state, and this pass has to be given another one.
        """
        check_fields(state, (*self.order.get_state(), *self.reader.fields))
        self.order = self.order.at(state, self.reader.length(state))
        self._batches, self.store = iter(()), self._new_store()
        try:
            pending = self.order.pending()
            for indices, items in self.reader.restore(state, [*pending], self.order.admitted):
                copies = np.asarray([pending[index] for index in indices.tolist()])
                self.store.put(indices, items, copies)
        except BaseException as error:
            self._error = error
            raise
        self._error = None


def check_fields(state: Any, fields: Iterable[str]) -> None:
    """Checks that `state` has the fields of a stage's own state; ValueError if not."""
    if not isinstance(state, dict) or state.keys() != set(fields):
        actual = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"the state has {actual}, one of this echo stage has the fields {sorted(fields)}; "
            "restore it into a pipeline equal to the one it is from"
        )
