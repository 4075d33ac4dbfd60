"""Tests of the detector: feature maps, number and order of the boxes, agreement with ResNet-34."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.resnet import ImageNetResNet
from models.ssd import SSD, box_shapes, default_boxes, feature_map_sizes
from tests.helpers.networks import abstract, parameter_count


def output_shapes(image_size, **arguments):
    model = abstract(SSD, image_size=image_size, **arguments)
    images = jax.ShapeDtypeStruct((2, image_size, image_size, 3), jnp.float32)

    def maps_and_outputs(model, images):
        return model.feature_maps(images, train=True), model(images, train=False)

    return nnx.eval_shape(maps_and_outputs, model, images)


def test_feature_maps_and_outputs_at_300_pixels():
    maps, (offsets, logits) = output_shapes(300, num_classes=80, ghost_batch_size=1)
    expected = [(38, 256), (19, 512), (10, 512), (5, 256), (3, 256), (1, 256)]
    assert [x.shape for x in maps] == [(2, size, size, channels) for size, channels in expected]
    assert (offsets.shape, logits.shape) == ((2, 8732, 4), (2, 8732, 81))


@pytest.mark.long
@pytest.mark.parametrize("image_size", [32, 64, 96, 160, 250, 300, 321, 512])
def test_maps_outputs_and_boxes_agree_at_every_image_size(image_size):
    maps, (offsets, logits) = output_shapes(image_size, num_classes=3, width=4)
    assert [x.shape[1] for x in maps] == feature_map_sizes(image_size)
    number = len(default_boxes(image_size))
    assert (offsets.shape, logits.shape) == ((2, number, 4), (2, number, 4))


def test_outputs_and_boxes_have_the_same_order():
    """Heads that copy the cell's center and add the box's shape must reproduce the boxes."""
    image_size = 64  # every map but the coarsest divides the image, so centers are (i + 1/2) / size
    model = nnx.merge(*nnx.split(abstract(SSD, num_classes=2, image_size=image_size, width=1)))
    maps = []
    for index, (head, size) in enumerate(
        zip(model.box_heads, feature_map_sizes(image_size), strict=True)
    ):
        centers = (np.arange(size) + 0.5) / size
        x_HxWxC = np.zeros((size, size, head.kernel.shape[2]), np.float32)
        x_HxWxC[..., 0], x_HxWxC[..., 1] = np.meshgrid(centers, centers, indexing="xy")
        maps.append(jnp.asarray(x_HxWxC[None]))
        shapes_Ax4 = np.pad(np.array(box_shapes(index), np.float32), ((0, 0), (2, 0)))
        kernel = np.zeros(head.kernel.shape, np.float32)
        kernel[1, 1, 0, 0::4] = kernel[1, 1, 1, 1::4] = 1
        head.kernel = nnx.Param(jnp.asarray(kernel))
        head.bias = nnx.Param(jnp.asarray(shapes_Ax4.reshape(-1)))
    for head in model.class_heads:
        head.kernel = nnx.Param(jnp.zeros(head.kernel.shape))
        head.bias = nnx.Param(jnp.arange(head.bias.shape[0], dtype=jnp.float32))
    offsets_1xNx4, logits_1xNx3 = model.predict(maps)
    expected = default_boxes(image_size)
    np.testing.assert_allclose(np.clip(offsets_1xNx4[0], 0, 1), expected, atol=1e-6)
    # The classes of box a of a cell are channels 3a, 3a + 1 and 3a + 2.
    np.testing.assert_array_equal(logits_1xNx3[0, :5, 0], [0, 3, 6, 9, 0])
    np.testing.assert_array_equal(logits_1xNx3[0, :, 2] - logits_1xNx3[0, :, 0], 2)


def test_default_boxes_at_300_pixels():
    boxes = default_boxes(300)
    assert (boxes.shape, boxes.dtype) == ((8732, 4), np.float32)
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    # First cell of the first map, by hand: stride 8, sides 21 and 45 pixels, ratio 2.
    sides = [(21, 21), (945**0.5, 945**0.5), (21 * 2**0.5, 21 / 2**0.5), (21 / 2**0.5, 21 * 2**0.5)]
    expected = [(4 / 300, 4 / 300, w / 300, h / 300) for w, h in sides]
    np.testing.assert_allclose(boxes[:4], expected, rtol=1e-6)
    np.testing.assert_allclose(boxes[4, :2], [12 / 300, 4 / 300], rtol=1e-6)
    # The last map has one cell, whose boxes lie around the image's center.
    np.testing.assert_allclose(boxes[-4:, :2], 0.5)
    np.testing.assert_allclose(boxes[-4, 2:], 261 / 300)
    np.testing.assert_array_equal(boxes[-2], np.float32([0.5, 0.5, 1, 261 / 300 / 2**0.5]))


def test_number_of_parameters():
    extras = [(256, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256)]
    count = sum((a + 1) * b + (9 * b + 1) * c for a, b, c in extras)
    heads = zip([256, 512, 512, 256, 256, 256], [4, 6, 6, 6, 4, 4], strict=True)
    count += sum((9 * channels + 1) * boxes * (4 + 81) for channels, boxes in heads)
    model = abstract(SSD, num_classes=80)
    assert parameter_count(model) == parameter_count(model.backbone) + count


def test_backbone_takes_the_weights_of_the_classifier():
    networks = abstract(ImageNetResNet, depth=34), abstract(SSD, num_classes=80)
    theirs, ours = (
        {path: v.shape for path, v in nnx.to_flat_state(nnx.state(network.backbone))}
        for network in networks
    )
    assert ours == {path: shape for path, shape in theirs.items() if path[:2] != ("stages", 3)}
