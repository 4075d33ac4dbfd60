"""One pass over an echoed stream: reads fresh items, stores them, emits copies, and resumes."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from echo.gather_plan import PlanStore
from echo.order import Order
from echo.readers import FORGET_EVERY, Reader
from echo.spec import EchoSpecError
from echo.stores import ArrayStore, ItemStore


class EchoPass:
    """One pass over an echoed stream. The order decides what to emit; this class reads the
    items, as the order's `echo.order.Intake`.

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
        self._lost: BaseException | None = None  # why the store lacks items that were read

    def next(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The next item, or batch, with the fresh items and the copy numbers that it contains, both
        int64 [n]; StopIteration at the end.

        After an error the next call tries again. If items were lost by it, or the parent cannot
        return to the item that failed, the error is raised until `set_state` has read them again.
        """
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # or it would get longer each time
        batch = next(self._batches, None) or self._take()
        index, copy, taken, dropped = batch
        try:
            item = self.store.emit(taken)
        except BaseException:
            self._batches = itertools.chain([batch], self._batches)
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
        """Moves the next fresh items to the store; see `echo.order.Intake`."""
        start, stored = self.num_read, len(self.store)
        chunk = self.reader.read(stop - start, seconds)
        if chunk is not None and len(chunk[0]):
            try:
                self._put(*chunk, self.order.copies(chunk[0]))
            except BaseException as error:
                if self.num_read - start > len(self.store) - stored:
                    self._lost = error
                raise
        if self.num_read // FORGET_EVERY > start // FORGET_EVERY:
            self.reader.forget_before(self.order.oldest)
        return self.num_read > start

    def get_state(self) -> dict[str, Any]:
        """The position of this pass: small, of fixed structure, valid in any process."""
        return {**self.order.get_state(), **self.reader.state(self.order.oldest)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: the state is of a stage with other settings, or over another kind of parent
                or too few items. This pass remains at its position.
        """
        before, order_before = self.get_state(), self.order
        check_fields(state, before)
        num_items = self.reader.checked(state)
        order = order_before.at(state, num_items)
        oldest = order.oldest()
        if state.get("next_index", 0) > oldest:
            raise EchoSpecError("next_index", state["next_index"], f"at most {oldest}")
        try:
            self._restore(state, order)
        except Exception:  # the parent has fewer items, or refuses its state
            self._restore(before, order_before)
            raise

    def _restore(self, state: dict[str, Any], order: Order) -> None:
        self.order, self._batches, self._lost = order, iter(()), None
        try:
            self.reader.rewind(state)
            self.store = self._new_store()
            pending = order.pending()
            for indices, items in self.reader.read_again(list(pending), order.admitted):
                copies = np.asarray([pending[index] for index in indices.tolist()])
                self._put(indices, items, copies)
        except BaseException as error:
            self._lost = error
            raise

    def _put(self, indices: np.ndarray, items: Any, copies: np.ndarray) -> None:
        if self.reader.stacked:
            assert not isinstance(self.store, ItemStore)  # which is for single items
            self.store.put_stacked(indices, items, copies)
        else:
            self.store.put(indices, items, copies)


def check_fields(state: Any, fields: Iterable[str]) -> None:
    """Checks that `state` has the fields of a stage's own state; ValueError if not."""
    if not isinstance(state, dict) or state.keys() != set(fields):
        actual = f"has type {type(state).__name__}"
        if isinstance(state, dict):
            actual = f"has the fields {sorted(map(str, state))}"
        raise ValueError(
            f"the state {actual}, one of this echo stage has the fields {sorted(fields)}; restore "
            "it into a pipeline equal to the one it is from"
        )
