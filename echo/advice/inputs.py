"""What `advise` is given, as stages to call and a step that changes only a copy."""

import contextlib
import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from echo import spec
from echo.iterables import EchoIterable
from echo.spec import EchoSpecError
from echo.stores import Structure

BATCH = "batch"  # the stage that takes a list of items
_MAX_INDICES = 10_000

Stage = tuple[str, Callable[[Any], Any]]


@dataclasses.dataclass(frozen=True)
class Input:
    """Where the batches of a step come from.

    Attributes:
        stages: (name, function) pairs in order.
        batch_size: examples per batch.
        is_whole: whether the only stage yields batches, which cannot be taken apart.
        workers: `num_workers` of a DataLoader, or None.
        hint: what the measurement assumed about it, or ''.
    """

    stages: list[Stage]
    batch_size: int
    is_whole: bool = False
    workers: int | None = None
    hint: str = ""


def opened(given: Any, batch_size: int) -> Input:
    """The input that a user gave; `batch_size` is 0 if it is to be taken from it.

    Raises:
        EchoSpecError: it is none, or its batches have another size.
    """
    is_stages = isinstance(given, list | tuple) and bool(given) and all(map(_is_stage, given))
    data: Any = sys.modules.get("torch.utils.data")
    is_data = data and isinstance(given, data.Dataset) and not isinstance(given, EchoIterable)
    size = spec.checked_integer(
        "batch_size", batch_size, int(bool(is_stages or is_data)), spec.MAX_BATCH
    )
    if is_stages:
        return Input(list(given), size)
    hint = ""
    if is_data:
        given = data.DataLoader(given, size)
        hint = f"A data set was given: this is for DataLoader(dataset, {size}), without workers."
    own = getattr(given, "batch_size", None)
    if size and own not in (None, size):
        raise EchoSpecError("batch_size", size, f"that of the loader, {own}")
    workers = getattr(given, "num_workers", None)
    if data and isinstance(given, data.DataLoader) and (stages := loader_stages(given)):
        return Input(stages, int(own or 0), False, workers, hint)
    if isinstance(given, Iterator):
        hint = "An iterator was given: the batches that were measured are gone from it."
    batches = _without_end(given)
    first = next(batches)
    if not (size := size or own):
        shape = np.shape(Structure(first).leaves(first)[0])
        size = spec.checked_integer("batch_size", shape[0] if shape else 0, 1, spec.MAX_BATCH)
    batches = itertools.chain([first], batches)
    return Input([("input", lambda _: next(batches))], size, True, workers, hint)


def loader_stages(loader: Any) -> list[Stage] | None:
    """The stages of a PyTorch DataLoader over a data set that reads single examples by the indices
    of its sampler; None for others, as of a data set that reads batches (`__getitems__`).

    The `transform` of a data set becomes a stage of its own if the data set applies it to the first
    element of its (image, label) pairs, as those of torchvision do.
    """
    data: Any = sys.modules["torch.utils.data"]
    dataset = whole = loader.dataset
    while isinstance(whole, data.Subset):
        whole = whole.dataset
    is_iterable = isinstance(dataset, data.IterableDataset)
    if is_iterable or hasattr(whole, "__getitems__") or loader.batch_size is None:
        return None
    indices = list(itertools.islice(loader.sampler, _MAX_INDICES))
    if not indices:
        raise ValueError("stages is a DataLoader over a data set without examples; give some")
    changes: list[Stage] = []
    if callable(transform := getattr(dataset, "transform", None)):
        seen, untransformed = [], copy.copy(dataset)
        untransformed.transform = lambda image: seen.append(image) or image
        with contextlib.suppress(Exception):  # a damaged example fails where it is read
            pair = untransformed[indices[0]]
            if isinstance(pair, tuple) and len(seen) == 1 and pair[0] is seen[0]:
                changes = [("transform", lambda pair: (transform(pair[0]), *pair[1:]))]
                dataset = untransformed
        untransformed.transform = lambda image: image
    read = ("read", lambda call: dataset[indices[call % len(indices)]])
    return [read, *changes, (BATCH, loader.collate_fn)]


def on_a_copy(step_fn: Callable[[Any, Any], Any], model: Any) -> Callable[[Any], Any]:
    """`step_fn(model, batch)` as a function of the batch, on a deep copy of `model`.

    Where the model is a pytree of JAX arrays, the next step gets the one that the step returned,
    alone or first in a tuple, since the step may have donated the other.
    """
    state = copy.deepcopy(model)

    def step(batch: Any) -> Any:
        nonlocal state
        result = step_fn(state, batch)
        for new in (result, *(result[:1] if isinstance(result, tuple) else ())):
            if (shape := _shape(state)) is not None and _shape(new) == shape:
                state = new
                break
        return result

    return step


def _shape(tree: Any) -> Any:
    """The structure of a pytree of JAX arrays, and their shapes; None for all else."""
    jax: Any = sys.modules.get("jax")
    leaves, structure = jax.tree.flatten(tree) if jax else ([], None)
    if not leaves or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return None
    return structure, [leaf.shape for leaf in leaves]


def _is_stage(pair: Any) -> bool:
    """Whether this is a (name, function) pair; a list of batches may contain tuples, too."""
    return isinstance(pair, list | tuple) and len(pair) == 2 and callable(pair[1])


def _without_end(iterable: Any) -> Iterator[Any]:
    """The items of an iterable, repeated from its start."""
    if isinstance(iterable, Mapping | str) or not isinstance(iterable, Iterable):
        allowed = "a list of (name, function) pairs, or an iterable of batches"
        raise EchoSpecError("stages", iterable, allowed)
    count, previous = 0, -1
    while count > previous:
        previous = count
        for batch in iterable:
            count += 1
            yield batch
    raise EchoSpecError("stages", iterable, f"a list or a loader; it ended after {count} batches")
