"""What `advise` is given, as stages to call and a step that changes only a copy."""

import copy
import itertools
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from echo import spec
from echo.iterables import EchoIterable
from echo.spec import EchoSpecError
from echo.stores import Structure

BATCH = "batch"  # the stage that takes a list of items
_MAX_INDICES = 10_000

Stage = tuple[str, Callable[[Any], Any]]


class Input(NamedTuple):
    """Where the batches of a step come from, `batch_size` examples each.

    Attributes:
        stages: (name, function) pairs in order.
        examples_per_call: examples in one call of the stages before batching; 0 = whole batches.
        insertions: name of an insertion point -> the stage before it; None for all up to batching.
        workers: of the loader, or None.
        max_workers: that it may have, no fewer; 0 = any number.
        processes: whether workers are processes instead of threads.
        hint: what the measurement assumed about it, or ''.
    """

    stages: list[Stage]
    batch_size: int
    examples_per_call: int = 1
    insertions: Mapping[str, str] | None = None
    workers: int | None = None
    max_workers: int = 0
    processes: bool = False
    hint: str = ""


def opened(given: Any, batch_size: int) -> Input:
    """The input that a user gave, and its batch size if `batch_size` is 0; EchoSpecError if it is
    none, or its batches have another size."""
    is_stages = isinstance(given, list | tuple) and bool(given)
    for item in given if is_stages else ():  # a list of batches may contain tuples, too
        is_stages &= isinstance(item, list | tuple) and len(item) == 2 and callable(item[1])
    data: Any = sys.modules.get("torch.utils.data")
    is_data = bool(data) and isinstance(given, data.Dataset) and not isinstance(given, EchoIterable)
    size = spec.checked_integer("batch_size", batch_size, +(is_stages or is_data), spec.MAX_BATCH)
    if is_stages:
        names = [name for name, _ in given]
        if len(set(names)) < len(names):
            raise EchoSpecError("stages", names, "a different name for each")
        return Input(list(given), size, int(BATCH in names))
    hint = ""
    if is_data:
        given = data.DataLoader(given, size)
        hint = f"A data set was given: this is for DataLoader(dataset, {size}), without workers."
    own = getattr(given, "batch_size", None)
    if size and own not in (None, size):
        raise EchoSpecError("batch_size", size, f"that of the loader, {own}")
    workers = getattr(given, "num_workers", None)
    if data and isinstance(given, data.DataLoader) and (stages := loader_stages(given)):
        return Input(stages, int(own or 0), workers=workers, processes=True, hint=hint)
    if isinstance(given, Iterator):
        hint = "An iterator was given: the batches that were measured are gone from it."
    batches = _without_end(given)
    first = next(batches)
    if not (size := size or own):
        shape = np.shape(Structure(first).leaves(first)[0])
        size = spec.checked_integer("batch_size", shape[0] if shape else 0, 1, spec.MAX_BATCH)
    batches = itertools.chain([first], batches)
    stages, after = [("input", lambda _: next(batches))], {"after batching": "input"}
    return Input(stages, size, 0, after, int(workers != 0), 1, hint=hint)


def loader_stages(loader: Any) -> list[Stage] | None:
    """The stages of a PyTorch DataLoader over a data set that reads single examples by the indices
    of its sampler; None for others, as of a data set that reads batches (`__getitems__`), and if
    there are none."""
    data: Any = sys.modules["torch.utils.data"]
    dataset = whole = loader.dataset
    while isinstance(whole, data.Subset):
        whole = whole.dataset
    is_iterable = isinstance(dataset, data.IterableDataset)
    if is_iterable or hasattr(whole, "__getitems__") or loader.batch_size is None:
        return None
    indices = list(itertools.islice(loader.sampler, _MAX_INDICES))
    read = ("read", lambda call: dataset[indices[call % len(indices)]])
    return [read, (BATCH, loader.collate_fn)] if indices else None


def on_a_copy(step_fn: Callable[[Any, Any], Any], model: Any) -> Callable[[Any], Any]:
    """`step_fn(model, batch)` as a function of the batch, on a deep copy of `model`.

    Where the model is a pytree with JAX arrays, the next step gets the one that the step returned,
    alone or first in a tuple, since the step may have donated the other.
    """
    state = copy.deepcopy(model)
    jax: Any = sys.modules.get("jax")

    def form(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        # A count of steps may be a number first, and an array of JAX from the first step on.
        kinds = jax.Array, numbers.Number
        return structure, [np.shape(x) if isinstance(x, kinds) else id(x) for x in leaves]

    def step(batch: Any) -> Any:
        nonlocal state
        result = step_fn(state, batch)
        if jax:
            first = result[0] if isinstance(result, tuple) and result else None
            state = next((new for new in (result, first) if form(new) == form(state)), state)
        return result

    return step


def _without_end(iterable: Any) -> Iterator[Any]:
    """The items of an iterable, repeated from its start."""
    if isinstance(iterable, Mapping | str) or not isinstance(iterable, Iterable):
        allowed = "a list of (name, function) pairs, or an iterable of batches"
        raise EchoSpecError("stages", iterable, allowed)
    while True:
        count = 0
        for batch in iterable:
            count += 1
            yield batch
        if not count:
            raise EchoSpecError("stages", iterable, "what can be iterated over again and again")
