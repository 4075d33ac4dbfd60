"""Networks for images, chosen by the configuration."""

import pytest
from flax import nnx

from configs import imagenet, vit
from data.sources import DatasetInfo
from models.norm import GhostBatchNorm
from tests.helpers.networks import parameter_count
from tests.helpers.runs import mini
from training.check import check
from workloads.large_images import LargeImageClassification
from workloads.networks import cifar_resnet, imagenet_resnet


@pytest.mark.parametrize("classes", [1000, 50])
@pytest.mark.parametrize(("config", "published"), [(vit, 22_050_664), (imagenet, 25_557_032)])
def test_the_full_size_is_the_published_one_and_classes_follow_the_data_set(
    config, published, classes
):
    info = DatasetInfo("imagenet2012", "5.1.0", "", classes, None, 3)
    workload = LargeImageClassification.from_config(config.get_config(), info)
    head = {vit: 385, imagenet: 2049}[config]  # parameters of a class
    model = nnx.eval_shape(lambda: workload.model(nnx.Rngs(0)))
    assert parameter_count(model) == published - (1000 - classes) * head
    check(config.get_config())


@pytest.mark.parametrize(
    ("choose", "shape", "depth"),
    [(cifar_resnet, (8, 8, 1), 8), (imagenet_resnet, (64, 64, 3), 18)],
)
def test_a_resnet_normalizes_the_configured_groups_apart(choose, shape, depth):
    config = mini(model__depth=depth, model__width=4, model__ghost_batch_size=8)
    first, second = (choose(config, shape, 10) for _ in range(2))
    assert (first, hash(first)) == (second, hash(second))
    assert first != choose(config, shape, 11)
    model = nnx.eval_shape(lambda: first(nnx.Rngs(0)))
    norms = [node for _, node in nnx.iter_graph(model) if isinstance(node, GhostBatchNorm)]
    assert {norm.group_size for norm in norms} == {8}
