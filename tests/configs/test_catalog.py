"""The studies that configs/catalog.py generates, for every workload and its mini."""

import numpy as np
import pytest

import echo
from configs import cifar10, coco, common_crawl, imagenet, lm1b, vit


@pytest.mark.parametrize("variant", ["", "mini"])
@pytest.mark.parametrize("workload", [cifar10, coco, common_crawl, imagenet, lm1b, vit])
def test_every_buffer_of_figure_8_shuffles(workload, variant):
    """One slot does not: each item leaves before the next one enters."""
    for name, condition in workload.get_studies(variant)["shuffle"]["conditions"].items():
        copies = [
            np.stack(echo.EchoSchedule(2, slots, seed=0).cursor(0, 100).take(200)).tolist()
            for slots in (0, condition["echo.shuffle_buffer"])
        ]
        shuffles = name != "baseline" and not name.endswith("_buffer_0")
        assert (copies[0] != copies[1]) == shuffles, name
