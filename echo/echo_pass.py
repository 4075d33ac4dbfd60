"""One pass over an echoed stream: reads fresh items, stores them, emits copies, and resumes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from echo.gather_plan import PlanStore
from echo.order import Order
from echo.readers import FORGET_EVERY, Reader
from echo.stores import ArrayStore, ItemStore


class EchoPass:
    """One pass over an echoed stream. The order decides what to emit; this class reads the
    items, as the `intake` of the order.

    Args:
        reader: where fresh items come from.
        order: the order of the pass.
        new_store: makes an empty store.
    """

    def __init__(
        self,
        reader: Reader,
        order: Order,
        new_store: Callable[[], ItemStore | ArrayStore | PlanStore],
    ):
        self.reader, self.order = reader, order
        self._new_store = new_store
        self.store = new_store()
        self._batches: Iterator[tuple[np.ndarray, ...]] = iter(())  # not emitted yet; see `_take`
        self._error: BaseException | None = None  # after which items may be missing

    def next(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The next item, or batch, with the fresh items and the copy numbers that it contains, both
        int64 [n]; StopIteration at the end.

        An error is raised again by each call until `set_state`. The position stays that of the last
        output, so a state may be taken after an error.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)  # or it would get longer each time
        try:
            index, copy, taken, dropped = next(self._batches, None) or self._take()
            item = self.store.emit(taken)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise
        self.order.emitted(len(index))
        if len(dropped):
            self.store.drop(dropped)
        return item, index, copy

    def _take(self) -> tuple[np.ndarray, ...]:
        """Takes the next batches from the store, and returns the first."""
        index, copy, dropped = self.order.next(self)
        taken = self.store.take(index)
        self._batches = zip(index, copy, taken, [dropped] * len(index), strict=True)
        return next(self._batches)

    @property
    def num_read(self) -> int:
        return self.reader.next_index

    @property
    def num_items(self) -> int | None:
        return self.reader.num_items

    def read(self, stop: int, seconds: float | None = None) -> bool:
        """Moves the next fresh items to the store; see `echo.order.Order.next`."""
        start = self.num_read
        chunk = self.reader.read(stop - start, seconds)
        if chunk is not None and len(chunk[0]):
            self.store.put(*chunk, self.order.copies(chunk[0]))
        if self.num_read // FORGET_EVERY > start // FORGET_EVERY:
            self.reader.forget_before(self.order.oldest)
        return self.num_read > start

    def get_state(self) -> dict[str, Any]:
        """The position of this pass: small, in JSON, valid in any process."""
        return {**self.order.get_state(), **self.reader.state(self.order.oldest)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: the state is of a stage with other settings, or over another kind of parent
                or too few items. This pass remains at its position.
        """
        before, order_before = self.get_state(), self.order
        check_fields(state, before)
        order = order_before.at(state, self.reader.length(state))
        try:
            self._restore(state, order)
        except Exception:  # the parent has fewer items, or refuses its state
            self._restore(before, order_before)
            raise

    def _restore(self, state: dict[str, Any], order: Order) -> None:
        self.order, self._batches = order, iter(())
        try:
            self.reader.rewind(state)
            self.store = self._new_store()
            pending = order.pending()
            for indices, items in self.reader.read_again(list(pending), order.admitted):
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
