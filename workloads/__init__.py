"""What a run is made of: decoding, augmentation, the network, its loss and its metrics."""

from workloads.base import Workload, WorkloadError
from workloads.detection import Detection
from workloads.images import ImageClassification
from workloads.photographs import PhotographClassification

NAMES = ("cifar10", "imagenet", "coco")


def make(config, info) -> Workload:
    """The workload that `config.workload` names, for a data set described by `info`.

    Raises:
        WorkloadError: no such workload, or a data set or model that does not suit it.
    """
    if config.workload == "cifar10":
        return ImageClassification.from_config(config, info)
    if config.workload == "imagenet":
        return PhotographClassification.from_config(config, info)
    if config.workload == "coco":
        return Detection.from_config(config, info)
    raise WorkloadError(f"config.workload is {config.workload!r}; allowed: {', '.join(NAMES)}")
