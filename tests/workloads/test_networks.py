"""Networks for images, chosen by the configuration."""

import pytest
from flax import nnx

from configs import vit
from data.sources import DatasetInfo
from models.norm import GhostBatchNorm
from models.vision_transformer import VisionTransformer
from tests.helpers.networks import parameter_count
from tests.helpers.runs import mini
from workloads.large_images import LargeImageClassification
from workloads.networks import Network, cifar_resnet, imagenet_resnet


def test_the_full_size_is_vit_s16_and_classes_follow_the_data_set():
    info = DatasetInfo("imagenet2012", "5.1.0", "", 50, None, 3)
    workload = LargeImageClassification.from_config(vit.get_config(), info)
    model = nnx.eval_shape(lambda: workload.model(nnx.Rngs(0)))
    assert parameter_count(model) == 22_050_664 - 950 * 385  # published for 1,000 classes


def test_a_network_is_hashable_and_equal_by_its_arguments():
    first, second, other = (Network.of(VisionTransformer, num_layers=n) for n in (1, 1, 2))
    assert (first, hash(first)) == (second, hash(second))
    assert first != other


@pytest.mark.parametrize(
    ("choose", "shape", "depth"),
    [(cifar_resnet, (8, 8, 1), 8), (imagenet_resnet, (64, 64, 3), 18)],
)
def test_a_resnet_normalizes_the_configured_groups_apart(choose, shape, depth):
    config = mini(model__depth=depth, model__width=4, model__ghost_batch_size=8)
    model = nnx.eval_shape(lambda: choose(config, shape, 10)(nnx.Rngs(0)))
    norms = [node for _, node in nnx.iter_graph(model) if isinstance(node, GhostBatchNorm)]
    assert {norm.group_size for norm in norms} == {8}
