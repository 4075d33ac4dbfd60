"""The tasks: each defines decoding, augmentation, the network, its loss, and its metrics."""

from typing import Any

import ml_collections

from workloads.detection.task import Detection
from workloads.interface import Workload, WorkloadError
from workloads.language import LanguageModel
from workloads.large_images import LargeImageClassification
from workloads.small_images import SmallImageClassification

# Add a workload here; docs/workloads.md describes what it needs.
CLASSES = {
    "cifar10": SmallImageClassification,
    "imagenet": LargeImageClassification,
    "lm1b": LanguageModel,
    "common_crawl": LanguageModel,
    "coco": Detection,
}


def make(config: ml_collections.ConfigDict, info: Any) -> Workload:
    """The workload that `config.workload` names, for a data set described by `info`.

    Raises:
        WorkloadError: there is no such workload, or it does not support the data set or the model.
    """
    if config.workload not in CLASSES:
        allowed = ", ".join(CLASSES)
        raise WorkloadError(f"config.workload is {config.workload!r}; allowed: {allowed}")
    return CLASSES[config.workload].from_config(config, info)
