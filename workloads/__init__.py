"""The tasks: each defines decoding, augmentation, the network, its loss, and its metrics."""

import pkgutil
from typing import Any

import ml_collections

from workloads.interface import Workload, WorkloadError

# Add a workload here; docs/workloads.md describes what it needs. An entry is a class, or the name
# of one, which a run of another workload does not import.
CLASSES: dict[str, str | type[Workload]] = {
    "cifar10": "workloads.classification:SmallImageClassification",
    "imagenet": "workloads.large_images:LargeImageClassification",
    "lm1b": "workloads.language:LanguageModel",
    "common_crawl": "workloads.language:LanguageModel",
    "coco": "workloads.detection.task:Detection",
}


def make(config: ml_collections.ConfigDict, info: Any) -> Workload:
    """The workload that `config.workload` names, for a data set described by `info`.

    Raises:
        WorkloadError: there is no such workload, or it does not support the data set or the model.
    """
    if config.workload not in CLASSES:
        allowed = f"{', '.join(CLASSES)}, or one that a file given by --config adds"
        raise WorkloadError(f"config.workload is {config.workload!r}; allowed: {allowed}")
    entry: Any = CLASSES[config.workload]
    workload = pkgutil.resolve_name(entry) if isinstance(entry, str) else entry
    return workload.from_config(config, info)
