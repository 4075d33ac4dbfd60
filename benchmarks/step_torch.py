"""The PyTorch side of benchmarks/step.py: ResNets and a Transformer of equal sizes."""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from ml_collections import ConfigDict
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def prepare(
    config: ConfigDict, info: Any, batch: dict[str, np.ndarray]
) -> tuple[Any, Any, float | None]:
    """(step, wait, gigabytes of device memory or None on a CPU)."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True  # all shapes are constant; XLA tunes convolutions, too
    torch.manual_seed(0)
    network = make(config, info).to(device)
    loss_of = next_token_loss if config.dataset.text else image_loss
    if not config.dataset.text:
        network = network.to(memory_format=torch.channels_last)
    run = torch.compile(network) if device.type == "cuda" else network
    arrays = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=1e-3,
        momentum=0.9,
        nesterov=True,
        weight_decay=config.optimizer.weight_decay,
    )
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            loss = loss_of(run, arrays)
        loss.backward()
        optimizer.step()

    if device.type != "cuda":
        return step, lambda: None, None
    step()  # compiles, and tries algorithms, whose memory does not count
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return step, torch.cuda.synchronize, torch.cuda.max_memory_allocated() / 1e9


def image_loss(network, arrays):
    images_BxCxHxW = arrays["image"].permute(0, 3, 1, 2)  # a view: memory stays channels last
    return F.cross_entropy(network((images_BxCxHxW.float() - 127.5) / 64), arrays["label"].long())


def next_token_loss(network, arrays):
    tokens_BxT = arrays["tokens"].long()
    logits_BxLxV = network(tokens_BxT[:, :-1])
    return F.cross_entropy(logits_BxLxV.flatten(0, 1), tokens_BxT[:, 1:].flatten())


def make(config: ConfigDict, info: Any) -> nn.Module:
    model = config.model
    if config.dataset.text:
        return Transformer(info.vocabulary_size, config.dataset.sequence_length, model)
    channels = info.image_shape[-1] if config.workload == "cifar10" else info.channels
    if config.workload == "cifar10":
        blocks, stem = ((model.depth - 2) // 6,) * 3, "cifar"
    else:
        blocks, stem = BLOCKS[model.depth], model.stem
    return resnet(channels, model.width, blocks, stem, model.depth == 50, info.num_classes)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """A basic block, or a bottleneck with the stride in its 3x3 convolution."""

    def __init__(self, inputs: int, features: int, stride: int, bottleneck: bool):
        super().__init__()
        self.outputs = features * (4 if bottleneck else 1)
        if bottleneck:
            sizes = [(inputs, features, 1), (features, features, 3, stride)]
            sizes += [(features, self.outputs, 1)]
        else:
            sizes = [(inputs, features, 3, stride), (features, features, 3)]
        self.convs = nn.ModuleList(conv_norm(*size) for size in sizes)
        same = stride == 1 and inputs == self.outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, self.outputs, 1, stride)

    def forward(self, x_BxCxHxW):
        y_BxCxHxW = x_BxCxHxW
        for conv in self.convs[:-1]:
            y_BxCxHxW = F.relu(conv(y_BxCxHxW))
        return F.relu(self.convs[-1](y_BxCxHxW) + self.shortcut(x_BxCxHxW))


def resnet(channels, width, blocks_per_stage, stem, bottleneck, classes) -> nn.Sequential:
    layers = [conv_norm(channels, width, *((7, 2) if stem == "imagenet" else (3, 1))), nn.ReLU()]
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage, blocks in enumerate(blocks_per_stage):
        for number in range(blocks):
            stride = 2 if stage and number == 0 else 1
            layers.append(Block(inputs, width * 2**stage, stride, bottleneck))
            inputs = layers[-1].outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Layer(nn.Module):
    """A pre-norm Transformer layer: causal attention and an MLP."""

    def __init__(self, dim: int, heads: int, mlp_dim: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, dim))

    def forward(self, x_BxLxD):
        rows, length, dim = x_BxLxD.shape
        qkv = self.qkv(self.norms[0](x_BxLxD)).view(rows, length, 3, self.heads, -1)
        q_BxNxLxH, k_BxNxLxH, v_BxNxLxH = qkv.permute(2, 0, 3, 1, 4)
        y_BxNxLxH = F.scaled_dot_product_attention(q_BxNxLxH, k_BxNxLxH, v_BxNxLxH, is_causal=True)
        x_BxLxD = x_BxLxD + self.out(y_BxNxLxH.transpose(1, 2).reshape(rows, length, dim))
        return x_BxLxD + self.mlp(self.norms[1](x_BxLxD))


class Transformer(nn.Module):
    """A decoder-only Transformer that shares its embedding with the output layer."""

    def __init__(self, vocabulary_size: int, length: int, sizes):
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, sizes.dim)
        nn.init.normal_(self.embed.weight, std=sizes.dim**-0.5)
        self.register_buffer("positions_LxD", torch.randn(length, sizes.dim))
        self.layers = nn.ModuleList(
            Layer(sizes.dim, sizes.heads, sizes.mlp_dim) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.dim)

    def forward(self, tokens_BxL):
        x_BxLxD = self.embed(tokens_BxL) * self.embed.embedding_dim**0.5 + self.positions_LxD
        for layer in self.layers:
            x_BxLxD = layer(x_BxLxD)
        return F.linear(self.norm(x_BxLxD), self.embed.weight)
