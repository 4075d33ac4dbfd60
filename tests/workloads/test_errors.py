"""What a workload cannot do is refused by name, before anything is written."""

import pytest

from configs import cifar10, coco, common_crawl, imagenet, lm1b, vit
from runs import cli
from training.experiment import make_experiment


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (cifar10, "model.depth", 9),
        (cifar10, "model.depth", 2),
        (cifar10, "model.name", "vgg"),
        (cifar10, "workload", "resnet"),
        (cifar10, "dataset.name", "digits_jpeg"),
        (imagenet, "model.depth", 20),
        (imagenet, "model.stem", "vgg"),
        (imagenet, "dataset.canvas", 0),
        (imagenet, "augmentation.min_area", 1.5),
        (imagenet, "model.ghost_batch_size", 24),
        (imagenet, "loss.label_smoothing", 1.0),
        (imagenet, "workload", "cifar10"),
        (vit, "model.patch_size", 7),
        (vit, "model.heads", 7),
        (lm1b, "model.heads", 3),
        (lm1b, "dataset.text", ""),
        (common_crawl, "dataset.name", "digits"),
        (coco, "model.depth", 8),
        (coco, "dataset.canvas", 8),
        (coco, "dataset.name", "digits"),
        (coco, "target.metric", "map"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_workload_cannot_do_is_refused_by_name(config, field, value):
    def make():
        fields = config.get_config("mini")
        cli.set_field(fields, field, value)
        make_experiment(fields)

    with pytest.raises(cli.InputError, match=f"{value or field}|{field}"):
        make()
