"""The stages of a PyTorch DataLoader: examples, their transform, and batching."""

import copy
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from echo.spec import abbreviated

_NOT_INITIALIZED = (
    "The stages of a DataLoader run in this process, where worker_init_fn is not called: if it "
    "opens the data set, give (batch for _ in itertools.count() for batch in loader), which "
    "starts the loader's workers."
)

# Indices of examples to read, in the order of a loader's sampler, which may have no end.
_MAX_INDICES = 10_000


class LoaderStages(NamedTuple):
    """What `echo.advise` measures of a loader, and the loader's number of workers."""

    stages: list[tuple[str, Callable[[Any], Any]]]
    workers: int


def loader_stages(loader: Any) -> LoaderStages | None:
    """The stages of a DataLoader over a data set that reads single examples by the indices of its
    sampler, otherwise None, as for one of Hugging Face, which reads a batch at once
    (`__getitems__`).

    The `transform` of a data set becomes a stage of its own if the data set applies it to the first
    element of its (image, label) pairs, as those of torchvision do.

    Raises:
        ValueError: the data set is empty.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(loader, torch_data.DataLoader):
        return None
    if isinstance(loader.dataset, torch_data.IterableDataset) or not loader.batch_size:
        return None
    whole = loader.dataset
    while isinstance(whole, torch_data.Subset):
        whole = whole.dataset
    if callable(getattr(whole, "__getitems__", None)):
        return None  # it reads batches, in much less time than their examples one by one
    dataset, indices = loader.dataset, list(itertools.islice(loader.sampler, _MAX_INDICES))
    if not indices:
        raise ValueError("stages is a DataLoader over a data set without examples; give some")
    stages: list[tuple[str, Callable[[Any], Any]]] = [("batch", loader.collate_fn)]
    has_init = loader.worker_init_fn is not None
    try:
        untransformed = _without_transform(dataset, indices[0])
    except Exception:  # it does not transform an image alone; or it is damaged, and `read` fails
        untransformed = None
    if untransformed is not None:
        transform = dataset.transform
        stages.insert(0, ("transform", lambda pair: (transform(pair[0]), *pair[1:])))
        dataset = untransformed

    def read(call: int) -> Any:
        index = indices[call % len(indices)]
        try:
            return dataset[index]
        except Exception as error:
            _explain(error, index, has_init)
            raise

    stages.insert(0, ("read", read))
    return LoaderStages(stages, loader.num_workers)


def reads_in_turn(loader: Any) -> bool:
    """Whether it is a DataLoader without workers, which reads a batch when the step asks for it."""
    return _is_loader(loader) and not loader.num_workers


def _explain(error: Exception, index: Any, has_init: bool) -> None:
    """Notes which example of the data set could not be read, and what its workers may lack."""
    error.add_note(f"Raised for the example of index {abbreviated(index)} of the data set")
    if has_init:
        error.add_note(_NOT_INITIALIZED)


def declared_batch_size(loader: Any) -> int | None:
    """The batch size of a DataLoader that makes batches of its own, otherwise None."""
    return loader.batch_size if _is_loader(loader) else None


def _is_loader(loader: Any) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(loader, torch_data.DataLoader)


def _without_transform(dataset: Any, index: Any) -> Any:
    """A copy of `dataset` that leaves images as they are before its transform; None if it has none
    or uses it in another way for the example at `index`, which may raise."""
    if not callable(getattr(dataset, "transform", None)):
        return None
    seen = []
    probe, untransformed = copy.copy(dataset), copy.copy(dataset)
    probe.transform = lambda image: seen.append(image) or image
    untransformed.transform = lambda image: image
    pair = probe[index]
    is_first = isinstance(pair, tuple) and len(seen) == 1 and pair[0] is seen[0]
    return untransformed if is_first else None
