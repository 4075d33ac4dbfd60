"""What a run is made of: decoding, augmentation, the network, its loss and its metrics."""

from workloads.detection.task import Detection
from workloads.interface import Workload, WorkloadError
from workloads.language import LanguageModel
from workloads.large_images import LargeImageClassification
from workloads.small_images import SmallImageClassification

# A workload of one's own is added here; docs/workloads.md says what it needs.
CLASSES = {
    "cifar10": SmallImageClassification,
    "imagenet": LargeImageClassification,
    "lm1b": LanguageModel,
    "common_crawl": LanguageModel,
    "coco": Detection,
}


def make(config, info) -> Workload:
    """The workload that `config.workload` names, for a data set described by `info`.

    Raises:
        WorkloadError: no such workload, or a data set or model that does not suit it.
    """
    if config.workload not in CLASSES:
        allowed = ", ".join(CLASSES)
        raise WorkloadError(f"config.workload is {config.workload!r}; allowed: {allowed}")
    return CLASSES[config.workload].from_config(config, info)
