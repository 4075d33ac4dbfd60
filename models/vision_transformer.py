"""Vision Transformer for images of one size, by default ViT-S/16."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.norm import at_least_float32
from models.transformer import TransformerLayer

# At module level, so that equal networks have equal graph definitions. The exact gelu, as in the
# published networks; NNX approximates it by default.
GELU = functools.partial(nnx.gelu, approximate=False)
ZEROS = nnx.initializers.zeros
POSITIONS_INIT = nnx.initializers.normal(0.02)


class VisionTransformer(nnx.Module):
    """Classifies images by a Transformer over their patches (Dosovitskiy et al. 2021, section 3.1).

    Each patch is projected linearly, a class token is prepended, and learned position embeddings
    are added. Layers are bidirectional, with biases, pre-norm, and gelu; there is no dropout. A
    linear layer maps the normalized class token to the logits; it starts as zero, so that the
    initial loss is ln(num_classes).

    The default sizes are those of ViT-S/16 (Touvron et al. 2021, table 1, DeiT-S).

    Args:
        image_shape: (height, width, channels) of the images; the patch size divides both sides.
        num_classes: number K of logits.
        patch_size: rows and columns of a patch.
        num_layers: number of layers.
        model_dim: size D of the residual stream.
        num_heads: attention heads, a divisor of `model_dim`.
        mlp_dim: hidden size of the MLPs.
        dtype: dtype of the activations and products; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int] = (224, 224, 3),
        num_classes: int = 1000,
        patch_size: int = 16,
        num_layers: int = 12,
        model_dim: int = 384,
        num_heads: int = 6,
        mlp_dim: int = 1536,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        height, width, channels = image_shape
        self.dtype = dtype
        patch = (patch_size, patch_size)
        self.patches = nnx.Conv(
            channels, model_dim, patch, strides=patch, padding="VALID", dtype=dtype, rngs=rngs
        )
        positions = 1 + height // patch_size * (width // patch_size)
        self.class_token = nnx.Param(jnp.zeros(model_dim))
        self.positions = nnx.Param(POSITIONS_INIT(rngs.params(), (positions, model_dim)))
        sizes = (model_dim, num_heads, mlp_dim)
        common = {"activation": GELU, "causal": False, "use_bias": True}
        common |= {"dtype": dtype, "rngs": rngs}
        self.layers = nnx.List([TransformerLayer(*sizes, **common) for _ in range(num_layers)])
        self.final_norm = nnx.LayerNorm(model_dim, dtype=dtype, rngs=rngs)
        # float32 logits, which cost nothing at this size; bfloat16 would round them.
        self.head = nnx.Linear(model_dim, num_classes, kernel_init=ZEROS, rngs=rngs)

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        """Returns logits_BxK in float32; images are floating point. `train` changes nothing."""
        x_BxLxD = self.tokens(images_BxHxWxC)
        for layer in self.layers:
            x_BxLxD = layer(x_BxLxD)
        return self.head(at_least_float32(self.final_norm(x_BxLxD[:, 0])))

    def tokens(self, images_BxHxWxC: jax.Array) -> jax.Array:
        """Returns x_BxLxD, the input of the layers: the class token, then patches by rows."""
        patches_BxYxXxD = self.patches(images_BxHxWxC)
        batch, *_, model_dim = patches_BxYxXxD.shape
        class_Bx1xD = jnp.broadcast_to(self.class_token[...], (batch, 1, model_dim))
        patches_BxPxD = patches_BxYxXxD.reshape(batch, -1, model_dim)
        x_BxLxD = jnp.concatenate([class_Bx1xD, patches_BxPxD], axis=1) + self.positions[...]
        return x_BxLxD.astype(self.dtype)
